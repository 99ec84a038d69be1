"""Steps of TRL's GRPOTrainer:  python -m bench.step.trl_steps SPEC.json MODEL LINES.jsonl

It writes {"step", "time", "length"} at the end of each step.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from transformers import TrainerCallback

from bench.trl_job import grpo_trainer
from rljob_api import ResolvedSpec


def main() -> None:
    spec = ResolvedSpec.model_validate_json(Path(sys.argv[1]).read_text())
    with Path(sys.argv[3]).open("w") as output:
        grpo_trainer(spec, Path(sys.argv[2]), Clock(output)).train()


class Clock(TrainerCallback):
    """Writes when each step was logged, which is its end."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "reward" in logs:
            length = float(logs["completions/mean_length"])
            line = {"step": state.global_step, "time": time.time(), "length": length}
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()


if __name__ == "__main__":
    main()
