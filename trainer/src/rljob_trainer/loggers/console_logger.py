"""One line per step in the driver's log, which `kubectl rljob logs NAME --follow` prints."""

import math
import time
from collections.abc import Mapping
from typing import Final

import structlog

from rljob_trainer.progress import names

log = structlog.get_logger()

SFT_INTERVAL = 5.0
"""Least seconds between two logged supervised steps, which are short."""

_LOGGED: Final = (
    names.REWARD_MEAN,
    names.VALIDATION_REWARD,
    names.RESPONSE_LENGTH_MEAN,
    names.ACTOR_LOSS,
    names.ACTOR_KL,
    names.REVERSE_KL,
    names.ACTOR_ENTROPY,
    names.ACTOR_GRAD_NORM,
    names.TOKENS_PER_SECOND,
    names.TIME_STEP,
)


class ConsoleLogger:
    """Logs the main metrics to three digits."""

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        supervised = names.RESPONSE_LENGTH_MEAN not in metrics and names.VALIDATION_REWARD not in metrics
        now = time.monotonic()
        if supervised and now - self._logged_at < SFT_INTERVAL:
            return
        self._logged_at = now
        event = "validated" if names.TIME_STEP not in metrics else "step_finished"
        log.info(event, step=step, **{name: float(f"{metrics[name]:.3g}") for name in _LOGGED if name in metrics})
