"""The reward in the status of a job that has succeeded, beside the metrics on its volume.

That it rises is for longer runs to show (docs/benchmarks/learning.md): of a scenario's dozen steps ten are warm-up.
"""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

from rljob_trainer.checkpoint.lineage import CHECKPOINT_NAME, Claim
from rljob_trainer.progress.names import REWARD_MAX, REWARD_MEAN, REWARD_MIN, VALIDATION_REWARD

Line = dict[str, Any]


def check_end(status: dict[str, Any], claim: Claim, lines: Sequence[Line]) -> None:
    """Its last attempt took each step from where it began to the last one, and the status has that one's rewards.

    claim, lines: of the last attempt. Raises AssertionError where it is otherwise.
    """
    progress = status["progress"]
    steps = [line["step"] for line in lines]
    after = claim.resumed_step or 0
    if _took_over(claim) and steps[:1] == [after]:  # a step that ranks had done, whose driver did not write it down
        steps = steps[1:]
    if steps != list(range(after + 1, progress["step"] + 1)):
        raise AssertionError(f"after step {after} attempt {claim.attempt} took the steps {steps}")
    last = lines[-1]
    told = {REWARD_MEAN: progress["reward"], VALIDATION_REWARD: progress.get("validationReward")}
    measured = {name: _shown(last[name]) for name in told if name in last}
    if not measured.items() <= told.items() or REWARD_MEAN not in measured:
        raise AssertionError(f"the status says {told}, the volume {measured}")
    rewards = [float(last[name]) for name in (REWARD_MIN, REWARD_MEAN, REWARD_MAX)]
    least, most = (-inf, inf) if status.get("rewardModels") else (0.0, 1.0)  # a model's scores have no bounds
    if not (all(map(isfinite, rewards)) and [least, *rewards, most] == sorted([least, *rewards, most])):
        raise AssertionError(f"the last step's rewards cannot be: smallest, mean and largest are {rewards}")


def _shown(value: float) -> float:
    """As the status has it."""
    return float(f"{value:.4g}")


def _took_over(claim: Claim) -> bool:
    """Whether ranks lived that were further than the checkpoint."""
    saved = CHECKPOINT_NAME.fullmatch(claim.resumed_from or "")
    return saved is not None and int(saved[1]) < (claim.resumed_step or 0)
