"""The parts of one attempt, wired together; each part knows nothing of its owner.

    living workers? ──> taken over: the step that they have done is where the attempt goes on
                   └──> else: workers start ── meanwhile data, reward code ──> weights ──> newest checkpoint, if any
    journal, engines, loop

What a person got wrong shows in this order, the cheapest first: nothing expensive is loaded for a job that cannot run.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

import ray
import structlog

from rljob_api.contract import DriverJob
from rljob_api.durations import parse_duration
from rljob_trainer.attempt.claim import check_not_superseded, record_resume, root_nonce
from rljob_trainer.attempt.model_folder import first_weights, max_model_len, prepare_model_folder
from rljob_trainer.attempt.resumption import Resumption
from rljob_trainer.checkpoint.manifest import RANKS, CheckpointRef, decided, list_checkpoints, read_trainer_state
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.stream import PromptStream, SupervisedStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest, WorkerLost
from rljob_trainer.journal import Journal, first_digest, rollout_fingerprint, update_fingerprint
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.loop.checkpoints import Checkpoints
from rljob_trainer.loop.loop import Loop
from rljob_trainer.loop.reinforced import Fingerprints, ReinforcedSteps
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.requests import Requests
from rljob_trainer.loop.stages import stage_of, supervised_steps
from rljob_trainer.loop.state import LoopState
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.old_types import Prompt
from rljob_trainer.progress import names
from rljob_trainer.progress.history import history
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.training_state import RankStates
from rljob_trainer.rollouts.engine_group import EngineGroup
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.rollouts.rollouts import Rollouts
from rljob_trainer.rollouts.synced_engines import SyncedEngines
from rljob_trainer.rollouts.weight_sync import WeightSync
from rljob_trainer.volume import Volume
from rljob_trainer.workers.context import START_SECONDS, WorkerContext, rollout_seconds
from rljob_trainer.workers.groups import Scorer
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.placement import find_nodes
from rljob_trainer.workers.roster import Roster

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the attempt goes on. held: what living ranks hold; None sends it to the newest checkpoint, if any.

    lost: name of the newest checkpoint, where it is not usable: those ranks hold all that is left of its steps.
    """

    held: RankStates | None
    checkpoint: CheckpointRef | None
    lost: str | None = None

    @property
    def step(self) -> int:
        if self.held is not None:
            return self.held.training_state.step
        return self.checkpoint.manifest.step if self.checkpoint else 0

    @property
    def durable_step(self) -> int:
        return self.checkpoint.manifest.step if self.checkpoint else 0


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """What an RL job has besides its ranks. repair: replaces what is lost of the two."""

    engines: EngineGroup
    scorer: Scorer
    repair: Repair


