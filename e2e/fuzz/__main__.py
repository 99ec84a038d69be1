"""Give malformed RLJobs to a real API server, to `rljob validate` and to the operator, and count what becomes of them.

Each is refused with the name of a field, or is good for all three. Ends with 1 where one is neither.
"""

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from e2e.cluster.sharing import shared
from e2e.fuzz.mutations import mutants
from e2e.fuzz.seeds import seeds
from e2e.fuzz.verdicts import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing; the same one draws the same")
    options = parser.parse_args()
    counts = Counter[str]()
    folder = Path(tempfile.gettempdir()) / f"rljob-fuzz-{options.seed}"
    with shared(folder) as plane, plane.access.client() as client:
        for mutant in mutants(seeds(), options.count, options.seed):
            verdict = judge(client, mutant.document)
            counts["admitted" if verdict.admitted else "refused"] += 1
            if verdict.findings:
                counts["findings"] += 1
                print("\n  ".join([f"{mutant}: {json.dumps(mutant.document)[:1000]}", *verdict.findings]))
            if (mutant.number + 1) % 500 == 0:
                print(f"{mutant.number + 1} of {options.count}: {dict(counts)}", flush=True)
    return min(counts["findings"], 1)


if __name__ == "__main__":
    raise SystemExit(main())
