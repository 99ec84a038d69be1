"""Small models with real files, random trajectories, and ranks in processes of their own."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config

from rljob_api import ResolvedSpec
from rljob_trainer import types
from rljob_trainer.local.machine import visible_gpus
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.parallel import ParallelDims
from rljob_trainer.rank.plan import RankPlan, plan_step
from rljob_trainer.rank.rank import Rank
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.rank.training_state import TrainingState
from rljob_trainer.types import Episode, Group, Trajectory, Turn, answered

VOCAB = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 0, "bos_token_id": None,
    "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "tied": Qwen2Config(**SIZES | {"tie_word_embeddings": True}),
    "qwen2 with a window in layer 1": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "mistral with a window": MistralConfig(**SIZES, sliding_window=4),
}

MARK = TrainingState(step=1, digest="digest", stage="rl", before={}, after={})
"""What a driver would say of an update."""


def write_model(
    folder: Path, name: str = "qwen2", seed: int = 0, dtype: torch.dtype = torch.float32, noise: float = 0.0
) -> str:
    """Random weights, large enough that every matrix moves the log-probabilities and biases are not zero.

    noise: size of a further random change, of another seed: a model close to the one without.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[name]))  # the model's dtype is written to it
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1 if parameter.dim() == 1 else 0))
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    model.to(dtype).save_pretrained(folder)
    return str(folder)


def answer_of(
    prompt: np.ndarray, answer: np.ndarray, log_probs: np.ndarray | None = None, temperature: float = 1.0
) -> Trajectory:
    """One turn, of which the engine says that each token had -1 nats, unless log_probs [R] say otherwise."""
    found = np.full(len(answer), -1.0, np.float32) if log_probs is None else log_probs
    return answered(prompt.astype(np.int32), answer.astype(np.int32), found, 0, temperature, "stop")


def random_trajectories(count: int, seed: int = 0, longest: int = 14, temperature: float = 1.0) -> list[Trajectory]:
    """A prompt and one answer each."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt, answer = draw.integers(1, 8), draw.integers(1, longest)
        tokens = draw.integers(0, VOCAB, prompt + answer)
        made.append(answer_of(tokens[:prompt], tokens[prompt:], temperature=temperature))
    return made


def answers_to_prompts(prompts: int, samples: int, seed: int = 0) -> list[Trajectory]:
    """For each of some random prompts, answers of different lengths."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(prompts):
        prompt = draw.integers(0, VOCAB, draw.integers(8, 16))
        made += [answer_of(prompt, draw.integers(0, VOCAB, length)) for length in range(1, samples + 1)]
    return made


def several_turns(
    spans: Sequence[tuple[int, int]], tokens: int, seed: int = 0, temperatures: Sequence[float] = ()
) -> Trajectory:
    """Random tokens, of which those in the spans were sampled. temperatures: of each span; 1 by default."""
    draw = np.random.default_rng(seed)
    in_loss = np.zeros(tokens, np.bool_)
    for start, end in spans:
        in_loss[start:end] = True
    turns = tuple(
        Turn(*span, heat, "stop") for span, heat in zip(spans, temperatures or [1.0] * len(spans), strict=True)
    )
    sampled = np.where(in_loss, 0, -1).astype(np.int32)
    ids = draw.integers(0, VOCAB, tokens).astype(np.int32)
    return Trajectory(ids, in_loss, -in_loss.astype(np.float32), sampled, turns)


def bundle_of(
    trajectories: Sequence[Trajectory], rewards: Sequence[float] | None = None
) -> tuple[list[tuple[int, int]], list[Group]]:
    """Each trajectory as a group of one episode: the last arguments of Rank.prepare. rewards: 0 by default."""
    groups = []
    for index, trajectory in enumerate(trajectories):
        task = types.Task(f"0/{index}/0", [], trajectory.token_ids[: trajectory.prompt_tokens], "", {}, "")
        groups.append(Group(task, (Episode(task.id, 0, (trajectory,), reward=rewards[index] if rewards else 0.0),)))
    return [(0, index) for index in range(len(groups))], groups


