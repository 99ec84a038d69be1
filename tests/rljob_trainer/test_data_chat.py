"""Conversations through chat templates: prompts as transformers renders them, answers as the template ends them."""

import json
from datetime import UTC, datetime

import pytest
import structlog

from rljob_api.v1alpha1 import Data, RLJobSpec
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.conversation import read_messages
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.data.rows import BadRow
from rljob_trainer.data.supervised import load_supervised
from rljob_trainer.data.turn_end import turn_end
from rljob_trainer.errors import DataError
from tests.rljob_trainer import chat_templates as templates
from tests.rljob_trainer.chat_templates import tokenizer_of


def chat(*turns, **last):
    messages = [{"role": role, "content": content} for role, content in turns]
    return [*messages[:-1], {**messages[-1], **last}]


CALL = [{"type": "function", "function": {"name": "look", "arguments": {"city": "Oslo"}}}]
SCHEMA = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
Q, A = ("user", "Say 7"), ("assistant", "7")

PROMPTS = {
    "calls of tools": (templates.TOOLS, [*chat(Q), *chat(("assistant", ""), tool_calls=CALL), *chat(("tool", "20"))]),
    "calls without content": (templates.TOOLS, [*chat(Q), *chat(("assistant", None), tool_calls=CALL)]),
    "reasoning": (templates.TOOLS, [*chat(Q), *chat(A, reasoning_content="hm"), *chat(Q)]),
    "any other field": ("{% for m in messages %}{{ m.name }}: {{ m.content }}{% endfor %}", chat(Q, name="Ann")),
    "stripped reasoning": (templates.STRIPS, chat(Q, ("assistant", "<think>hm</think>7"), Q)),
    "a beginning of text": (templates.LLAMA, chat(Q)),
    "an assistant's message at the end": (templates.CHATML, chat(Q, ("assistant", "The answer is"))),
    "parts": (templates.PARTS, chat(("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))),
    "tags of generation": (templates.TAGGED, chat(Q, A, Q)),
}


@pytest.mark.parametrize(("template", "messages"), PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_what_transformers_makes_of_it(template, messages):
    tokenizer = tokenizer_of(template)
    form = ChatFormat(tokenizer)
    text = form.render(read_messages({"prompt": messages}, "prompt"))
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert form.encode([text]) == [expected]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (templates.CHATML, chat(("user", [{"type": "text", "text": "a"}])), "takes no list of parts"),
        (templates.LLAMA, chat(("system", "be brief"), Q), "rejects the conversation: no system"),
        ("{{ messages[0].content + 1 }}", chat(Q), "rejects the conversation: "),
        (templates.TOOLS, chat(Q, reasoning_content="\ud800"), "not text in UTF-8"),
    ],
)
def test_what_a_template_cannot_render_is_refused(template, messages, message):
    with pytest.raises(BadRow, match=message):
        ChatFormat(tokenizer_of(template)).render(messages)


def test_tools_of_a_row_are_rendered(tmp_path):
    tokenizer = tokenizer_of(templates.TOOLS)
    for tools in (SCHEMA, json.dumps(SCHEMA)):
        [task] = tasks(tmp_path, tokenizer, [row(chat(Q), tools=tools)])
        expected = tokenizer.apply_chat_template(chat(Q), tools=SCHEMA, add_generation_prompt=True, return_dict=False)
        assert task.token_ids.tolist() == expected


# ---- supervised turns

TARGETS = {
    "end of turn is not end of text": (templates.CHATML, "7<|im_end|>"),
    "end of text after the end of turn": (templates.PHI, "7<|end|>"),
    "tags of generation": (templates.TAGGED, "7<|im_end|>"),
    "a space before the answer": (templates.LLAMA, " 7 </s>"),
    "an answer that opens otherwise": (templates.THINKS, "7<|end|>"),
    "a turn that ends with a new line": (templates.PLAIN, "7<|endoftext|>"),
    "no end of turn at all": ("{% for m in messages %}{{ m.content }}{% endfor %}", "7<|endoftext|>"),
}


@pytest.mark.parametrize("columns", ["messages", "prompt and response"])
@pytest.mark.parametrize(("template", "target"), TARGETS.values(), ids=TARGETS)
def test_the_templates_own_turn_is_trained_with_its_end(tmp_path, template, target, columns):
    tokenizer = tokenizer_of(template)
    given = {"messages": chat(Q, A)} if columns == "messages" else {"prompt": chat(Q), "response": "7"}
    text, trained = example(tmp_path, tokenizer, given)
    assert trained == target
    whole = tokenizer.apply_chat_template(chat(Q, A), tokenize=False)
    assert whole.startswith(text.removesuffix("<|endoftext|>"))
    assert tokenizer.decode(turn_end(tokenizer)) == target[-len(tokenizer.decode(turn_end(tokenizer))) :]


@pytest.mark.parametrize(
    ("template", "messages", "target"),
    [
        (templates.TOOLS, chat(Q, A, reasoning_content="hm", tool_calls=CALL), None),
        (templates.CHATML, chat(Q, ("assistant", "a<|im_end|>b")), "a<|im_end|>b<|im_end|>"),
        (templates.STRIPS, chat(Q, ("assistant", "x</think>7"), Q, ("assistant", "y</think>8")),
         "y</think>8<|im_end|>"),
        ("{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<|call|>{% else %}<|eot|>{% endif %}{% endfor %}",
         chat(Q, A, tool_calls=CALL), "7<|call|>"),
    ],
)  # fmt: skip
def test_what_else_the_turn_has_is_trained(tmp_path, template, messages, target):
    target = target or '<think>hm</think>7<tool>look({"city": "Oslo"})<|im_end|>'
    assert example(tmp_path, tokenizer_of(template), {"messages": messages})[1] == target


def test_an_answer_that_the_template_leaves_out_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"spec\.data\.train\[0\]: .*line 1: the chat template renders nothing"):
        example(tmp_path, tokenizer_of("{{ messages[0].content }}"), {"messages": chat(Q, A)})


def test_a_prompt_may_be_continued(tmp_path):
    arguments, begun = {"continue_final_message": True}, chat(Q, ("assistant", "It is"))
    tokenizer = tokenizer_of(templates.CHATML)
    rows = [row(begun), row(chat(Q))]
    ends = [tokenizer.decode(task.token_ids) for task in tasks(tmp_path, tokenizer, rows, arguments)]
    assert [text.rpartition("assistant\n")[2] for text in ends] == ["It is", ""]
    given = {"prompt": begun, "response": " 7"}
    assert example(tmp_path, tokenizer, given, arguments)[1] == " 7<|im_end|>"


# ---- arguments, time, and what is not used


def test_arguments_reach_the_template_in_rl_and_in_sft(tmp_path):
    tokenizer, arguments = tokenizer_of(templates.SWITCH), {"enable_thinking": False}
    [task] = tasks(tmp_path, tokenizer, [row(chat(Q))], arguments)
    assert tokenizer.decode(task.token_ids).endswith("assistant\n<think></think>")
    assert example(tmp_path, tokenizer, {"messages": chat(Q, A)}, arguments)[1] == "7<|im_end|>"


@pytest.mark.parametrize("name", ["enable_thinkng", "tokenize", "messages"])
def test_an_argument_that_no_template_reads_is_refused(name):
    with pytest.raises(DataError) as caught:
        ChatFormat(tokenizer_of(templates.SWITCH), {name: False})
    assert caught.value.field == f"spec.data.templateArguments.{name}"


def test_the_date_of_a_template_is_the_runs(tmp_path):
    tokenizer = tokenizer_of(templates.DATED)
    for day in (1, 2):
        [task] = tasks(tmp_path, tokenizer, [row(chat(Q))], now=datetime(2020, 1, day, 23, 59, tzinfo=UTC))
        assert tokenizer.decode(task.token_ids).startswith(f"2020-01-0{day}<|im_start|>")


UNUSED = {
    "columns": ({"agent_name": "a", "id": 4}, chat(Q), {"columns": "agent_name, id"}),
    "a field": ({}, chat(Q, reasoning_content="hm"), {"fields": "reasoning_content"}),
    "tools": ({"tools": SCHEMA}, chat(Q), {"fields": "tools"}),
    "empty fields": ({"tools": None, "ability": "math"}, chat(Q, reasoning_content=""), None),
}


@pytest.mark.parametrize(("columns", "messages", "named"), UNUSED.values(), ids=UNUSED)
def test_what_nothing_reads_is_named_once(tmp_path, columns, messages, named):
    with structlog.testing.capture_logs() as logs:
        tasks(tmp_path, tokenizer_of(templates.CHATML), [row(chat(Q)), row(messages, **columns), row(messages)])
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert len(warnings) == (named is not None)
    for each in warnings:
        assert named is not None
        assert named.items() <= each.items()
        assert each["data"] == "spec.data.train"


def test_a_field_that_the_template_reads_is_not_named(tmp_path):
    with structlog.testing.capture_logs() as logs:
        tasks(tmp_path, tokenizer_of(templates.TOOLS), [row(chat(Q), tools=SCHEMA), row(PROMPTS["reasoning"][1])])
    assert [each for each in logs if each["log_level"] == "warning"] == []


def test_images_behind_the_first_row_are_refused(tmp_path):
    with pytest.raises(DataError, match="line 2: column 'image' holds"):
        tasks(tmp_path, tokenizer_of(templates.CHATML), [row(chat(Q)), row(chat(Q), image="a.png")])


# ---- helpers


def row(messages, **more):
    return {"data_source": "test", "prompt": messages, "reward_model": {"ground_truth": "7"}, **more}


def data_of(folder, rows, arguments):
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return Data.model_validate(
        {"train": ["rows.jsonl"], "maxPromptTokens": 512, "promptsPerStep": 1, "templateArguments": arguments or {}}
    )


def tasks(folder, tokenizer, rows, arguments=None, now=None):
    return load_prompts(data_of(folder, rows, arguments), tokenizer, folder, now=now).all(0)


def example(folder, tokenizer, given, arguments=None):
    """The text of a supervised row, and the part of it that is trained."""
    spec = RLJobSpec.model_validate(
        {
            "model": {"path": "m"}, "algorithm": {"preset": "sft"}, "training": {"steps": 1},
            "data": data_of(folder, [given], arguments).model_dump(by_alias=True),
        }
    )  # fmt: skip
    trajectory = load_supervised(spec, tokenizer, folder).item(0, 0).trajectory
    return tokenizer.decode(trajectory.token_ids), tokenizer.decode(trajectory.token_ids[trajectory.in_loss])
