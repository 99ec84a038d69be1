"""What the pairs of a step say about its policy, under TRL's names. Light: the driver imports it."""

from dataclasses import astuple, dataclass

from rljob_trainer.progress import names

PREFERENCE = (
    names.REWARDS_CHOSEN, names.REWARDS_REJECTED, names.REWARDS_MARGINS, names.REWARDS_ACCURACIES, names.LOGPS_CHOSEN,
    names.LOGPS_REJECTED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PreferenceSums:
    """Sums over pairs, once for each epoch.

    chosen, rejected: implicit rewards beta (log pi(y) - log pi_ref(y)) of the responses.
    accurate: pairs in which the chosen one is higher.
    chosen_log_probs, rejected_log_probs: log pi(y), in nats.
    """

    pairs: float = 0.0
    chosen: float = 0.0
    rejected: float = 0.0
    accurate: float = 0.0
    chosen_log_probs: float = 0.0
    rejected_log_probs: float = 0.0

    def __add__(self, other: "PreferenceSums") -> "PreferenceSums":
        return PreferenceSums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def metrics(self) -> dict[str, float]:
        """Means over pairs; nothing without a pair."""
        if not self.pairs:
            return {}
        summed = (
            self.chosen, self.rejected, self.chosen - self.rejected, self.accurate, self.chosen_log_probs,
            self.rejected_log_probs,
        )  # fmt: skip
        return {name: value / self.pairs for name, value in zip(PREFERENCE, summed, strict=True)}
