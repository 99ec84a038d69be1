"""TensorBoard: event files below the run's directory. Show them with `tensorboard --logdir runs`."""

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_trainer.loggers.episodes import COLUMNS, EpisodeTable
from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo

FLUSH_SECONDS = 10


class TensorBoardLogger:
    def start(self, run: RunInfo) -> None:
        self._writer = EventFileWriter(str(run.directory / "tensorboard"), flush_secs=FLUSH_SECONDS)
        # TensorBoard then drops the steps that an earlier attempt logged and this attempt repeats.
        restart = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=run.resumed_step + 1, session_log=restart))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def episodes(self, table: EpisodeTable) -> None:
        text = text_pb("episodes", _markdown(table))
        self._writer.add_event(Event(wall_time=time.time(), step=table.step, summary=text))

    def finish(self, _status: Status) -> None:
        self._writer.close()


def _markdown(table: EpisodeTable) -> str:
    """Episodes as indented code, whose text Markdown leaves as it is: no tag and no table is made of it."""
    blocks = []
    for row in table.rows:
        cells = {name: cell for name, cell in zip(COLUMNS, row, strict=True) if cell is not None}
        written = [*(f"{name}: {cell}" for name, cell in cells.items() if name != "episode"), str(cells["episode"])]
        blocks.append("\n".join(f"    {line}" for part in written for line in part.splitlines()))
    return "\n\n---\n\n".join(blocks)
