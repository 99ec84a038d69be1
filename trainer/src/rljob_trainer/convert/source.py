"""Reads the settings to convert: a YAML or JSON file, a launch script, or key=value words."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from rljob_api.validation.source import read_value
from rljob_trainer.convert.shell import SETTING, script_settings
from rljob_trainer.errors import JobError

Settings = dict[str, Any]
GROUPS = "defaults"
_EXPONENT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")
_FLAT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
"""A setting of TRL, whose names have no dots."""

_REFERENCE = re.compile(r"\$\{(oc\.select:)?([\w.]+)(?:,(.*))?\}")


def read_settings(source: str, overrides: Sequence[str]) -> Settings:
    """Dotted names and their values; overrides come last, as Hydra applies them.

    source: a .yaml or .json file, a .sh script, or itself key=value.
    Raises JobError if it cannot be read.
    """
    path = Path(source)
    if (SETTING.fullmatch(source) or _FLAT.fullmatch(source)) and not path.is_file():
        return _referred(_with({}, [source, *overrides]))
    text = _text(path)
    if path.suffix in {".yaml", ".yml", ".json"}:
        return _from_file(path, text, overrides)
    return _referred(_with({}, [*script_settings(text, source), *overrides]))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError("is not UTF-8 text: pass a .yaml or .json file, or a launch script", field=str(path)) from error
    except OSError as error:
        message = f"cannot be read ({error.strerror}): pass a .yaml or .json file, a launch script, or key=value words"
        raise JobError(message, field=str(path)) from error


def _from_file(path: Path, text: str, overrides: Sequence[str]) -> Settings:
    try:
        content = yaml.safe_load(text)  # not as Kubernetes reads it: n is a name in verl, and false in Kubernetes
    except yaml.YAMLError as error:
        raise JobError(f"is not YAML: {error}", field=str(path)) from error
    if not isinstance(content, dict):
        raise JobError("must hold one mapping of settings", field=str(path))
    if GROUPS in content and find_spec("hydra") is not None:
        return flat(_composed(path, overrides))
    return _referred(_with(flat(content), overrides))


def _composed(path: Path, overrides: Sequence[str]) -> Mapping[str, Any]:
    """The file with its groups, composed by Hydra."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with hydra.initialize_config_dir(str(path.resolve().parent), version_base=None):
            config = hydra.compose(path.stem, list(overrides))
        return _resolved(OmegaConf, config)
    except (HydraException, OmegaConfBaseException) as error:
        raise JobError(f"Hydra cannot compose it: {error}", field=str(path)) from error


def _resolved(omega: Any, config: Any) -> Mapping[str, Any]:
    return dict(omega.to_container(config, resolve=True, throw_on_missing=False))


def _with(settings: Settings, overrides: Sequence[str]) -> Settings:
    """`settings` after overrides: a.b=1, +a.b=1, ++a.b=1 and ~a.b."""
    changed = dict(settings)
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.lstrip("+~")
        if not equals and not override.startswith("~"):
            raise JobError(f"{override!r} is not key=value: write a setting such as data.train_batch_size=256")
        changed = {name: value for name, value in changed.items() if name != key and not name.startswith(key + ".")}
        if not override.startswith("~"):
            value = read_value(text)
            changed |= flat({key: value})
    return changed


def flat(values: Mapping[str, Any], prefix: str = "") -> Settings:
    """{"a": {"b": 1}} as {"a.b": 1}. An empty mapping stays."""
    found: Settings = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, dict) and value else {name: _number(value)}
    return found


def _number(value: Any) -> Any:
    """1e-6 as a number, which PyYAML reads as text."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _referred(settings: Settings) -> Settings:
    """Replace ${a.b} and ${oc.select:a.b,default} by what they refer to.

    ${NAME} without a dot that is no setting stays: it is a variable of the shell.
    """
    return {key: _value(value, key, settings, 0) for key, value in settings.items()}


def _value(value: Any, key: str, settings: Settings, depth: int) -> Any:
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None or depth > 10:
        return value
    selected, reference, text = found.groups()
    name = key.rpartition(".")[0] + reference if reference.startswith(".") else reference
    if "." not in reference and name not in settings and not selected:
        return value
    known = settings.get(name)
    default = None if text is None else read_value(text.strip())
    return _value(default if known is None else known, name, settings, depth + 1)
