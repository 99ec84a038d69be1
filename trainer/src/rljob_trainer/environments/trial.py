"""One episode on this machine, without a cluster: the environment in its process, the model in this one."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rljob_api import resolve
from rljob_api.v1alpha1 import Environment
from rljob_api.validation import load_rljob
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.prompts import load_prompts
from rljob_trainer.engines.ends import as_ids
from rljob_trainer.engines.engine import Completion
from rljob_trainer.environments.conversation import Tokenized
from rljob_trainer.environments.pool import EnvironmentPool
from rljob_trainer.environments.tokenized import parser
from rljob_trainer.errors import DataError, JobError, first_line
from rljob_trainer.progress.transcript import Decode
from rljob_trainer.types import Episode, FinishReason, Ids, Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


TURN_TOKENS = 256
"""Most tokens of a turn in a Python file's environment."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to play. tokens: most of a context. turn_tokens: most of a turn. row: of the job's data."""

    environment: Environment
    base_dir: Path
    tokens: int
    turn_tokens: int
    messages: Sequence[Message] = ()
    truth: Any = None
    job: Path | None = None
    row: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def task_id(self) -> str:
        return f"0/{self.row}/0"


def of_python(file: Path, tools: Sequence[str], prompt: str, truth: str | None) -> Trial:
    """An environment in a Python file."""
    environment = Environment(path=file.name, tools=list(tools), on_error="fail")
    messages = [{"role": "user", "content": prompt}]
    return Trial(environment, file.resolve().parent, 1 << 20, TURN_TOKENS, messages, truth)


def of_job(file: Path, row: int) -> Trial:
    """The environment of an RLJob, and a row of its data. Raises JobError for a job without an environment."""
    spec = resolve(load_rljob(file, ()).spec)
    if spec.environment is None:
        raise JobError("the job has no environment: set one, or give a Python file", field="spec.environment")
    environment = spec.environment.model_copy(update={"on_error": "fail"})
    return Trial(
        environment, file.resolve().parent, spec.longest_sample, spec.data.max_response_tokens, job=file, row=row,
        arguments=spec.data.template_arguments, chat_template=spec.model.chat_template,
    )  # fmt: skip


def play(trial: Trial, name: str, temperature: float) -> tuple[Episode, Decode]:
    """Play it once. name: of the model. Returns also what turns tokens into text.

    Raises DataError for a model that cannot be loaded, EnvironmentFailed for an environment that fails twice.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    except Exception as error:  # the tokenizers library raises just that
        raise DataError(f"{name} cannot be loaded: {first_line(error)}; give a model's folder") from error
    if trial.chat_template is not None:
        tokenizer.chat_template = trial.chat_template
    ends = {*as_ids(tokenizer.eos_token_id), *as_ids(model.generation_config.eos_token_id)}
    parse = parser(trial.environment.tool_parser, tokenizer)
    rows = model.config.get_text_config().vocab_size
    tokenized = Tokenized(ChatFormat(tokenizer, trial.arguments), ends, parse, rows)
    policy = _LocalPolicy(model, tokenized, trial.turn_tokens, temperature)
    tokens = min(trial.tokens, getattr(model.config, "max_position_embeddings", None) or trial.tokens)
    return asyncio.run(_played(trial, _task(trial, tokenizer, tokenized), policy, tokenized, tokens)), tokenized.text


async def _played(
    trial: Trial, task: Task, policy: "_LocalPolicy", tokenized: Tokenized, tokens: int
) -> Episode:  # fmt: skip
    pool = EnvironmentPool(trial.environment, tokens, lambda: tokenized, trial.base_dir)
    try:
        await pool.start()
        return await pool.rollout(task, policy)
    finally:
        await pool.close()


def _task(trial: Trial, tokenizer: "PreTrainedTokenizerBase", tokenized: Tokenized) -> Task:
    if trial.job is not None:
        data = resolve(load_rljob(trial.job, ()).spec).data
        dataset = load_prompts(data, tokenizer, trial.base_dir)
        if trial.row >= len(dataset):
            raise DataError(
                f"data.train has {len(dataset)} rows that fit, and no row {trial.row}: choose another --row"
            )
        return dataset.item(trial.row, 0)
    token_ids = tokenized.chat.encode([tokenized.chat.render(trial.messages)])[0]
    return Task(trial.task_id, trial.messages, np.array(token_ids, np.int32), trial.truth, {}, "try")


@dataclass(slots=True)
class _LocalPolicy:
    """environment.Policy of a model of transformers, one token at a time."""

    model: "PreTrainedModel"
    tokenized: Tokenized
    max_tokens: int
    temperature: float
    sample: int = 0
    turn: int = 0
    trains: bool = True

    async def generate(
        self, token_ids: Ids, max_tokens: int | None = None, stop: tuple[str, ...] = ()
    ) -> Completion:  # fmt: skip
        self.turn += 1
        return await asyncio.to_thread(self._sampled, token_ids, max_tokens or self.max_tokens, stop)

    def restart(self) -> None:
        self.turn = 0

    def _ended(self, sampled: list[int], stop: tuple[str, ...]) -> bool:
        if not sampled:
            return False
        return sampled[-1] in self.tokenized.ends or any(each in self.tokenized.text(sampled) for each in stop)

    @torch.no_grad()
    def _sampled(self, token_ids: Ids, most: int, stop: tuple[str, ...]) -> Completion:
        generator = torch.Generator().manual_seed(self.turn)
        given, cache = torch.from_numpy(token_ids.astype(np.int64))[None], None
        sampled: list[int] = []
        log_probs: list[float] = []
        while len(sampled) < most and not self._ended(sampled, stop):
            out = self.model(given, past_key_values=cache, use_cache=True)
            scores = torch.log_softmax(out.logits[0, -1].float() / (self.temperature or 1.0), dim=-1)
            greedy = self.temperature == 0
            token = int(scores.argmax() if greedy else torch.multinomial(scores.exp(), 1, generator=generator))
            sampled.append(token)
            log_probs.append(float(scores[token]))
            given, cache = torch.tensor([[token]]), out.past_key_values
        reason: FinishReason = "stop" if self._ended(sampled, stop) else "length"
        ids = np.array(sampled, np.int32)
        return Completion("try", 0, ids, np.array(log_probs, np.float32), np.zeros_like(ids), reason)
