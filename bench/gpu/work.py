"""What both trainers are given: a random Qwen2.5 model, its tokenizer, prompts and a reward.

python -m bench.gpu.work SHAPE STEPS FOLDER
"""

import itertools
import json
import random
import string
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from bench.gpu.shapes import LONGEST, PROMPTS, SHAPES, SHORTEST, Shape

END, PADDING = "<|im_end|>", "<|endoftext|>"

REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(ord(each) % 2 == 0 for each in solution_str) / max(1, len(solution_str))
"""
"""The share of characters with an even code."""


def main() -> None:
    name, steps, folder = sys.argv[1:]
    write(SHAPES[name], int(steps) * PROMPTS, Path(folder))


def write(shape: Shape, prompts: int, folder: Path) -> None:
    """Write model, its tokenizer, rows.jsonl, reward.py and the number of parameters."""
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(shape.vocabulary)
    model = _model(shape, tokenizer)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = (json.dumps(row) + "\n" for row in _rows(prompts))
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "reward.py").write_text(REWARD)
    (folder / "parameters.json").write_text(json.dumps(model.num_parameters()))


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token a byte, and words of three letters for all other ids: a random model's text can be decoded."""
    words = map("".join, itertools.product(string.ascii_letters + string.digits, repeat=3))
    names = itertools.chain(sorted(pre_tokenizers.ByteLevel.alphabet()), words)
    known = {name: index for index, name in enumerate(itertools.islice(names, vocabulary - 2))}
    bare = Tokenizer(models.BPE(vocab=known, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=END, pad_token=PADDING)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def _model(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """In bfloat16. Of 512 tokens about one in 300 responses has the end token by chance, and is shorter."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=32_768,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return Qwen2ForCausalLM(config).to(torch.bfloat16)


def _rows(count: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits
    texts = ("".join(draw.choices(letters, k=draw.randint(SHORTEST, LONGEST))) for _ in range(count))
    return [
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": ""}, "data_source": "letters"}
        for text in texts
    ]


if __name__ == "__main__":
    main()
