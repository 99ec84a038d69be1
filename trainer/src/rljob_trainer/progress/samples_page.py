"""Episodes as one HTML page that needs nothing else: search, filters, a histogram of rewards. Light.

The episodes are JSON in an element that no browser runs, and the page's only script is named by its hash: text that a
model wrote can become neither markup nor a script.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any


def samples_page(run: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page of these rows of a run's samples. run: its name."""
    folder = files("rljob_trainer.progress")
    script = folder.joinpath("samples_page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = [
        {"step": row["step"], "task": row["task"], "reward": _number(row["reward"]), "episode": row["episode"]}
        for row in rows
    ]
    data = json.dumps({"run": run, "rows": shown}, ensure_ascii=True).replace("<", "\\u003c")
    page = folder.joinpath("samples_page.html").read_text()
    page = page.replace("@HASH@", f"sha256-{digest}").replace("@SCRIPT@", script)
    return page.replace("@DATA@", data)


def _number(reward: float | None) -> float | None:
    """None for an episode that was left out: it has no reward."""
    return reward if reward is not None and math.isfinite(reward) else None
