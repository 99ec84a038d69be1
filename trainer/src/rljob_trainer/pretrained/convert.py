"""From a GGUF file to an ordinary model folder, and the proof that a folder holds the expected model."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rljob_trainer.errors import DataError
from rljob_trainer.pretrained.catalogue import QUESTION, Packed

WEIGHTS = "model.safetensors"


def convert(gguf: Path, folder: Path) -> None:
    """Write config, generation config, bfloat16 weights, tokenizer and chat template to `folder`."""
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = loaded.config
    del config.quantization_config  # the file's; the folder's weights are plain numbers
    with torch.device("meta"):  # without time for random weights
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {name: weight.to(torch.bfloat16) for name, weight in loaded.state_dict().items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)  # safetensors writes a file of its owner alone


def problem(packed: Packed, folder: Path) -> str | None:
    """Why `folder` is not the model; None if it is."""
    try:
        if (found := weights_digest(folder / WEIGHTS)) != packed.weights:
            return f"its weights have the digest {found}, not {packed.weights}"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    except (OSError, ValueError, SafetensorError) as error:
        return f"it cannot be read: {error}"
    return (
        None
        if " ".join(map(str, ids["input_ids"])) == packed.ids
        else f"its tokenizer turns {QUESTION!r} into other tokens"
    )


def weights_digest(file: Path) -> str:
    """SHA-256 over name, shape, type and values of each tensor, by name: independent of the file's layout."""
    digest = hashlib.sha256()
    with safe_open(file, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def verified(packed: Packed, folder: Path) -> None:
    """Raise DataError unless `folder` holds the model."""
    if wrong := problem(packed, folder):
        raise DataError(f"{packed.title} was converted wrongly: {wrong}; install the locked transformers and gguf")
