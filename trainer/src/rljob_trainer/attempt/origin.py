"""Where an attempt continues: from living ranks, from the newest checkpoint, or at the start."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from rljob_api import ResolvedSpec
from rljob_trainer.attempt.claim import record_resume
from rljob_trainer.attempt.resumption import Resumption
from rljob_trainer.checkpoint.lineage import Claim
from rljob_trainer.checkpoint.manifest import MODEL, RANKS, CheckpointRef, decided, list_checkpoints, read_trainer_state
from rljob_trainer.loop.stages import stage_of
from rljob_trainer.loop.state import LoopState
from rljob_trainer.lora.files import ADAPTER
from rljob_trainer.progress import names
from rljob_trainer.progress.history import history
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.model_source import ModelFolders
from rljob_trainer.rank.training_state import RankStates
from rljob_trainer.volume import Volume

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the attempt continues.

    held: the state of living ranks; None: continue from `checkpoint`, without one from the start.
    lost: name of the newest checkpoint if it is unusable, so that only the ranks hold its steps.
    """

    held: RankStates | None
    checkpoint: CheckpointRef | None
    lost: str | None = None

    @property
    def step(self) -> int:
        """The last finished step."""
        if self.held is not None:
            return self.held.training_state.step
        return self.durable_step

    @property
    def durable_step(self) -> int:
        """Step of the newest durable checkpoint, 0 without one."""
        return self.checkpoint.manifest.step if self.checkpoint else 0

    def adapter(self, folder: Path) -> Path | None:
        """Where the configuration of the adapter is that the attempt continues with. folder: the run's model folder."""
        if self.held is not None:
            return folder / ADAPTER
        return self.checkpoint.path / MODEL / ADAPTER if self.checkpoint is not None else None

    def template_time(self, root: Claim | None) -> datetime:
        """The time that chat templates see: when the run began, so that prompts stay the same on later days.

        A run that begins with another run's checkpoint keeps the time of that run.
        """
        state: Mapping[str, object] = {}
        if self.held is not None:
            state = self.held.training_state.after
        elif self.checkpoint is not None:
            state = read_trainer_state(self.checkpoint)
        begun = state.get("templateTime") or (root.start_time if root else None)
        return datetime.fromisoformat(str(begun)) if begun else datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Restored:
    """What the ranks hold when the loop begins.

    stage: the stage of their optimizer; None before the first.
    held: their state if they are one update ahead of the loop, else None.
    """

    stage: Stage | None
    held: RankStates | None


def find_origin(volume: Volume, attempt: int, nonce: str, resumption: Resumption, ranks: RankClient) -> Origin:
    """Take over living ranks, else find the newest checkpoint; record the decision in the claim."""
    before = decided(volume).newest if resumption.continues() else None
    parent: int | None = None
    step: int | None = None
    held = ranks.take_over() if before is not None else None
    if held is not None and before is not None:
        saved, newest = list_checkpoints(volume), resumption.newest()
        lost = newest.path.name if newest is not None and newest.lost else None
        origin = Origin(held, saved[-1] if saved else None, lost)
        parent, step = before.attempt, held.training_state.step
    else:
        origin = Origin(None, resumption.find())
        # Without a checkpoint this attempt still continues the former one, because its journaled groups count.
        parent = before.attempt if before is not None and origin.checkpoint is None else None
    record_resume(
        volume, attempt, nonce, origin.checkpoint,
        parent=parent, step=step, lost=origin.lost, fresh_for=resumption.fresh_for,
    )  # fmt: skip
    return origin


def restore(
    spec: ResolvedSpec, volume: Volume, origin: Origin, folders: ModelFolders, ranks: RankClient, state: LoopState,
    progress: ProgressReporter,
) -> Restored:  # fmt: skip
    """Load `state` and the ranks from `origin`."""
    if origin.held is not None:
        return _take_over(volume, origin.held, state)
    for info in ranks.connect():
        log.info("rank_started", **asdict(info))
    progress.phase("loading model")
    own = [str(each) if each is not None else None for each in (folders.critic, folders.teacher)]
    log.info("model_loaded", parameters=ranks.load(str(folders.policy), *own))
    stage: Stage | None = None
    if (ref := origin.checkpoint) is not None:
        progress.phase("reading checkpoint")
        state.load_state_dict(read_trainer_state(ref))
        stage = stage_of(spec, state.step)
        ranks.begin_stage(stage)
        ranks.restore(str(ref.path / RANKS))
        log.info("checkpoint_restored", path=str(ref.path), step=state.step)
    ranks.hold(state.mark(stage, state.state_dict()))
    return Restored(stage, None)


def _take_over(volume: Volume, held: RankStates, state: LoopState) -> Restored:
    """If the former driver did not write the metrics of its last step, the loop finishes that step first."""
    mark = held.training_state
    written = any(line["step"] == mark.step for line in history(volume) if names.TIME_STEP in line)
    behind = not written and bool(held.updated)
    state.load_state_dict(mark.before if behind else mark.after)
    if not behind and mark.stage is not None and held.updated:
        state.observe(mark.stage, held.updated)
    log.info("ranks_taken_over", step=mark.step, finish=behind)
    return Restored(mark.stage, held if behind else None)
