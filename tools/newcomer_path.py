"""The files that a newcomer opens to follow one thing through the code, in order: `python tools/newcomer_path.py`.

A path is a walk: each module is imported by the one before it, or by one that led there, to which the walk returns.
A process that is started by a command line counts as imported (STARTED).
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("crds/src", "operator/src", "trainer/src")

PATHS: dict[str, tuple[str, ...]] = {
    "from a watch's event to the status patch": (
        "rljob_operator.main",
        "rljob_operator.runtime.watches",
        "rljob_operator.runtime.store",
        "rljob_operator.runtime.queue",
        "rljob_operator.reconcile",
        "rljob_operator.observe.gather",
        "rljob_operator.observe.facts",
        "rljob_operator.observe.cluster",
        "rljob_operator.observe.driver",
        "rljob_operator.decide",
        "rljob_operator.decide.running",
        "rljob_operator.decide.status",
        "rljob_operator.perform.performer",
        "rljob_operator.kube.client",
    ),
    "from `rljob run` to the optimizer step": (
        "rljob_trainer.cli.run",
        "rljob_trainer.local.supervisor",
        "rljob_trainer.attempt.driver",
        "rljob_trainer.attempt.wiring",
        "rljob_trainer.loop.loop",
        "rljob_trainer.loop.reinforced",
        "rljob_trainer.rollouts.rollouts",
        "rljob_trainer.rollouts.rollout_host",
        "rljob_trainer.rollouts.episodes",
        "rljob_trainer.rollouts.generation",
        "rljob_trainer.engines.engine_host",
        "rljob_trainer.rank.client",
        "rljob_trainer.rank.rank",
        "rljob_trainer.rank.step",
    ),
}

STARTED = {"rljob_trainer.local.supervisor": "rljob_trainer.attempt.driver"}
"""The module that starts a process, and the module of its command: `rljob driver`."""


def gaps(path: Sequence[str]) -> list[str]:
    """Modules that neither the one before them nor one that led there imports. The first needs no importer."""
    led, found = list(path[:1]), []
    for module in path[1:]:
        while led and module not in imports(led[-1]) and STARTED.get(led[-1]) != module:
            led.pop()
        if not led:
            found.append(module)
        led.append(module)
    return found


def imports(module: str) -> set[str]:
    """Everything that it imports, anywhere in its file. `from a import b` may name the module a.b."""
    return set(_imports(ast.parse(file_of(module).read_text())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def file_of(module: str) -> Path:
    """Raises FileNotFoundError if there is no such module."""
    stem = module.replace(".", "/")
    for source in SOURCES:
        for file in (ROOT / source / f"{stem}.py", ROOT / source / stem / "__init__.py"):
            if file.exists():
                return file
    raise FileNotFoundError(module)


def main() -> int:
    for name, path in PATHS.items():
        lines = sum(len(file_of(module).read_text().splitlines()) for module in path)
        print(f"{name}: {len(path)} files, {lines} lines")
        print("".join(f"  {file_of(module).relative_to(ROOT)}\n" for module in path), end="")
    return any(map(gaps, PATHS.values()))


if __name__ == "__main__":
    sys.exit(main())
