"""docs/benchmarks/recovery.md: what several programs have measured. Each writes a part, a page by itself."""

import re
from pathlib import Path
from typing import Final, Literal, get_args

PAGE: Final = "recovery.md"

Part = Literal[
    "recovery_local.md", "recovery_gpu.md", "recovery_ranks.md", "recovery_cluster.md", "recovery_scenarios.md"
]


def write_part(folder: Path, part: Part, text: str) -> None:
    """Keep a part, and write the page again from all parts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / part).write_text(text.rstrip() + "\n")
    parts = [path.read_text() for name in get_args(Part) if (path := folder / name).exists()]
    sections = [re.sub("^#", "##", each, flags=re.MULTILINE).rstrip() for each in parts]
    (folder / PAGE).write_text("\n\n".join(["# Recovery from faults", *sections]) + "\n")
