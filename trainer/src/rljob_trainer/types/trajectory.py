"""What one forward pass trains on."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.types.sampling import FinishReason
from rljob_trainer.types.task import Bools, Floats, Ids

NOT_SAMPLED = -1
"""Version of a token that no policy sampled: a prompt's, a tool's, a label's."""


class Turn(NamedTuple):
    """One span of sampled tokens, [start, end) of the trajectory.

    temperature: at which it was sampled. finish_reason: why it ended.
    """

    start: int
    end: int
    temperature: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Taught:
    """What a teacher's server answered about the R tokens in the loss of a trajectory.

    log_probs: [R], the teacher's log-probability of each, in nats, at temperature 1. With teacher.topK [R, K], of the K
        tokens that the teacher finds likeliest there, the likeliest first.
    ids: [R, K], these tokens; None without teacher.topK.
    """

    log_probs: Floats
    ids: Ids | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All tokens of one context in their order, never tokenised again.

    A prompt of three tokens, an answer of two, a tool's result of one, and a second answer of two:

        token_ids  5  9  2 | 7  1 | 4 | 8  1
        in_loss    .  .  . | x  x | . | x  x
        log_probs  0  0  0 |-.1-.9| 0 |-.2-.3
        versions  -1 -1 -1 | 4  4 |-1 | 5  5       a new policy arrived between the two turns
        turns      Turn(3, 5, 1.0, "stop"), Turn(6, 8, 1.0, "stop")

    token_ids: [T].
    in_loss: [T], whether the token contributes to the loss. The first token never does: nothing predicts it.
    log_probs: [T], the engine's log-probability of each sampled token, in nats, at its turn's temperature and before
        top-k and top-p (at temperature 1 if the turn is greedy); 0 elsewhere.
    versions: [T], policy version that sampled the token; NOT_SAMPLED elsewhere.
    turns: the sampled spans, in their order; none in a supervised or a preference row.
    media: digests of the images that the prompt refers to.
    taught: by the teacher's server; None if the job has none, or it was not asked yet.
    """

    token_ids: Ids
    in_loss: Bools
    log_probs: Floats
    versions: NDArray[np.int32]
    turns: tuple[Turn, ...] = ()
    media: tuple[str, ...] = ()
    taught: Taught | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first one in the loss; all of them if none is."""
        return int(self.in_loss.argmax()) if self.in_loss.any() else len(self.in_loss)

    @property
    def loss_tokens(self) -> int:
        """Tokens in the loss."""
        return int(self.in_loss.sum())

    @property
    def sampled(self) -> bool:
        """Whether a policy sampled any of it; a row's own response (spin) has a turn, and no engine."""
        return bool((self.versions != NOT_SAMPLED).any())

    @property
    def truncated(self) -> bool:
        """Whether the last turn ended at its limit of tokens."""
        return bool(self.turns) and self.turns[-1].finish_reason == "length"

    def response_ids(self, ends: Set[int]) -> list[int]:
        """What the policy sampled, except the token that ended a turn. ends: ids of such tokens."""
        turns = [self.token_ids[turn.start : turn.end].tolist() for turn in self.turns]
        return [token for turn in turns for token in (turn[:-1] if turn and turn[-1] in ends else turn)]

    def temperatures(self) -> Floats:
        """[T], the temperature that the trainer scales each token's logits by: 1 outside of turns and where greedy."""
        values = np.ones(len(self.token_ids), dtype=np.float32)
        for turn in self.turns:
            values[turn.start : turn.end] = turn.temperature or 1.0
        return values


def answered(
    prompt: Ids, answer: Ids, log_probs: Floats, versions: int | Ids, temperature: float, finish_reason: FinishReason
) -> Trajectory:
    """The trajectory of one prompt [P] and one answer to it [R]. versions: one for all tokens, or [R]."""
    P, T = len(prompt), len(prompt) + len(answer)
    in_loss, sampled_by = np.zeros(T, dtype=np.bool_), np.full(T, NOT_SAMPLED, dtype=np.int32)
    in_loss[P:], sampled_by[P:] = True, versions
    padded = np.zeros(T, dtype=np.float32)
    padded[P:] = log_probs
    turn = Turn(P, T, temperature, finish_reason)
    return Trajectory(np.concatenate([prompt, answer]).astype(np.int32), in_loss, padded, sampled_by, (turn,))


def supervised(token_ids: Ids, targets: Sequence[slice]) -> Trajectory:
    """A row that no policy sampled. targets: spans of token_ids [T] that are in the loss."""
    T = len(token_ids)
    in_loss = np.zeros(T, dtype=np.bool_)
    for span in targets:
        in_loss[span] = True
    return Trajectory(token_ids, in_loss, np.zeros(T, np.float32), np.full(T, NOT_SAMPLED, np.int32))
