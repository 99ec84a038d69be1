"""Episodes as text, turn by turn: for the samples of a run, `rljob samples` and `rljob env try`. Light.

prompt       <|user|>Guess 1 to 3<|assistant|>
policy       2<|end|>                                  2 tokens in the loss, reward 0
environment  <|user|>higher<|assistant|>
policy       3<|end|>                                  2 tokens in the loss, reward 1
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rljob_trainer.types import Episode, Trajectory

Decode = Callable[[Sequence[int]], str]
Part = Mapping[str, Any]
"""{who: prompt, policy or environment; text; tokens; inLoss: how many of them are; reward: of a turn that has one}."""


def episode_row(episode: Episode, decode: Decode) -> dict[str, Any]:
    """The episode for a file of JSON. trajectories: the parts of each."""
    rewards = iter([] if episode.turn_rewards is None else episode.turn_rewards.tolist())
    return {
        "sample": episode.sample,
        "status": episode.status,
        "reason": episode.reason,
        "counts": dict(episode.counts),
        "trajectories": [list(_parts(each, decode, rewards)) for each in episode.trajectories],
    }


def _parts(trajectory: Trajectory, decode: Decode, rewards: Iterator[float]) -> Iterator[Part]:
    end = 0
    for turn in trajectory.turns:
        if turn.start > end:
            yield _part("environment" if end else "prompt", trajectory, end, turn.start, decode)
        part = _part("policy", trajectory, turn.start, turn.end, decode)
        reward = next(rewards, None)
        yield part if reward is None else {**part, "reward": reward}
        end = turn.end


def _part(who: str, trajectory: Trajectory, start: int, end: int, decode: Decode) -> dict[str, Any]:
    text = decode(trajectory.token_ids[start:end].tolist())
    return {"who": who, "text": text, "tokens": end - start, "inLoss": int(trajectory.in_loss[start:end].sum())}


def lines(row: Mapping[str, Any]) -> Iterator[str]:
    """What episode_row wrote, for a terminal."""
    for number, parts in enumerate(row["trajectories"]):
        if number:
            yield "  -- the history was rewritten: another trajectory"
        for part in parts:
            rewarded = f", reward {part['reward']:g}" if "reward" in part else ""
            in_loss = f"{part['inLoss']} of {part['tokens']} tokens in the loss{rewarded}"
            yield f"  {part['who']:<11}  {part['text']!r}{f'  ({in_loss})' if part['who'] == 'policy' else ''}"
    if row["reason"]:
        yield f"  left out: {row['reason']}"
