"""Messages to tokens, and turns to trajectories: what was sampled is what is trained on."""

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_trainer.environments.recorder import Recorder
from rljob_trainer.environments.session import Filter, Limits, Over, Refused, Session, TurnLimits
from rljob_trainer.environments.tool_calls import ToolCall, parse_tool_calls
from rljob_trainer.environments.tool_template import check_tool_template
from rljob_trainer.errors import DataError
from rljob_trainer.types import Episode
from tests.rljob_trainer import chat_templates as templates
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.environments_support import Script, ids_of, task_of, tokenized_of
from tests.rljob_trainer.rollouts_support import ids

USER = {"role": "user", "content": "Say 7"}
AGAIN = {"role": "user", "content": "Again"}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}


def converse(
    template: str, first: str, *later: dict[str, Any], tools: Any = None, eos: str = "<|im_end|>", **kwargs: Any
):
    """Two turns: `first` answers USER, and the messages `later` follow. Returns also its tokenizer."""
    tokenized = tokenized_of(template, eos, **kwargs)
    end = tokenized.text([tokenized.chat.end])
    policy = Script(tokenized, first, "ok" + end)

    async def play() -> Episode:
        session = Session(task_of(tokenized, USER), policy, tokenized, Limits(8, 400, "train", "train"))
        answer = await session.call("chat", {"messages": [USER], "tools": tools})
        await session.call("chat", {"messages": [USER, answer, *later], "tools": tools})
        return session.episode(1.0, None, {})

    return tokenized, asyncio.run(play())


IM = "<|im_start|>user\nSay 7<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>user\nAgain<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "first", "whole"),
    [
        (templates.CHATML, "7<|im_end|>", IM.format("7") + "<|im_start|>assistant\nok<|im_end|>"),
        (templates.CHATML, " 7", IM.format(" 7") + "<|im_start|>assistant\nok<|im_end|>"),
        (
            templates.PHI,
            "7<|end|>",
            "<|user|>\nSay 7<|end|>\n<|assistant|>\n7<|end|>\n<|user|>\nAgain<|end|>\n<|assistant|>\nok<|end|>",
        ),
        (
            templates.LLAMA3,
            "\n7 <|eot_id|>",
            "<s>{0}user{1}Say 7{2}{0}assistant{1}\n7 {2}{0}user{1}Again{2}{0}assistant{1}ok{2}".format(
                "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"
            ),
        ),
        (
            templates.GEMMA,
            "7<end_of_turn>",
            "<s>{0}user\nSay 7{1}{0}model\n7{1}{0}user\nAgain{1}{0}model\nok<end_of_turn>".format(
                "<start_of_turn>", "<end_of_turn>\n"
            ),
        ),
        (
            templates.SMOLLM2,
            "7<|im_end|>",
            "<|im_start|>system\nYou help.<|im_end|>\n" + IM.format("7") + "<|im_start|>assistant\nok<|im_end|>",
        ),
        (templates.QWEN3, "7<|im_end|>", IM.format("7") + "<|im_start|>assistant\nok<|im_end|>"),
        (templates.LLAMA, " 7  </s>", "<s>[INST] Say 7 [/INST] 7  </s>[INST] Again [/INST]ok</s>"),
        (templates.PLAIN, "7<|im_end|>", "user: Say 7\nassistant: 7<|im_end|>\nuser: Again\nassistant: ok<|im_end|>"),
    ],
    ids=["chatml", "cut off", "phi", "llama 3", "gemma", "smollm2", "qwen3 without thinking", "mistral", "plain"],
)
def test_a_turn_continues_the_tokens_of_the_last_one(template, first, whole):
    tokenized, episode = converse(template, first, AGAIN, eos="</s>" if template == templates.LLAMA else "<|im_end|>")
    (part,) = episode.trajectories
    assert tokenized.text(part.token_ids.tolist()) == whole
    start, end = part.turns[0][:2]
    assert tokenized.text(part.token_ids[start:end].tolist()) == first
    assert part.in_loss.sum() == sum(turn.end - turn.start for turn in part.turns), "only what was sampled"
    assert episode.counts == {"turns": 2, "splits": 0}


