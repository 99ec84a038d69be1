"""Steps of TRL's GRPOTrainer:  python -m bench.step.trl_steps SPEC.json MODEL LINES.jsonl

It writes {"step", "time", "tokens", <TRL's own profile>} at the end of each step.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from bench.trl_job import grpo_config, reward_functions, rows
from rljob_api import ResolvedSpec


def main() -> None:
    spec = ResolvedSpec.model_validate_json(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    with Path(sys.argv[3]).open("w") as output:
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            reward_functions(spec),
            args=grpo_config(spec, folder.with_suffix(".trl")),
            train_dataset=rows(spec.data.train),
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
            callbacks=[Clock(output)],
        )
        trainer.train()


class Clock(TrainerCallback):
    """Writes when each step was logged, which is its end."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "reward" in logs:
            length = float(logs["completions/mean_length"])
            line = {"step": state.global_step, "time": time.time(), "length": length}
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()


if __name__ == "__main__":
    main()
