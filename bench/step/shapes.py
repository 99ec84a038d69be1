"""Models whose responses all have the longest length, so that both trainers do the same work, and the job for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.tokenizer import build_tokenizer

PROMPTS, SAMPLES = 16, 8
_CONSTANT, _AGAINST_THE_END = 1.0, -20.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 model. tokens: of each response. steps: of one run, after warm_up more that do not count.

    repetitions: runs of each trainer; more where steps are short, for what else the machine does then weighs more.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    tokens: int
    steps: int
    repetitions: int
    warm_up: int = 3


SHAPES = (
    Shape("tiny", hidden=128, layers=2, heads=4, kv_heads=2, intermediate=272, tokens=16, steps=30, repetitions=9),
    Shape(
        "10M",
        hidden=320,
        layers=6,
        heads=5,
        kv_heads=5,
        intermediate=1280,
        tokens=128,
        steps=4,
        repetitions=3,
        warm_up=1,
    ),
)


def write_model(shape: Shape, folder: Path) -> int:
    """A random model that never ends a response by itself. Returns its number of parameters.

    The first element of every embedding is 1, so it is large and positive in every hidden state; the output head
    weighs it against the end-of-text token and for no other.
    """
    tokenizer: PreTrainedTokenizerFast = build_tokenizer(TokenizerSpec(kind="byte"), [])
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.intermediate,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = _CONSTANT
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[tokenizer.eos_token_id, 0] = _AGAINST_THE_END
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def job(shape: Shape, model: Path, engine: str) -> dict[str, Any]:
    """The RLJob: GRPO without a reference model, and a learning rate at which nothing changes."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": f"step-{shape.name.lower()}-{engine}"},
        "spec": {
            "model": {"path": str(model)},
            "data": {
                "train": ["synthetic://reverse-text?rows=4096&minLength=8&maxLength=8"],
                "maxPromptTokens": 32,
                "maxResponseTokens": shape.tokens,
                "promptsPerStep": PROMPTS,
            },
            "algorithm": {"preset": "grpo", "kl": {"placement": "none"}},
            "rollout": {"engine": engine, "samplesPerPrompt": SAMPLES},
            "actor": {"learningRate": 1.0e-6, "recompute": "none"},
            "rewards": {
                "functions": [{"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}}],
            },
            "training": {"steps": shape.warm_up + shape.steps},
            "checkpoint": {"everySteps": 0},
            "cluster": {"gpusPerNode": 0},
        },
    }