@pytest.mark.parametrize(
    ("template", "first"),
    [
        (templates.STRIPS, "<think>why</think>7<|im_end|>"),
        (templates.QWEN3, "<think>\nwhy\n</think>\n\n7<|im_end|>"),
        (templates.THINKS, "why</think>7<|end|>"),
        (templates.UPPER, "seven<|im_end|>"),
    ],
    ids=["thinking removed", "qwen3", "thinking opened by the prompt", "other letters"],
)
def test_a_template_that_rewrites_history_splits_the_episode(template, first):
    tokenized, episode = converse(template, first, AGAIN)
    before, after = episode.trajectories
    assert tokenized.text(before.token_ids.tolist()).endswith(first)
    rendered = tokenized.chat.render(
        [USER, {"role": "assistant", "content": tokenized.decode(ids_of(tokenized, first))}, AGAIN]
    )
    assert tokenized.text(after.token_ids[: after.turns[0].start].tolist()) == rendered
    assert [part.loss_tokens for part in episode.trajectories] == [len(ids_of(tokenized, first)), 3]
    assert episode.counts["splits"] == 1


@pytest.mark.parametrize(
    ("name", "end", "first", "splits"),
    [
        ("llama3", "<|eot_id|>", "7", 0),
        ("llama3_2", "<|eot_id|>", " 7", 0),
        ("gemma3", "<end_of_turn>", "7", 0),
        ("qwen2_5", "<|im_end|>", "7\n", 0),
        ("qwen3", "<|im_end|>", "<think>\nwhy\n</think>\n\n7", 1),
        ("qwen3_instruct_2507", "<|im_end|>", "7", 0),
        ("glm4moe", "<|im_end|>", "<think>why</think>\n7", 1),
    ],
)
def test_templates_of_models_as_they_are_continue_or_split(name, end, first, splits):
    """As TRL ships them."""
    trl = pytest.importorskip("trl")
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    tokenized, episode = converse(template, first + end, AGAIN, eos=end)
    texts = [tokenized.text(part.token_ids.tolist()) for part in episode.trajectories]
    sampled = [
        tokenized.text(part.token_ids[turn.start : turn.end].tolist())
        for part in episode.trajectories
        for turn in part.turns
    ]
    assert (len(texts), sampled) == (1 + splits, [first + end, "ok" + tokenized.text([tokenized.chat.end])])
    assert "Say 7" in texts[-1]
    assert "Again" in texts[-1]
    assert (first + end in texts[-1]) != bool(splits), "only where the template keeps it as it was"


def test_calls_of_tools_keep_their_tokens_however_the_template_writes_them():
    call = 'Let me see.<tool_call>{"name":"add",   "arguments": {"a": 1}}</tool_call><|im_end|>'
    result = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "7"}
    tokenized, episode = converse(templates.TOOLS, call, result, tools=[TOOL])
    (part,) = episode.trajectories
    text = tokenized.text(part.token_ids.tolist())
    assert call + "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\nok" in text
    assert text.startswith("<|im_start|>system\n[{"), "the tools are in the prompt"


def test_qwen3_keeps_the_thinking_of_a_call_until_the_user_speaks():
    call = (
        '<think>\nwhy\n</think>\n\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    )
    result = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "7"}
    tokenized, episode = converse(templates.QWEN3, call, result, tools=[TOOL])
    (part,) = episode.trajectories
    assert call + "\n<|im_start|>user\n<tool_response>\n7\n" in tokenized.text(part.token_ids.tolist())
    _, split = converse(templates.QWEN3, call, result, AGAIN, tools=[TOOL])
    assert len(split.trajectories) == 2


STRICT = templates.TOOLS.replace(  # one call an answer, of an object, and ids as templates of Mistral want them
    "{% for c in m.tool_calls or [] %}",
    "{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
    "{% for name in c.function.arguments.items() %}{% endfor %}",
)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("rewrites", [False, True])
def test_a_call_that_the_template_rejects_is_the_policys_fault_and_stays_in_its_words(broken, rewrites):
    first = (CALL.replace('{"a": 1}', "[1]") if broken else CALL + CALL) + "<|im_end|>"
    result = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "7"}
    template = STRICT.replace("{{ m.content }}", "{{ m.content | upper }}") if rewrites else STRICT
    tokenized, episode = converse(template, first, result, tools=[TOOL])
    assert len(episode.trajectories) == 1 + rewrites
    read = tokenized.text(episode.trajectories[-1].token_ids.tolist())
    assert (first.upper() if rewrites else first).lower() in read.lower()
    assert converse(STRICT, CALL + "<|im_end|>", result, tools=[TOOL])[1].counts["splits"] == 0


