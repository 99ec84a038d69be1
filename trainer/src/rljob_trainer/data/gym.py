"""Tasks of the library reasoning-gym as data sources, and its verifiers.

    reasoning-gym://chain_sum?size=2000&seed=1&split=train&max_terms=2&max_digits=1

The rows are those of the questions 0 to size - 1 of create_dataset("chain_sum", size=2000, seed=1, max_terms=2,
max_digits=1) that belong to the split. A hash of the question decides its split, as for synthetic://: seeds do not
separate questions, because many tasks derive question i from seed + i. `split` and `system` are arguments of every
task; the others are the library's, with its defaults. The default of the seed is 0.

The driver makes the rows, and a reward process makes a question again to verify an answer. Both have a fixed hash seed,
because some tasks use the order of a set, and a row has a hash of its question.
"""

import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, Literal, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from pydantic import TypeAdapter, ValidationError

from rljob_trainer.data.tasks import split_of, suggest
from rljob_trainer.errors import DataError

SCHEME = "reasoning-gym://"
Split = Literal["train", "validation", "all"]
_NOT_INSTALLED = "reasoning-gym is not installed; pip install 'rljob-trainer[reasoning-gym]'"

RUNS_ANSWERS = frozenset({
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
    "simple_integration", "spiral_matrix", "string_insertion",
})  # fmt: skip
"""Tasks whose verifiers run an answer as Python, by eval or by sympy's parse_expr, which calls eval."""

_VERIFIER_SECONDS = 2.0
"""Of CPU time. Verifiers take milliseconds, and for ever to compute 1e999999999."""


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


def score(url: str, index: int, question: str, answer: str) -> float:
    """What the task's verifier gives `answer` to question `index`: 1 if it is right, less if it is right in part.

    0 if the verifier raises an error or does not end. For the main thread.
    question: the row's hash of it. Raises ValueError if the question is another one here.
    """
    dataset, entry = _opened(url).dataset, _question(url, index)
    if _hash(entry["question"]) != question:
        raise ValueError(
            f"{url}: question {index} is another one here than in the row; make the rows with the installed version of"
            " reasoning-gym, in a process with PYTHONHASHSEED=0"
        )
    try:
        with _limited():
            return float(dataset.score_answer(answer, entry))
    except (Exception, SystemExit):  # noqa: BLE001  what a response makes a verifier do ends no job
        return 0.0


@contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError in the block after _VERIFIER_SECONDS."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, _VERIFIER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@lru_cache(maxsize=4)
def _rows(url: str) -> tuple[Mapping[str, Any], ...]:
    """Cached, as the rows of other generated tasks."""
    gym = _opened(url)
    entries = ((index, _made(gym.dataset, index)) for index in range(gym.dataset.config.size))
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
        "extra_info": {"split": gym.split, "index": index, "source": url, "question": _hash(entry["question"])},
        "response": f"<answer>{answer}</answer>" if gym.system else answer,
    }


@lru_cache(maxsize=64)
def _opened(url: str) -> Gym:
    return _open(*_parts(url))


@lru_cache(maxsize=4096)
def _question(url: str, index: int) -> Any:
    """Made again from its index, because a question's metadata may not be JSON."""
    return _made(_opened(url).dataset, index)


def _made(dataset: Any, index: int) -> Any:
    """Question `index`. Some tasks draw from Python's own generator, which keeps its state."""
    state = random.getstate()
    random.seed(index)
    try:
        return dataset[index]
    finally:
        random.setstate(state)


def _hash(question: str) -> str:
    return blake2b(question.encode(), digest_size=6).hexdigest()


def _open(name: str, arguments: Mapping[str, str]) -> Gym:
    """Raises what the library raises for invalid parameters, and DataError for a task of RUNS_ANSWERS."""
    from reasoning_gym import create_dataset

    kinds = _arguments(name)
    values = {key: _value(kinds[key], text) for key, text in arguments.items()}
    split, system = values.pop("split", "train"), values.pop("system", None)
    dataset = create_dataset(name, **{"seed": 0} | values)
    if refused := RUNS_ANSWERS & {name, *getattr(dataset, "datasets", ())}:  # those of `composite`
        raise DataError(f"the verifier of {min(refused)} runs an answer as Python; choose another task")
    return Gym(name, dataset, split, _systems()[system] if system else None)


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
        except DataError as error:
            yield error.message
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
