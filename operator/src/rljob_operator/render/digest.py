"""A short name for content, to see whether it changed."""

import hashlib
import json
from typing import Any


def digest(content: Any) -> str:
    """content: JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
