"""Which tokens end a response, as the files of a model folder say. Light: the rollout host imports it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CONFIGS = ("generation_config.json", "config.json")


def end_ids(folder: Path) -> set[int]:
    """The tokens of generation_config.json and config.json."""
    return {each for name in CONFIGS for each in as_ids(_read(folder / name).get("eos_token_id"))}


def eos_token(folder: Path) -> str | None:
    """The tokenizer's end-of-text token."""
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    return token.get("content") if isinstance(token, dict) else token


def write_end_ids(folder: Path, ids: Iterable[int], **others: Any) -> None:
    """Add `ids` to those of generation_config.json. others: its other fields, unless it has them."""
    path = folder / CONFIGS[0]
    written = _read(path)
    every = sorted({*as_ids(written.get("eos_token_id")), *ids})
    path.write_text(json.dumps(others | written | {"eos_token_id": every}, indent=2) + "\n")


def as_ids(value: Any) -> list[int]:
    """eos_token_id of a configuration is a number, a list or null."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
