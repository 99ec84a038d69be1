"""Time decode steps of vLLM's CPU build with our changes to its host's work, and without them, in turns.

    python -m bench.decode [--sequences N ...] [--tokens N] [--times N]

The model is tiny, so the host takes most of a step, as with small models on a GPU. All is run once before it counts.
Prints a line for each number of sequences: processor time of the engine's thread in a whole step and in its scheduler,
which other programs of the machine do not lengthen as they do wall time; the median of the ratios without and with; and
whether tokens and log-probabilities are bit for bit the same.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.gpu.shapes import SHAPES
from bench.gpu.work import write
from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.registry import create_engine
from rljob_trainer.types import Sampling

PROMPT = 32
"""Tokens of a prompt, four samples each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tiny"
        write(SHAPES["tiny"], 1, folder)
        settings = EngineSettings("vllm", str(folder / "model"), PROMPT + options.tokens, max_num_seqs=512)
        engine: Any = create_engine(settings)
        engine._version = 0  # noqa: SLF001  vLLM's own random weights will do
        for sequences in options.sequences:
            _compare(engine, sequences, options.tokens, options.times)


def _compare(engine: Any, sequences: int, tokens: int, times: int) -> None:
    vllm = engine._engine  # noqa: SLF001  what is changed lies there
    core = vllm.engine_core.engine_core
    sampler = core.model_executor.driver_worker.worker.model_runner.sampler
    changes = [(core.scheduler.kv_cache_manager, "allocate_slots"), (sampler, "gather_logprobs")]
    ours = [vars(owner)[name] for owner, name in changes]
    clock = Clock(core.scheduler)
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "changed": []}
    answers = {}
    for turn in range(1 + times):
        for name, times_of in found.items():
            for (owner, attribute), change in zip(changes, ours, strict=True):
                vars(owner).pop(attribute, None)
                if name == "changed":
                    setattr(owner, attribute, change)
            vllm.reset_prefix_cache()
            seconds, answers[name] = _generate(engine, sequences, tokens)
            scheduled = clock.take()
            if turn:
                times_of.append((1e3 * seconds / tokens, 1e3 * scheduled / tokens))
    clock.remove()
    parts = [f"{sequences} sequences"]
    for index, part in enumerate(("step", "scheduler")):
        before, after = ([each[index] for each in found[name]] for name in ("plain", "changed"))
        ratios = [one / other for one, other in zip(before, after, strict=True)]
        spread = f"{median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"
        parts.append(f"{part} {median(before):.2f} ms, with our changes {median(after):.2f}: {spread}")
    print("; ".join(parts), f"; same results: {_same(answers['plain'], answers['changed'])}", flush=True)


class Clock:
    """Seconds of this thread's processor time in a scheduler's `schedule`."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._seconds = scheduler, 0.0
        schedule = scheduler.schedule

        def timed(*args: Any, **named: Any) -> Any:
            start = time.thread_time()
            try:
                return schedule(*args, **named)
            finally:
                self._seconds += time.thread_time() - start

        scheduler.schedule = timed

    def take(self) -> float:
        """Since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def remove(self) -> None:
        del self._scheduler.schedule


def _generate(engine: Any, sequences: int, tokens: int) -> tuple[float, list[Completion]]:
    prompts = np.random.default_rng(0).integers(1, 2000, (sequences // 4, PROMPT), np.int32)
    sampling = Sampling(max_tokens=tokens)
    for number, ids in enumerate(prompts):
        engine.submit(Request(str(number), ids, sampling, tuple(4 * number + each for each in range(4))))
    made: list[Completion] = []
    start = time.thread_time()
    while engine.unfinished:
        made += engine.step()
    seconds = time.thread_time() - start
    return seconds, sorted(made, key=lambda each: (int(each.request_id), each.sample))


def _same(one: list[Completion], other: list[Completion]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.log_probs, b.log_probs)
        for a, b in zip(one, other, strict=True)
    )


if __name__ == "__main__":
    main()
