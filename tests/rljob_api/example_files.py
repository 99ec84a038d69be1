"""The RLJobs of examples/; queues.yaml in it holds objects of Kueue."""

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.name != "queues.yaml")


def example_name(path: Path) -> str:
    """reverse-text, addition/rljob ..."""
    return str(path.relative_to(EXAMPLES).with_suffix(""))
