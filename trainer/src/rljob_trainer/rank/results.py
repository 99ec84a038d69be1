"""What ranks report to the driver: numbers only. Light: the driver imports it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_trainer.engines.engine import Completion
from rljob_trainer.losses.covariance import CovarianceSums
from rljob_trainer.losses.diagnostics import ImportanceSums
from rljob_trainer.losses.preference import PreferenceSums
from rljob_trainer.losses.spread import Spreads
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.types import Floats

LARGEST_NORM = 3.4028234663852886e38
"""The largest float32: as the bound of a norm, only what is not finite is above it."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the store of the ranks' process group listens. prefix: of its keys."""

    host: str
    port: int
    prefix: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What a log says about a rank that has started. gpu: its name; None on a CPU."""

    rank: int
    host: str
    pid: int
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What advantages need of the log-probabilities of a rank; [R] for each trajectory in the order of its plan.

    kl: the estimate against the reference, if the KL acts in the reward; else None.
    reverse_kl: log pi - log pi_teacher of each token; None without a teacher, or with its likeliest tokens.
    """

    kl: list[Floats] | None = None
    reverse_kl: list[Floats] | None = None


@dataclass(frozen=True, slots=True)
class CriticOrder:
    """What a rank is to train the critic on, besides the prepared samples.

    plan: their passes in the critic's minibatches; of the same samples in the same order as the policy's. totals: of
    each minibatch.
    returns: [R] that it learns, for each trajectory in the order of the rank's plan.
    norm_bound: as of the policy's gradients.
    alone: only the critic learns (critic.warmupSteps).
    """

    plan: RankPlan
    totals: Sequence[BatchTotals]
    returns: Sequence[Floats]
    learning_rate: float
    norm_bound: float = LARGEST_NORM
    alone: bool = False


@dataclass(frozen=True, slots=True)
class StepSums:
    """One rank's contribution to the step's metrics; the driver adds up those of all ranks.

    loss: sum over minibatches, which `minibatches` counts, once for each epoch.
    entropy, kl, clipped: sums over the tokens that count in the loss.
    tokens: their number, once for each epoch. trajectories: those with at least one such token, as often.
    grad_norms: of each optimizer step, over all ranks and before clipping (equal on every rank).
    skipped: norms of gradients that were too large or not finite; no step was made of them.
    drift: sum over those tokens of the KL estimate from the policy at the start of the step.
    covariance: sums over those tokens of log-probability and advantage.
    preference: sums over the pairs of a preference loss.
    reverse_kl: sum over those tokens of the divergence from the teacher, with teacher.topK.
    """

    loss: float
    entropy: float
    kl: float
    clipped: float
    tokens: int
    grad_norms: list[float]
    drift: float = 0.0
    covariance: CovarianceSums = field(default_factory=CovarianceSums)
    trajectories: int = 0
    minibatches: int = 0
    skipped: list[float] = field(default_factory=list)
    preference: PreferenceSums = field(default_factory=PreferenceSums)
    reverse_kl: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What an update took of a rank's GPU; nothing on a CPU.

    flops: the model's arithmetic. capacity: what the GPU can do in the same time; 0 if its speed is unknown.
    peak: bytes of its tensors, at most.
    """

    flops: float = 0.0
    capacity: float = 0.0
    peak: int = 0


@dataclass(frozen=True, slots=True)
class Updated:
    """A rank's sums over the step, and engine against trainer on its samples (nothing in a supervised step).

    correction: the metrics `rollout_corr/*`.
    critic: the critic's sums; None without one. Its entropy, KL, drift and covariance are 0.
    """

    sums: StepSums
    importance: ImportanceSums = field(default_factory=ImportanceSums)
    usage: Usage = field(default_factory=Usage)
    correction: Spreads = field(default_factory=dict)
    critic: StepSums | None = None

    @property
    def skipped(self) -> bool:
        """Whether an update of either model was left out."""
        return bool(self.sums.skipped or (self.critic is not None and self.critic.skipped))


@dataclass(frozen=True, slots=True)
class ProbeScores:
    """Log-probabilities [R] of what each engine answered to each prompt of the probe.

    policy: by the policy. base: by the model without its adapter; None where it has none.
    """

    policy: list[list[Floats]]
    base: list[list[Floats]] | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Weights that a rank has sent. nbytes: what it wrote. answers: to the probe, of each engine that it feeds."""

    nbytes: int
    answers: list[list[Completion]]
