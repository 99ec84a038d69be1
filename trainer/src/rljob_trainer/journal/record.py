"""Records of the journal as bytes: no pickle, so that no file can run code, and the same on every machine.

    4 bytes   length of the header, little-endian
    header    JSON; "kind" is made or used
    arrays    of Made, for each trajectory: token ids behind the prompt (int32), in_loss (uint8), and for its sampled
              tokens log-probabilities (float32) and versions (int32), and a teacher's log-probabilities (float32) of
              its tokens in the loss, or of its likeliest tokens, whose ids follow (int32); then the rewards of turns
              (float32)

The prompt is not in a record: the data gives it again, and a hash of its token ids tells whether it is the same.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.journal.fingerprint import content_hash
from rljob_trainer.types import NOT_SAMPLED, Episode, Ids, Task, Taught, Trajectory, Turn

_LENGTH = struct.Struct("<I")


class MadeKey(NamedTuple):
    """Names one episode: which attempt at which task, under which settings.

    prompt: hash of the task's token ids. fingerprint: rollout_fingerprint's.
    """

    task_id: str
    prompt: str
    sample: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Made:
    """An episode that ended and was scored.

    policies: {version: digest} of every policy that sampled a token of it.
    error: why its group has no rewards; None if it is scored.
    """

    key: MadeKey
    policies: Mapping[int, str]
    episode: Episode
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """What one training step used.

    digest: of the policy before the update. step: the update's. fingerprint: step_fingerprint's.
    groups: (task id, group digest) of each group, in the order of the update.
    dropped: {task id: reason} of groups that are never used.
    position: of the stream of tasks behind this step.
    metrics: what the driver knew of the step's rollout.
    """

    digest: str
    step: int
    fingerprint: str
    groups: tuple[tuple[str, str], ...]
    dropped: Mapping[str, str]
    position: Mapping[str, Any]
    metrics: Mapping[str, float]


def made_key(task: Task, sample: int, fingerprint: str) -> MadeKey:
    """The key under which the episode `sample` of `task` is recorded."""
    return MadeKey(task.id, prompt_hash(task.token_ids), sample, fingerprint)


def prompt_hash(token_ids: Ids) -> str:
    """Hash of a prompt's token ids [P]."""
    return content_hash(token_ids.astype("<i4").tobytes())


def encode_made(made: Made, task: Task) -> bytes:
    """The record of an episode of `task`."""
    episode, prompt = made.episode, task.token_ids
    prefixes = [_prefix(part, prompt) for part in episode.trajectories]
    header = {
        "kind": "made",
        "key": made.key,
        "policies": list(made.policies.items()),
        "status": episode.status,
        "reward": episode.reward,
        "components": dict(episode.components),
        "counts": dict(episode.counts),
        "reason": episode.reason,
        "tokenRewards": episode.token_rewards,
        "order": episode.order,
        "turnRewards": None if episode.turn_rewards is None else len(episode.turn_rewards),
        "error": made.error,
        "trajectories": [
            {
                "prefix": prefix,
                "tokens": len(part.token_ids),
                "turns": part.turns,
                "media": part.media,
                "taught": None if part.taught is None else part.taught.log_probs.shape[1:],
            }
            for part, prefix in zip(episode.trajectories, prefixes, strict=True)
        ],
    }
    arrays = []
    for part, prefix in zip(episode.trajectories, prefixes, strict=True):
        sampled = _sampled(part.turns, len(part.token_ids))
        arrays += [
            part.token_ids[prefix:].astype("<i4").tobytes(),
            part.in_loss.astype("u1").tobytes(),
            part.log_probs[sampled].astype("<f4").tobytes(),
            part.versions[sampled].astype("<i4").tobytes(),
            *taught_bytes(part.taught),
        ]
    if episode.turn_rewards is not None:
        arrays.append(episode.turn_rewards.astype("<f4").tobytes())
    return _joined(header, arrays)


def taught_bytes(taught: Taught | None) -> list[bytes]:
    """Its arrays."""
    if taught is None:
        return []
    ids = [] if taught.ids is None else [taught.ids.astype("<i4").tobytes()]
    return [taught.log_probs.astype("<f4").tobytes(), *ids]


