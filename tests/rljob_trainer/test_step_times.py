"""The phases of a step are its parts: no second counts for two of them."""

import time
from pathlib import Path

from rljob_api.v1alpha1.model import Tokenizer
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.progress import names
from rljob_trainer.progress.history import parse_lines
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.volume import Volume


def test_what_a_phase_waits_for_counts_where_it_belongs(tmp_path: Path) -> None:
    """An engine starts inside a validation; a rollout inside the rewards' phase is timed by others."""
    volume = Volume(tmp_path)
    with ProgressReporter(volume) as progress:
        progress.begin(step=0, total_steps=1, supervised_steps=0)
        loggers, tokenizer = LoggerSet([], RunInfo("job", "u1", tmp_path)), build_tokenizer(Tokenizer(), ["abc"])
        reporting = Reporting(volume, 1, progress, loggers, tokenizer)
        begin = time.monotonic()
        with reporting.phase("validation"), reporting.phase("start"):
            time.sleep(0.05)
        with reporting.phase("rewards"):
            time.sleep(0.05)
            reporting.add_time("rollout", 0.04)
        elapsed = time.monotonic() - begin
        reporting.step_done(1, "rl", {names.TIME_STEP: elapsed})
    [line] = parse_lines(volume.metrics(1).read_text())
    assert line[names.TIME_START] >= 0.05
    assert line[names.TIME_ROLLOUT] == 0.04
    assert 0 < sum(line[name] for name in names.PHASE_TIMES if name in line) <= elapsed
