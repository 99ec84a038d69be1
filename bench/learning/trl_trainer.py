"""TRL's GRPOTrainer with a job's model, data, rewards and hyper-parameters, by TRL's own generation.

    python -m bench.learning.trl_trainer SPEC.json MODEL LINES.jsonl

It writes lines with our metrics' names: the mean reward of each step, and the reward on the validation prompts.
"""

import json
import sys
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import AutoTokenizer, TrainerCallback

from bench.trl_job import grpo_trainer, rewards, rows, updates
from rljob_api import ResolvedSpec
from rljob_trainer.progress import names


def main() -> None:
    spec = ResolvedSpec.model_validate_json(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2])
    with Path(sys.argv[3]).open("w") as output:
        grpo_trainer(spec, folder, Recorder(spec, folder, output)).train()


class Recorder(TrainerCallback):
    """Writes the mean reward of every step, and validates as the job would, when the job would."""

    def __init__(self, spec: ResolvedSpec, model: Path, output: TextIO) -> None:
        self._spec, self._output = spec, output
        self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._validation = list(rows(spec.data.validation))
        self._updates = updates(spec)  # each a step of TRL

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        self._validate(0, model)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "reward" in logs:
            self._write((state.global_step - 1) // self._updates + 1, names.REWARD_MEAN, float(logs["reward"]))

    def on_step_end(self, _args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        every, last = self._spec.training.validate_every, self._spec.training.steps
        step, update = divmod(state.global_step, self._updates)
        if update == 0 and ((every and step % every == 0) or step == last):
            self._validate(step, model)

    @torch.no_grad()
    def _validate(self, step: int, model: Any) -> None:
        prompts = [row["prompt"] for row in self._validation]
        inputs = self._tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        ).to(model.device)
        made = model.generate(**inputs, **_sampling(self._spec), max_new_tokens=self._spec.data.max_response_tokens)
        texts = self._tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        total = sum(
            function.weight * reward(text, row["truth"], row["info"])
            for function, reward in zip(self._spec.rewards.functions, rewards(self._spec), strict=True)
            for text, row in zip(texts, self._validation, strict=True)
        )
        self._write(step, names.VALIDATION_REWARD, total / len(texts))

    def _write(self, step: int, name: str, value: float) -> None:
        self._output.write(json.dumps({"step": step, "stage": "rl", name: value}) + "\n")
        self._output.flush()


def _sampling(spec: ResolvedSpec) -> dict[str, Any]:
    """The validation's, in transformers' terms; one sample of each prompt."""
    validation = spec.rollout.validation
    if not validation.temperature:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": validation.temperature, "top_p": validation.top_p, "top_k": 0}


if __name__ == "__main__":
    main()
