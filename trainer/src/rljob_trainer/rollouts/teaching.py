"""Asks the server of a teacher about finished groups: the log-probabilities of their tokens in the loss.

GET  /v1/models, POST /tokenize   once: the model, the length of its context, and its tokenizer
POST /v1/completions              each sample: {prompt: token ids, prompt_logprobs: teacher.topK}
                                  -> of each token {id: {logprob}}, null for the first: of the token itself and of the
                                     topK likeliest ones
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from rljob_api.v1alpha1.teacher import TeacherServer
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.errors import JobError
from rljob_trainer.model_server import Access, ModelServer, NotServed, Rejected
from rljob_trainer.rewards.models.key import TEACHER_FIELD, read_teacher_key
from rljob_trainer.types import Episode, Group, Taught, Trajectory

log = structlog.get_logger()

Encode = Callable[[str], list[int]]

PROBE = "The quick brown fox jumps over 13 lazy dogs.\n\tdef f(x):  # café 你好\n    return x ** 2 + 1e-8"
"""Text of which both tokenizers are to make the same."""

_SHOWN = 160


class TeacherClient:
    """The teacher's server. top_k: teacher.topK. longest: tokens of the longest sample. encode: the policy's tokenizer,
    without the tokens that it adds to a text. Use it in one event loop.

    Raises JobError if the key of the server is missing.
    """

    def __init__(self, server: TeacherServer, top_k: int, longest: int, encode: Encode) -> None:
        self._model, self._top_k, self._longest, self._encode = server.model, top_k, longest, encode
        key = read_teacher_key(server, os.environ)
        access = Access(server.url.rstrip("/"), key, server.timeout, server.lost_after, server.concurrency)
        self._server = ModelServer("teacher", server.model, access)
        self._known, self._checking = False, asyncio.Lock()

    async def taught(self, group: Group) -> Group:
        """The group, each trajectory with what the teacher says of its tokens in the loss.

        Raises:
            InfrastructureError: no answer within lostAfter.
            JobError: the server does not serve a teacher of this policy, or rejects a sample.
        """
        asked = [asyncio.ensure_future(self._ask(part)) for part in group.trajectories]
        try:
            answers = iter(await asyncio.gather(*asked))
        finally:
            for each in asked:
                each.cancel()

        def with_answers(episode: Episode) -> Episode:
            return replace(episode, trajectories=tuple(replace(e, taught=next(answers)) for e in episode.trajectories))

        return replace(group, episodes=tuple(map(with_answers, group.episodes)))

    async def close(self) -> None:
        await self._server.close()

    async def _ask(self, trajectory: Trajectory) -> Taught:
        places = np.flatnonzero(trajectory.in_loss)
        if not places.size:
            return nothing_taught(self._top_k)
        prompt = trajectory.token_ids[: places[-1] + 1].tolist()
        body = {"model": self._model, "prompt": prompt, "prompt_logprobs": self._top_k, "max_tokens": 1}
        try:
            async with self._server.room:
                await self._check()
                answer = await self._server.ask("POST", "/v1/completions", body)
        except NotServed as error:
            raise JobError(str(error), field=TEACHER_FIELD) from error
        except Rejected as error:
            most = f", and vLLM's --max-logprobs must be at least topK, {self._top_k}" if self._top_k else ""
            message = f"the teacher's server {error}; the sample has {len(prompt)} tokens{most}"
            raise JobError(message, field=TEACHER_FIELD) from error
        return taught_by(answer, prompt, places.tolist(), self._top_k)

    async def _check(self) -> None:
        """Once: whether the server has a teacher of this policy."""
        async with self._checking:
            if not self._known:
                await self._check_context(await self._server.check_serves({self._model}))
                await self._check_tokenizer()
                self._known = True

    async def _check_context(self, served: list[dict[str, Any]]) -> None:
        lengths = [model["max_model_len"] for model in served if model.get("max_model_len")]
        if lengths and max(lengths) <= self._longest:
            raise JobError(
                f"the context of the teacher's server has {max(lengths)} tokens, and a sample may have {self._longest}"
                f" and needs one more: start it with --max-model-len {self._longest + 1}",
                field=TEACHER_FIELD,
            )

    async def _check_tokenizer(self) -> None:
        body = {"model": self._model, "prompt": PROBE, "add_special_tokens": False}
        try:
            theirs = (await self._server.ask("POST", "/tokenize", body))["tokens"]
        except (NotServed, Rejected, KeyError, TypeError) as error:
            log.warning("teacher_tokenizer_unknown", model=self._model, reason=str(error))
            return
        if theirs != (own := self._encode(PROBE)):
            raise JobError(
                f"the tokenizer of the teacher's server is not the policy's: it makes {_short(theirs)} of {PROBE!r},"
                f" and the policy's {_short(own)}; serve a model with the policy's tokenizer, such as a larger one of"
                " the same family",
                field=TEACHER_FIELD,
            )


def taught_by(answer: Any, prompt: list[int], places: list[int], top_k: int) -> Taught:
    """Of the tokens at `places` of the prompt, or of the `top_k` likeliest ones there, equal ones by their id.

    Raises JobError for an answer without them.
    """
    try:
        rows = answer["choices"][0]["prompt_logprobs"]
        if len(rows) != len(prompt):
            raise IndexError
        each = [{int(token): float(entry["logprob"]) for token, entry in rows[place].items()} for place in places]
        if top_k:
            best = [sorted(row.items(), key=lambda item: (-item[1], item[0]))[:top_k] for row in each]
            table = np.array(best, np.float64).reshape(len(places), top_k, 2)
            taught = Taught(table[..., 1].astype(np.float32), table[..., 0].astype(np.int32))
        else:
            taught = Taught(np.array([row[prompt[place]] for row, place in zip(each, places, strict=True)], np.float32))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise JobError(
            f"the teacher's server answered {_short(answer)}, without the log-probabilities of the prompt's tokens"
            " (prompt_logprobs): serve the teacher with vLLM",
            field=TEACHER_FIELD,
        ) from None
    wrong = taught.log_probs[np.isnan(taught.log_probs) if top_k else ~np.isfinite(taught.log_probs)]
    if wrong.size:  # of the likeliest, one may be impossible
        message = f"the teacher's server gave {wrong[0]} as log-probability; check its model"
        raise JobError(message, field=TEACHER_FIELD)
    return taught


def nothing_taught(top_k: int) -> Taught:
    """Of a trajectory without tokens in the loss."""
    if not top_k:
        return Taught(np.zeros(0, np.float32))
    return Taught(np.zeros((0, top_k), np.float32), np.zeros((0, top_k), np.int32))


def policy_encoder(folder: Path, *, trust_remote_code: bool) -> Encode:
    """The tokenizer in the policy's folder, as vLLM loads a teacher's; without torch."""
    import_transformers()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
