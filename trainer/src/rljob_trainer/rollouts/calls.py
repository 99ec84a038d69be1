"""What the driver and the engines can ask of the rollout host. Light: all of them import it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rljob_trainer.engines.engine import Completion
from rljob_trainer.journal.record import Used
from rljob_trainer.types import Group, GroupSummary, Sampling, Task

if TYPE_CHECKING:
    import ray

    from rljob_trainer.engines.calls import EngineCalls
    from rljob_trainer.workers.worker import Worker

Purpose = Literal["training", "validation"]


@dataclass(frozen=True, slots=True)
class PolicyName:
    """The policy that an order is for. version: the step that made it. digest: names it by how it was made."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Order:
    """Groups to make: `samples` episodes of each task.

    purpose: groups for training are journaled, those of a validation are not.
    """

    purpose: Purpose
    policy: PolicyName
    tasks: Sequence[Task]
    samples: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Delivery:
    """What an engine has finished. error: why it cannot finish its other requests; None while it can."""

    engine: str
    incarnation: str
    completions: tuple[Completion, ...]
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A finished group, as the driver holds it.

    bundle, index: where its tensors are: groups that were finished together are one object.
    journaled: it was made before, and found again.
    """

    bundle: "ray.ObjectRef[Sequence[Group]]"
    index: int
    summary: GroupSummary
    journaled: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """What an order has produced behind its first `seen` groups.

    generated: seconds from the order to its last finished turn so far.
    engine_failed: the engine that cannot go on, and why; it is to be replaced.
    """

    groups: Sequence[GroupRef]
    generated: float
    engine_failed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """incarnation: differs for each rollout host. made: episodes in the journal. damaged: files that lack some."""

    incarnation: str
    made: int
    damaged: tuple[str, ...]


class RolloutCalls(Protocol):
    """The rollout host: it plays episodes, scores and journals them, and keeps the groups."""

    # Asked by the driver.

    def start(self, attempt: int, from_version: int) -> HostInfo:
        """Load the reward functions, if a former driver did not, and read the journal from `from_version` on.

        Raises RewardError for a function that cannot be loaded, InfrastructureError where the volume does not answer.
        """

    def attach(self, engines: "Sequence[Worker[EngineCalls]]", policy: PolicyName) -> None:
        """Generate with these engines, which hold `policy`. What others were to generate goes to these."""

    def begin(self, order: Order) -> int:
        """Make the groups of an order, without waiting. Returns its number.

        A group that is being made, or was made, for the same policy is not made again. An order for training with
        another policy ends the one before.
        """

    def news(self, order: int, seen: int, seconds: float) -> News:
        """Wait up to `seconds` for groups behind the first `seen`. Raises what ended the order, such as RewardError."""

    def step_used(self, digest: str, fingerprint: str) -> Used | None:
        """What the update of the policy `digest` used, if it was begun before under the same settings."""

    def find(self, order: Order) -> list[GroupRef]:
        """The groups of an order that were made before; it makes none."""

    def use(self, used: Used) -> None:
        """Record what an update uses; the record and all that it names are durable when this returns.

        Raises FencedError where a later attempt has the run.
        """

    # Asked by the engines, in the group "inbox".

    def deliver(self, delivery: Delivery) -> None: ...
