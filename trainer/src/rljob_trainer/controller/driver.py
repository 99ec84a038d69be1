"""One attempt, from its claim to its exit record. It never restarts itself: its supervisor does that.

claim -> workers start (in the background) -> data, tokenizer -> weights -> checkpoint, if any -> loop -> exit record
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import ray
import structlog

from rljob_api.contract import ExitRecord
from rljob_trainer.actor.sharding import compute_dtype
from rljob_trainer.actor.worker import Stage
from rljob_trainer.checkpoint.manifest import ACTOR, read_trainer_state
from rljob_trainer.controller.attempt import claim, record_exit, record_resume
from rljob_trainer.controller.checkpoints import Checkpoints
from rljob_trainer.controller.job import DriverJob
from rljob_trainer.controller.loop import Loop
from rljob_trainer.controller.model_folder import max_model_len, prepare_model_folder
from rljob_trainer.controller.reinforced import ReinforcedSteps
from rljob_trainer.controller.reporting import Reporting
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
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.rollout.engine import EngineSettings
from rljob_trainer.types import Prompt
from rljob_trainer.volume import Volume
from rljob_trainer.waiting import wait_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger()


def drive(job: DriverJob, root: Path, attempt: int, ray_address: str) -> ExitRecord:
    """Run attempt `attempt` of `job` on the volume `root`, on the Ray cluster at `ray_address`.

    Whatever happens, the exit record says it. Raises FencedError where the attempt's number is taken.
    """
    volume = Volume(root)
    nonce = claim(volume, attempt)
    error: BaseException | None = None
    try:
        with stop_on_signal() as stop, ProgressReporter(volume) as progress:
            progress.phase("starting")
            ray.init(address=ray_address, namespace=f"rljob-{job.uid}", log_to_driver=False, logging_level="error")
            _Attempt(job, volume, attempt, nonce, progress, stop).run()
    except BaseException as raised:
        error = raised
        log.exception("attempt_failed")
    finally:
        ray.shutdown()
    record = record_exit(volume, attempt, error)
    log.info("attempt_ended", code=record.code, reason=record.reason)
    return record


@dataclass(slots=True)
class StopRequest:
    """Set by SIGTERM and SIGINT. Before the loop runs there is nothing to save, so they end the attempt at once."""

    asked: threading.Event
    training: bool = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """The first SIGTERM or SIGINT asks to checkpoint and stop, the second ends the process."""
    stop = StopRequest(threading.Event())

    def handle(number: int, _: FrameType | None) -> None:
        if stop.asked.is_set():
            os._exit(128 + number)
        stop.asked.set()
        if not stop.training:
            raise StoppedOnRequest("stopped before the first step of this attempt")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Attempt:
    """Wires the parts of one attempt together; each part knows nothing of its owner."""

    def __init__(
        self, job: DriverJob, volume: Volume, attempt: int, nonce: str, progress: ProgressReporter, stop: StopRequest
    ) -> None:
        self.job, self.spec, self.volume = job, job.spec, volume
        self.attempt, self.nonce, self.progress, self.stop = attempt, nonce, progress, stop
        self.base_dir = Path(job.base_dir)
        self.device: Literal["cpu", "cuda"] = "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
        self.folder = volume.root / "model"
        self.reinforces = supervised_steps(job.spec) < job.spec.total_steps

    def run(self) -> None:
        threads = max(1, (os.cpu_count() or 1) // self.spec.cluster.ranks_per_node)
        actors = ActorGroup(self.spec, self.device, threads)  # their processes start while the data is read
        self.progress.phase("reading data")
        tokenizer = make_tokenizer(self.spec, self.base_dir)
        weights, vocab_size = prepare_model_folder(self.spec, self.base_dir, self.folder, tokenizer)
        state = self._state(tokenizer)
        validation = self._validation(tokenizer)
        rewards = self._rewards() if self.reinforces else None
        self._load_model(actors, weights)
        checkpoints = Checkpoints(self.spec, self.volume, self.attempt, self.folder)
        stage = self._restore(state, actors, checkpoints)
        reporting = Reporting(self.volume, self.attempt, self.progress, self._loggers(state.step), tokenizer)
        reinforced = None
        if self.reinforces:
            engines = EngineGroup(self._engine_settings(), self._engine_gpus(actors), threads)
            sync = WeightSync(self.spec, self.device, actors, engines, vocab_size)
            reinforced = ReinforcedSteps(self.spec, actors, engines, rewards, sync, validation, reporting)
        loop = Loop(self.spec, state, stage, actors, reinforced, checkpoints, reporting, self.stop.asked)
        self._train(loop, reporting)

    def _train(self, loop: Loop, reporting: Reporting) -> None:
        self.stop.training = True
        status: Literal["done", "failed", "stopped"] = "failed"
        try:
            loop.run()
            status = "done"
        except StoppedOnRequest:
            status = "stopped"
            raise
        finally:
            reporting.close(status)

    def _load_model(self, actors: ActorGroup, weights: Path) -> None:
        self.progress.phase("loading model")
        for info in actors.connect():
            log.info("rank_started", **info)
        log.info("model_loaded", **actors.call("load", START_SECONDS, str(weights))[0])

    def _state(self, tokenizer: "PreTrainedTokenizerBase") -> LoopState:
        spec = self.spec
        prompts = examples = None
        if self.reinforces:
            dataset = load_prompts(spec.data, tokenizer, self.base_dir)
            prompts = PromptStream(dataset, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=spec.training.epochs)
        if supervised_steps(spec):
            supervised = load_supervised(spec, tokenizer, self.base_dir)
            epochs = spec.training.epochs if spec.supervised_only else None
            examples = SupervisedStream(supervised, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=epochs)
        return LoopState(prompts, examples, KlController(spec.algorithm.kl))

    def _rewards(self) -> Any:
        """The reward host, its functions loaded: what is wrong with them shows before any weight is."""
        log_file = self.volume.logs / "rewards.log"
        rewards = reward_host(self.spec, self.folder, self.job.base_dir, log_file)
        wait_for(rewards.start.remote(), START_SECONDS, "the reward functions to load")
        return rewards

    def _validation(self, tokenizer: "PreTrainedTokenizerBase") -> list[Prompt]:
        if not self.spec.data.validation:
            return []
        return load_prompts(self.spec.data, tokenizer, self.base_dir, "validation").all("validation")

    def _restore(self, state: LoopState, actors: ActorGroup, checkpoints: Checkpoints) -> Stage | None:
        """Continue from a checkpoint, if there is one. Returns the stage whose optimizer the ranks then hold."""
        self.progress.phase("reading checkpoint")
        ref = checkpoints.find()
        record_resume(self.volume, self.attempt, self.nonce, ref)
        if ref is None:
            return None
        state.load_state_dict(read_trainer_state(ref))
        stage = stage_of(self.spec, state.step)
        actors.call("begin_stage", START_SECONDS, stage)
        actors.call("restore", UPDATE_SECONDS, str(ref.path / ACTOR))
        log.info("checkpoint_restored", path=str(ref.path), step=state.step)
        return stage

    def _engine_settings(self) -> EngineSettings:
        rollout = self.spec.rollout
        return EngineSettings(
            kind=rollout.engine,
            model_dir=str(self.folder),
            max_model_len=max_model_len(self.spec),
            dtype=compute_dtype(self.spec, self.device),
            device=self.device,
            max_num_seqs=rollout.max_num_seqs,
            tensor_parallel_size=rollout.tensor_parallel_size,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            enforce_eager=rollout.enforce_eager,
            seed=rollout.seed,
            trust_remote_code=self.spec.model.trust_remote_code,
        )

    def _engine_gpus(self, actors: ActorGroup) -> list[list[str]]:
        """For each engine, the GPUs of its ranks, as CUDA_VISIBLE_DEVICES names them."""
        gpus = actors.call("visible_gpu", START_SECONDS)
        size = self.spec.rollout.tensor_parallel_size
        return [[gpu for gpu in gpus[first : first + size] if gpu] for first in range(0, len(gpus), size)]

    def _loggers(self, resumed_step: int) -> LoggerSet:
        run = RunInfo(
            name=self.job.name,
            uid=self.job.uid,
            directory=self.volume.root,
            model=self.spec.model.path or "from scratch",
            engine=self.spec.rollout.engine,
            ranks=self.spec.ranks,
            project=self.spec.training.project,
            config=self.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
            resumed_step=resumed_step,
        )
        return LoggerSet(self.spec.training.loggers, run)