NO_CALLS = templates.NEEDS_SYSTEM + "{% for m in messages if m.tool_calls %}{{ raise_exception('calls') }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (templates.QWEN3, None),
        (templates.TOOLS, None),
        ("{{ tools | upper }}" + NO_CALLS, None),
        ("{{ tools }}" + templates.LLAMA, "rejects the conversation: no tool"),
        (templates.CHATML, "leaves out the tools"),
        (
            "{{ tools }}" + templates.CHATML.replace("m.content", "m.content if m.role != 'tool'"),
            "leaves out the results",
        ),
    ],
)
def test_a_job_with_tools_needs_a_template_that_shows_them_and_their_results(template, fault):
    tokenizer = tokenized_of(template).chat.tokenizer
    check_tool_template(make_spec(environment={"path": "game.py"}), tokenizer)
    with pytest.raises(DataError, match=rf"spec\.model\.chatTemplate: .*{fault}") if fault else nullcontext():
        check_tool_template(make_spec(environment={"builtinTools": [{"name": "calculator"}]}), tokenizer)


def test_calls_are_parsed_and_what_is_none_becomes_a_call_that_fails():
    text = 'a <tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call> <tool_call>\n{"name": "g"}'
    assert parse_tool_calls(text) == ("a", [ToolCall("f", {"x": [1]}), ToolCall("g", {})])
    for wrong in ("{", "[]", '{"name": 3}'):
        assert parse_tool_calls(f"<tool_call>{wrong}</tool_call>") == ("", [ToolCall("", wrong)])
    assert parse_tool_calls("no call <b>") == ("no call <b>", [])


# ---- turns to trajectories


def completed(*tokens: int, version: int = 1) -> Any:
    from rljob_trainer.engines.engine import Completion

    R = len(tokens)
    return Completion("r", 0, ids(*tokens), np.full(R, -1, np.float32), np.full(R, version, np.int32), "stop")


def test_turns_continue_the_longest_context_or_begin_one():
    recorder = Recorder()
    recorder.add(recorder.begin(), ids(5, 9), completed(7), 1.0)
    recorder.add(recorder.begin(), ids(5, 9, 7, 4), completed(8, 1, version=2), 0.5)
    recorder.add(recorder.begin(), ids(5, 9), completed(6), 1.0)
    recorder.add(recorder.begin(), ids(5, 9, 6, 2), completed(3), 1.0)
    first, second = recorder.trajectories()
    assert first.token_ids.tolist() == [5, 9, 7, 4, 8, 1]
    assert first.in_loss.tolist() == [False, False, True, False, True, True]
    assert first.versions.tolist() == [-1, -1, 1, -1, 2, 2]
    assert [turn.temperature for turn in first.turns] == [1.0, 0.5]
    assert second.token_ids.tolist() == [5, 9, 6, 2, 3]
    assert recorder.splits == 1
    assert recorder.in_order([1, 2, 3]).tolist() == [1, 2, 3, 0]


def test_rewards_of_turns_follow_the_turns_into_their_trajectories():
    recorder = Recorder()
    recorder.add(recorder.begin(), ids(1), completed(2), 1.0)
    recorder.add(recorder.begin(), ids(3), completed(4), 1.0)
    recorder.add(recorder.begin(), ids(1, 2, 5), completed(6), 1.0)
    last = recorder.trajectories()[-1]
    assert last.token_ids.tolist() == [1, 2, 5, 6]  # its text is scored, for it has the last turn
    assert recorder.in_order([10, 20, 30]).tolist() == [20, 10, 30]
    assert recorder.order() == (1, 0, 2)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_turns_that_overlap_count_in_the_order_in_which_they_began(order):
    """Two of them continue one context, and which does must not depend on which ends first."""
    recorder = Recorder()
    recorder.add(recorder.begin(), ids(1), completed(2), 1.0)
    turns = [(recorder.begin(), ids(1, 2, 3 + n), completed(7 + n), 1.0) for n in range(3)]
    given_up = recorder.begin()
    for n in order:
        recorder.add(*turns[n])
    assert (recorder.begun, recorder.turns) == (5, 4)
    recorder.give_up(given_up)
    assert recorder.begun == 4
    tokens = [part.token_ids.tolist() for part in recorder.trajectories()]
    assert tokens == [[1, 2, 3, 7], [1, 2, 4, 8], [1, 2, 5, 9]]
    assert recorder.in_order([1, 2, 3, 4]).tolist() == [1, 2, 3, 4]
    assert recorder.order() == ()


# ---- limits


