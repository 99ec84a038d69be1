"""Tiny models of the architectures that transformers ships, made from their configurations.

Every window, chunk and factor is small enough that a sequence of the comparison passes it.
"""

from collections.abc import Mapping
from typing import Any, Final

VOCAB: Final = 128
END: Final = 0

_ROPE: Final = {"rope_theta": 10_000.0}
_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DEEPSEEK: Final = {
    "q_lora_rank": 24, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "moe_intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
_WINDOW: Final = {"sliding_window": 16}
_LAYERED_WINDOW: Final = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_LINEAR: Final = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
_FACTORS: Final = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": _ROPE | {"rope_type": kind} | more}


ARCHITECTURES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("llama", {}),
    "llama, linear rope": ("llama", _rope("linear", factor=2.0)),
    "llama, dynamic rope": ("llama", _rope("dynamic", factor=2.0)),
    "llama, yarn rope": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama, llama3 rope": (
        "llama",
        _rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": ("qwen2", _LAYERED_WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen2_moe": ("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 32}),
    "qwen3_moe": ("qwen3_moe", _EXPERTS),
    "qwen3_moe, window": ("qwen3_moe", _EXPERTS | _WINDOW | {"use_sliding_window": True}),
    "qwen3_next": ("qwen3_next", _EXPERTS | _LINEAR | {"shared_expert_intermediate_size": 32}),
    "qwen3_5_text": ("qwen3_5_text", _LINEAR),
    "mistral, window": ("mistral", _WINDOW),
    "mixtral, window": ("mixtral", _WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, jitter": (
        "mixtral",
        {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.3},
    ),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", _LAYERED_WINDOW | {"query_pre_attn_scalar": 32}),
    "gemma3_text": ("gemma3_text", _LAYERED_WINDOW | {"query_pre_attn_scalar": 32}),
    "phi": ("phi", {"num_key_value_heads": 2, "partial_rotary_factor": 0.5}),
    "phi3, window": ("phi3", _WINDOW),
    "phi3, longrope": (
        "phi3",
        {"sliding_window": None, "original_max_position_embeddings": 128}
        | _rope("longrope", original_max_position_embeddings=128, **_FACTORS),
    ),
    "phi3, longrope passed": (
        "phi3",
        {"sliding_window": None, "original_max_position_embeddings": 32}
        | _rope("longrope", original_max_position_embeddings=32, **_FACTORS),
    ),
    "smollm3": ("smollm3", {}),
    "doge": ("doge", {}),
    "deepseek_v2": ("deepseek_v2", _DEEPSEEK | {"topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("deepseek_v3", _DEEPSEEK | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
    "deepseek_v3, narrow values": (
        "deepseek_v3",
        _DEEPSEEK | {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "v_head_dim": 16},
    ),
    "deepseek_v3, yarn rope": (
        "deepseek_v3",
        _DEEPSEEK
        | _rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0)
        | {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256}),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": 2}),
    "gptj": ("gptj", {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256, "rotary_dim": 16}),
    "gpt_oss": (
        "gpt_oss",
        _LAYERED_WINDOW
        | _rope("yarn", factor=4.0, original_max_position_embeddings=64, truncate=False, beta_fast=32.0, beta_slow=1.0)
        | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3, windows": ("olmo3", _LAYERED_WINDOW),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "cohere2": ("cohere2", _LAYERED_WINDOW),
    "granite": ("granite", {"logits_scaling": 2.0}),
    "starcoder2, window": ("starcoder2", _WINDOW),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", _DEEPSEEK | {"head_dim": 32, "n_group": 1}),
    "ernie4_5": ("ernie4_5", {}),
    "exaone4, windows": ("exaone4", _LAYERED_WINDOW),
    "seed_oss": ("seed_oss", {}),
    "llama4_text, chunks": (
        "llama4_text",
        {"attention_chunk_size": 32, "num_local_experts": 2, "intermediate_size_mlp": 64, "no_rope_layers": [1, 0],
         "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 64}),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 2}),
    "falcon": ("falcon", {"new_decoder_architecture": False, "multi_query": True, "head_dim": None}),
    "stablelm": ("stablelm", {}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "mamba": ("mamba", {"state_size": 8}),
}  # fmt: skip
"""By name: the type of model, and what its configuration says beyond _SIZES."""

_SIZES: Final = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "eos_token_id": END, "pad_token_id": END,
    "bos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip


def config_of(name: str) -> Any:
    """The configuration of transformers."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, more = ARCHITECTURES[name]
    written = {name: value for name, value in (_SIZES | more).items() if name != "head_dim" or value}
    return AutoConfig.for_model(
        kind, **written, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]], dtype="float32"
    )
