"""Advantages per token from outcome rewards, over all episodes of a step. Only numpy: the driver computes them.

One estimator per file; an entry here registers it. An estimator with other inputs (gae: values per token; remax: the
greedy episode's reward) adds an optional field to `AdvantageBatch`.
"""

from collections.abc import Callable, Mapping

from rljob_api.v1alpha1.algorithm import Advantage
from rljob_trainer.advantage.batch import AdvantageBatch, Turns
from rljob_trainer.advantage.best_worst import best_worst, pairs
from rljob_trainer.advantage.distillation import distillation
from rljob_trainer.advantage.dr_grpo import dr_grpo
from rljob_trainer.advantage.gae import gae, value_targets
from rljob_trainer.advantage.gigpo import gigpo
from rljob_trainer.advantage.gpg import gpg
from rljob_trainer.advantage.grpo import grpo
from rljob_trainer.advantage.grpo_passk import grpo_passk
from rljob_trainer.advantage.informative import uninformative_groups
from rljob_trainer.advantage.maxrl import maxrl
from rljob_trainer.advantage.opo import opo
from rljob_trainer.advantage.reinforce_plus_plus import reinforce_plus_plus
from rljob_trainer.advantage.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from rljob_trainer.advantage.remax import remax
from rljob_trainer.advantage.rloo import rloo
from rljob_trainer.advantage.stepwise import by_state, per_step
from rljob_trainer.advantage.win_rate import win_rate
from rljob_trainer.types import Floats

AdvantageEstimator = Callable[[AdvantageBatch], Floats]
"""Advantages [sum(lengths)], float32, in the order of the batch's tokens."""

ADVANTAGES: Mapping[Advantage, AdvantageEstimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "remax": remax,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "opo": opo,
    "gpg": gpg,
    "grpo_passk": grpo_passk,
    "maxrl": maxrl,
    "gae": gae,
    "best_worst": best_worst,
    "win_rate": win_rate,
    "gigpo": gigpo,
    "distillation": distillation,
}

__all__ = [
    "ADVANTAGES",
    "AdvantageBatch",
    "AdvantageEstimator",
    "Turns",
    "by_state",
    "pairs",
    "per_step",
    "uninformative_groups",
    "value_targets",
]