def plans_of(
    trajectories: Sequence[Trajectory],
    ranks: int,
    token_budget: int,
    minibatches: int = 1,
    rewards: Sequence[float] | None = None,
) -> tuple[list[RankPlan], list[BatchTotals]]:
    parts = [part.tolist() for part in np.array_split(np.arange(len(trajectories)), minibatches)]
    plans = plan_step([len(each.token_ids) for each in trajectories], parts, ranks, token_budget)
    tokens, positive = (
        [each.loss_tokens for each in trajectories],
        [r > 0 for r in rewards or [0.0] * len(trajectories)],
    )
    return plans, [
        BatchTotals(sum(tokens[i] for i in part), len(part), sum(tokens[i] for i in part if positive[i]))
        for part in parts
    ]


def random_advantages(trajectories: Sequence[Trajectory], seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=each.loss_tokens).astype(np.float32) for each in trajectories]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def parameters(worker: Rank) -> dict[str, torch.Tensor]:
    """Collective."""
    return {name: whole(parameter) for name, parameter in worker.policy.network.named_parameters()}


def record_gradients(worker: Rank) -> list[dict[str, torch.Tensor]]:
    """A list that gets the whole gradient, by name, as the optimizer is given it at each of its steps."""
    seen: list[dict[str, torch.Tensor]] = []

    def record(*_: Any) -> None:
        named = worker.policy.network.named_parameters()
        seen.append({name: whole(parameter.grad) for name, parameter in named if parameter.grad is not None})

    worker.trainee.optimizer.register_step_pre_hook(record)
    return seen


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Over all tensors: the largest difference, as a share of the largest value of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()) for name in theirs)


Device = Literal["cpu", "cuda"]

Task = Callable[..., Any]
"""What a rank does: task(worker, *arguments), the worker connected."""


def new_worker(
    spec: ResolvedSpec, rank: int, world: int, device: Device = "cpu", parallel: ParallelDims | None = None
) -> Rank:
    parallel = parallel or ParallelDims.over(world)
    return Rank(spec, RankSettings(rank, parallel, device, (tuple(range(world)),), 1, 60.0))


def alone(spec: ResolvedSpec, task: Task, *arguments: Any, device: Device = "cpu") -> Any:
    """Run the task as the only rank, in this process."""
    worker = new_worker(spec, 0, 1, device)
    try:
        worker.connect(worker.open_store("127.0.0.1"))
        return task(worker, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class Ranks(AbstractContextManager["Ranks"]):
    """Processes that take tasks together; on GPUs each has one of its own."""

    def __init__(self, world: int, device: Device = "cpu") -> None:
        self.world = world
        context = multiprocessing.get_context("forkserver")
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, world, device), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, spec: ResolvedSpec, task: Task, *arguments: Any, parallel: ParallelDims | None = None) -> list[Any]:
        """What the task returned on each rank, or the exception that it raised there. parallel: shards by default."""
        for pipe in self._pipes:
            pipe.send((spec, task, arguments, parallel))
        address = self._pipes[0].recv()
        for pipe in self._pipes:
            pipe.send(address)
        return [_received(pipe) for pipe in self._pipes]

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError as error:
        return error


def _serve(pipe: Connection, rank: int, world: int, device: Device) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpus()[rank]
    while True:
        try:
            spec, task, arguments, parallel = pipe.recv()
        except EOFError:
            return
        worker = new_worker(spec, rank, world, device, parallel)
        if rank == 0:
            pipe.send(worker.open_store("127.0.0.1"))
        worker.connect(pipe.recv())
        try:
            pipe.send(task(worker, *arguments))
        except Exception as error:  # noqa: BLE001  it travels to the caller
            pipe.send(error)
        dist.destroy_process_group()
