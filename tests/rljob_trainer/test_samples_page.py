"""The page of `rljob samples --html`: whole in itself, and safe whatever a model wrote."""

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.cli.samples import samples
from rljob_trainer.progress.samples_page import samples_page
from rljob_trainer.volume import Volume, write_json

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- @DATA@ @SCRIPT@ \u2028 ]]>"


def row_of(step: int = 2, reward: float = 1.0, text: str = HOSTILE) -> dict[str, Any]:
    parts = [
        {"who": "prompt", "text": text, "tokens": 3, "inLoss": 0},
        {"who": "policy", "text": text, "tokens": 2, "inLoss": 2, "reward": 0.5},
    ]
    episode = {"sample": 0, "status": "finished", "reason": "", "counts": {"turns": 1.0}, "trajectories": [parts]}
    return {"step": step, "task": "validation/0/0", "reward": reward, "episode": episode}


class Page(HTMLParser):
    """tags: names and attributes. scripts: type and text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[list[str]] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append([dict(attrs).get("type") or "", ""])

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1][1] += data


def test_the_page_runs_its_own_script_only_and_loads_nothing():
    page = Page(samples_page(HOSTILE, [row_of(), row_of(reward=float("nan"))]))
    (data_type, data), (script_type, script) = page.scripts
    assert (data_type, script_type) == ("application/json", "")
    read = json.loads(data)
    assert read["run"] == HOSTILE
    assert [row["reward"] for row in read["rows"]] == [1.0, None]
    assert read["rows"][0]["episode"] == row_of()["episode"], "all text is there, as data"
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "action"}
    assert not [name for name in names if name.startswith("on")]
    assert "img" not in {tag for tag, _ in page.tags}
    (policy,) = (each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_the_command_writes_the_page_of_all_steps(tmp_path, capsys):
    volume = Volume(tmp_path)
    write_json(volume.claim(1), {"attempt": 1})
    volume.samples(1).parent.mkdir(parents=True)
    volume.samples(1).write_text("".join(json.dumps(row_of(step)) + "\n" for step in (2, 4)))
    samples(tmp_path, html=tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert [row["step"] for row in json.loads(page.scripts[0][1])["rows"]] == [2, 4]
    assert capsys.readouterr().out == f"{tmp_path}/page.html: 2 episodes\n"
    write_json(volume.job, {"name": "gsm8k"})
    samples(tmp_path, html=Path("-"))
    assert json.loads(Page(capsys.readouterr().out).scripts[0][1])["run"] == "gsm8k", "not the folder's name"


@pytest.mark.parametrize("name", ["html", "js"])
def test_what_the_page_is_made_of_is_installed_with_the_package(name):
    from importlib.resources import files

    assert files("rljob_trainer.progress").joinpath(f"samples_page.{name}").is_file()
