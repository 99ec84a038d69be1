"""The parts of one attempt, wired together; each part knows nothing of its owner.

workers start ── meanwhile: newest checkpoint, loggers, data, reward code ──> weights ──> checkpoint, if any ──> loop

What a person got wrong shows in this order, the cheapest first: nothing expensive is loaded for a job that cannot run.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
import structlog

from rljob_trainer.actor.sharding import compute_dtype
from rljob_trainer.checkpoint.manifest import ACTOR, CheckpointRef, read_trainer_state
from rljob_trainer.controller.attempt import record_resume
from rljob_trainer.controller.checkpoints import Checkpoints
from rljob_trainer.controller.job import DriverJob
from rljob_trainer.controller.loop import Loop
from rljob_trainer.controller.model_folder import first_weights, max_model_len, prepare_model_folder
from rljob_trainer.controller.reinforced import ReinforcedSteps
from rljob_trainer.controller.reporting import Reporting
from rljob_trainer.controller.requests import Requests
from rljob_trainer.controller.stages import stage_of, supervised_steps
from rljob_trainer.controller.state import LoopState
from rljob_trainer.controller.sync import WeightSync
from rljob_trainer.controller.workers import START_SECONDS, UPDATE_SECONDS, ActorGroup, EngineGroup, reward_host
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.stream import PromptStream, SupervisedStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.errors import StoppedOnRequest
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.rollout.engine import EngineSettings
from rljob_trainer.types import Prompt
from rljob_trainer.volume import Volume
from rljob_trainer.waiting import wait_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger()


class Assembly:
    """Builds the parts in the order in which they need one another, and runs the loop."""

    def __init__(
        self, job: DriverJob, volume: Volume, attempt: int, nonce: str, progress: ProgressReporter, requests: Requests
    ) -> None:
        self._job, self._spec, self._volume = job, job.spec, volume
        self._attempt, self._nonce, self._progress, self._requests = attempt, nonce, progress, requests
        self._base_dir, self._folder = Path(job.base_dir), volume.root / "model"
        self._device: Literal["cpu", "cuda"] = "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
        self._reinforces = supervised_steps(job.spec) < job.spec.total_steps
        self._checkpoints = Checkpoints(job.spec, volume, attempt, self._folder)

    def run(self, before_steps: Callable[[], None]) -> None:
        """Train. before_steps: called when everything is ready."""
        threads = max(1, (os.cpu_count() or 1) // self._spec.cluster.ranks_per_node)
        actors = ActorGroup(self._spec, self._device, threads)  # their processes import while the data is read
        engines, rewards = self._rollout_workers(threads) if self._reinforces else (None, None)
        found = self._find_checkpoint()
        with _tracked(self._loggers(found)) as loggers:
            self._progress.phase("reading data")
            weights = first_weights(self._spec, self._base_dir, self._folder)
            tokenizer = make_tokenizer(self._spec, self._base_dir)
            vocab_size = prepare_model_folder(self._spec, weights, self._folder, tokenizer)
            checked = rewards.start.remote() if rewards is not None else None
            state, validation = self._state(tokenizer), self._validation(tokenizer)
            self._load_model(actors, weights, checked)
            stage = self._restore(found, state, actors)
            reporting = Reporting(self._volume, self._attempt, self._progress, loggers, tokenizer)
            reinforced = None
            if engines is not None:
                sync = WeightSync(self._spec, self._device, actors, engines, vocab_size)
                reinforced = ReinforcedSteps(self._spec, actors, engines, rewards, sync, validation, reporting)
            before_steps()
            Loop(self._spec, state, stage, actors, reinforced, self._checkpoints, reporting, self._requests).run()

    def _rollout_workers(self, threads: int) -> tuple[EngineGroup, Any]:
        count = self._spec.ranks // self._spec.rollout.tensor_parallel_size
        engines = EngineGroup(self._engine_settings(), count, threads)
        log_file = self._volume.logs / "rewards.log"
        return engines, reward_host(self._spec, self._folder, self._job.base_dir, log_file)

    def _find_checkpoint(self) -> CheckpointRef | None:
        self._progress.phase("looking for a checkpoint")
        found = self._checkpoints.find()
        record_resume(self._volume, self._attempt, self._nonce, found)
        return found

    def _state(self, tokenizer: "PreTrainedTokenizerBase") -> LoopState:
        spec = self._spec
        prompts = examples = None
        if self._reinforces:
            dataset = load_prompts(spec.data, tokenizer, self._base_dir)
            prompts = PromptStream(dataset, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=spec.training.epochs)
        if supervised_steps(spec):
            supervised = load_supervised(spec, tokenizer, self._base_dir)
            epochs = spec.training.epochs if spec.supervised_only else None
            examples = SupervisedStream(supervised, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=epochs)
        return LoopState(prompts, examples, KlController(spec.algorithm.kl))

    def _validation(self, tokenizer: "PreTrainedTokenizerBase") -> list[Prompt]:
        if not (self._reinforces and self._spec.data.validation):
            return []
        return load_prompts(self._spec.data, tokenizer, self._base_dir, "validation").all("validation")

    def _load_model(self, actors: ActorGroup, weights: Path, rewards_checked: Any) -> None:
        """Load the weights, once the reward code is known to be right."""
        self._progress.phase("starting workers")
        if rewards_checked is not None:
            wait_for(rewards_checked, START_SECONDS, "the reward functions to load")
        for info in actors.connect():
            log.info("rank_started", **info)
        self._progress.phase("loading model")
        log.info("model_loaded", **actors.call("load", START_SECONDS, str(weights))[0])

    def _restore(self, ref: CheckpointRef | None, state: LoopState, actors: ActorGroup) -> Stage | None:
        """Continue from a checkpoint, if there is one. Returns the stage whose optimizer the ranks then hold."""
        if ref is None:
            return None
        self._progress.phase("reading checkpoint")
        state.load_state_dict(read_trainer_state(ref))
        stage = stage_of(self._spec, state.step)
        actors.call("begin_stage", START_SECONDS, stage)
        actors.call("restore", UPDATE_SECONDS, str(ref.path / ACTOR))
        log.info("checkpoint_restored", path=str(ref.path), step=state.step)
        return stage

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
        )

    def _loggers(self, found: CheckpointRef | None) -> LoggerSet:
        run = RunInfo(
            name=self._job.name,
            uid=self._job.uid,
            directory=self._volume.root,
            model=self._spec.model.path or "from scratch",
            engine=self._spec.rollout.engine,
            ranks=self._spec.ranks,
            project=self._spec.training.project,
            config=self._spec.model_dump(mode="json", by_alias=True, exclude_none=True),
            resumed_step=found.manifest.step if found else 0,
        )
        return LoggerSet(self._spec.training.loggers, run)


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
