"""Tiny reward models with random weights, and what transformers makes of a text with them."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

from rljob_api.v1alpha1.model import Tokenizer
from rljob_trainer.data.tokenizer import build_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SERVED: Mapping[str, Any] = {
    "gpusPerReplica": 0,
    "arguments": ["--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "8", "--enforce-eager"],
}
"""Fields of a reward model that a small machine serves; vLLM's own type on a CPU is bfloat16."""

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}

Messages = Sequence[Mapping[str, str]]


def classifier(folder: Path, broken: str = "") -> Callable[[Messages], float]:
    """Write a classifier to the folder. Returns the logit that transformers computes of a conversation.

    broken: letters at which it computes NaN.
    """
    tokenizer = build_tokenizer(Tokenizer(), [LETTERS])
    torch.manual_seed(1)
    model = LlamaForSequenceClassification(_config(tokenizer, num_labels=1)).eval()
    with torch.no_grad():
        model.score.weight.mul_(50)  # scores that differ from text to text by far more than rounding
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids(list(broken))] = float("nan")
    _save(folder, model, tokenizer)

    def logit(messages: Messages) -> float:
        with torch.inference_mode():
            return float(model(_ids(tokenizer, messages, answer=False)).logits[0, 0])

    return logit


def judge(folder: Path, pattern: str, tokens: int) -> Callable[[str], float]:
    """Write a chat model that answers with digits. Returns the score that transformers' answer to a message has."""
    tokenizer = build_tokenizer(Tokenizer(), [LETTERS + "0123456789 ?"])
    torch.manual_seed(2)
    model = LlamaForCausalLM(_config(tokenizer)).eval()
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    others = [i for i in range(len(tokenizer)) if i not in digits]
    with torch.no_grad():
        model.lm_head.weight[others] = 0  # the best of ten random logits is above that
    _save(folder, model, tokenizer)

    def score(message: str) -> float:
        ids = _ids(tokenizer, [{"role": "user", "content": message}], answer=True)
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
        answer = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return float(re.findall(pattern, answer)[-1])

    return score


def _config(tokenizer: PreTrainedTokenizerFast, **more: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=128, max_position_embeddings=512, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False, initializer_range=0.3, **more,
    )  # fmt: skip


def _save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _ids(tokenizer: PreTrainedTokenizerFast, messages: Messages, *, answer: bool) -> torch.Tensor:
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answer)
    ids: torch.Tensor = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    return ids
