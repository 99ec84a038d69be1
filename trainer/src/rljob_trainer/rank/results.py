"""What ranks report to the controller: numbers only. Light: the driver imports it."""

from dataclasses import dataclass

from rljob_trainer.engines.engine import Completion
from rljob_trainer.losses.diagnostics import ImportanceSums
from rljob_trainer.old_types import Floats


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the controller learns of a rank's shard before the update.

    token_kl: KL estimate of each token against the reference, [R] for each sample in the order of the rank's plan,
        where the KL acts in the reward; None elsewhere.
    """

    token_kl: list[Floats] | None


@dataclass(frozen=True, slots=True)
class StepSums:
    """One rank's contribution to the step's metrics; ranks are added up by the controller.

    loss: sum over minibatches. entropy, kl, clipped: sums over tokens. tokens: response tokens, once for each epoch.
    grad_norms: of each optimizer step, over all ranks and before clipping (equal on every rank).
    """

    loss: float
    entropy: float
    kl: float
    clipped: float
    tokens: int
    grad_norms: list[float]


@dataclass(frozen=True, slots=True)
class Updated:
    """A rank's sums over the step, and engine against trainer on its samples."""

    sums: StepSums
    importance: ImportanceSums


@dataclass(frozen=True, slots=True)
class Sent:
    """Weights that a rank has sent. nbytes: what it wrote. answers: to the probe, of each engine that it feeds."""

    nbytes: int
    answers: list[list[Completion]]
