"""What the driver and the rollout host send each other. Light: both import it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from rljob_trainer.types import Group, GroupSummary, Sampling, Task

if TYPE_CHECKING:
    import ray

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
    baseline: each group has one more episode, at temperature 0, which is not trained on.
    """

    purpose: Purpose
    policy: PolicyName
    tasks: Sequence[Task]
    samples: int
    sampling: Sampling
    baseline: bool = False


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


class CacheUse(NamedTuple):
    """prompts: tokens of prompts that engines with a prefix cache got. found: of these, those that it had."""

    prompts: int
    found: int


NO_CACHE_USE = CacheUse(0, 0)


@dataclass(frozen=True, slots=True)
class News:
    """What an order has produced behind its first `seen` groups.

    generated: seconds from the order to its last finished turn so far.
    engine_seconds: of these, those in which an engine had requests, the mean over engines.
    cache: of the turns that were finished so far.
    engine_failed: the engine that cannot go on, and why; it is to be replaced.
    """

    groups: Sequence[GroupRef]
    generated: float
    engine_failed: tuple[str, str] | None = None
    cache: CacheUse = NO_CACHE_USE
    engine_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HostInfo:
    """incarnation: differs for each rollout host. made: episodes in the journal. damaged: files that lack some."""

    incarnation: str
    made: int
    damaged: tuple[str, ...]
