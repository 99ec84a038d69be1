"""vLLM's parsers of tool calls, by name: each reads a call as its models write it, and text as text."""

from functools import cache
from typing import Any

import pytest

from rljob_trainer.environments.tool_calls import ToolCall
from rljob_trainer.environments.vllm_parsers import vllm_parser
from rljob_trainer.errors import EnvironmentFailed
from tests.rljob_trainer.chat_templates import CHATML, tokenizer_of
from tests.rljob_trainer.environments_support import Script, playing, tokenized_of

pytest.importorskip("vllm", reason="the parsers are vLLM's")

SPECIAL = [
    "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>", "<tool_calls>",
    "</tool_calls>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
]  # fmt: skip
"""Tokens that some parsers look for in the vocabulary."""

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}
CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
VALUES = "<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
XML = f"<tool_call>\n<function=add>\n{VALUES}</function>\n</tool_call>"
BEGIN, END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
WRITTEN = {
    "apertus": '<|tools_prefix|>[{"add": {"a": 1, "b": 2}}]<|tools_suffix|>',
    "deepseek_v31": f'{BEGIN}add<｜tool▁sep｜>{{"a": 1, "b": 2}}{END}',
    "ernie45": f"<tool_call>\n{CALL}\n</tool_call>\n",
    "glm45": (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>"
    ),
    "granite": f"<|tool_call|>[{CALL}]",
    "granite4": f"<tool_call>{CALL}</tool_call>",
    "granite-20b-fc": f"<function_call> {CALL}",
    "hermes": f"<tool_call>{CALL}</tool_call>",
    "hunyuan_a13b": f"<tool_calls>[{CALL}]</tool_calls>",
    "internlm": '<|action_start|><|plugin|>{"name": "add", "parameters": {"a": 1, "b": 2}}<|action_end|>',
    "jamba": f"<tool_calls>[{CALL}]</tool_calls>",
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1, "b": 2}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "lfm2": "<|tool_call_start|>[add(a=1, b=2)]<|tool_call_end|>",
    "llama3_json": '{"name": "add", "parameters": {"a": 1, "b": 2}}',
    "llama4_pythonic": "<|python_start|>[add(a=1, b=2)]<|python_end|>",
    "longcat": f"<longcat_tool_call>{CALL}</longcat_tool_call>",
    "minimax_m2": (
        '<minimax:tool_call><invoke name="add"><parameter name="a">1</parameter><parameter name="b">2</parameter>'
        "</invoke></minimax:tool_call>"
    ),
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
    "olmo3": "<function_calls>add(a=1, b=2)</function_calls>",
    "phi4_mini_json": f"functools[{CALL}]",
    "pythonic": "[add(a=1, b=2)]",
    "qwen3_coder": XML,
    "qwen3_json": f"<tool_call>{CALL}</tool_call>",
    "seed_oss": f"<seed:tool_call>\n<function=add>\n{VALUES}</function>\n</seed:tool_call>",
    "step3p5": XML,
    "xlam": f"[{CALL}]",
}


@cache
def tokenizer() -> Any:
    made = tokenizer_of(CHATML, "<|im_end|>")
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    return made


@pytest.mark.parametrize("name", WRITTEN)
def test_a_parser_reads_a_call_as_its_models_write_it(name):
    parse = vllm_parser(name, tokenizer())
    for _ in range(2):  # parsers keep state
        assert parse(WRITTEN[name], [ADD]) == ("", [ToolCall("add", {"a": 1, "b": 2})])
        assert parse("The sum is 3.", [ADD]) == ("The sum is 3.", [])


def test_what_is_no_call_is_text():
    assert vllm_parser("hermes", tokenizer())("<tool_call>{</tool_call>", [ADD]) == ("<tool_call>{</tool_call>", [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hermess", "vLLM has no parser 'hermess', did you mean 'hermes'?"),
        ("llama3_json", "parser llama3_json cannot read this model's answers: .*python_tag"),
    ],
)
def test_a_parser_that_cannot_be_used_is_named(name, message):
    with pytest.raises(EnvironmentFailed, match=message) as raised:
        vllm_parser(name, tokenizer_of(CHATML, "<|im_end|>"))
    assert raised.value.field == "spec.environment.toolParser"


def test_an_episode_calls_tools_in_the_models_own_words(tmp_path):
    tokenized = tokenized_of(CHATML, "<|im_end|>")
    tokenized.parse = vllm_parser("pythonic", tokenized.chat.tokenizer)
    source = 'def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
    with playing(tmp_path, source=source, tools=["add"], template=CHATML) as play:
        play.tokenized.parse = tokenized.parse
        episode = play.of(Script(play.tokenized, "[add(a=1, b=2), add(a=3)]<|im_end|>", "3<|im_end|>"))
        text = play.tokenized.text(episode.trajectories[0].token_ids.tolist())
    assert "<|im_start|>tool\n3<|im_end|>" in text
    assert "missing a required argument: 'b'" in text
    assert episode.counts["tool_errors"] == 1
