"""The Ray worker that plays episodes, scores them, and keeps journal and groups. It imports no torch.

An environment of the user's needs the chat template, and with it transformers, without torch.
"""

import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import ray
import structlog

from rljob_api.v1alpha1 import Environment, Rewards
from rljob_api.v1alpha1.teacher import Teacher
from rljob_trainer.attempt.claim import check_not_superseded
from rljob_trainer.engines.calls import Delivery, Receiver, Subscriber
from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.environments.pool import EnvironmentPool
from rljob_trainer.environments.single_turn import single_turn
from rljob_trainer.environments.tokenized import load_tokenized
from rljob_trainer.errors import InfrastructureError, RLJobError
from rljob_trainer.journal import Journal, JournalWriter, Made, Used
from rljob_trainer.journal.record import encode_made, encode_used, made_key
from rljob_trainer.journal.summary import summarise
from rljob_trainer.rewards.scorer import Scorer
from rljob_trainer.rollouts.calls import GroupRef, HostInfo, News, Order, PolicyName
from rljob_trainer.rollouts.episodes import Episodes, Teach
from rljob_trainer.rollouts.generation import Generation
from rljob_trainer.rollouts.group_buffer import GroupBuffer
from rljob_trainer.rollouts.teaching import TeacherClient, policy_encoder
from rljob_trainer.types import NOT_SAMPLED, Episode, Group, Task
from rljob_trainer.volume import Volume
from rljob_trainer.workers.host import Host
from rljob_trainer.workers.worker import Worker

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How to build a rollout host.

    model_dir: with the tokenizer. base_dir: where relative paths of reward files start.
    urls: servers of reward models, by name. log: what reward functions print. volume: the run's.
    fingerprint: rollout_fingerprint's. seed: rollout.seed. deterministic: rollout.deterministic.
    engine_runs: samples that an engine generates at once, at most.
    trust_remote_code: model.trustRemoteCode.
    environment: spec.environment; None: a single turn. episode_tokens: most of a context, unless it says otherwise.
    teacher: algorithm.teacher; the host asks its server, if it has one.
    template_arguments: data.templateArguments. template_time: ISO 8601, the time that chat templates see.
    """

    rewards: Rewards
    model_dir: str
    base_dir: str
    urls: Mapping[str, str]
    log: str
    volume: str
    fingerprint: str
    seed: int
    deterministic: bool
    engine_runs: int
    trust_remote_code: bool = False
    max_staleness: int = 0
    environment: Environment | None = None
    episode_tokens: int = 0
    teacher: Teacher | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    template_time: str = ""


class RolloutProcess:
    """Plays, scores and journals episodes, and keeps the groups. me: this worker, as engines call it."""

    def __init__(self, settings: RolloutSettings, me: Worker[Receiver]) -> None:
        self._settings = settings
        self._volume = Volume(Path(settings.volume))
        self._incarnation = uuid.uuid4().hex
        self._subscriber = Subscriber(self._incarnation, me)
        self._episodes: Episodes | None = None
        self._environments: EnvironmentPool | None = None
        self._teacher: TeacherClient | None = None
        self._buffer = GroupBuffer(settings.max_staleness)
        self._policies: dict[int, str] = {}
        self._attached: PolicyName | None = None
        self._lock = threading.Lock()  # of the journal's reader and the buffer

    # ------------------------------------------------------------------ the driver

    def start(self, attempt: int, from_version: int) -> HostInfo:
        """Load the reward functions, if a former driver did not, and read the journal from `from_version` on.

        Raises RewardError for a function that cannot be loaded, InfrastructureError if the volume does not answer.
        """
        self._attempt = attempt
        if self._episodes is None:
            s, teach = self._settings, self._asks_teacher()
            scorer = Scorer(
                s.rewards, Path(s.model_dir), Path(s.base_dir), s.urls, Path(s.log),
                trust_remote_code=s.trust_remote_code, environment=s.environment,
            )  # fmt: skip
            # Which engine has which request must not depend on time where rounding is to repeat.
            runs = None if s.deterministic else s.engine_runs
            generation = Generation(
                self._subscriber, lambda v: v in self._policies, whole_requests=s.deterministic, runs=runs
            )
            self._writer = JournalWriter(self._volume)
            self._scorer = scorer
            self._environments = self._pool()
            play = single_turn if self._environments is None else self._environments.rollout
            diary = self if self._environments is not None else None
            shares = self._environments is None or not s.deterministic
            episodes = Episodes(play, scorer, generation, s.seed, self._keep, shares=shares, diary=diary, teach=teach)
            if self._environments is not None:
                try:
                    episodes.run(self._environments.start())
                except BaseException:
                    episodes.close()
                    scorer.close()
                    self._writer.close()
                    raise
            self._episodes = episodes
        elif self._writer.failed:  # for the former driver; the volume may answer again
            failed, self._writer = self._writer, JournalWriter(self._volume)
            with suppress(RLJobError):
                failed.close()
        with self._lock:
            self._journal = Journal(self._volume, attempt, from_version)
        damaged = tuple(str(path.relative_to(self._volume.root)) for path in self._journal.incomplete)
        return HostInfo(self._incarnation, len(self._journal), damaged)

    def attach(self, engines: Sequence[Worker[EngineProcess]], policy: PolicyName) -> None:
        """Generate with these engines, which hold `policy`. What others were to generate goes to these."""
        self._attached = policy
        self._started().attach({worker.identity: worker for worker in engines})

    def begin(self, order: Order) -> int:
        """Make the groups of an order, without waiting. Returns its number.

        A group that is being made, or was made, for the same policy is not made again. Orders for another policy end:
        engines that hold this one must not answer for that.
        """
        episodes = self._started()
        if (number := episodes.same(order)) is not None:
            return number
        if order.policy != self._attached:
            episodes.attach({})  # its turns wait for engines that hold this policy
        episodes.end(others_than=order.policy)
        self._enter(order.policy)
        return episodes.begin(order, self.find(order) if order.purpose == "training" else ())

    def news(self, order: int, seen: int, seconds: float, enough: int | None = None) -> News:
        """Wait up to `seconds` for groups behind the first `seen`, until `enough` are there in all; None: every one.

        Raises what ended the order, such as RewardError.
        """
        return self._started().news(order, seen, seconds, enough)

    def abort(self, order: int) -> None:
        """End an order of which enough is finished; of the rest nothing is journaled."""
        self._started().abort(order)

    def step_used(self, digest: str, fingerprint: str) -> Used | None:
        """What the update of the policy `digest` used, if it was begun before under the same settings."""
        with self._lock:
            return self._journal.used(digest, fingerprint)

    def find(self, order: Order) -> list[GroupRef]:
        """The groups of an order that were made before; it makes none."""
        allowed = {order.policy.version: order.policy.digest}
        with self._lock:
            found = [self._find(order, task, allowed) for task in order.tasks]
        return [group for group in found if group is not None]

    def use(self, used: Used) -> None:
        """Record what an update uses; the record and all that it names are durable when this returns.

        Raises FencedError if a later attempt has the run.
        """
        check_not_superseded(self._volume, self._attempt)
        self._writer.sync()
        self._writer.append([encode_used(used)], self._attempt, used.step - 1)
        self._writer.sync()

    # ------------------------------------------------------------------ the engines, in the group "inbox"

    def deliver(self, delivery: Delivery) -> None:
        if self._episodes is not None and delivery.incarnation == self._incarnation:
            self._episodes.deliver(delivery)

    # ------------------------------------------------------------------ between drivers

    def detach(self) -> None:
        """The driver is gone, and with it who wanted validations. The next one updates engines before they get more."""
        if self._episodes is not None:
            self._episodes.detach()

    def close(self) -> None:
        if self._episodes is not None:
            if self._environments is not None:
                self._episodes.run(self._environments.close())
            self._episodes.end()
            if self._teacher is not None:
                self._episodes.run(self._teacher.close())
            self._episodes.close()
            self._scorer.close()
            self._writer.close()

    # ------------------------------------------------------------------ groups

    def _asks_teacher(self) -> Teach | None:
        s = self._settings
        if s.teacher is None or s.teacher.server is None:
            return None
        encode = policy_encoder(Path(s.model_dir), trust_remote_code=s.trust_remote_code)
        self._teacher = TeacherClient(s.teacher.server, s.teacher.top_k, s.episode_tokens, encode)
        return self._teacher.taught

    def _pool(self) -> EnvironmentPool | None:
        s = self._settings
        environment = s.environment
        if environment is None:
            return None

        def tokenized() -> Tokenized:
            now, parser = datetime.fromisoformat(s.template_time), environment.tool_parser
            return load_tokenized(Path(s.model_dir), s.template_arguments, now, s.trust_remote_code, parser)

        log_file = Path(s.log).with_name("environment.log")
        return EnvironmentPool(environment, s.episode_tokens, tokenized, Path(s.base_dir), log_file)

    def _started(self) -> Episodes:
        if self._episodes is None:
            raise InfrastructureError("the reward functions are not loaded")
        return self._episodes

    def _enter(self, policy: PolicyName) -> None:
        """Forget groups that are too old for this policy, and those of another lineage."""
        oldest = policy.version - self._settings.max_staleness
        with self._lock:
            known = self._policies.get(policy.version)
            if known != policy.digest and (known is not None or policy.version < max(self._policies, default=0)):
                self._policies.clear()  # the run goes on from an older checkpoint
                self._buffer.clear()
                self._journal.refresh()
            self._policies = {v: digest for v, digest in self._policies.items() if v >= oldest}
            self._policies[policy.version] = policy.digest
            self._buffer.drop_stale(policy.version)

    def _find(self, order: Order, task: Task, allowed: Mapping[int, str]) -> GroupRef | None:
        """From memory, else from the journal, if all its episodes are there."""
        kept, wanted = self._buffer.get(task.id), order.samples + order.baseline
        if kept is not None and kept.summary.oldest_version in allowed and kept.summary.made == wanted:
            return GroupRef(kept.bundle, kept.index, kept.summary, journaled=True)
        if not len(self._journal):
            return None
        fingerprint = self._settings.fingerprint
        made = [self._journal.find(task, sample, fingerprint, allowed) for sample in range(wanted)]
        episodes = [each.episode for each in made if each is not None]
        if len(episodes) < wanted:
            return None
        error = next((each.error for each in made if each is not None and each.error), None)
        baseline = episodes[-1] if order.baseline else None
        group = Group(task, tuple(episodes[: order.samples]), error, baseline).with_response()
        return GroupRef(ray.put([group]), 0, summarise(group), journaled=True)

    def _keep(self, order: Order, groups: Sequence[Group]) -> list[GroupRef]:
        """Journal the groups of a training order, then hand them out."""
        if order.purpose == "training":
            records = [
                encode_made(self._made(group, episode), group.task) for group in groups for episode in group.made
            ]
            self._writer.append(records, self._attempt, order.policy.version)
        bundle = ray.put(list(groups))
        kept = [GroupRef(bundle, index, summarise(group)) for index, group in enumerate(groups)]
        with self._lock:
            ended = self._policies.get(order.policy.version) != order.policy.digest  # its order, meanwhile
            if order.purpose == "training" and not ended:
                for group in kept:
                    self._buffer.add(group)
        return kept

    def find_played(self, order: Order, task: Task, sample: int) -> Episode | None:
        """An episode that a lost host had finished, whose group was not."""
        with self._lock:
            allowed = {order.policy.version: order.policy.digest}
            found = self._journal.find(task, sample, self._played, allowed) if len(self._journal) else None
        return found.episode if found is not None else None

    def keep_played(self, order: Order, task: Task, episode: Episode) -> None:
        if episode.trajectories:
            made = Made(made_key(task, episode.sample, self._played), self._policies_of(episode), episode)
            self._writer.append([encode_made(made, task)], self._attempt, order.policy.version)

    @property
    def _played(self) -> str:
        """Fingerprint of episodes that are not scored."""
        return f"played {self._settings.fingerprint}"

    def _made(self, group: Group, episode: Episode) -> Made:
        key = made_key(group.task, episode.sample, self._settings.fingerprint)
        return Made(key, self._policies_of(episode), episode, group.error)

    def _policies_of(self, episode: Episode) -> dict[int, str]:
        versions = {int(v) for part in episode.trajectories for v in np.unique(part.versions) if v != NOT_SAMPLED}
        return {version: self._policies[version] for version in sorted(versions)}


class RolloutHost(Host):
    """A rollout host that outlives its driver."""

    harmless = frozenset({RolloutProcess.deliver.__name__})  # an incarnation says whose it is
    worker: RolloutProcess

    def create(self, name: str, rollout: RolloutSettings) -> RolloutProcess:
        me = ray.get_runtime_context().current_actor
        return RolloutProcess(rollout, Worker(name, me, self._attempt, self._signature))

    def claimed(self) -> None:
        self.worker.detach()