@pytest.mark.parametrize("on_overflow", ["train", "mask", "drop"])
def test_a_context_that_is_full_ends_the_episode(on_overflow):
    tokenized = tokenized_of()
    policy = Script(tokenized, "abc<|end|>", "defghijkl")

    async def play() -> Episode:
        session = Session(task_of(tokenized), policy, tokenized, Limits(8, 20, on_overflow, "train"))
        start = task_of(tokenized).token_ids.tolist()
        first = await session.call("generate", start)
        assert first == [ids_of(tokenized, "abc<|end|>").tolist(), "abc", "stop"]
        second = await session.call("generate", [*start, *first[0], *ids_of(tokenized, "xyz").tolist()])
        assert (second[1], second[2]) == ("defghij", "length")
        with pytest.raises(Over, match="maxEpisodeTokens 20"):
            await session.call("generate", list(range(20)))
        return session.episode(2.0, [0.0, 2.0], {"seen": 1})

    episode = asyncio.run(play())
    assert policy.limits == [20 - 6, 7]
    assert episode.status == "truncated"
    if on_overflow == "drop":
        assert (episode.trajectories, episode.reason) == ((), "did not fit environment.maxEpisodeTokens (20)")
        return
    (part,) = episode.trajectories
    assert part.loss_tokens == (11 if on_overflow == "train" else 0)
    assert len(part.turns) == 2
    assert episode.reward == 2.0


def test_turns_end_and_wrong_calls_are_refused():
    tokenized = tokenized_of()

    async def play() -> Session:
        session = Session(
            task_of(tokenized), Script(tokenized, "a<|end|>", "b"), tokenized, Limits(1, 400, "train", "train")
        )
        with pytest.raises(Refused, match="before the policy took a turn"):
            session.episode(1.0, None, {})
        assert await session.call("encode", "ab") == ids_of(tokenized, "ab").tolist()
        full = Session(task_of(tokenized), Script(tokenized), tokenized, Limits(1, 3, "train", "train"))
        with pytest.raises(Over):
            await full.call("generate", [1, 2, 3])
        left_out = full.episode(None, None, {})
        assert (left_out.status, left_out.trajectories) == ("truncated", ())
        assert left_out.reason == "its prompt did not fit environment.maxEpisodeTokens (3)"
        for method, argument in (
            ("generate", []), ("generate", ["x"]), ("generate", [2**40]), ("generate", [-1]),
            ("generate", [tokenized.rows]), ("encode", "\ud800"), ("chat", {"messages": [3]}), ("leave", None),
        ):  # fmt: skip
            with pytest.raises(Refused):
                await session.call(method, argument)
        with pytest.raises(Refused, match="roles are system, user and assistant"):
            await session.call("chat", {"messages": [{"role": "judge", "content": ""}], "tools": None})
        await session.call("generate", [1, 2])
        with pytest.raises(Over, match="maxTurns is 1"):
            await session.call("generate", [1, 2])
        return session

    session = asyncio.run(play())
    kept: dict[Filter, list[int]] = {"train": [2], "mask": [0], "drop": []}
    for how, parts in kept.items():
        session._limits = replace(session._limits, on_truncated=how)
        episode = session.episode(1.0, None, {})
        assert [part.loss_tokens for part in episode.trajectories] == parts
        assert episode.status == "truncated"
        policy: Any = session._policy
        policy.trains = False  # as in a validation, whose mean has every answer
        assert [part.loss_tokens for part in session.episode(1.0, None, {}).trajectories] == [2]
        policy.trains = True
    with pytest.raises(Refused, match="2 rewards of turns"):
        session.episode(1.0, [1, 2], {})


@pytest.mark.parametrize(("asked", "status"), [(2, "finished"), (9, "truncated"), (None, "truncated")])
def test_an_answer_as_short_as_the_agent_asked_for_is_not_cut_off(asked, status):
    tokenized = tokenized_of()
    policy = Script(tokenized, "abcdefghijkl")
    policy.max_tokens = 9

    async def play() -> Episode:
        session = Session(task_of(tokenized), policy, tokenized, Limits(8, 400, "train", "train"))
        chatted = await session.chat([USER], None, TurnLimits(asked))
        assert chatted.completion.finish_reason == "length", "the agent reads so"
        return session.episode(1.0, None, {})

    episode = asyncio.run(play())
    assert (episode.status, episode.trajectories[0].loss_tokens) == (status, asked or 9)


def test_a_request_that_is_given_up_takes_no_turn():
    tokenized = tokenized_of()
    policy: Any = Script(tokenized, "a<|end|>")
    answer, waits = policy.generate, asyncio.Event()

    async def generate(*args: Any) -> Any:
        await waits.wait()
        return await answer(*args)

    policy.generate = generate

    async def play() -> Episode:
        session = Session(task_of(tokenized), policy, tokenized, Limits(1, 400, "train", "train"))
        given_up = asyncio.create_task(session.chat([USER], None))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        waits.set()
        await session.chat([USER], None)
        return session.episode(1.0, None, {})

    episode = asyncio.run(play())
    assert (episode.status, episode.counts["turns"]) == ("finished", 1)