def encode_used(used: Used) -> bytes:
    return _joined({"kind": "used"} | asdict(used), [])


def read_header(record: bytes) -> dict[str, Any]:
    """The header of a record; `kind` says which."""
    return _header(record)[0]


def key_of(header: Mapping[str, Any]) -> tuple[MadeKey, dict[int, str]]:
    """Key and policies in the header of a Made record."""
    return MadeKey(*header["key"]), dict(header["policies"])


def decode_made(record: bytes, task: Task) -> Made:
    """The record's episode. task: the one that it was made for; its prompt completes the trajectories."""
    header, offset = _header(record)
    key, policies = key_of(header)
    arrays = _Arrays(record, offset)
    trajectories = tuple(_trajectory(each, arrays, task.token_ids) for each in header["trajectories"])
    count = header["turnRewards"]
    episode = Episode(
        task_id=task.id,
        sample=key.sample,
        trajectories=trajectories,
        status=header["status"],
        reward=header["reward"],
        components=header["components"],
        turn_rewards=None if count is None else arrays.take(count, "<f4"),
        counts=header["counts"],
        reason=header["reason"],
        token_rewards=tuple((index, value) for index, value in header["tokenRewards"]),
        order=tuple(header.get("order", ())),  # records of older trainers have none
    )
    return Made(key, policies, episode, header["error"])


def decode_used(header: Mapping[str, Any]) -> Used:
    values = {each.name: header[each.name] for each in fields(Used)}
    return Used(**values | {"groups": tuple(map(tuple, header["groups"]))})


def _prefix(part: Trajectory, prompt: Ids) -> int:
    """How many tokens the trajectory shares with the prompt: all of it, or it was rewritten."""
    P = len(prompt)
    return P if np.array_equal(part.token_ids[:P], prompt) else 0


def _sampled(turns: Sequence[Turn], tokens: int) -> NDArray[np.bool_]:
    mask = np.zeros(tokens, np.bool_)
    for turn in turns:
        mask[turn.start : turn.end] = True
    return mask


def _trajectory(header: Mapping[str, Any], arrays: "_Arrays", prompt: Ids) -> Trajectory:
    T, prefix = header["tokens"], header["prefix"]
    turns = tuple(Turn(*turn) for turn in header["turns"])
    ids = np.concatenate([prompt[:prefix], arrays.take(T - prefix, "<i4")]).astype(np.int32)
    in_loss = arrays.take(T, "u1").astype(np.bool_)
    sampled = _sampled(turns, T)
    log_probs, versions = np.zeros(T, np.float32), np.full(T, NOT_SAMPLED, np.int32)
    count = int(sampled.sum())
    log_probs[sampled], versions[sampled] = arrays.take(count, "<f4"), arrays.take(count, "<i4")
    shape = header.get("taught")  # a record of an older version has none
    taught = None if shape is None else _taught(int(in_loss.sum()), shape, arrays)
    return Trajectory(ids, in_loss, log_probs, versions, turns, tuple(header["media"]), taught)


def _taught(tokens: int, shape: Sequence[int], arrays: "_Arrays") -> Taught:
    """shape: () of the tokens themselves, (K,) of the K likeliest."""
    if not shape:
        return Taught(arrays.take(tokens, "<f4"))
    log_probs, ids = (arrays.take(tokens * shape[0], dtype).reshape(tokens, -1) for dtype in ("<f4", "<i4"))
    return Taught(log_probs, ids)


class _Arrays:
    """Reads arrays one after the other."""

    def __init__(self, record: bytes, offset: int) -> None:
        self._record, self._offset = record, offset

    def take(self, count: int, dtype: str) -> NDArray[Any]:
        values = np.frombuffer(self._record, dtype, count, self._offset)
        self._offset += values.nbytes
        return values.astype(values.dtype.newbyteorder("="))  # a copy: what the record lends is read-only


def _joined(header: Mapping[str, Any], arrays: Sequence[bytes]) -> bytes:
    text = json.dumps(header).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *arrays])


def _header(record: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    (length,) = _LENGTH.unpack_from(record)
    end = _LENGTH.size + length
    return json.loads(record[_LENGTH.size : end]), end
