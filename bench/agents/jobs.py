"""The jobs: random weights, a tokenizer of bytes, and turns that end with one token of 262, or at their limit."""

from pathlib import Path
from typing import Any

PLAYED = Path(__file__).with_name("played.py")

EPISODES, TURNS, TOKENS, SLEEP = 64, 6, 256, 1.0
"""Of the jobs whose environments sleep: episodes in flight, turns of each, most tokens of a turn, seconds."""

IDLE, IDLE_SECONDS = 200, 20.0

SAMPLES = 8

_MODEL = {"layers": 4, "hiddenSize": 256, "heads": 4, "tokenizer": {"kind": "byte"}}
_SMALL = {"layers": 2, "hiddenSize": 64, "heads": 2, "tokenizer": {"kind": "byte"}}


def sleeping(seconds: float, note: Path) -> dict[str, Any]:
    """One step of 64 episodes."""
    arguments = {"seconds": seconds, "turns": TURNS, "note": str(note)}
    environment = {"path": str(PLAYED), "entry": "Sleeps", "arguments": arguments, "maxTurns": TURNS}
    context = TURNS * (TOKENS + 16) + 64
    return _job("sleeping", _MODEL, EPISODES, TOKENS, 1, environment | {"maxEpisodeTokens": context}, [])


def idle(*, threads: bool) -> dict[str, Any]:
    """One step of 200 episodes in one environment process. threads: their code is not async."""
    arguments = {"seconds": IDLE_SECONDS, "episodes": IDLE, "threads": threads}
    environment = {"path": str(PLAYED), "entry": "idle", "arguments": arguments, "processes": 1}
    return _job("idle", _SMALL, IDLE, 8, 1, environment, [])


def single(*, environment: bool, steps: int) -> dict[str, Any]:
    """Steps of single turns, plain or as an environment of one turn; `similarity` scores both."""
    played = {"path": str(PLAYED), "entry": "one_turn", "maxTurns": 1} if environment else None
    functions = [{"name": "letters", "builtin": "similarity"}]
    return _job("single", _MODEL, 128, 128, steps, played, functions)


def _job(
    name: str, model: dict[str, Any], episodes: int, tokens: int, steps: int, environment: dict[str, Any] | None,
    functions: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    spec = {
        "model": {"fromScratch": model},
        "data": {
            "train": ["synthetic://reverse-text?rows=4096&minLength=8&maxLength=8"],
            "maxPromptTokens": 32,
            "maxResponseTokens": tokens,
            "promptsPerStep": episodes // SAMPLES,
        },
        "algorithm": {"preset": "grpo", "kl": {"placement": "none"}},
        "rollout": {"engine": "hf", "samplesPerPrompt": SAMPLES, "maxNumSeqs": episodes},
        "actor": {"learningRate": 1e-6, "recompute": "none"},
        "rewards": {"functions": functions},
        "training": {"steps": steps},
        "checkpoint": {"everySteps": 0},
        "cluster": {"gpusPerNode": 0},
    } | ({"environment": environment} if environment else {})
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": spec}
