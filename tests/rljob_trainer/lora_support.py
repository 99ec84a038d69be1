"""Adapters with random matrices, peft's model of them, and a small model with a tokenizer for whole runs."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from rljob_api import ResolvedSpec
from rljob_trainer.lora.layers import adapted_layers
from tests.rljob_trainer.checkpoint_support import make_spec

TARGETS = ["q_proj", "v_proj", "mlp.down_proj"]
LORA: dict[str, Any] = {"rank": 4, "alpha": 10, "targetModules": TARGETS}


def lora_spec(ranks: int = 1, lora: dict[str, Any] | None = None, **blocks: Any) -> ResolvedSpec:
    return make_spec(ranks, model={"path": "model", "lora": LORA if lora is None else lora}, **blocks)


def peft_model(folder: str, **changes: Any) -> PeftModel:
    """peft's model of LORA over the model in `folder`, in float32, with random matrices."""
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 10, "target_modules": TARGETS, "task_type": "CAUSAL_LM"} | changes
    made = get_peft_model(base, LoraConfig(**settings)).eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
    return made


def write_adapter(folder: str, target: Path, **changes: Any) -> PeftModel:
    """The adapter of `peft_model`, in peft's files."""
    made = peft_model(folder, **changes)
    made.save_pretrained(str(target))
    return made


def matrices(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Of a model of ours, by name."""
    return {
        f"{name}.{part}.weight": getattr(layer, part).weight
        for name, layer in adapted_layers(model).items()
        for part in ("lora_A", "lora_B")
    }
