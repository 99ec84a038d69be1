import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rljob_api.contract import ExitRecord
from rljob_trainer.progress import names
from rljob_trainer.progress.answers import question
from rljob_trainer.progress.history import Line
from rljob_trainer.progress.metrics import MetricsWriter
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.views import open_reporter
from rljob_trainer.progress.views.format import sparkline
from rljob_trainer.progress.views.live import LiveView
from rljob_trainer.progress.views.plain import PlainView
from rljob_trainer.progress.views.watch import RunWatch
from rljob_trainer.volume import Volume, write_json

DONE = ExitRecord(code=0, reason="Done", message="trained to the last step")
RL: Line = {
    "stage": "rl", names.REWARD_MEAN: 0.512, names.RESPONSE_LENGTH_MEAN: 7.9, names.ACTOR_KL: 0.0012,
    names.ACTOR_ENTROPY: 1.2, names.ACTOR_GRAD_NORM: 0.6, names.TOKENS_PER_SECOND: 3150.0, names.TIME_ROLLOUT: 0.41,
    names.TIME_REWARDS: 0.02, names.TIME_ADVANTAGE: 0.001, names.TIME_UPDATE: 0.22, names.TIME_SYNC: 0.03,
    names.TIME_STEP: 0.68,
}  # fmt: skip
SFT: Line = {
    "stage": "sft", names.ACTOR_LOSS: 2.104, names.TOKENS_PER_SECOND: 53120.0, names.TIME_UPDATE: 0.05,
    names.TIME_STEP: 0.051,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("reverse-text", "u1", tmp_path, model="from scratch", engine="hf", ranks=2)


def begin_attempt(volume: Volume, attempt: int, resumed_step: int = 0) -> MetricsWriter:
    parent = attempt - 1 if resumed_step else None
    write_json(volume.claim(attempt), {"attempt": attempt, "parent": parent, "resumedStep": resumed_step})
    return MetricsWriter(volume, attempt)


def write(writer: MetricsWriter, step: int, line: Line) -> Line:
    return writer.write(step, line["stage"], {name: value for name, value in line.items() if name in names.METRICS})


def terminal(width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, highlight=False, force_terminal=False), out


def test_the_plain_view_shows_news_in_order_and_a_summary(run: RunInfo, tmp_path: Path) -> None:
    console, out = terminal()
    volume, view = Volume(tmp_path), PlainView(run, console)
    view.start()
    with ProgressReporter(volume) as progress, begin_attempt(volume, 1) as writer:
        progress.phase("loading model")
        progress.begin(step=0, total_steps=4, supervised_steps=2)
        progress.close()
        view.poll()
        view.note("agent: http://127.0.0.1:8900")
        for step in (1, 2):
            write(writer, step, SFT)
        for step in (3, 4):
            write(writer, step, RL | {names.REWARD_MEAN: step / 10})
        view.finish(DONE)

    printed = out.getvalue().splitlines()
    assert [line.split(" reward")[0].split(" loss")[0] for line in printed[:6]] == [
        f"reverse-text · from scratch · engine hf · 2 ranks · {tmp_path}",
        "loading model",
        "agent: http://127.0.0.1:8900",
        "step 1/4 sft",
        "step 3/4 rl ",
        "step 4/4 rl ",
    ]
    assert printed[6].startswith("done: step 4/4 in 0:0")
    assert printed[7] == "  supervised loss 2.104 -> 2.104 · reward 0.300 -> 0.400"
    assert printed[8].endswith(f"rljob plot {tmp_path}")


def test_a_run_ends_with_answers_before_and_after_beside_the_ground_truth_in_full(run: RunInfo, tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with begin_attempt(volume, 1) as writer:
        write(writer, 1, RL)
    truths = [{"target": 24, "numbers": [13, 15, 19]}, "24", 24]
    rows = [
        {
            "step": step,
            "prompt": f"system p{number}",
            "question": f"p{number}",
            "response": f"r{step}",
            "groundTruth": truth,
        }
        for step in (1, 2)
        for number, truth in enumerate(truths)
    ]
    rows.append(rows[-1] | {"response": None})  # an episode that was left out
    volume.samples(1).parent.mkdir()
    volume.samples(1).write_text("".join(json.dumps(row) + "\n" for row in rows))
    console, out = terminal(width=120)
    PlainView(run, console).finish(ExitRecord(code=0, reason="Done", message=""))

    assert [line.split() for line in out.getvalue().splitlines()[-4:]] == [
        ["question", "step", "1", "step", "2", "ground", "truth"],
        ["p0", "r1", "r2", '{"target":24,"numbers":[13,15,19]}'],
        ["p1", "r1", "r2", "24"],
        ["p2", "r1", "r2", "24"],
    ]


def test_the_question_of_a_conversation_is_the_last_message_of_the_user() -> None:
    system, first, answer, last = (
        {"role": role, "content": content}
        for role, content in (("system", "Be brief."), ("user", "1+1"), ("assistant", "2"), ("user", "2+2"))
    )

    assert question([system, first, answer, last]) == "2+2"
    assert question([system]) == "Be brief."


def test_a_watch_reports_only_what_is_new_and_follows_the_next_attempt(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with begin_attempt(volume, 1) as writer:
        for step in (1, 2, 3):
            write(writer, step, RL)
    watch = RunWatch(volume)
    assert not watch.poll()
    assert len(watch.history) == 3

    write_json(volume.claim(2), {"resumedStep": None})  # the driver claims first and looks for a checkpoint then
    assert not watch.poll()
    assert len(watch.history) == 3
    with begin_attempt(volume, 2, resumed_step=2) as writer:
        write(writer, 3, RL | {names.REWARD_MEAN: 0.9})
        assert [line["step"] for line in watch.poll().lines] == [3]
    assert watch.series("rl", names.REWARD_MEAN) == [0.512, 0.512, 0.9]


def test_a_volume_that_does_not_answer_makes_no_old_step_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(tmp_path)
    with begin_attempt(volume, 1) as writer:
        write(writer, 1, RL)
        watch = RunWatch(volume)
        with monkeypatch.context() as patched:
            patched.setattr("rljob_trainer.progress.views.watch.last_attempt", lambda _: 0)
            assert not watch.poll()
        write(writer, 2, RL)
        assert [line["step"] for line in watch.poll().lines] == [2]
    assert len(watch.history) == 2


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with begin_attempt(volume, 1):
        pass
    watch = RunWatch(volume)
    with volume.metrics(1).open("a") as file:
        file.write('{"step": 1, "st')
        file.flush()
        assert not watch.poll().lines
        file.write('age": "rl"}\n')
        file.flush()
        assert [line["step"] for line in watch.poll().lines] == [1]


def test_the_drivers_warnings_are_news_and_its_errors_are_not(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with begin_attempt(volume, 1):
        pass
    watch = RunWatch(volume)
    volume.logs.mkdir()
    rows = [
        {"event": "step_done", "level": "info"},
        {"event": "logger_failed", "level": "warning", "logger": "module", "tracker": "wandb", "timestamp": "now"},
        {"event": "attempt_failed", "level": "error", "traceback": "long"},
    ]
    volume.log(1).write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert watch.poll().warnings == ["warning: logger_failed tracker=wandb"]


@pytest.mark.parametrize("width", [80, 60, 200])
def test_the_live_picture_fits_the_terminal_and_shows_the_run(run: RunInfo, tmp_path: Path, width: int) -> None:
    volume = Volume(tmp_path)
    console, out = terminal(width)
    view = LiveView(run, console)
    with ProgressReporter(volume) as progress, begin_attempt(volume, 1) as writer:
        progress.begin(step=0, total_steps=60)
        progress.phase("rollout")
        for step in range(1, 31):
            progress.step_done(write(writer, step, RL | {names.REWARD_MEAN: step / 100}))
    view.poll()
    console.print(view.render())

    picture = out.getvalue()
    assert max(len(line) for line in picture.splitlines()) <= width
    for text in ("reverse-text", "step 30/60", "50 %", "rollout", "0.300", "█", "tokens/s", "3,150"):
        assert text in picture


def test_the_live_view_draws_in_place_and_leaves_the_summary(run: RunInfo, tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    view = open_reporter(run, console)
    view.start()
    with begin_attempt(Volume(tmp_path), 1) as writer:
        write(writer, 1, RL)
    view.note("a note")
    view.finish(DONE)

    assert isinstance(view, LiveView)
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back
    assert "done: step 1/1" in out.getvalue().rsplit("\x1b[2K", 1)[-1]


def test_without_a_terminal_the_view_is_plain(run: RunInfo) -> None:
    assert isinstance(open_reporter(run, terminal()[0]), PlainView)


def test_a_sparkline_spans_its_extremes_and_averages_what_does_not_fit() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([2.0, 2.0], 5) == "▁▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 1, 1, 2, 2], 3) == "▁▅█"


def test_log_lines_go_to_the_file_as_json_with_those_of_libraries_from_warning_up(tmp_path: Path) -> None:
    program = (
        "import structlog, logging, sys; from pathlib import Path;"
        "from rljob_trainer.progress.logging import configure;"
        "configure(json=False, file=Path(sys.argv[1]));"
        "structlog.get_logger('rljob_trainer.x').info('step_done', step=3);"
        "logging.getLogger('library').info('hidden'); logging.getLogger('library').warning('heed')"
    )
    path = tmp_path / "logs" / "a1.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True, timeout=60
    )

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["event"], row["level"]) for row in rows] == [("step_done", "info"), ("heed", "warning")]
    assert rows[0]["step"] == 3
    assert "step_done" in done.stderr
    assert "hidden" not in done.stderr
