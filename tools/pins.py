"""Print the versions in requirements/*.txt as constraints, one a line: python tools/pins.py [NAME...]

NAME: a package to leave out, so that its version may change; `all` leaves out every package.
A package whose version depends on the Python version keeps its markers. A package that has several versions under one
marker, because the CPU and the CUDA vLLM need different ones, is left out: no constraint can tell them apart.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+)(?: ; (?P<marker>.*?))? \\$", re.MULTILINE)


def constraints(locks: Iterable[str], free: Collection[str] = ()) -> list[str]:
    """The constraints that keep the versions in the texts `locks`, sorted; `free` as NAME above."""
    versions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for lock in locks:
        for pin in _PIN.finditer(lock):
            versions[pin["name"]][pin["version"]].add(pin["marker"] or "")
    kept = {} if "all" in free else {name: each for name, each in versions.items() if name not in free}
    return sorted(line for name, each in kept.items() for line in _lines(name, each))


def _lines(name: str, versions: dict[str, set[str]]) -> Iterator[str]:
    if len(versions) == 1:
        yield f"{name}=={next(iter(versions))}"
        return
    markers = [marker for each in versions.values() for marker in each]
    if "" not in markers and len(set(markers)) == len(markers) == len(versions):
        yield from (f"{name}=={version} ; {marker}" for version, (marker,) in versions.items())


if __name__ == "__main__":
    folder = Path(__file__).parent.parent / "requirements"
    print("\n".join(constraints((path.read_text() for path in sorted(folder.glob("*.txt"))), sys.argv[1:])))
