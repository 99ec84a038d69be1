"""A tiny policy with real files, and a weight sync within one process, for tests of rollout and weight sync."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from rljob_trainer.rollout.engine import EngineSettings, RolloutEngine
from rljob_trainer.types import Floats, GenerationRequest, Ids, Sample
from rljob_trainer.weight_sync.bucket import BucketDescriptor
from rljob_trainer.weight_sync.sender import SyncReport, WeightSender
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

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


def settings(kind: str, model_dir: str, **changes) -> EngineSettings:
    return EngineSettings(
        kind=kind, model_dir=model_dir, **{"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16, **changes}
    )


def requests(prompts: Iterable[Ids], samples: int = 1, seed: int = 0) -> list[GenerationRequest]:
    return [
        GenerationRequest(str(row), index, ids, seed + 1000 * row + index)
        for row, ids in enumerate(prompts)
        for index in range(samples)
    ]


def random_prompts(count: int, shortest: int = 3, longest: int = 40, seed: int = 0) -> list[Ids]:
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest + 1, size=count)
    return [random.integers(2, VOCAB, size=length).astype(np.int32) for length in lengths]


def sync(
    engine: RolloutEngine,
    policy: Qwen2ForCausalLM,
    version: int,
    tamper: Callable[[Iterable[tuple[str, torch.Tensor]]], Iterable[tuple[str, torch.Tensor]]] = iter,
) -> SyncReport:
    """Send the policy's weights, changed by `tamper` on the way, bucket by bucket."""
    engine.begin_update(version)

    def deliver(bucket: BucketDescriptor) -> Callable[[], None]:
        engine.load_bucket(bucket)
        return lambda: None

    report = WeightSender("cpu", "float32", BUCKET_BYTES).send(tamper(policy.named_parameters()), version, deliver)
    engine.finish_update(version)
    return report


@torch.no_grad()
def forward_log_probs(policy: Qwen2ForCausalLM, prompt: Ids, response: Ids, temperature: float = 1.0) -> Floats:
    """[R], by one pass of transformers over prompt and response, without a cache."""
    ids = torch.from_numpy(np.concatenate([prompt, response])).long()
    logits = policy(ids[None]).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0].numpy()


def largest_gap(policy: Qwen2ForCausalLM, prompts: list[Ids], samples: list[Sample], temperature: float = 1.0) -> float:
    """Largest difference between the samples' log-probabilities and transformers', in nats."""
    return max(
        np.abs(s.log_probs - forward_log_probs(policy, prompts[int(s.prompt_id)], s.token_ids, temperature)).max()
        for s in samples
    )
