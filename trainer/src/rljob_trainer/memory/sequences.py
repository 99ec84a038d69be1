"""How many sequences an engine of vLLM generates at once, and the KV cache that holds them. Pure.

Sequences beyond that number wait outside of the engine, and each update makes it forget all others, so a larger KV
cache holds nothing that is read again: with an environment, beyond the contexts of all episodes of a step. A smaller
one wakes faster after an update: CUDA maps about 0.6 GiB a millisecond.
"""

from dataclasses import dataclass
from typing import Any

FEW_SEQUENCES, MANY_SEQUENCES = 256, 512

_BLOCK = 16
"""Tokens of one block of the KV cache on a GPU."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """What a model caches of a token.

    nbytes: of all heads. heads: that the GPUs of an engine divide; 1 for latent attention, such as DeepSeek's, which
    caches one vector for all heads.
    plain: whether each layer caches keys and values of all or of the last tokens; others keep states of other sizes.
    """

    nbytes: int
    heads: int
    plain: bool

    @classmethod
    def of(cls, config: Any, layers: int, element: int) -> "KvSize":
        """config: of the text model, as transformers loads it. element: bytes of a number."""
        kinds = set(getattr(config, "layer_types", None) or ())
        plain = kinds <= {"full_attention", "sliding_attention"} and not hasattr(config, "mamba_d_state")
        if latent := getattr(config, "kv_lora_rank", None):
            return cls(layers * (latent + config.qk_rope_head_dim) * element, 1, plain)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(layers * 2 * heads * width * element, heads, plain)

    def on_gpu(self, gpus: int) -> int:
        """Bytes on each GPU of an engine. vLLM copies heads if they are fewer than GPUs (its get_num_kv_heads)."""
        return self.nbytes // self.heads * max(1, self.heads // gpus)


def sequences_that_fit(kv: int, longest: int, engine: float) -> int:
    """Value of rollout.maxNumSeqs: many, if the KV cache of so many full sequences takes at most half of an engine.

    kv: bytes of a token in one GPU's KV cache. longest: tokens of a sequence. engine: bytes that it may use of a GPU.
    """
    return MANY_SEQUENCES if 2 * _full_cache(kv, longest, MANY_SEQUENCES) <= engine else FEW_SEQUENCES


def cache_bytes(kv: KvSize, gpus: int, longest: int, sequences: int, engine: float) -> int | None:
    """Bytes of an engine's KV cache on each of its GPUs; None: all that weights and activations leave of `engine`.

    That is so if its size is not known, and if so many sequences need more than half of an engine.
    sequences: that run at once, or of episodes that come back to them. longest, engine: as of sequences_that_fit.
    """
    enough = _full_cache(kv.on_gpu(gpus), longest, sequences)
    return enough if kv.plain and 2 * enough <= engine else None


def _full_cache(kv: int, longest: int, sequences: int) -> int:
    """Bytes of a KV cache for so many full sequences, and an eighth more for blocks that are not yet free again."""
    blocks = -(-longest // _BLOCK) + 1
    return kv * blocks * _BLOCK * sequences * 9 // 8
