"""Time a full queue on a control plane with Kueue; writes queue.md.

python -m bench.queue [--jobs 1000] [--slots 4] [--output docs/benchmarks]
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes.client import CustomObjectsApi

from bench.commits import last_change
from bench.operator.figures import percentile
from bench.operator.measures import Jobs, for_rayjobs, numbered
from bench.operator.site import NAMESPACE, Site, site, wait
from bench.queue import measure, queues
from e2e.cluster.binaries import BINARIES, KUBERNETES
from tests.rljob_operator.played_driver import train
from tests.rljob_operator.played_head import PlayedHeads

ROOT = Path(__file__).parents[2]
CODE = ("bench/queue", "crds", "e2e/cluster", "operator", "tests/rljob_operator/played_head.py")
JOBS_OF_A_NODE, GPUS_OF_A_NODE = 6, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="of each kind (%(default)s)")
    parser.add_argument("--slots", type=int, default=4, help="jobs that the quota of one queue admits (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what is below is cleaned up
    slots = options.slots * len(queues.QUEUES)
    nodes = 2 * (1 + slots // JOBS_OF_A_NODE)  # the pods of a RayJob are there after its quota is released
    with (
        tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder,
        PlayedHeads() as heads,
        site(Path(folder), nodes, GPUS_OF_A_NODE, heads.template, kueue=True) as here,
    ):
        queues.create(here.plane.access, options.slots)
        here.start_operator()
        wait("the operator to lead", lambda: here.metric("rljob_operator_leader") == 1)
        jobs, api = Jobs(here), CustomObjectsApi(here.plane.access.client())
        ours, spec = rljobs(here, jobs, api, heads, options.jobs, slots)
        print(_row("RLJob", options.jobs, *ours), flush=True)  # RayJobs take as long again
        jobs.clear()
        theirs = rayjobs(here, api, spec, options.jobs, slots)
    write_page({"RLJob": ours, "RayJob": theirs}, options)


def rljobs(
    here: Site, jobs: Jobs, api: Any, heads: PlayedHeads, count: int, slots: int
) -> tuple[tuple[float, Sequence[float]], dict[str, Any]]:
    """Seconds of the whole run, the delays, and the spec of a RayCluster."""
    names, seen, begin = numbered("rljob", count), measure.Seen(here.plane.access.client, "rljob"), time.monotonic()
    for name in names:
        heads.add(NAMESPACE, name, script=train(2))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: measure.rljob(api, each[1], each[0]), enumerate(names)))
    wait("a RayCluster", lambda: bool(seen.started))
    spec = for_rayjobs(jobs.cluster_spec(next(iter(seen.started))))
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        group["template"]["metadata"]["annotations"] = {}  # they name the Workload of the RLJob
    del spec["authOptions"]  # its Secret goes with the RLJob
    measure.through(seen, names)
    return (time.monotonic() - begin, measure.delays(seen, slots)), spec


def rayjobs(here: Site, api: Any, spec: dict[str, Any], count: int, slots: int) -> tuple[float, Sequence[float]]:
    names, seen, begin = numbered("rayjob", count), measure.Seen(here.plane.access.client, "rayjob"), time.monotonic()
    ended = set[str]()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: measure.rayjob(api, each[1], each[0], spec), enumerate(names)))
    measure.through(seen, names, lambda: measure.end_rayjobs(api, ended))
    return time.monotonic() - begin, measure.delays(seen, slots)


def write_page(found: dict[str, tuple[float, Sequence[float]]], options: argparse.Namespace) -> None:
    about = (
        f'`make bench-queue ARGS="--jobs {options.jobs} --slots {options.slots}"` of commit {last_change(CODE)} on'
        f" {os.cpu_count()} CPU cores, {datetime.now(UTC):%Y-%m-%d}: Kubernetes {KUBERNETES}, Kueue"
        f" {BINARIES['kueue'].version}, KubeRay {BINARIES['kuberay-operator'].version} and KWOK's fake nodes on one"
        f" control plane, one kind of job after the other. {options.jobs} jobs wait in three queues of a cohort, six,"
        f" three and one of ten; each queue has quota for {options.slots} jobs and borrows. The drivers are played, and"
        f" all jobs share one volume."
    )
    rows = [_row(kind, options.jobs, *figures) for kind, figures in found.items()]
    table = "\n".join(["| kind | p50 | p99 | worst | jobs a second |", "| --- | --- | --- | --- | --- |", *rows])
    what = (
        "Seconds from the release of a quota (Finished of a Workload) to the RayCluster of the job that takes it, as"
        " one process sees both. An RLJob releases its quota once its pods are gone, a RayJob when its driver ends."
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "queue.md").write_text(f"# A full queue\n\n{about}\n\n{what}\n\n{table}\n")
    print(f"wrote {options.output / 'queue.md'}", flush=True)


def _row(kind: str, jobs: int, seconds: float, delays: Sequence[float]) -> str:
    return (
        f"| {kind} | {percentile(50, delays):.2f} s | {percentile(99, delays):.2f} s | {max(delays):.2f} s"
        f" | {jobs / seconds:.2f} |"
    )


if __name__ == "__main__":
    main()
