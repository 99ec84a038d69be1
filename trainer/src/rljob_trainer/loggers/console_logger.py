"""A line a step in the driver's own log, for whoever follows a job in a cluster: `kubectl rljob logs NAME --follow`."""

import math
import time
from collections.abc import Mapping
from typing import Final

import structlog

from rljob_trainer.progress import names

log = structlog.get_logger()

SFT_INTERVAL = 5.0
"""Least seconds between two supervised steps that are told: they pass by quickly."""

_TOLD: Final = (
    names.REWARD_MEAN,
    names.VALIDATION_REWARD,
    names.RESPONSE_LENGTH_MEAN,
    names.ACTOR_LOSS,
    names.ACTOR_KL,
    names.ACTOR_ENTROPY,
    names.ACTOR_GRAD_NORM,
    names.TOKENS_PER_SECOND,
    names.TIME_STEP,
)


class ConsoleLogger:
    """The metrics that a person reads first, by their names, to three digits."""

    def __init__(self) -> None:
        self._told = -math.inf

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        supervised = names.REWARD_MEAN not in metrics and names.VALIDATION_REWARD not in metrics
        now = time.monotonic()
        if supervised and now - self._told < SFT_INTERVAL:
            return
        self._told = now
        event = "validated" if names.TIME_STEP not in metrics else "step_finished"
        log.info(event, step=step, **{name: float(f"{metrics[name]:.3g}") for name in _TOLD if name in metrics})
