"""How large the project is: `python tools/counts.py`. Lines are those of tracked Python files, blank ones included."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # as a script, Python finds only this folder

from tools.newcomer_path import PATHS  # noqa: E402

DISTRIBUTIONS = {"rljob-api": "crds/src", "rljob-trainer": "trainer/src", "rljob-operator": "operator/src"}


def lines_below(folder: str) -> int:
    """Lines of the Python files below `folder` that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", f"{folder}/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sum(len(file.read_text().splitlines()) for file in files if file.exists())


def main() -> None:
    lines = {name: lines_below(folder) for name, folder in DISTRIBUTIONS.items()}
    for name, count in lines.items():
        print(f"{name:16} {count:7,} lines in {DISTRIBUTIONS[name]}/")
    print(f"{'all three':16} {sum(lines.values()):7,} lines")
    for folder in ("tests", "e2e", "bench", "tools"):
        print(f"{folder:16} {lines_below(folder):7,} lines")
    for name, path in PATHS.items():
        print(f"{len(path)} files {name}")


if __name__ == "__main__":
    main()
