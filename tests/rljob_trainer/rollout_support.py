"""A tiny policy with real files, and a weight sync within one process, for tests of rollout and weight sync."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rljob_trainer.engines.engine import Completion, EngineSettings, Request, RolloutEngine
from rljob_trainer.engines.registry import ENGINES, create_engine
from rljob_trainer.types import Floats, Ids, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor, aligned
from rljob_trainer.weights.probe import (
    DEFAULT_TOLERANCE,
    ProbeResult,
    compare,
    probe_prompts,
)
from rljob_trainer.weights.sender import WeightSender

Kind = Literal["hf", "vllm"]

VOCAB = 300
END = 0
MAX_MODEL_LEN = 192
BUCKET_BYTES = 1 << 17
"""A third of the policy: several buckets, and the embeddings do not fit into one with anything else."""


def write_model_dir(folder: Path, *, tied: bool = False) -> str:
    """config.json and a tokenizer in which token i is written "t<i> "."""
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=tied, eos_token_id=END,
        bos_token_id=None, pad_token_id=END, architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i} ": i for i in range(VOCAB)}, unk_token="t1 "))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"t{END} ", unk_token="t1 ").save_pretrained(folder)
    return str(folder)


def make_policy(model_dir: str, seed: int, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """Random weights, large enough that every matrix moves the log-probabilities and biases are not zero."""
    torch.manual_seed(seed)
    policy = Qwen2ForCausalLM(Qwen2Config.from_pretrained(model_dir)).eval().requires_grad_(False)
    for parameter in policy.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.12 + (parameter if parameter.dim() == 1 else 0))
    return policy.to(dtype)


def settings(kind: Kind, model_dir: str, **changes) -> EngineSettings:
    return EngineSettings(
        kind=kind, model_dir=model_dir, **{"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16, **changes}
    )


def requests(prompts: Iterable[Ids], sampling: Sampling, samples: int = 1, seed: int = 0) -> list[Request]:
    return [
        Request(str(row), ids, sampling, tuple(range(seed + 1000 * row, seed + 1000 * row + samples)))
        for row, ids in enumerate(prompts)
    ]


def random_prompts(count: int, shortest: int = 3, longest: int = 40, seed: int = 0) -> list[Ids]:
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest + 1, size=count)
    return [random.integers(2, VOCAB, size=length).astype(np.int32) for length in lengths]


def sync(
    engine: "Engine",
    policy: Qwen2ForCausalLM,
    version: int,
    tamper: Callable[[Iterable[tuple[str, torch.Tensor]]], Iterable[tuple[str, torch.Tensor]]] = iter,
) -> int:
    """Send the policy's weights, changed by `tamper` on the way, bucket by bucket. Returns their bytes."""
    engine.begin_update(version)

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        engine.load_bucket(bucket)
        return lambda: None

    sender = WeightSender(policy.device.type, "float32", BUCKET_BYTES)
    sent = sender.send(tamper(policy.named_parameters()), version, deliver)
    engine.finish_update(version)
    return sent


class RemoteEngine:
    """An engine in a process of its own, as in a job: weights reach it through shared memory, calls through a pipe."""

    def __init__(self, engine_settings: EngineSettings) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve_engine, args=(theirs, engine_settings), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def call(self, function: Callable, *arguments):
        """function(engine, *arguments) over there; what it raises is raised here."""
        self._pipe.send((function, arguments))
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def __getattr__(self, name: str):
        if name in ("capabilities", "policy_version", "unfinished"):
            return self.call(getattr, name)
        return lambda *arguments, **named: self.call(call_method, name, arguments, named)

    def close(self) -> None:
        self.call(call_method, "close", (), {})
        self._pipe.send(None)
        self._process.join(timeout=30)
        assert self._process.exitcode == 0


