"""Chooses the table for the settings that were read, and applies it."""

import re
from collections.abc import Sequence
from typing import Final

from rljob_trainer.convert.conversion import Conversion, Table, converted
from rljob_trainer.convert.source import GROUPS, Settings, read_settings
from rljob_trainer.convert.trl_dpo import LOSSES_OF_DPO, OF_DPO, TRL_DPO
from rljob_trainer.convert.trl_table import TRL
from rljob_trainer.convert.verl_table import RENAMED, VERL
from rljob_trainer.errors import JobError

_OF_VERL: Final = (
    "actor_rollout_ref.",
    "data.",
    "algorithm.",
    "trainer.",
    "critic.",
    "reward.",
    "reward_model.",
    "custom_reward_",
)
_OF_TRL: Final = ("num_generations", "model_name_or_path", "per_device_train_batch_size", "learning_rate", "beta")
_VARIABLE: Final = re.compile(r"\$[({]?\w")
_MISSING: Final = "???"
"""OmegaConf's mark of a value that must be given."""


def conversion_of(source: str, overrides: Sequence[str], framework: str | None = None) -> Conversion:
    """Read and convert. framework: "verl" or "trl"; None: the names of the settings decide.

    Raises JobError if the source cannot be read, or holds no settings of either.
    """
    settings = {key: None if value == _MISSING else value for key, value in read_settings(source, overrides).items()}
    trl = (framework or _guessed(settings, source)) == "trl"
    conversion = converted(_trl(settings), settings) if trl else converted(VERL, _renamed(settings))
    for key, value in conversion.settings.items():
        if key in conversion.seen and _VARIABLE.search(str(value)):
            conversion.leave(key, f"{value} has a variable that the source does not set: replace it")
    if GROUPS in settings:
        conversion.leave(GROUPS, "install hydra-core to read the groups; their settings have verl's defaults here")
    return conversion


def _guessed(settings: Settings, source: str) -> str:
    if any(key.startswith(_OF_VERL) for key in settings):
        return "verl"
    if any(key in settings for key in _OF_TRL):
        return "trl"
    message = "has no settings of verl (such as data.train_files) or of TRL's GRPOConfig (such as num_generations)"
    raise JobError(f"{message}: pass --from if it is one of them", field=source)


def _trl(settings: Settings) -> Table:
    """Of DPOConfig if a setting or the loss is its own, else of GRPOConfig."""
    kinds = settings.get("loss_type")
    of_dpo = not OF_DPO.isdisjoint(settings) or not LOSSES_OF_DPO.isdisjoint(
        kinds if isinstance(kinds, list) else [kinds]
    )
    return TRL_DPO if of_dpo else TRL


def _renamed(settings: Settings) -> Settings:
    """`settings` under the names of the table. A setting that is given under both names keeps the table's."""
    renamed: Settings = {}
    for key, value in settings.items():
        new = next((RENAMED[old] + key[len(old) :] for old in RENAMED if key == old or key.startswith(old + ".")), key)
        if new == key or settings.get(new) is None:
            renamed[new] = value
    return renamed
