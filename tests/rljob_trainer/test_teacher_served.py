"""A teacher on the real vLLM: its answers are those of the same teacher on the ranks, and so is what it teaches."""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from rljob_api.v1alpha1 import RewardModel
from rljob_api.v1alpha1.model import Tokenizer
from rljob_api.v1alpha1.teacher import TEACHER_KEY, TeacherServer
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.local.reward_servers import Plan, RewardServers
from rljob_trainer.progress import names
from rljob_trainer.rollouts.teaching import TeacherClient, policy_encoder
from rljob_trainer.types import Episode, Group, Task, Taught, Trajectory, supervised
from tests.rljob_trainer.played_server import played
from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED
from tests.rljob_trainer.run_support import RLJOB, finish, machine, trained, wait_for_step, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAME = "teacher"
MODEL = {"fromScratch": {"layers": 1, "hiddenSize": 32, "heads": 1, "tokenizer": {"kind": "byte"}}}
TOLERANCE = 1e-4
"""Nats. vLLM sums float32 in an order of its own."""


@dataclass(frozen=True)
class Served:
    """folder: with the teacher. url, key: of its server."""

    folder: Path
    url: str
    key: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    tokenizer = build_tokenizer(Tokenizer(kind="byte"), [])
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / NAME)
    tokenizer.save_pretrained(folder / NAME)
    # The job starts servers of reward models alone; one of them serves a teacher as well.
    arguments = [*SERVED["arguments"], "--max-logprobs", "5"]
    model = {"name": NAME, "path": NAME, "kind": "generative", "promptTemplate": "{response}", "scorePattern": "(.)"}
    given = RewardModel.model_validate({**model, **SERVED, "arguments": arguments})
    plan = Plan(given, "teacher", str(folder / NAME), ())
    # short: vLLM's sockets are in it
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", temporary)
        with RewardServers([plan], {}, folder, {**os.environ, **ENVIRONMENT}) as servers:
            patch.undo()
            servers.wait(print, lambda: False)
            (key,) = servers.keys.values()
            yield Served(folder / NAME, servers.urls[NAME], key)


def job_of(folder: Path, teacher: dict[str, Any], steps: int = 2) -> Path:
    return write_job(
        folder, model=MODEL, rewards=None, algorithm={"preset": "distillation", "teacher": teacher},
        rollout={"samplesPerPrompt": 2, "deterministic": True}, training={"steps": steps},
    )  # fmt: skip


def run(served: Served, folder: Path, teacher: dict[str, Any]) -> list[Any]:
    folder.mkdir()
    job = job_of(folder, teacher)
    with machine() as place:
        command = [*RLJOB, "run", job, "--dir", folder / "run"]
        ended = finish(place.start(command, **{TEACHER_KEY: served.key}))
    assert ended.code == 0, ended.out
    return trained(folder / "run")


def said(served: Served, top_k: int, *parts: Trajectory) -> list[Taught]:
    async def asked() -> Group:
        server = TeacherServer.model_validate({"url": served.url, "model": NAME})
        client = TeacherClient(server, top_k, 200, policy_encoder(served.folder, trust_remote_code=False))
        try:
            task = Task("0/0/0", [], parts[0].token_ids, None, {}, "test")
            episodes = tuple(Episode(task.id, sample, (part,)) for sample, part in enumerate(parts))
            return await client.taught(Group(task, episodes))
        finally:
            await client.close()

    answers = [part.taught for part in asyncio.run(asked()).trajectories]
    return [each for each in answers if each is not None]


def test_its_answers_are_what_transformers_computes(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TEACHER_KEY, served.key)
    draw = np.random.default_rng(0)
    turns = supervised(draw.integers(0, 250, 60).astype(np.int32), [slice(9, 20), slice(31, 50)])
    parts = [turns, supervised(draw.integers(0, 250, 7).astype(np.int32), [slice(6, 7)])]
    model = AutoModelForCausalLM.from_pretrained(served.folder, attn_implementation="eager").eval()
    for part, own, best in zip(parts, said(served, 0, *parts), said(served, 5, *parts), strict=True):
        with torch.inference_mode():
            logits = model(torch.from_numpy(part.token_ids.astype(np.int64))[None]).logits[0].log_softmax(-1)
        before = logits[np.flatnonzero(part.in_loss) - 1]
        sampled = torch.from_numpy(part.token_ids[part.in_loss].astype(np.int64))
        values, ids = before.topk(5)
        assert own.log_probs == pytest.approx(before.gather(-1, sampled[:, None])[:, 0].numpy(), abs=TOLERANCE)
        assert best.log_probs == pytest.approx(values.numpy(), abs=TOLERANCE)
        assert best.ids is not None
        assert best.ids.tolist() == ids.tolist()


def test_it_teaches_what_the_same_teacher_on_the_ranks_does(served: Served, tmp_path: Path):
    server = {"url": served.url, "model": NAME, "key": {"name": "secret", "key": "k"}}
    by_server = run(served, tmp_path / "server", {"server": server, "topK": 5})
    by_path = run(served, tmp_path / "path", {"path": str(served.folder), "topK": 5})
    for name in (names.REVERSE_KL, names.ACTOR_GRAD_NORM):
        assert [line[name] for line in by_server] == pytest.approx([line[name] for line in by_path], abs=TOLERANCE)
    assert all(line[names.REVERSE_KL] > 0.1 for line in by_server)


def test_a_run_that_was_killed_repeats_its_updates_without_the_server(tmp_path: Path):
    """This server never says the same again, and it is gone when the run continues."""

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        rows = [{str(token): {"logprob": -random.random()}} for token in body.get("prompt", [])]
        return (404, "") if body["path"] == "/tokenize" else (200, {"choices": [{"prompt_logprobs": rows}]})

    folder, shown = tmp_path / "run", (names.REVERSE_KL, names.ACTOR_GRAD_NORM, names.ACTOR_LOSS)
    with machine() as place:
        with played(answer) as url:
            job = job_of(tmp_path, {"server": {"url": url, "model": "m"}}, steps=100_000)
            process = place.start_run(job, "--dir", folder)
            wait_for_step(folder, 3, process)
            for each in place.processes():
                each.kill()
            finish(process)
        for left in place.temporary.glob("rljob*"):
            shutil.rmtree(left)  # nothing lived to do it
        before = trained(folder)
        ended = place.rljob("run", job, "--dir", folder, "--set", f"training.steps={len(before)}")
    assert ended.code == 0, ended.out
    again = {line["step"]: line for line in trained(folder)}
    for line in before:
        assert [again[line["step"]][name] for name in shown] == [line[name] for name in shown]
        assert again[line["step"]]["recovery/replayed_updates"] == 1
