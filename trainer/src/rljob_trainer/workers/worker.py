"""A driver's handle of one Ray worker, and typed calls to it.

    class RankCalls(Protocol):                       what a rank can be asked
        def load(self, folder: str) -> int: ...

    rank: Worker[RankCalls]
    rank.call(RankCalls.load, "model")               Answer[int]; mypy checks the arguments
    rank.call(RankCalls.score_probes, prompts, *map(arriving, sent))

The method's name crosses between processes; it is derived from the method itself, here and nowhere else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    import ray

    from rljob_trainer.workers.host import Beat

C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

ConcurrencyGroup = Literal["control", "background", "inbox"]
"""Threads of a worker besides the one that does its work in order (host.py)."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """The answer to a call, which may still be on its way.

    ref: Ray's reference; as an argument of another call it arrives as its value.
    worker: name of the worker that was asked.
    """

    ref: "ray.ObjectRef[R]"
    worker: str


def arriving(answer: Answer[R]) -> R:
    """An answer as an argument of another call, to which Ray hands its value; that call begins once it is there.

    If it is the answer to a call that failed, the other one does not begin, and raises what that one raised.
    """
    return cast("R", answer.ref)


@dataclass(frozen=True, slots=True)
class Worker(Generic[C_co]):
    """A Ray worker on behalf of one attempt. It may be sent to other workers, which then call it in its name.

    C_co: the protocol of its calls; a worker that can be asked more stands for one that can be asked less.
    signature: the worker's when this attempt started it or took it over.
    """

    name: str
    handle: Any
    attempt: int
    signature: str

    @property
    def identity(self) -> str:
        """Differs for each process that ever had this name."""
        return str(self.handle._actor_id.hex())  # noqa: SLF001  Ray has no public name for it

    def call(self, method: Callable[Concatenate[C_co, P], R], *args: P.args, **kwargs: P.kwargs) -> Answer[R]:
        """Start a call; the worker does one after the other."""
        return Answer(self.handle.call.remote(self.attempt, method.__name__, *args, **kwargs), self.name)

    def call_beside(
        self, group: ConcurrencyGroup, method: Callable[Concatenate[C_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Answer[R]:
        """As `call`, in the threads of `group`: beside what the worker does."""
        remote = self.handle.call.options(concurrency_group=group)
        return Answer(remote.remote(self.attempt, method.__name__, *args, **kwargs), self.name)

    def stream(
        self, method: Callable[Concatenate[C_co, P], Iterator[R]], *args: P.args, **kwargs: P.kwargs
    ) -> "ray.ObjectRefGenerator[R]":
        """Start a call that yields; returns Ray's generator of references."""
        streaming = self.handle.stream.options(num_returns="streaming")
        return streaming.remote(self.attempt, method.__name__, *args, **kwargs)

    # What every host answers, beside its work (host.py).

    def claim(self) -> Answer[str]:
        """Have it obey this attempt alone; answers its signature."""
        return self._control(self.handle.claim)

    def sign(self, signature: str) -> Answer[None]:
        """Have it stand in for workers of that signature."""
        return self._control(self.handle.sign, signature)

    def beat(self) -> "Answer[Beat]":
        return self._control(self.handle.beat)

    def _control(self, method: Any, *arguments: Any) -> Answer[Any]:
        return Answer(method.options(concurrency_group="control").remote(self.attempt, *arguments), self.name)
