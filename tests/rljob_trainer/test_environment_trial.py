"""`rljob env try` and `rljob samples`: one episode with a model, and those of a run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.cli.env import Action, env
from rljob_trainer.cli.samples import samples
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.environments.trial import of_job, of_python, play
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.journal.summary import summarise
from rljob_trainer.loggers import LoggerSet
from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.transcript import episode_row, lines
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.types import Episode, Group, Trajectory, Turn
from rljob_trainer.volume import Volume, write_json
from tests.rljob_api.example_files import EXAMPLES
from tests.rljob_trainer.environments_support import Script, playing, task_of
from tests.rljob_trainer.rollouts_support import ids

GUESS = EXAMPLES / "guess"
ASKS = """
async def rollout(task, policy):
    messages = list(task.messages)
    for _ in range(3):
        answer = await policy.chat(messages)
        messages += [answer, {"role": "user", "content": "More"}]
    return 0.25
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    # transformers reads a tokenizer of letters in a Qwen2 folder with Qwen2's own splits, which lose spaces
    tokenizer = build_tokenizer(TokenizerSpec(), ["Guess 1 to 3: higher or lower? More"])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def test_an_episode_of_a_python_file_is_printed_turn_by_turn(model, tmp_path, capsys):
    file = tmp_path / "asks.py"
    file.write_text(ASKS)
    env(Action.TRY, file, model, prompt="Guess 1 to 3", temperature=1.0)
    first, prompt, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("0/0/0: finished, reward 0.25, turns 3, splits 0")
    assert prompt == "  prompt       '<|user|>Guess 1 to 3<|assistant|>'"
    assert [line.split()[0] for line in rest] == ["policy", "environment", "policy", "environment", "policy"]
    assert "<|user|>More<|assistant|>" in rest[1]


def test_an_episode_of_a_job_plays_a_row_of_its_data(model):
    episode, decode = play(of_job(GUESS / "rljob.yaml", 1), model, temperature=0)
    part = episode.trajectories[0]
    assert decode(part.token_ids[: part.turns[0].start].tolist()).startswith(
        "<|user|>Guess 1 to 3: higher or lower?<|assistant|>"
    )
    assert all(turn.end - turn.start <= 4 for turn in part.turns)
    again, _ = play(of_job(GUESS / "rljob.yaml", 1), model, temperature=0)
    assert again.trajectories[0].token_ids.tolist() == part.token_ids.tolist()
    expected = LlamaForCausalLM.from_pretrained(model)(torch.from_numpy(part.token_ids.astype(np.int64))[None]).logits[
        0
    ]
    chosen = torch.log_softmax(expected, -1)[part.turns[0].start - 1, int(part.token_ids[part.turns[0].start])]
    assert part.log_probs[part.turns[0].start] == pytest.approx(float(chosen), abs=1e-5)


def test_what_cannot_be_tried_is_named(model, tmp_path):
    with pytest.raises(DataError, match="cannot be loaded"):
        play(of_python(GUESS / "guess.py", (), "Guess", "2"), str(tmp_path), temperature=0)
    with pytest.raises(DataError, match="no row 99"):
        play(of_job(GUESS / "rljob.yaml", 99), model, temperature=0)
    with pytest.raises(JobError, match="the job has no environment"):
        of_job(EXAMPLES / "reverse-text.yaml", 0)


def test_a_transcript_has_each_turn_its_tokens_in_the_loss_and_its_reward():
    def part(loss: bool) -> Trajectory:
        in_loss = np.array([False, True, True, False, True]) & loss
        turns = (Turn(1, 3, 1.0, "stop"), Turn(4, 5, 1.0, "stop"))
        return Trajectory(ids(1, 2, 3, 4, 5), in_loss, np.zeros(5, np.float32), ids(-1, 0, 0, -1, 0), turns)

    rewards = np.array([0, 1, 2, 3], np.float32)
    row = episode_row(
        Episode("0/0/0", 1, (part(True), part(False)), turn_rewards=rewards), lambda each: str(list(each))
    )
    assert list(lines(json.loads(json.dumps(row)))) == [
        "  prompt       '[1]'",
        "  policy       '[2, 3]'  (2 of 2 tokens in the loss, reward 0)",
        "  environment  '[4]'",
        "  policy       '[5]'  (1 of 1 tokens in the loss, reward 1)",
        "  -- the history was rewritten: another trajectory",
        "  prompt       '[1]'",
        "  policy       '[2, 3]'  (0 of 2 tokens in the loss, reward 2)",
        "  environment  '[4]'",
        "  policy       '[5]'  (0 of 1 tokens in the loss, reward 3)",
    ]
    out = episode_row(Episode("0/0/0", 1, (), "timed_out", reason="hung"), str)
    assert list(lines(out)) == ["  left out: hung"]


def test_samples_are_chosen_by_step_reward_and_status(tmp_path, capsys):
    volume = Volume(tmp_path)
    write_json(volume.claim(1), {"attempt": 1})
    with playing(tmp_path, source=ASKS) as play_script:
        episode = play_script.of(Script(play_script.tokenized, "a<|end|>", "b<|end|>", "c<|end|>"))
    row = episode_row(episode, play_script.tokenized.text)
    volume.samples(1).parent.mkdir(parents=True)
    rows = [
        {"step": step, "task": f"validation/{number}/0", "reward": number / 2, "episode": row | {"status": status}}
        for step in (2, 4)
        for number, status in enumerate(("finished", "truncated", "finished"))
    ]
    volume.samples(1).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def shown(**options) -> list[str]:
        samples(Path(tmp_path), **options)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]

    names = [line.split(":")[0] for line in shown()]
    assert names == ["step 4, validation/0/0", "step 4, validation/1/0", "step 4, validation/2/0"]
    assert shown(step=2, status="truncated") == ["step 2, validation/1/0: reward 0.5, truncated, turns 3, splits 0"]
    assert len(shown(at_least=0.5)) == len(shown(at_most=0.5)) == 2
    with pytest.raises(DataError, match="no validation has written samples"):
        samples(tmp_path / "other")


def test_failed_episodes_are_among_the_samples_with_their_reason(tmp_path, capsys, monkeypatch):
    volume = Volume(tmp_path)
    write_json(volume.claim(1), {"attempt": 1})
    with playing(tmp_path, source=ASKS) as play_script:
        played = replace(play_script("a<|end|>", "b<|end|>", "c<|end|>"), reward=0.25)
    tokenized = play_script.tokenized
    failed, task = Episode("0/0/0", 1, (), "timed_out", reason="hung"), task_of(tokenized)
    groups = [Group(task, (failed, played)), Group(task, (failed,), error="hung"), Group(task, (played,))]
    with ProgressReporter(volume) as progress:
        loggers = LoggerSet([], RunInfo("job", "u1", tmp_path))
        reporting = Reporting(volume, 1, progress, loggers, tokenized.chat.tokenizer)
        monkeypatch.setattr(reporting, "fetch", lambda shown: [groups[each.index] for each in shown])
        reporting.samples(4, [GroupRef(None, index, summarise(group)) for index, group in enumerate(groups)])

    def shown(**options) -> list[str]:
        samples(Path(tmp_path), **options)
        return capsys.readouterr().out.splitlines()

    assert shown(status="failed") == ["step 4, 0/0/0: no reward, timed_out", "  left out: hung"] * 2
    assert [line for line in shown(at_least=0) if "reward" in line] == [
        "step 4, 0/0/0: reward 0.25, finished, turns 3, splits 0"
    ] * 2
