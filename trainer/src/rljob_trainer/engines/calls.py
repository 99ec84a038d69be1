"""What engines and the rollout host send each other. Light: both import it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rljob_trainer.engines.engine import Completion

if TYPE_CHECKING:
    from rljob_trainer.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a log says about an engine that has started."""

    engine: str
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What an engine has finished. error: why it cannot finish its other requests; None while it can."""

    engine: str
    incarnation: str
    completions: tuple[Completion, ...]
    error: Exception | None = None


class Receiver(Protocol):
    """What an engine calls of the rollout host."""

    def deliver(self, delivery: Delivery) -> None: ...


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who receives an engine's completions. incarnation: differs for each rollout host that ever ran."""

    incarnation: str
    host: "Worker[Receiver]"
