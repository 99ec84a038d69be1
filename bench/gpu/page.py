"""docs/benchmarks/gpu.md and gpu.png from the JSON files of runs."""

from pathlib import Path


def write_page(results: Path, output: Path) -> None:
    raise NotImplementedError
