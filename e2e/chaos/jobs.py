"""The jobs that chaos is let loose on, and how their runs are compared with undisturbed ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.chaos.trial import Trial
from e2e.chaos.weights import differing

STEPS = 60
LAST = 20
"""Steps over which rewards are compared."""

BAND = 0.1
"""How far a mean reward may lie outside the range of the undisturbed runs: sampling differs, learning may not."""


@dataclass(frozen=True, slots=True)
class Job:
    """share: of all faults. calm_runs: undisturbed runs. compare: what is wrong with a disturbed run, if anything."""

    name: str
    title: str
    rollout: dict[str, Any]
    share: float
    calm_runs: int
    compare: Callable[[Sequence[Trial], Trial], list[str]]
    promise: str
    steps: int = STEPS

    def document(self, steps: int | None = None) -> dict[str, Any]:
        """The RLJob."""
        return {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": f"chaos-{self.name}"},
            "spec": {
                "model": {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}},
                "data": {
                    "train": ["synthetic://reverse-text?rows=512&letters=6&maxLength=5"],
                    "maxPromptTokens": 16,
                    "maxResponseTokens": 12,
                    "promptsPerStep": 8,
                },
                "algorithm": {"preset": "grpo"},
                "rollout": {"samplesPerPrompt": 8, **self.rollout},
                "actor": {"learningRate": 5.0e-4, "miniBatchSize": 4, "gradientCheckpointing": False},
                "rewards": {
                    "functions": [{"name": "letters", "builtin": "similarity", "arguments": {"method": "positions"}}],
                    "processes": 1,
                },
                "training": {"steps": steps or self.steps},
                "checkpoint": {"everySteps": 5},
                "recovery": {"hangAfter": "5s", "maxRestarts": 50, "backoff": {"initial": "100ms", "max": "1s"}},
                "cluster": {"gpusPerNode": 0},
            },
        }


def same_weights(calm: Sequence[Trial], trial: Trial) -> list[str]:
    names = differing(calm[0].directory, trial.directory)
    return [f"{len(names)} parameters differ from the undisturbed run's, {names[0]} for one"] if names else []


def same_rewards(calm: Sequence[Trial], trial: Trial) -> list[str]:
    band = [each.rewards(LAST) for each in calm]
    mean = trial.rewards(LAST)
    if min(band) - BAND <= mean <= max(band) + BAND:
        return []
    return [f"mean reward {mean:.3f} outside {min(band) - BAND:.3f} .. {max(band) + BAND:.3f}"]


EQUAL = "Every step once, and weights equal to the undisturbed run's bit for bit,"
ALIKE = "Every step once, and rewards within the undisturbed runs' band,"

JOBS = (
    Job("deterministic", "hf, deterministic", {"engine": "hf", "deterministic": True}, 0.6, 1, same_weights, EQUAL),
    Job("refilling", "hf, refilling", {"engine": "hf"}, 0.25, 2, same_rewards, ALIKE),
    Job("vllm", "vllm", {"engine": "vllm"}, 0.15, 2, same_rewards, ALIKE, steps=40),
)
