"""One group as bytes: no pickle, so that no file can run code, and the same on every machine.

    4 bytes   length of the header, little-endian
    header    JSON: key, prompt, samples' lengths and finish reasons, names of the reward's components
    arrays    for each sample token ids (int32) and log-probabilities (float32); rewards; components (float32)

The prompt itself is not in it: the data gives it again, and a hash of its token ids tells whether it is the same.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.journal.summary import prompt_hash
from rljob_trainer.old_types import Floats, Group, GroupScore, Prompt, Sample

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GroupKey:
    """What a group is made for, besides its prompt.

    attempt: that asks for it; it decides where the group is kept, and is no part of what is looked for.
    step: that will train on it. policy_digest: of the policy that makes it. fingerprint: rollout_fingerprint's.
    """

    attempt: int
    step: int
    policy_digest: str
    fingerprint: str


class Match(NamedTuple):
    """What a recorded group and a wanted one must share. prompt: the hash of its token ids."""

    step: int
    policy_digest: str
    fingerprint: str
    prompt_id: str
    prompt: str


def match_of(key: GroupKey, prompt: Prompt) -> Match:
    return Match(key.step, key.policy_digest, key.fingerprint, prompt.id, prompt_hash(prompt.token_ids))


def encode(key: GroupKey, group: Group, score: GroupScore) -> bytes:
    """The record of a scored group."""
    header = {
        "match": match_of(key, group.prompt),
        "policyVersion": group.policy_version,
        "samples": [(each.sample_index, len(each.token_ids), each.finish_reason) for each in group.samples],
        "components": list(score.components),
        "error": score.error,
    }
    arrays = [part for each in group.samples for part in (_ints(each.token_ids), _floats(each.log_probs))]
    arrays += [_floats(values) for values in (score.rewards, *score.components.values())]
    text = json.dumps(header).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *arrays])


def read_match(record: bytes) -> Match:
    """What the record's group was made for."""
    return Match(*_header(record)[0]["match"])


def decode(record: bytes, prompt: Prompt) -> tuple[Group, GroupScore]:
    """The group and its score. prompt: the one that the record matches."""
    header, offset = _header(record)
    arrays = _Arrays(record, offset)
    samples = tuple(
        Sample(prompt.id, index, arrays.take(tokens, "<i4"), arrays.take(tokens, "<f4"), reason)
        for index, tokens, reason in header["samples"]
    )
    rewards = arrays.take(len(samples), "<f4")
    components: dict[str, Floats] = {name: arrays.take(len(samples), "<f4") for name in header["components"]}
    score = GroupScore(prompt.id, rewards, components, header["error"])
    return Group(prompt, samples, header["policyVersion"]), score


class _Arrays:
    """Reads arrays one after the other."""

    def __init__(self, record: bytes, offset: int) -> None:
        self._record, self._offset = record, offset

    def take(self, count: int, dtype: str) -> NDArray[Any]:
        values = np.frombuffer(self._record, dtype, count, self._offset)
        self._offset += values.nbytes
        return values.astype(values.dtype.newbyteorder("="))  # a copy: what the record lends is read-only


def _header(record: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    (length,) = _LENGTH.unpack_from(record)
    end = _LENGTH.size + length
    return json.loads(record[_LENGTH.size : end]), end


def _ints(values: NDArray[Any]) -> bytes:
    return values.astype("<i4").tobytes()


def _floats(values: NDArray[Any]) -> bytes:
    return values.astype("<f4").tobytes()
