"""Sources that are generated, by the scheme of their URLs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_trainer.data import gym, tasks
from rljob_trainer.errors import DataError


@dataclass(frozen=True, slots=True)
class Generator:
    """What a scheme can do with (url, field).

    read: the rows. check: raises DataError for an invalid URL, without generating rows. errors: all errors of the URL
    that can be found with what is installed here.
    """

    read: Callable[[str, str], Sequence[Mapping[str, Any]]]
    check: Callable[[str, str], None]
    errors: Callable[[str, str], Iterator[DataError]]


GENERATORS = {
    tasks.SCHEME: Generator(tasks.read_synthetic, tasks.check_synthetic, tasks.synthetic_errors),
    gym.SCHEME: Generator(gym.read_gym, gym.check_gym, gym.gym_errors),
}


def generated_rows(url: str, field: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a generated source. Raises DataError for another source or an invalid URL."""
    if (found := generator(url)) is None:
        raise DataError(f"{url} is not generated; begin it with {' or '.join(GENERATORS)}", field=field)
    return found.read(url, field)


def generator(url: str) -> Generator | None:
    """The generator of that source; None if it is none of theirs."""
    return next((each for scheme, each in GENERATORS.items() if url.startswith(scheme)), None)
