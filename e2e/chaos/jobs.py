"""The jobs that chaos is let loose on, and how their runs are compared with undisturbed ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.chaos.base import BASE, SHAPE
from e2e.chaos.traces import MARK_VARIABLE
from e2e.chaos.trial import Trial
from e2e.chaos.weights import differing

SUPERVISED_STEPS = 40
STEPS = 60
FIRST, LAST = slice(3), slice(-20, None)
"""Steps whose rewards show what a run began with, and what it has learnt."""

REWARD = f"""
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    mark = os.environ["{MARK_VARIABLE}"]
    open(mark, "w").close()
    time.sleep(0.002)
    right = sum(one == other for one, other in zip(solution_str, ground_truth))
    try:
        os.unlink(mark)
    except FileNotFoundError:  # a scorer that was frozen, and has been replaced, goes on for a moment
        pass
    return right / max(len(solution_str), len(ground_truth))
"""
"""The share of letters in their places. It leaves a mark while it is called, and takes long enough to be struck."""


GAME = """
import time

class Environment:
    def reset(self, task):
        self.word, self.turns = task.ground_truth, 0

    def step(self, answer):
        time.sleep(0.01)
        self.turns += 1
        right = sum(one == other for one, other in zip(answer, self.word)) / len(self.word)
        return self.word[-1 if right < 1 else 0], right, self.turns == 2
"""
"""Two turns: between them the policy reads a letter of the word, which one depends on its answer."""

_AGENTS = {"source": GAME, "maxTurns": 2, "maxEpisodeTokens": 60, "processes": 2}


@dataclass(frozen=True, slots=True)
class Job:
    """share: of all faults. seeds: of the undisturbed runs; disturbed ones have the first.

    problems: what is wrong with disturbed runs beside undisturbed ones, if anything.
    lora: spec.model.lora of a job that adapts the model in the folder BASE beside its file.
    critic: spec.critic of a job that trains by PPO.
    environment: spec.environment of a job whose episodes have several turns.
    """

    name: str
    title: str
    rollout: dict[str, Any]
    share: float
    promise: str
    problems: Callable[[Sequence[Trial], Trial], list[str]]
    seeds: tuple[int, ...] = (0,)
    ranks: int = 1
    steps: int = STEPS
    lora: dict[str, Any] | None = None
    critic: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None

    def document(self, steps: int | None = None, seed: int = 0) -> dict[str, Any]:
        """The RLJob. seed: of prompts and sampling; the weights begin alike."""
        return {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": f"chaos-{self.name}"},
            "spec": {
                "model": {"fromScratch": SHAPE} if self.lora is None else {"path": BASE, "lora": self.lora},
                "data": {
                    "train": ["synthetic://reverse-text?rows=512&letters=6&maxLength=5"],
                    "maxPromptTokens": 16,
                    "maxResponseTokens": 12,
                    "promptsPerStep": 16,
                    "seed": seed,
                },
                "sft": {"steps": SUPERVISED_STEPS, "learningRate": 2.0e-3},  # or rewards would hardly rise
                **({"algorithm": {"preset": "grpo"}} if self.critic is None else self._ppo()),
                "rollout": {"samplesPerPrompt": 8, "seed": seed, **self.rollout},
                "actor": {"learningRate": 1.0e-3, "miniBatchSize": 8, "recompute": "none"},
                "rewards": {
                    "functions": [{"name": "letters", "source": REWARD, "env": [MARK_VARIABLE]}],
                    "processes": 1,
                },
                "training": {"steps": steps or self.steps},
                "checkpoint": {"everySteps": 5},
                "recovery": {"hangAfter": "5s", "maxRestarts": 50, "backoff": {"initial": "100ms", "max": "1s"}},
                "cluster": {"gpusPerNode": 0},
                **({} if self.environment is None else {"environment": self.environment}),
            },
        }

    def _ppo(self) -> dict[str, Any]:
        return {"algorithm": {"preset": "ppo", "lambda": 0.95}, "critic": self.critic}


def different_weights(calm: Sequence[Trial], trial: Trial) -> list[str]:
    names = differing(calm[0].directory, trial.directory)
    return [f"{len(names)} parameters differ from the undisturbed run's, {names[0]} for one"] if names else []


def band(calm: Sequence[Trial]) -> tuple[float, float]:
    """Rewards of the last steps, undisturbed: from the lowest to the highest, and their distance once more beyond."""
    rewards = [each.rewards(LAST) for each in calm]
    low, high = min(rewards), max(rewards)
    return low - (high - low), high + (high - low)


def blind(calm: Sequence[Trial]) -> list[str]:
    """A band in which runs lie that have learnt nothing shows nothing."""
    low, high = band(calm)
    begun = max(each.rewards(FIRST) for each in calm)
    return (
        [f"the band {low:.3f} .. {high:.3f} holds the reward of the first steps, {begun:.3f}"] if begun >= low else []
    )


def different_rewards(calm: Sequence[Trial], trial: Trial) -> list[str]:
    (low, high), reward = band(calm), trial.rewards(LAST)
    return blind(calm) + (
        [] if low <= reward <= high else [f"mean reward {reward:.3f} outside {low:.3f} .. {high:.3f}"]
    )


EQUAL = "Every step once, nothing left behind, and weights equal to the undisturbed run's bit for bit,"
ALIKE = "Every step once, nothing left behind, and rewards within the undisturbed runs' band,"

_DETERMINISTIC = {"engine": "hf", "deterministic": True}

_CRITIC = {"learningRate": 1.0e-3, "warmupSteps": 2, "epochs": 2, "lambda": 1.0}

JOBS = (
    Job("deterministic", "hf, deterministic", _DETERMINISTIC, 0.15, EQUAL, different_weights),
    Job("agents", "hf, deterministic, two turns", _DETERMINISTIC, 0.15, EQUAL, different_weights, environment=_AGENTS),
    Job("critic", "hf, deterministic, PPO", _DETERMINISTIC, 0.1, EQUAL, different_weights, critic=_CRITIC),
    Job("ranks", "hf, deterministic, two ranks", _DETERMINISTIC, 0.15, EQUAL, different_weights, ranks=2),
    Job("adapter", "hf, deterministic, an adapter", _DETERMINISTIC, 0.15, EQUAL, different_weights, lora={"rank": 8}),
    Job("refilling", "hf, refilling", {"engine": "hf"}, 0.25, ALIKE, different_rewards, seeds=(0, 1, 2)),
    Job("vllm", "vllm", {"engine": "vllm"}, 0.2, ALIKE, different_rewards, seeds=(0, 1, 2), steps=40),
)
