"""Out of memory in an engine, in the words of the job. Light."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.memory.engine_advice import HOST, REST, EnginePhase, engine_error
from rljob_trainer.memory.explained import explained
from rljob_trainer.memory.held import Held


def in_phase(
    phase: EnginePhase, settings: EngineSettings, known: Callable[[], Mapping[str, int]]
) -> AbstractContextManager[None]:
    """Raise JobError with the remedy if memory runs out. known: bytes of what the engine holds, by name."""
    return explained(lambda text: engine_error(phase, Held.of(text, known(), REST), settings), HOST)
