"""How many sequences an engine of vLLM generates at once, and the KV cache that holds them. Pure.

Sequences beyond that number wait outside of the engine, and each update makes it forget all others, so a larger KV
cache holds nothing that is read again, except the contexts of episodes that go on after a tool's answer. A smaller one
wakes faster after an update: CUDA maps about 0.6 GiB a millisecond.
"""

from typing import Any

FEW_SEQUENCES, MANY_SEQUENCES = 256, 512

_BLOCK = 16
"""Tokens of one block of the KV cache on a GPU."""


def sequences_that_fit(kv: float, longest: int, engine: float) -> int:
    """Value of rollout.maxNumSeqs: many, if the KV cache of so many full sequences takes at most half of an engine.

    kv: bytes of a token in one GPU's KV cache. longest: tokens of a sequence. engine: bytes that it may use of a GPU.
    """
    return MANY_SEQUENCES if 2 * full_cache(kv, longest, MANY_SEQUENCES) <= engine else FEW_SEQUENCES


def full_cache(kv: float, longest: int, sequences: int) -> int:
    """Bytes of a KV cache for so many full sequences, and an eighth more for blocks that are not yet free again."""
    blocks = -(-longest // _BLOCK) + 1
    return int(kv * blocks * _BLOCK * sequences * 9 / 8)


def kv_bytes(config: Any, layers: int) -> int:
    """Bytes of a token in bfloat16. Latent attention, such as DeepSeek's, caches one vector for all heads.

    config: of the text model, as transformers loads it.
    """
    if latent := getattr(config, "kv_lora_rank", None):
        return int(layers * (latent + config.qk_rope_head_dim) * 2)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(layers * 2 * heads * width * 2)


def all_attention(config: Any) -> bool:
    """Whether each layer caches keys and values of all or of the last tokens; others keep states of other sizes."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= {"full_attention", "sliding_attention"} and not hasattr(config, "mamba_d_state")
