"""A teacher on the real vLLM: its answers are those of the same teacher on the ranks, and so is what it teaches."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from rljob_api.v1alpha1 import RewardModel
from rljob_api.v1alpha1.model import Tokenizer
from rljob_api.v1alpha1.teacher import TEACHER_KEY
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.local.reward_servers import Plan, RewardServers
from rljob_trainer.progress import names
from tests.rljob_trainer.reward_models_support import ENVIRONMENT, SERVED
from tests.rljob_trainer.run_support import RLJOB, finish, machine, trained, write_job

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
    arguments = [*SERVED["arguments"], "--max-logprobs", "400"]
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


def run(served: Served, folder: Path, teacher: dict[str, Any]) -> list[Any]:
    folder.mkdir()
    job = write_job(
        folder, model=MODEL, rewards=None, algorithm={"preset": "distillation", "teacher": teacher},
        rollout={"samplesPerPrompt": 2, "deterministic": True}, training={"steps": 3},
    )  # fmt: skip
    with machine() as place:
        command = [*RLJOB, "run", job, "--dir", folder / "run"]
        ended = finish(place.start(command, **{TEACHER_KEY: served.key}))
    assert ended.code == 0, ended.out
    return trained(folder / "run")


def test_it_teaches_what_the_same_teacher_on_the_ranks_does(served: Served, tmp_path: Path):
    server = {"url": served.url, "model": NAME, "key": {"name": "secret", "key": "k"}}
    by_server = run(served, tmp_path / "server", {"server": server})
    by_path = run(served, tmp_path / "path", {"path": str(served.folder)})
    for name in (names.REVERSE_KL, names.ACTOR_GRAD_NORM):
        assert [line[name] for line in by_server] == pytest.approx([line[name] for line in by_path], abs=TOLERANCE)
    assert all(line[names.REVERSE_KL] > 0.1 for line in by_server)
