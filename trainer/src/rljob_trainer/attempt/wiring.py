"""Build and connect the parts of one attempt. Decisions are made in the parts.

    living workers? ──> take over: the attempt continues after the step that they have done
                   └──> else: fabric? ──> start workers ── meanwhile data, reward code ──> weights ──> newest checkpoint
    rollouts, loop

The cheapest checks run first, so that a job with an error in its spec or data fails before anything large is loaded.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

import ray

from rljob_api.contract import DriverJob
from rljob_api.durations import parse_duration
from rljob_trainer.attempt.claim import check_not_superseded, root_claim
from rljob_trainer.attempt.model_folder import prepare_model_folder
from rljob_trainer.attempt.origin import Origin, find_origin, restore
from rljob_trainer.attempt.resumption import Resumption
from rljob_trainer.compute.compiled import compiled_folder
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.stream import SupervisedStream, TaskStream
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.tokenizer import make_tokenizer
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.engines.registry import argument_errors
from rljob_trainer.environments.check import check_code
from rljob_trainer.environments.tool_template import check_tool_template
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest, WorkerLost
from rljob_trainer.journal import first_digest, rollout_fingerprint, step_fingerprint, update_fingerprint
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.loop.agreement import Agreement
from rljob_trainer.loop.checkpoints import Checkpoints
from rljob_trainer.loop.gradients import GradientGuard
from rljob_trainer.loop.loop import Loop
from rljob_trainer.loop.reinforced import Fingerprints, ReinforcedSteps
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.requests import Requests
from rljob_trainer.loop.stages import stage_of, with_length
from rljob_trainer.loop.state import LoopState
from rljob_trainer.lora.base import check_continued
from rljob_trainer.lora.source import with_adapter
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.memory.sequences import FEW_SEQUENCES, MANY_SEQUENCES
from rljob_trainer.memory.work import contexts_of_an_engine
from rljob_trainer.own.load import with_own_functions
from rljob_trainer.own.trial import try_advantage
from rljob_trainer.preflight.attempt import check_fabric
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.model_source import (
    ModelFolders,
    critic_model,
    locate_critic,
    locate_model,
    locate_teacher,
    teacher_model,
)
from rljob_trainer.rank.supported import check_critic, check_quantization, check_teacher, max_model_len
from rljob_trainer.rewards.check import check_data_sources
from rljob_trainer.rollouts.engine_client import EngineClient
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.rollouts.rollout_client import RolloutClient
from rljob_trainer.rollouts.rollout_host import RolloutSettings
from rljob_trainer.rollouts.rollouts import Rollouts
from rljob_trainer.rollouts.weight_sync import WeightSync, tolerance_of
from rljob_trainer.types import Task
from rljob_trainer.volume import Volume
from rljob_trainer.workers.context import START_SECONDS, WorkerContext, rollout_seconds
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.placement import find_nodes
from rljob_trainer.workers.roster import Roster

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Wiring:
    """Builds the parts in dependency order and runs the loop."""

    def __init__(
        self, job: DriverJob, volume: Volume, attempt: int, nonce: str, progress: ProgressReporter, requests: Requests
    ) -> None:
        self._base_dir, self._folder = Path(job.base_dir), volume.root / "model"
        self._job, self._volume = job, volume
        self._spec = with_own_functions(with_adapter(job.spec, self._base_dir), self._base_dir)
        self._attempt, self._nonce, self._progress, self._requests = attempt, nonce, progress, requests
        placement = find_nodes(job.spec)  # waits for the nodes whose GPUs cluster_resources counts
        self._device: Literal["cpu", "cuda"] = "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
        self._rollout_fingerprint = rollout_fingerprint(job.spec, self._base_dir)
        update = update_fingerprint(job.spec, self._base_dir)
        self._fingerprints = Fingerprints(update, step_fingerprint(job.spec, update, self._rollout_fingerprint))
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
            self._spec,
            self._device,
            max(1, threads),
            self._roster,
            self._heartbeats,
            placement,
            compiled_folder(volume.root),
        )
        self._ranks = RankClient(self._context)

    def close(self, error: BaseException | None, *, end_workers: bool) -> None:
        """error: how the attempt ended. end_workers: no driver will take them over.

        Raises FencedError if a later attempt has taken them over.
        """
        self._heartbeats.close()
        if end_workers:
            self._roster.end_all()
        elif isinstance(error, WorkerLost):
            self._roster.kill(error.worker)  # so that the next driver does not wait for it

    def run(self, before_steps: Callable[[], None]) -> None:
        """Train. before_steps: called when everything is ready."""
        self._check_arguments()
        importing = Thread(target=import_transformers, name="import", daemon=True)
        importing.start()  # while workers answer
        self._progress.phase("looking for workers and checkpoints")
        origin = find_origin(self._volume, self._attempt, self._nonce, self._resumption, self._ranks)
        self._checkpoints.prune_if_possible()
        if origin.held is None:
            check_fabric(self._context, self._volume, self._attempt, self._progress)
            self._ranks.start()  # their processes import while the data is read
        with_rl = not self._spec.supervised_only
        engines, host = self._engines_and_host(origin) if with_rl else (None, None)
        with _tracked(self._loggers(origin)) as loggers:
            self._progress.phase("reading data")
            model = self._spec.model
            weights = self._folder if model.from_scratch is not None else locate_model(model, self._base_dir)
            folders = ModelFolders(weights, self._critic_folder(), self._teacher_folder())
            _join(importing)  # a second thread could get a partly imported module
            tokenizer = make_tokenizer(self._spec, self._base_dir)
            if model.lora is not None and (adapter := origin.adapter(self._folder)) is not None:
                check_continued(adapter, model.lora, weights)
            check_tool_template(self._spec, tokenizer)
            vocab_size = prepare_model_folder(self._spec, weights, self._folder, tokenizer)
            self._check_others(folders, tokenizer)
            if host is not None:
                host.load()
            state = self._state(tokenizer, origin, with_prompts=with_rl)
            validation = self._validation(tokenizer, state.template_time) if with_rl else []
            reporting = Reporting(self._volume, self._attempt, self._progress, loggers, tokenizer)
            reinforced = None
            self._progress.phase("starting workers")
            if engines is not None and host is not None:
                rollouts = self._rollouts(engines, host, origin, vocab_size, reporting)
                first = stage_of(self._spec, origin.step + 1)
                replaying = rollouts.settle(generates_first=origin.held is None and first == "rl")
                tolerance = tolerance_of(self._spec, self._device)
                self._progress.tolerate(tolerance)
                reinforced = ReinforcedSteps(
                    self._spec, self._fingerprints, state, self._ranks, rollouts, validation, reporting, replaying,
                    Agreement(tolerance),
                )  # fmt: skip
            restored = restore(self._spec, self._volume, origin, folders, self._ranks, state, self._progress)
            before_steps()
            Loop(
                spec=self._spec,
                volume=self._volume,
                state=state,
                stage=restored.stage,
                held=restored.held,
                saved=origin.durable_step,
                lost=origin.lost is not None,
                ranks=self._ranks,
                reinforced=reinforced,
                checkpoints=self._checkpoints,
                reporting=reporting,
                requests=self._requests,
                fingerprint=self._fingerprints.update,
            ).run()

    # ------------------------------------------------------------------ parts

    def _engines_and_host(self, origin: Origin) -> tuple[EngineClient, RolloutClient]:
        engines = EngineClient(self._context, self._engine_settings(), self._ranks)
        host = RolloutClient(self._context, self._rollout_settings(origin), self._attempt, origin.durable_step)
        return engines, host

    def _rollouts(
        self, engines: EngineClient, host: RolloutClient, origin: Origin, vocab_size: int, reporting: Reporting
    ) -> Rollouts:
        weights = WeightSync(self._spec, self._device, self._ranks, engines, vocab_size)
        heartbeats = self._heartbeats
        repair = Repair(self._spec.recovery, engines, host.replace, heartbeats.diagnose, worth_spare=origin.step > 0)
        return Rollouts(
            engines, host, weights, repair,
            heartbeats=heartbeats, phase=reporting.phase, shares_memory=self._device == "cuda",
            seconds=rollout_seconds(self._spec),
        )  # fmt: skip

    def _state(self, tokenizer: "PreTrainedTokenizerBase", origin: Origin, *, with_prompts: bool) -> LoopState:
        """Read the data, with which the length of the run is known."""
        spec, root = self._spec, root_claim(self._volume, self._attempt)
        now = origin.template_time(root)
        prompts = examples = None
        if with_prompts:
            dataset = load_prompts(spec.data, tokenizer, self._base_dir, now=now, responses=spec.pairs_with_rows)
            check_data_sources(spec.rewards, dataset.data_sources)
            key = spec.data.difficulty
            prompts = TaskStream(
                dataset, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=spec.training.epochs,
                difficulties=dataset.difficulties(key) if key else None, measures=spec.data.measured_difficulty,
            )  # fmt: skip
            self._spec = with_length(spec, len(dataset))
        if spec.sft or spec.supervised_only:
            supervised = load_supervised(spec, tokenizer, self._base_dir, now=now)
            epochs = spec.training.epochs if spec.supervised_only else None
            examples = SupervisedStream(supervised, seed=spec.data.seed, shuffle=spec.data.shuffle, epochs=epochs)
            if spec.supervised_only:
                self._spec = with_length(spec, len(supervised))
        nonce = root.nonce if root is not None else ""
        digest = first_digest(self._job.uid, nonce, self._fingerprints.update, spec.training.seed)
        guard = GradientGuard(spec.training.on_bad_gradient)
        return LoopState(prompts, examples, KlController(spec.algorithm.kl), guard, digest, now)

    def _critic_folder(self) -> Path | None:
        """The critic's own model, if it has one."""
        model = critic_model(self._spec)
        return locate_critic(model, self._base_dir) if model is not None else None

    def _teacher_folder(self) -> Path | None:
        model = teacher_model(self._spec)
        return locate_teacher(model, self._base_dir) if model is not None else None

    def _check_others(self, folders: ModelFolders, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises JobError or DataError for a critic or a teacher that does not go with the policy."""
        if folders.critic is not None:
            check_critic(self._spec, folders.critic, len(tokenizer) - 1)
        if folders.teacher is not None:
            check_teacher(self._spec, folders.teacher, tokenizer.get_vocab())

    def _validation(self, tokenizer: "PreTrainedTokenizerBase", now: datetime) -> list[Task]:
        if not self._spec.data.validation:
            return []
        dataset = load_prompts(self._spec.data, tokenizer, self._base_dir, "validation", now=now)
        check_data_sources(self._spec.rewards, dataset.data_sources)
        return dataset.all("validation")

    def _check_arguments(self) -> None:
        """Raises JobError for what no engine of this machine does, or wrong code of an advantage or an environment.

        vLLM checks the rest.
        """
        if self._spec.environment is not None:
            check_code(self._spec.environment, self._base_dir)
        check_quantization(self._spec, self._device)
        if self._spec.algorithm.advantage_from is not None:
            try_advantage(self._spec.algorithm, values=self._spec.critic is not None)
        rollout, supervised = self._spec.rollout, self._spec.supervised_only
        if supervised or rollout.engine != "vllm":
            for error in argument_errors(rollout.engine, rollout.engine_arguments, supervised=supervised):
                raise error

    def _rollout_settings(self, origin: Origin) -> RolloutSettings:
        environment, rollout = self._spec.environment, self._spec.rollout
        most = MANY_SEQUENCES if rollout.engine == "vllm" and self._device == "cuda" else FEW_SEQUENCES
        now = origin.template_time(root_claim(self._volume, self._attempt)) if environment is not None else None
        return RolloutSettings(
            rewards=self._spec.rewards,
            model_dir=str(self._folder),
            base_dir=self._job.base_dir,
            urls=dict(self._job.reward_models),
            log=str(self._volume.logs / "rewards.log"),
            volume=str(self._volume.root),
            fingerprint=self._rollout_fingerprint,
            seed=self._spec.rollout.seed,
            deterministic=self._spec.rollout.deterministic,
            engine_runs=rollout.max_num_seqs or most,
            trust_remote_code=self._spec.model.trust_remote_code,
            environment=environment,
            episode_tokens=self._spec.longest_sample,
            teacher=self._spec.algorithm.teacher,
            template_arguments=self._spec.data.template_arguments,
            template_time=now.isoformat() if now is not None else "",
        )

    def _engine_settings(self) -> EngineSettings:
        rollout, lora = self._spec.rollout, self._spec.model.lora
        return EngineSettings(
            kind=rollout.engine,
            model_dir=str(self._folder),
            max_model_len=max_model_len(self._spec),
            dtype=compute_dtype(self._spec, self._device),
            device=self._device,
            max_num_seqs=rollout.max_num_seqs or FEW_SEQUENCES,
            more_if_room=rollout.max_num_seqs is None,
            contexts=contexts_of_an_engine(self._spec),
            tensor_parallel_size=rollout.tensor_parallel_size,
            engines_per_gpu=rollout.engines_per_gpu,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            enforce_eager=rollout.enforce_eager,
            quantization=rollout.quantization,
            seed=rollout.seed,
            trust_remote_code=self._spec.model.trust_remote_code,
            arguments=rollout.engine_arguments,
            deterministic=rollout.deterministic,
            adapter=lora if lora is not None and not lora.merge else None,
        )

    def _loggers(self, origin: Origin) -> LoggerSet:
        run = RunInfo(
            name=self._job.name,
            uid=self._job.uid,
            directory=self._volume.root,
            project=self._spec.training.project,
            # Environment variables may hold secrets.
            config=self._spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"env"}),
            resumed_step=origin.step,
        )
        return LoggerSet(self._spec.training.loggers, run)


def _join(importing: Thread) -> None:
    """Raises InfrastructureError at the deadline."""
    importing.join(START_SECONDS)
    if importing.is_alive():
        raise InfrastructureError(f"importing transformers took more than {START_SECONDS:.0f} s; check its disk")


@contextmanager
def _tracked(loggers: LoggerSet) -> Iterator[LoggerSet]:
    """Report to every tracker how the attempt ended."""
    status: Literal["done", "failed", "stopped"] = "failed"
    try:
        yield loggers
        status = "done"
    except StoppedOnRequest:
        status = "stopped"
        raise
    finally:
        loggers.finish(status)