class Wiring:
    """Builds the parts in the order in which they need one another, and runs the loop."""

    def __init__(
        self, job: DriverJob, volume: Volume, attempt: int, nonce: str, progress: ProgressReporter, requests: Requests
    ) -> None:
        self._job, self._spec, self._volume = job, job.spec, volume
        self._attempt, self._nonce, self._progress, self._requests = attempt, nonce, progress, requests
        self._base_dir, self._folder = Path(job.base_dir), volume.root / "model"
        placement = find_nodes(job.spec)  # before the cluster is asked what it has
        self._device: Literal["cpu", "cuda"] = "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
        self._fingerprints = Fingerprints(update_fingerprint(job.spec), rollout_fingerprint(job.spec, self._base_dir))
        self._resumption = Resumption(job.spec.checkpoint.resume, volume, job.start_id)
        self._checkpoints = Checkpoints(job.spec, volume, attempt, self._folder, self._resumption.spared)
        self._heartbeats = Heartbeats(parse_duration(job.spec.recovery.hang_after))
        fence = partial(check_not_superseded, volume, attempt)
        leave_after = parse_duration(job.spec.recovery.takeover_within)
        self._roster = Roster(attempt, leave_after, self._heartbeats, fence)
        threads = (
            1 if job.spec.rollout.deterministic else len(os.sched_getaffinity(0)) // job.spec.cluster.ranks_per_node
        )
        self._context = WorkerContext(
            job.spec, self._device, max(1, threads), self._roster, self._heartbeats, placement
        )  # fmt: skip
        self._actors = RankClient(self._context)

    def close(self, error: BaseException | None, *, end_workers: bool) -> None:
        """error: how the attempt ended. end_workers: nobody is going to take them over.

        Raises FencedError where somebody has meanwhile.
        """
        self._heartbeats.close()
        if end_workers:
            self._roster.end_all()
        elif isinstance(error, WorkerLost):
            self._roster.kill(error.worker)  # the next driver need not find out again that it hangs

    def run(self, before_steps: Callable[[], None]) -> None:
        """Train. before_steps: called when everything is ready."""
        importing = Thread(target=import_transformers, name="import", daemon=True)
        importing.start()  # while workers answer
        origin = self._origin()
        if origin.held is None:
            self._actors.start()  # their processes import while the data is read
        rollers = self._rollers(origin) if supervised_steps(self._spec) < self._spec.total_steps else None
        with _tracked(self._loggers(origin)) as loggers:
            self._progress.phase("reading data")
            weights = first_weights(self._spec, self._base_dir, self._folder)
            _join(importing)  # Python may give a half-made module to whoever imports what another thread still does
            tokenizer = make_tokenizer(self._spec, self._base_dir)
            vocab_size = prepare_model_folder(self._spec, weights, self._folder, tokenizer)
            if rollers is not None:
                rollers.scorer.start()
            state = self._state(tokenizer, with_prompts=rollers is not None)
            validation = self._validation(tokenizer) if rollers is not None else []
            self._settle(rollers)
            stage, held = self._restore(origin, state, weights)
            reporting = Reporting(self._volume, self._attempt, self._progress, loggers, tokenizer)
            reinforced = (
                self._reinforced(rollers, origin, state, vocab_size, validation, reporting) if rollers else None
            )
            before_steps()
            Loop(
                self._spec, self._volume, state, stage, held, origin.durable_step, origin.lost is not None,
                self._actors, reinforced,
                rollers.repair if rollers else None, self._checkpoints, reporting, self._requests,
                self._fingerprints.update,
            ).run()  # fmt: skip

    # ------------------------------------------------------------------ where it goes on

    def _origin(self) -> Origin:
        """Living ranks, else the newest checkpoint, else nothing; the claim says it from now on."""
        self._progress.phase("looking for workers and checkpoints")
        # The attempt that this one goes on from, if any.
        before = decided(self._volume).newest if self._resumption.goes_on() else None
        held = self._actors.take_over() if before is not None else None
        if held is not None and before is not None:
            saved, newest = list_checkpoints(self._volume), self._resumption.newest()
            lost = newest.path.name if newest is not None and newest.lost else None
            origin = Origin(held, saved[-1] if saved else None, lost)
            record_resume(
                self._volume, self._attempt, self._nonce, origin.checkpoint,
                parent=before.attempt, step=held.training_state.step, lost=lost, anew_for=self._resumption.anew_for,
            )  # fmt: skip
        else:
            origin = Origin(None, self._resumption.find())
            # An attempt that died before its first checkpoint is continued from the start: its groups still count.
            parent = before.attempt if before is not None and origin.checkpoint is None else None
            record_resume(
                self._volume, self._attempt, self._nonce, origin.checkpoint,
                parent=parent, anew_for=self._resumption.anew_for,
            )  # fmt: skip
        self._checkpoints.prune_if_possible()
        return origin

    def _state(self, tokenizer: "PreTrainedTokenizerBase", *, with_prompts: bool) -> LoopState:
        spec = self._spec
        prompts = examples = None
        if with_prompts:
            dataset = load_prompts(spec.data, tokenizer, self._base_dir)
            prompts = PromptStream(dataset, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=spec.training.epochs)
        if supervised_steps(spec):
            supervised = load_supervised(spec, tokenizer, self._base_dir)
            epochs = spec.training.epochs if spec.supervised_only else None
            examples = SupervisedStream(supervised, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=epochs)
        nonce = root_nonce(self._volume, self._attempt)
        digest = first_digest(self._job.uid, nonce, self._fingerprints.update, spec.training.seed)
        return LoopState(prompts, examples, KlController(spec.algorithm.kl), digest)

    def _restore(self, origin: Origin, state: LoopState, weights: Path) -> tuple[Stage | None, RankStates | None]:
        """The stage whose optimizer the ranks hold, and what they hold if they are one update ahead of `state`."""
        if origin.held is not None:
            return self._continue(origin.held, state)
        for info in self._actors.connect():
            log.info("rank_started", **asdict(info))
        self._progress.phase("loading model")
        log.info("model_loaded", parameters=self._actors.load(str(weights)))
        stage: Stage | None = None
        if (ref := origin.checkpoint) is not None:
            self._progress.phase("reading checkpoint")
            state.load_state_dict(read_trainer_state(ref))
            stage = stage_of(self._spec, state.step)
            self._actors.begin_stage(stage)
            self._actors.restore(str(ref.path / RANKS))
            log.info("checkpoint_restored", path=str(ref.path), step=state.step)
        self._actors.hold(state.mark(stage, state.state_dict()))
        return stage, None

    def _continue(self, held: RankStates, state: LoopState) -> tuple[Stage | None, RankStates | None]:
        """With ranks that were taken over. A step whose metrics their driver did not write is finished first."""
        mark = held.training_state
        written = any(line["step"] == mark.step for line in history(self._volume) if names.TIME_STEP in line)
        behind = not written and bool(held.updated)
        state.load_state_dict(mark.before if behind else mark.after)
        log.info("ranks_taken_over", step=mark.step, finish=behind)
        return mark.stage, held if behind else None

    # ------------------------------------------------------------------ parts

    def _rollers(self, origin: Origin) -> RolloutParts:
        engines = EngineGroup(self._context, self._engine_settings(), self._actors)
        scorer = Scorer(self._context, self._volume, self._folder, self._job.base_dir, self._job.reward_models)
        repair = Repair(self._spec.recovery, engines, scorer, self._heartbeats, worth_spare=origin.step > 0)
        return RolloutParts(engines, scorer, repair)

    def _settle(self, rollers: RolloutParts | None) -> None:
        """Reward code that is known to be right, and engines that are out of the ranks' way."""
        self._progress.phase("starting workers")
        if rollers is not None:
            rollers.repair.run(rollers.scorer.ready)
            rollers.repair.run(rollers.engines.settle)

    def _reinforced(
        self, rollers: RolloutParts, origin: Origin, state: LoopState, vocab_size: int, validation: list[Prompt],
        reporting: Reporting,
    ) -> ReinforcedSteps:  # fmt: skip
        engines, scorer, repair = rollers.engines, rollers.scorer, rollers.repair
        sync = WeightSync(self._spec, self._device, self._actors, engines, vocab_size)
        shared = self._device == "cuda"
        synced = SyncedEngines(engines, sync, repair, state, reporting, shares_memory=shared)
        journal = Journal.read(self._volume, self._attempt, after_step=origin.durable_step)
        if journal.incomplete:
            files = ", ".join(str(path.relative_to(self._volume.root)) for path in journal.incomplete)
            log.warning("journal_damaged", torn=journal.torn, damaged=journal.damaged, files=files)
        seconds = rollout_seconds(self._spec)
        rollouts = Rollouts(engines, scorer, journal, repair, self._heartbeats, synced.ready, seconds)
        return ReinforcedSteps(
            self._spec, self._attempt, self._fingerprints, state, self._actors, synced, rollouts, validation, reporting
        )

    def _validation(self, tokenizer: "PreTrainedTokenizerBase") -> list[Prompt]:
        if not self._spec.data.validation:
            return []
        return load_prompts(self._spec.data, tokenizer, self._base_dir, "validation").all("validation")

    def _engine_settings(self) -> EngineSettings:
        rollout = self._spec.rollout
        return EngineSettings(
            kind=rollout.engine,
            model_dir=str(self._folder),
            max_model_len=max_model_len(self._spec),
            dtype=compute_dtype(self._spec, self._device),
            device=self._device,
            max_num_seqs=rollout.max_num_seqs,
            tensor_parallel_size=rollout.tensor_parallel_size,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            enforce_eager=rollout.enforce_eager,
            seed=rollout.seed,
            trust_remote_code=self._spec.model.trust_remote_code,
            deterministic=rollout.deterministic,
        )

    def _loggers(self, origin: Origin) -> LoggerSet:
        run = RunInfo(
            name=self._job.name,
            uid=self._job.uid,
            directory=self._volume.root,
            project=self._spec.training.project,
            # Variables may hold what is nobody's business.
            config=self._spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"env"}),
            resumed_step=origin.step,
        )
        return LoggerSet(self._spec.training.loggers, run)


def _join(importing: Thread) -> None:
    """Raises InfrastructureError where it takes too long."""
    importing.join(START_SECONDS)
    if importing.is_alive():
        raise InfrastructureError(f"transformers was not imported within {START_SECONDS:.0f} s: does its disk answer?")


@contextmanager
def _tracked(loggers: LoggerSet) -> Iterator[LoggerSet]:
    """Tell every tracker how the attempt ended."""
    status: Literal["done", "failed", "stopped"] = "failed"
    try:
        yield loggers
        status = "done"
    except StoppedOnRequest:
        status = "stopped"
        raise
    finally:
        loggers.finish(status)
