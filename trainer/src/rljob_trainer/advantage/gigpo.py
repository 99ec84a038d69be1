"""GiGPO: GRPO over episodes, and GRPO over the turns of a group that begin in the same state."""

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.grpo import grpo
from rljob_trainer.advantage.stepwise import by_state
from rljob_trainer.types import Floats


def gigpo(batch: AdvantageBatch) -> Floats:
    """A_t = A_E + w A_S, with grpo's advantage A_E of the episode, and A_S that of turn t among turns of its state.

    The reward of a turn in A_S is its return, R_t = r_t + gamma R_{t+1}. Turns of a group's episodes have the same
    (anchor) state if the observations before them have the same tokens; a turn that is alone in its state has A_S = 0.
    w is algorithm.stepAdvantageW.

    Use it in environments in which episodes of a task pass through the same states, such as games.

    Feng et al. 2025, Group-in-Group Policy Optimization, equations 3 to 8: https://arxiv.org/abs/2505.10978
    """
    step: Floats = grpo(by_state(batch))
    return grpo(batch) + batch.step_weight * step
