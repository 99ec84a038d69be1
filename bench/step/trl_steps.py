"""Steps of TRL's GRPOTrainer:  python -m bench.step.trl_steps SPEC.json MODEL LINES.jsonl

It writes {"step", "time", "length"} at the end of each step, and the seconds that its methods in PARTS took.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from transformers import TrainerCallback
from trl import GRPOTrainer

from bench.trl_job import grpo_trainer
from rljob_api import ResolvedSpec

PARTS: Final = {"prepare": "_prepare_inputs", "rollout": "_generate", "rewards": "_calculate_rewards"}
"""Methods of GRPOTrainer. The first calls the others, and makes advantages; what is left of a step is the update."""


def main() -> None:
    spec = ResolvedSpec.model_validate_json(Path(sys.argv[1]).read_text())
    with Path(sys.argv[3]).open("w") as output:
        clock = Clock(output)
        trainer = grpo_trainer(spec, Path(sys.argv[2]), clock)
        clock.watch(trainer)
        trainer.train()


class Clock(TrainerCallback):
    """Writes when each step was logged, which is its end, and what its parts took."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._seconds = dict.fromkeys(PARTS, 0.0)

    def watch(self, trainer: GRPOTrainer) -> None:
        for part, method in PARTS.items():
            setattr(trainer, method, self._timed(part, getattr(trainer, method)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self._seconds[part] += time.perf_counter() - start

        return call

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "reward" in logs:
            length = float(logs["completions/mean_length"])
            line = {"step": state.global_step, "time": time.time(), "length": length, **self._seconds}
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()
            self._seconds = dict.fromkeys(PARTS, 0.0)


if __name__ == "__main__":
    main()
