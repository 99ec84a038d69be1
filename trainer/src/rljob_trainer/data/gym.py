"""Tasks of the library reasoning-gym as data sources, and its verifiers.

    reasoning-gym://chain_sum?size=2000&seed=1&split=train&max_terms=2&max_digits=1

The rows are those of the questions 0 to size - 1 of create_dataset("chain_sum", size=2000, seed=1, max_terms=2,
max_digits=1) that belong to the split. A hash of the question decides its split, as for synthetic://: seeds do not
separate questions, because many tasks derive question i from seed + i. `split` and `system` are arguments of every
task; the others are the library's, with its defaults. The default of the seed is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from pydantic import TypeAdapter, ValidationError

from rljob_trainer.data.tasks import split_of, suggest
from rljob_trainer.errors import DataError

SCHEME = "reasoning-gym://"
Split = Literal["train", "validation", "all"]
_NOT_INSTALLED = "reasoning-gym is not installed; pip install 'rljob-trainer[reasoning-gym]'"


@dataclass(frozen=True, slots=True)
class Gym:
    """A task with its parameters. dataset: the library's. system: the system prompt of its rows, if they have one."""

    name: str
    dataset: Any
    split: Split
    system: str | None


def gym_errors(url: str, field: str) -> Iterator[DataError]:
    """All errors of the URL, without a question; none if the library is not installed here."""
    if find_spec("reasoning_gym") is not None:
        for message in _wrong(*_parts(url)):
            yield DataError(f"{url}: {message}", field=field)


def check_gym(url: str, field: str) -> None:
    """Raise DataError for an invalid URL, or if the library is not installed."""
    if find_spec("reasoning_gym") is None:
        raise DataError(f"{url}: {_NOT_INSTALLED}", field=field)
    for error in gym_errors(url, field):
        raise error


def read_gym(url: str, field: str) -> Sequence[Mapping[str, Any]]:
    """The rows that the URL names.

    Raises:
        DataError: as check_gym, or the split has no question.
    """
    check_gym(url, field)
    if not (rows := _rows(url)):
        raise DataError(f"{url}: the split has none of its questions; raise size", field=field)
    return rows


def score(url: str, index: int, answer: str) -> float:
    """What the task's verifier gives `answer` to question `index`: 1 if it is right, less if it is right in part."""
    gym = _opened(url)
    return float(gym.dataset.score_answer(answer, _question(url, index)))


@lru_cache(maxsize=4)
def _rows(url: str) -> tuple[Mapping[str, Any], ...]:
    """Cached, as the rows of other generated tasks."""
    gym = _opened(url)
    entries = ((index, gym.dataset[index]) for index in range(gym.dataset.config.size))
    return tuple(
        _row(url, gym, index, entry) for index, entry in entries if gym.split in ("all", split_of(entry["question"]))
    )


def _row(url: str, gym: Gym, index: int, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    system = [{"role": "system", "content": gym.system}] if gym.system else []
    answer = entry["answer"] if isinstance(entry["answer"], str) else ""  # a verifier may need none
    return {
        "data_source": f"reasoning-gym/{gym.name}",
        "prompt": [*system, {"role": "user", "content": entry["question"]}],
        "ability": gym.dataset.category,
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": gym.split, "index": index, "source": url},
        "response": f"<answer>{answer}</answer>" if gym.system else answer,
    }


@lru_cache(maxsize=64)
def _opened(url: str) -> Gym:
    return _open(*_parts(url))


@lru_cache(maxsize=4096)
def _question(url: str, index: int) -> Any:
    """Made again from its index, because a question's metadata may not be JSON."""
    return _opened(url).dataset[index]


def _open(name: str, arguments: Mapping[str, str]) -> Gym:
    """Raises what the library raises for invalid parameters."""
    from reasoning_gym import create_dataset

    kinds = _arguments(name)
    values = {key: _value(kinds[key], text) for key, text in arguments.items()}
    split, system = values.pop("split", "train"), values.pop("system", None)
    return Gym(name, create_dataset(name, **{"seed": 0} | values), split, _systems()[system] if system else None)


def _parts(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    return parts.netloc, dict(parse_qsl(parts.query, keep_blank_values=True))


def _wrong(name: str, arguments: Mapping[str, str]) -> Iterator[str]:
    """All errors of which `_open` raises the first."""
    if name not in (tasks := _tasks()):
        yield f"unknown task {name!r}{suggest(name, tasks)}; the library has {', '.join(sorted(tasks))}"
        return
    found = list(_wrong_arguments(name, arguments))
    yield from found
    if not found:
        try:
            _open(name, arguments)
        except (AssertionError, LookupError, TypeError, ValueError) as error:  # the library's own checks
            yield f"{error}; correct the arguments of {name}"


def _wrong_arguments(name: str, arguments: Mapping[str, str]) -> Iterator[str]:
    kinds = _arguments(name)
    for key, text in arguments.items():
        if key not in kinds:
            yield f"unknown argument {key!r}{suggest(key, kinds)}; {name} has {', '.join(sorted(kinds))}"
            continue
        try:
            _value(kinds[key], text)
        except ValidationError as error:
            yield f"{key}={text}: {error.errors()[0]['msg']}"


def _value(kind: Any, text: str) -> Any:
    """The argument: text, a number, a list as a,b,c, or JSON of a list or an object. Raises ValidationError."""
    adapter = TypeAdapter(kind)
    if text[:1] in ("[", "{"):
        return adapter.validate_json(text)
    try:
        return adapter.validate_python(text)
    except ValidationError as scalar:
        try:
            return adapter.validate_python(text.split(","))
        except ValidationError:
            raise scalar from None


def _tasks() -> Mapping[str, Any]:
    from reasoning_gym.factory import DATASETS

    return DATASETS


def _systems() -> Mapping[str, str]:
    from reasoning_gym.utils import SYSTEM_PROMPTS

    return SYSTEM_PROMPTS


def _arguments(name: str) -> dict[str, Any]:
    """The types of a task's arguments."""
    _, config = _tasks()[name]
    return get_type_hints(config) | {"split": Split, "system": Literal[tuple(_systems())]}
