"""What the driver, the ranks and the rollout host can ask of an engine's process. Light: all of them import it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljob_trainer.engines.engine import Completion, Request
from rljob_trainer.types import Ids
from rljob_trainer.weights.bucket import BucketDescriptor

if TYPE_CHECKING:
    from rljob_trainer.rollouts.calls import RolloutCalls
    from rljob_trainer.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a log says about an engine that has started."""

    engine: str
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who receives an engine's completions. incarnation: differs for each rollout host that ever ran."""

    incarnation: str
    host: "Worker[RolloutCalls]"


class EngineCalls(Protocol):
    """One engine in a process of its own."""

    # Asked by the driver, in its order.

    def start(self, gpus: Sequence[str], place: int) -> EngineInfo:
        """Build the engine (seconds to minutes). Raises JobError with the remedy if it cannot run here.

        gpus: all that it may see, as CUDA_VISIBLE_DEVICES names them. place: among the job's engines, from 0.
        """

    def rest(self) -> bool:
        """Sleep, for a driver that has taken the engine over; False if no engine was started."""

    def sleep(self) -> None:
        """Give the GPU memory back. Raises InfrastructureError while samples are unfinished."""

    # Asked by the ranks, in their order.

    def begin_update(self, version: int) -> None: ...

    def load_bucket(self, bucket: BucketDescriptor) -> None: ...

    def complete_update(self, version: int, prompts: Sequence[Ids], max_tokens: int) -> list[Completion]:
        """What follows the last bucket, in one call: use the weights, wake, answer the probe.

        prompts: of the probe, [P] each. Returns one completion for each, in their order, sampled at temperature 1.
        """

    # Asked by the rollout host, in the group "inbox".

    def subscribe(self, subscriber: Subscriber) -> None:
        """Send completions to that host from now on; requests of another host are aborted."""

    def submit(self, incarnation: str, requests: Sequence[Request]) -> None:
        """Generate; the subscriber receives each completion, or the error. Requests of others are ignored."""

    def abort(self, incarnation: str, request_ids: Collection[str]) -> None:
        """Forget these requests."""
