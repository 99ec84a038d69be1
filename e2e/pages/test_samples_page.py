"""The page of `rljob samples --html` in Chromium: what it shows, its filters, and that a model's text stays text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.pages.chromium import Tab, program, tab
from rljob_trainer.progress.samples_page import samples_page
from tests.rljob_trainer.test_samples_page import HOSTILE, row_of

ROWS: list[dict[str, Any]] = [
    row_of(2, 0.25, "before"), row_of(4, 1.0, HOSTILE), row_of(4, 0.5, "Another text"), row_of(4, float("nan"), "lost"),
]  # fmt: skip


OPENED = "document.querySelectorAll('.turn').length === 2"
"""The first episode is unfolded, after an event."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Tab]:
    browser = program()
    if browser is None:
        pytest.skip("did NOT run: Chromium is not installed; on Debian, apt-get install chromium")
    file = tmp_path / "page.html"
    ROWS[2]["episode"]["status"] = "truncated"
    file.write_text(samples_page("gsm8k", ROWS))
    with tab(browser, tmp_path / "browser") as opened:
        opened.open(file)
        yield opened


def given(page: Tab, **fields: str) -> str:
    """What the page counts with these fields of its form, the others empty."""
    names = {name: fields.get(name, "") for name in ("search", "step", "status", "least", "most")}
    for name, value in names.items():
        page.value(f"document.getElementById({name!r}).value = {value!r}")
    page.value("document.getElementById('filter').dispatchEvent(new Event('input', {bubbles: true}))")
    return str(page.value("document.getElementById('count').textContent"))


def test_the_page_shows_filters_and_counts_episodes(page: Tab) -> None:
    assert page.value("document.title") == "Samples of gsm8k"
    assert page.value("document.getElementById('count').textContent") == "3 of 4 episodes, mean reward 0.75", "step 4"
    assert given(page) == "4 of 4 episodes, mean reward 0.5833"
    assert given(page, search="ANOTHER") == "1 of 4 episodes, mean reward 0.5"
    assert given(page, status="truncated") == "1 of 4 episodes, mean reward 0.5"
    assert given(page, step="2") == "1 of 4 episodes, mean reward 0.25"
    assert given(page, least="0.3", most="1") == "2 of 4 episodes, mean reward 0.75"
    bars = "[...document.querySelectorAll('rect')].map((bar) => Number(bar.getAttribute('height')))"
    heights = page.value(bars)
    assert ([index for index, height in enumerate(heights) if height], len(heights)) == ([0, 19], 20)
    assert given(page, search="nowhere") == "0 of 4 episodes"
    assert page.value("document.querySelectorAll('rect, details').length") == 0


def test_an_episode_opens_turn_by_turn_with_its_tokens_in_the_loss_marked(page: Tab) -> None:
    given(page, search="another")
    page.until(OPENED)
    turns = "[...document.querySelectorAll('.turn')]"
    assert page.value(f"{turns}.map((turn) => turn.innerText.split('\\n').filter(Boolean))") == [
        ["prompt", "Another text"], ["policy", "2 of 2 tokens in the loss", "reward 0.5", "Another text"],
    ]  # fmt: skip
    marked = "[...document.querySelectorAll('.turn .text span')].map((span) => getComputedStyle(span).backgroundColor)"
    prompt, policy = page.value(marked)
    assert (prompt, policy != prompt) == ("rgba(0, 0, 0, 0)", True)


def test_what_a_model_wrote_is_shown_as_text_and_nothing_is_loaded(page: Tab) -> None:
    given(page, search="alert(1)")
    page.until(OPENED)
    assert page.value("document.querySelector('.turn .text').textContent") == HOSTILE
    assert page.value("document.querySelectorAll('img, script').length") == 2, "its data and its own script"
    page.value("document.querySelector('.turn').append(Object.assign(document.createElement('script'), {text: 'x=1'}))")
    assert page.value("typeof x") == "undefined", "another script is refused"
    requests = [event["request"]["url"] for method, event in page.events if method == "Network.requestWillBeSent"]
    assert [Path(url).name for url in requests] == ["page.html"]
    unwanted = {"Page.javascriptDialogOpening", "Runtime.exceptionThrown"}
    assert not unwanted & {method for method, _ in page.events}
