"""Runs on preferences, as the guide writes them; one that is stopped and continued repeats one that is not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_trainer.progress import names
from tests.rljob_trainer.run_support import exit_record, machine, trained, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GUIDE = (Path(__file__).parents[2] / "docs/training.md").read_text()
SECTION = GUIDE.partition("\n## Preferences\n")[2].partition("\n## ")[0]
OFFLINE, ONLINE, SPIN = re.findall(r"(?s)```yaml\n(.*?)```", SECTION)
TIMES = ("time", "idle/", "throughput/", "recovery/", "sync/", "disk", "memory")


WORDS = [f"{a}{b}c" for a in "abcd" for b in "bcde"]


def row(word: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": word}], "chosen": word[::-1], "rejected": word}


def job(folder: Path, snippet: str) -> Path:
    blocks: dict[str, Any] = {"checkpoint": {"everySteps": 2}, **yaml.safe_load(snippet)}
    if blocks["algorithm"]["preset"] == "dpo":
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row(word)) + "\n" for word in WORDS))
        blocks |= {"rollout": None, "rewards": None}
    if blocks["algorithm"]["preset"] == "spin":
        blocks |= {"rewards": None, "sft": {"steps": 1}, "actor": {"learningRate": 1e-2}}
    blocks["actor"] |= {"recompute": "none"}
    blocks["data"] = {"maxPromptTokens": 32, "maxResponseTokens": 8, "promptsPerStep": 4} | blocks.get("data", {})
    return write_job(folder, **blocks)


@pytest.mark.parametrize("snippet", [OFFLINE, ONLINE, SPIN], ids=["offline", "online", "spin"])
def test_a_run_on_preferences_learns_and_continues_bit_for_bit(snippet: str, tmp_path: Path):
    path = job(tmp_path, snippet)
    with machine() as place:
        for run, lengths in (("whole", (4,)), ("parts", (2, 4))):
            for steps in lengths:
                ended = place.rljob("run", path, "--dir", tmp_path / run, "--set", f"training.steps={steps}")
                assert ended.code == 0, ended.out
    sft = 1 if snippet == SPIN else 0
    assert exit_record(tmp_path / "parts", 2)["code"] == 0
    whole, parts = ([line for line in trained(tmp_path / run) if line["step"] > sft] for run in ("whole", "parts"))
    assert [_numbers(line) for line in whole] == [_numbers(line) for line in parts]
    assert {line["stage"] for line in whole} == {"dpo" if snippet == OFFLINE else "rl"}
    assert all(line[names.ACTOR_GRAD_NORM] > 0 for line in whole)
    assert whole[0]["rewards/margins"] == pytest.approx(0, abs=1e-6), "the reference is the first policy"
    if snippet != SPIN:  # its pairs are new in each step, and four of a random policy tell nothing
        assert whole[-1]["rewards/margins"] > 0
    if snippet == SPIN:
        assert all(line[names.GROUPS_PAIRS] == 4 for line in whole)
        assert not any(name.startswith("reward/") for line in whole for name in line)
    if snippet == ONLINE:
        assert all(0 < line[names.GROUPS_PAIRS] <= 4 for line in whole)


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.startswith(TIMES)}
