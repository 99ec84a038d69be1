"""A driver's handle of one Ray worker, and typed calls to it.

    class RankCalls(Protocol):                       the calls of a rank
        def load(self, folder: str) -> int: ...

    rank: Worker[RankCalls]
    rank.call(RankCalls.load, "model")               Answer[int]; mypy checks the arguments
    rank.call(RankCalls.score_probes, prompts, *map(arriving, sent))

Only this module turns a method into the name that crosses between processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import ray

    from rljob_trainer.workers.host import Beat

C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

ConcurrencyGroup = Literal["control", "background", "inbox"]
"""Threads of a worker besides its default one (host.py)."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """The future answer to a call.

    ref: Ray's reference; as an argument of another call, Ray replaces it with its value.
    worker, identity: of the called worker.
    """

    ref: "ray.ObjectRef[R]"
    worker: str
    identity: str


@dataclass(frozen=True, slots=True)
class Pending(Generic[R]):
    """What all ranks were asked, perhaps not yet answered. R: what one rank returns.

    answers: of each rank; also as arguments of calls that begin behind them.
    result: waits for all of them.
    """

    answers: Sequence[Answer[R]]
    result: Callable[[], list[R]]


def arriving(answer: Answer[R]) -> R:
    """An answer as an argument of another call, which begins when the value is available.

    If the first call failed, the other one does not begin and raises the same exception.
    """
    return cast("R", answer.ref)


@dataclass(frozen=True, slots=True)
class Worker(Generic[C_co]):
    """A handle of one Ray worker for one attempt. Other workers that receive it call on behalf of that attempt.

    C_co: the protocol of its calls. signature: the worker's when this attempt started it or took it over.
    """

    name: str
    handle: Any
    attempt: int
    signature: str

    @property
    def identity(self) -> str:
        """Different for each process that had this name."""
        return str(self.handle._actor_id.hex())  # noqa: SLF001  Ray has no public name for it

    def call(self, method: Callable[Concatenate[C_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Answer[R]:
        """Start a call; the worker runs calls one after the other."""
        return Answer(self.handle.call.remote(self.attempt, method.__name__, *args, **kwargs), self.name, self.identity)

    def call_beside(
        self, group: ConcurrencyGroup, method: Callable[Concatenate[C_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Answer[R]:
        """As `call`, but in the threads of `group`, beside the default calls."""
        remote = self.handle.call.options(concurrency_group=group)
        return Answer(remote.remote(self.attempt, method.__name__, *args, **kwargs), self.name, self.identity)

    # Calls that every host answers beside its work (host.py).

    def claim(self) -> Answer[str]:
        """Make it obey only this attempt; returns its signature."""
        return self._control(self.handle.claim)

    def sign(self, signature: str) -> Answer[None]:
        """Change its signature."""
        return self._control(self.handle.sign, signature)

    def beat(self) -> "Answer[Beat]":
        return self._control(self.handle.beat)

    def _control(self, method: Any, *arguments: Any) -> Answer[Any]:
        return Answer(
            method.options(concurrency_group="control").remote(self.attempt, *arguments), self.name, self.identity
        )
