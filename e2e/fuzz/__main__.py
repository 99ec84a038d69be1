"""Give malformed RLJobs to a real API server, to `rljob validate` and to the operator, and count what becomes of them.

Each is refused with the name of a field; or it is good for all three, and a running operator reconciles it, or fails it
with a message that names a field of the job. Ends with 1 where one is none of these.
"""

import argparse
import json
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

from e2e.cluster.sharing import shared
from e2e.fuzz.mutations import mutants
from e2e.fuzz.reconciling import reconciler
from e2e.fuzz.seeds import seeds
from e2e.fuzz.verdicts import judge

AT_ONCE = 250
"""Between two lines of progress."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing; the same one draws the same")
    options = parser.parse_args()
    counts = Counter[str]()
    folder = Path(tempfile.gettempdir()) / f"rljob-fuzz-{options.seed}"
    with shared(folder) as plane, plane.access.client() as client, reconciler(plane.access, client, folder) as operator:
        drawn = mutants(seeds(), options.count, options.seed)
        while some := list(islice(drawn, AT_ONCE)):
            verdicts = [(mutant, judge(client, mutant.document)) for mutant in some]
            admitted = [mutant for mutant, verdict in verdicts if verdict.admitted]
            outcomes = list(operator.outcomes(admitted))
            for mutant, finding in [
                *((mutant, each) for mutant, verdict in verdicts for each in verdict.findings),
                *((outcome.mutant, each) for outcome in outcomes for each in outcome.findings),
            ]:
                counts["findings"] += 1
                print(f"{mutant}: {json.dumps(mutant.document)[:1000]}\n  {finding}")
            counts.update(refused=len(some) - len(admitted))
            counts.update(outcome.fate for outcome in outcomes)
            print(f"{some[-1].number + 1} of {options.count}: {dict(counts)}", flush=True)
    return min(counts["findings"], 1)


if __name__ == "__main__":
    raise SystemExit(main())
