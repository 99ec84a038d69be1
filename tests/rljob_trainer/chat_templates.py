"""Chat templates of the kinds that models bring, with the tokenizer that reads them."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<s>", "</s>", "<|call|>", "<|user|>", "<|assistant|>",
    "<|end|>", "<tool>",
]  # fmt: skip

_TURN = "<|im_start|>{{ m.role }}\n"
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}" + _TURN + "{{ m.content }}<|im_end|>\n{% endfor %}" + _OPEN

TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    + _TURN
    + "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool>{{ c.function.name }}({{ c.function.arguments | tojson }})"
    "{% endfor %}<|im_end|>\n{% endfor %}" + _OPEN
)
STRIPS = (  # reasoning of earlier turns, as Qwen3 does
    "{% for m in messages %}" + _TURN + "{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}" + _OPEN
)
THINKS = (  # opens an answer with <think>, and renders one without, as DeepSeek-R1 does
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
SWITCH = (
    "{% for m in messages %}" + _TURN + "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
PHI = (  # ends the chat with another token after the turn's
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
TAGGED = (  # with the tags that mark what the assistant generated
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}\n{% else %}" + _TURN + "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}" + _OPEN
)
LLAMA = (  # with a beginning of text, and no header before an answer
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} </s>{% else %}{{ raise_exception('no ' ~ m.role) }}"
    "{% endif %}{% endfor %}"
)
PLAIN = (  # ends turns with a new line
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PARTS = (
    "{% for m in messages %}" + _TURN + "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}" + _OPEN
)
LLAMA3 = (  # trims each text
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (  # has names of its own for roles
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
SMOLLM2 = (  # begins with a system message of its own
    "{% for m in messages %}{% if loop.first and messages[0].role != 'system' %}<|im_start|>system\nYou help."
    "<|im_end|>\n{% endif %}" + _TURN + "{{ m.content }}<|im_end|>\n{% endfor %}" + _OPEN
)
QWEN3 = (  # keeps the thinking of answers behind the user's last message, and removes that of earlier ones
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% set thought, text = m.content.split('</think>')[0].split('<think>')[-1], m.content.split('</think>')[-1] %}"
    "{% if '</think>' in m.content and loop.index0 > ns.last %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n"
    "{% endif %}{{ text.lstrip('\n') }}{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% else %}"
    + _TURN
    + "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + _OPEN
)
UPPER = CHATML.replace("m.content", "m.content | upper")
NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
PARTS_ALONE = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
DATED = "{{ strftime_now('%Y-%m-%d') }}" + CHATML


def tokenizer_of(template: str, eos: str = "<|endoftext|>", **settings):
    """A byte-level tokenizer with TOKENS; it pads with its end-of-text token."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    fast = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token=eos, pad_token=eos, bos_token="<s>", chat_template=template, **settings
    )


PYTHON = """
from transformers import PreTrainedTokenizer

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]

class LetterTokenizer(PreTrainedTokenizer):
    vocab_files_names = {}
    def __init__(self, **settings):
        self._ids = {token: i for i, token in enumerate([*SPECIAL, *map(chr, range(10, 127))])}
        settings.setdefault("eos_token", "<|end|>")
        settings["extra_special_tokens"] = SPECIAL[1:]
        super().__init__(**settings)
    vocab_size = property(lambda self: len(self._ids))
    def get_vocab(self): return dict(self._ids)
    def _tokenize(self, text): return list(text)
    def _convert_token_to_id(self, token): return self._ids.get(token, 0)
    def _convert_id_to_token(self, index): return list(self._ids)[index]
    def convert_tokens_to_string(self, tokens): return "".join(tokens)
"""
"""A tokenizer that comes with its model as Python code: one token for each letter."""


def python_tokenizer(folder: Path):
    """Write it to `folder`, and load it as a model's own."""
    from transformers import AutoTokenizer

    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (folder / "letters.py").write_text(PYTHON)
    settings = {"auto_map": {"AutoTokenizer": ["letters.LetterTokenizer", None]}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LetterTokenizer", **settings}))
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
