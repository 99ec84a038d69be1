"""Measure the operator on a control plane of its own; writes operator.md.

python -m bench.operator [--jobs 10000] [--created 1000] [--rate 20] [--compared 300] [--output docs/benchmarks]
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from bench.operator.measures import Jobs, compared, creation, full, life
from bench.operator.page import write_page
from bench.operator.site import site, wait
from tests.rljob_operator.played_head import PlayedHeads

ROOT = Path(__file__).parents[2]
JOBS_OF_A_NODE, GPUS_OF_A_NODE = 6, 64
"""So many fit into a fake node's CPUs. Leases of a node for each job would keep the machine busy."""

CALM_JOBS, CALM_RATE = 60, 1.0
"""So few a second that none waits for another."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="in the full store (%(default)s)")
    parser.add_argument("--created", type=int, default=1000, help="created at --rate, twice (%(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="jobs a second (%(default)s)")
    parser.add_argument("--compared", type=int, default=300, help="RLJobs and RayJobs (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what is below is cleaned up
    nodes = -(-max(options.created, options.compared) // JOBS_OF_A_NODE)
    with (
        tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder,
        PlayedHeads() as heads,
        site(Path(folder), nodes, GPUS_OF_A_NODE, heads.template) as here,
    ):
        jobs = Jobs(here)
        here.start_operator()
        wait("the operator to lead", lambda: here.metric("rljob_operator_leader") == 1)
        empty = here.memory()
        lives = life(here, jobs, heads, 10, 60, 20)
        jobs.clear()
        _say(f"a job's life takes {sum(lives.calls.values()):.1f} calls")
        running = creation(here, jobs, options.created, options.rate, "running")
        _say(f"KubeRay running: p50 {running.p50:.2f} s, p99 {running.p99:.2f} s")
        jobs.clear()
        pair = compared(here, jobs, options.compared)
        with here.without_kuberay():
            calm = creation(here, jobs, CALM_JOBS, CALM_RATE, "calm")
            _say(f"KubeRay stopped, {CALM_RATE:g} a second: p50 {calm.p50:.2f} s, p99 {calm.p99:.2f} s")
            stopped = creation(here, jobs, options.created, options.rate, "stopped")
            _say(f"KubeRay stopped: p50 {stopped.p50:.2f} s, p99 {stopped.p99:.2f} s")
            stored = full(here, jobs, options.jobs, CALM_JOBS + options.created, empty)
            _say(f"{options.jobs} jobs are decided {stored.start:.1f} s after the start")
            arguments = " ".join(
                f"--{each} {getattr(options, each):g}" for each in ("jobs", "created", "rate", "compared")
            )
            write_page(lives, calm, stopped, running, stored, pair, options.output, arguments)
    _say(f"wrote {options.output / 'operator.md'}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
