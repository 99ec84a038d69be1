"""Steps of TRL's GRPOTrainer with vLLM on the same GPU:  python -m bench.gpu.trl_steps GIVEN STEPS.jsonl [options]

Each line: when the step began, when its samples were there, when it ended, and when TRL's methods ran (unix seconds).
TRL is used as it is: its methods are wrapped in clocks.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import AutoTokenizer, TrainerCallback

from bench.gpu.shapes import LONGEST, PROMPTS, RATE, SAMPLES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("given", type=Path, help="what bench.gpu.work wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--samples-per-pass", type=int, default=64)
    parser.add_argument("--recompute", type=int, default=1, help="0: keep all activations")
    parser.add_argument("--liger", type=int, default=1, help="0: without liger-kernel's layers")
    parser.add_argument("--share", type=float, default=0.5, help="of the GPU's memory, for the engine")
    options = parser.parse_args()
    with options.out.open("w") as output:
        clock = Clock(output)
        trainer = _trainer(options, clock)
        clock.watch(trainer)
        trainer.train()


def _trainer(options: argparse.Namespace, clock: "Clock") -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in (options.given / "rows.jsonl").read_text().splitlines()]
    samples = options.prompts * SAMPLES
    config = GRPOConfig(
        output_dir=str(options.out.with_suffix(".trl")),
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        bf16=True,
        optim="adamw_torch_fused",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        max_steps=options.steps,
        num_generations=SAMPLES,
        generation_batch_size=samples,
        per_device_train_batch_size=options.samples_per_pass,
        gradient_accumulation_steps=samples // options.samples_per_pass,
        gradient_checkpointing=bool(options.recompute),
        gradient_checkpointing_kwargs={"use_reentrant": False},
        use_liger_kernel=bool(options.liger),
        max_completion_length=options.tokens,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_enable_sleep_mode=True,
        vllm_gpu_memory_utilization=options.share,
        vllm_max_model_length=LONGEST + options.tokens,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=str(options.given / "model"),
        reward_funcs=_even,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [row["prompt"][0]["content"] for row in rows]}),
        processing_class=AutoTokenizer.from_pretrained(options.given / "model"),
        callbacks=[clock],
    )


def _even(completions: list[str], **_: Any) -> list[float]:
    return [sum(ord(each) % 2 == 0 for each in text) / max(1, len(text)) for text in completions]


class Clock(TrainerCallback):
    """Writes a line at the end of each step."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._spans: list[tuple[str, float, float]] = []
        self._start = self._asked = 0.0
        self._tokens = 0

    def watch(self, trainer: Any) -> None:
        vllm = trainer.vllm_generation
        self._wrap(vllm, "sync_weights", "sync")
        self._wrap(vllm.llm, "generate", "rollout")
        self._wrap(vllm.llm, "sleep", "sleep")
        generate, prepare = vllm.llm.generate, trainer._generate_and_score_completions  # noqa: SLF001

        def counted(*arguments: Any, **named: Any) -> Any:
            made = generate(*arguments, **named)
            lengths = (len(each.prompt_token_ids) + len(one.token_ids) for each in made for one in each.outputs)
            self._tokens += sum(lengths)
            return made

        def prepared(*arguments: Any, **named: Any) -> Any:
            made = prepare(*arguments, **named)
            self._asked = _now()
            return made

        vllm.llm.generate, trainer._generate_and_score_completions = counted, prepared  # noqa: SLF001

    def _wrap(self, owner: Any, method: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        def call(*arguments: Any, **named: Any) -> Any:
            with self._span(name):
                return inner(*arguments, **named)

        setattr(owner, method, call)

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        start = _now()
        try:
            yield
        finally:
            self._spans.append((name, start, _now()))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = _now()
        self._spans, self._tokens = [], 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        line = {"start": self._start, "asked": self._asked, "end": _now(), "spans": self._spans, "tokens": self._tokens}
        self._output.write(json.dumps(line) + "\n")
        self._output.flush()


def _now() -> float:
    torch.cuda.synchronize()
    return time.time()


if __name__ == "__main__":
    main()
