"""Episodes of a validation as a table, which each tracker shows in its own way."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rljob_trainer.progress.transcript import lines

COLUMNS: Final = ("task", "reward", "status", "turns", "tokens_in_loss", "ground_truth", "episode")

LONGEST = 4000
"""Most characters of a cell; a longer text keeps its start and its end."""

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """step: of the validation. rows: one an episode, by COLUMNS; reward: None for an episode that was left out."""

    step: int
    rows: tuple[tuple[Cell, ...], ...]


def episode_table(step: int, samples: Sequence[Mapping[str, Any]]) -> EpisodeTable:
    """The table of samples that Reporting wrote for a step."""
    return EpisodeTable(step, tuple(_row(sample) for sample in samples))


def _row(sample: Mapping[str, Any]) -> tuple[Cell, ...]:
    episode, reward, truth = sample["episode"], sample["reward"], sample["groundTruth"]
    parts = [part for trajectory in episode["trajectories"] for part in trajectory]
    return (
        sample["task"],
        reward if reward is not None and math.isfinite(reward) else None,
        episode["status"],
        sum(part["who"] == "policy" for part in parts),
        sum(part["inLoss"] for part in parts),
        _cut(truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False, default=str)),
        _cut("\n".join(lines(episode))),
    )


def _cut(text: str) -> str:
    half, left_out = LONGEST // 2, len(text) - LONGEST
    return text if left_out <= 0 else f"{text[:half]}\n[... {left_out} characters ...]\n{text[-half:]}"