def serve_engine(pipe: Connection, engine_settings: EngineSettings) -> None:
    engine = create_engine(engine_settings)
    pipe.send("started")
    while (message := pipe.recv()) is not None:
        function, arguments = message
        try:
            pipe.send((function(engine, *arguments), None))
        except Exception as error:  # noqa: BLE001  it travels to the caller
            traceback.print_exc()
            pipe.send((None, error))


Engine = RolloutEngine | RemoteEngine
Answers = dict[tuple[str, int], Completion]
"""By request and sample."""


def finish(engine: Engine) -> Answers:
    """Step until nothing is unfinished."""
    if isinstance(engine, RemoteEngine):
        return engine.call(finish)
    answers: Answers = {}
    while engine.unfinished:
        answers |= {(each.request_id, each.sample): each for each in engine.step()}
    return answers


def answer(engine: Engine, wanted: Sequence[Request]) -> Answers:
    """What the engine makes of these requests alone."""
    if isinstance(engine, RemoteEngine):
        return engine.call(answer, wanted)
    for request in wanted:
        engine.submit(request)
    answers = finish(engine)
    assert answers.keys() == {(request.id, sample) for request in wanted for sample in range(len(request.seeds))}
    return answers


def call_method(engine: RolloutEngine, name: str, arguments: tuple, named: dict):
    return getattr(engine, name)(*arguments, **named)


def check_by_probe(
    engine: Engine,
    policy: Qwen2ForCausalLM,
    version: int,
    kind: Kind = "hf",
    tolerance: float = DEFAULT_TOLERANCE["float32", "cpu"],
) -> ProbeResult:
    """The engine's log-probabilities of the fixed prompts against those of `policy`, as the controller does it."""
    size = ENGINES[kind].probe
    prompts = probe_prompts(VOCAB, size.length)
    answers = answer(engine, requests(prompts, Sampling(max_tokens=size.tokens)))
    ours = [forward_log_probs(policy, prompt, answers[str(i), 0].token_ids) for i, prompt in enumerate(prompts)]
    return compare([answers[str(i), 0] for i in range(len(prompts))], ours, version=version, tolerance=tolerance)


Tensors = Iterable[tuple[str, torch.Tensor]]


def skipped(old: Qwen2ForCausalLM, name: str) -> Callable[[Tensors], Tensors]:
    """The parameter keeps its old value."""
    return lambda tensors: ((n, old.get_parameter(n) if n == name else t) for n, t in tensors)


def swapped_shard(name: str) -> Callable[[Tensors], Tensors]:
    """The two halves of the parameter's first dimension, as two ranks hold them, change places."""
    return lambda tensors: ((n, t.roll(t.shape[0] // 2, dims=0) if n == name else t) for n, t in tensors)


def stale_bucket(old: Qwen2ForCausalLM, index: int) -> Callable[[Tensors], Tensors]:
    """All tensors of one bucket are the old version's."""

    def tampered(tensors: Tensors) -> Tensors:
        before, turn = 0, 0
        for name, tensor in tensors:
            if before and before + tensor.nbytes > BUCKET_BYTES:
                before, turn = 0, turn + 1
            before = aligned(before + tensor.nbytes)
            yield name, old.get_parameter(name) if turn == index else tensor

    return tampered


@torch.no_grad()
def forward_log_probs(policy: Qwen2ForCausalLM, prompt: Ids, response: Ids, temperature: float = 1.0) -> Floats:
    """[R], by one pass of transformers over prompt and response, without a cache."""
    ids = torch.from_numpy(np.concatenate([prompt, response])).long().to(policy.device)
    logits = policy(ids[None]).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0].cpu().numpy()


def largest_gap(policy: Qwen2ForCausalLM, wanted: Sequence[Request], answers: Answers) -> float:
    """Largest difference between the answers' log-probabilities and transformers', in nats."""
    return max(
        np.abs(each.log_probs - forward_log_probs(policy, request.token_ids, each.token_ids, temperature)).max()
        for request in wanted
        for temperature in [request.sampling.temperature or 1.0]
        for each in (answers[request.id, sample] for sample in range(len(request.seeds)))
    )
