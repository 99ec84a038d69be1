"""`make chaos`: at least as many faults as asked for, over several jobs of a cluster with real nodes, two at a time.

Writes its part of docs/benchmarks/recovery.md, and a picture. Needs root, as real nodes do.
"""

import argparse
import os
import random
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import yaml

from bench.commits import last_change
from bench.recovery_page import write_part
from e2e.chaos.weights import differing
from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane
from e2e.cluster_chaos.faults import Fault, draw
from e2e.cluster_chaos.report import page
from e2e.cluster_chaos.timeline import draw as draw_picture
from e2e.cluster_chaos.trial import Trial, patiently, problems, remove, trial
from e2e.nodes import release
from e2e.scenarios.job import Job

_CODE = (
    "trainer/src", "crds/src", "operator", "charts", "runtime_image", "requirements", "examples/reverse-text.yaml",
    "e2e/chaos", "e2e/cluster", "e2e/cluster_chaos", "e2e/nodes", "e2e/scenarios/job.py",
)  # fmt: skip
"""What decides the results."""

LANES = 2
"""Jobs at a time."""

FAULTS_EACH = 9
"""Of a job, at most."""


def main() -> None:
    options = _arguments()
    folder = Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex[:8]}"  # goes with the cluster
    try:
        with tempfile.TemporaryDirectory() as helm_home, release.operated(folder, Path(helm_home)) as plane:
            failed = _campaign(plane, options)
    except (AssertionError, ClusterError) as error:
        sys.exit(f"chaos: {error}")
    sys.exit("\n".join(failed) or None)


def _campaign(plane: Plane, options: argparse.Namespace) -> list[str]:
    """What is wrong."""
    with _job(plane) as job:
        calm = trial(job, plane, iter(()), random.Random(0))
        wrong = problems(calm)
        shares = [options.faults // LANES + (lane < options.faults % LANES) for lane in range(LANES)]
        with ThreadPoolExecutor(LANES) as lanes:
            tasks = [
                lanes.submit(_lane, plane, calm, share, random.Random(f"{options.seed}/{lane}"))
                for lane, share in enumerate(shares)
            ]
        ends = [task.result() for task in tasks]
        trials = [each for done, _ in ends for each in done]
        wrong += [problem for _, found in ends for problem in found]
        remove(job, calm)
        wrong += [f"{job.namespace}: {each} is left" for each in calm.left]
    verdict = (
        f"All {len(trials)} jobs succeeded with each step once and the undisturbed job's weights, bit for bit; no"
        " finished group of the journal was generated again, no update of a durable checkpoint was repeated, no job had"
        " two head pods or clusters, or two drivers or Ray heads for longer than stated below, and none left an object"
        " or a volume behind."
        if not wrong
        else f"WRONG: {'; '.join(wrong)}."
    )
    print(verdict, flush=True)
    if options.output and trials:
        write_part(options.output, "recovery_cluster.md", page(_about(options.seed, trials), calm, trials, verdict))
        draw_picture(trials, options.output / "recovery_cluster.png")
    return wrong


def _lane(plane: Plane, calm: Trial, faults: int, dice: random.Random) -> tuple[list[Trial], list[str]]:
    """Jobs, one after the other, until so many faults have struck or something is wrong; and what that is."""
    done: list[Trial] = []
    while (left := faults - sum(len(each.struck) for each in done)) > 0:
        drawn: Iterator[Fault] = (draw(dice) for _ in range(min(left, FAULTS_EACH)))
        with _job(plane) as job:
            try:
                found = trial(job, plane, drawn, dice, _say)
                done.append(found)
                wrong = _judged(found, calm)
                remove(job, found)
                wrong += [f"{each} is left" for each in found.left]
            except (AssertionError, ClusterError) as error:  # the other lane's jobs still count
                wrong = [str(error)]
        if wrong:
            wrong = [f"{job.namespace}: {each}" for each in wrong]
            _say("; ".join(wrong))
            return done, wrong
    return done, []


def _judged(found: Trial, calm: Trial) -> list[str]:
    wrong = problems(found)
    if not wrong and (names := differing(calm.volume.root, found.volume.root)):
        wrong = [f"{len(names)} parameters differ from the undisturbed job's, {names[0]} for one"]
    _say(f"{found.name}: {found.status.get('phase')} after {len(found.struck)} faults")
    return wrong


@contextmanager
def _job(plane: Plane) -> Iterator[Job]:
    """In a namespace of its own. Of kubectl alone, for the API server may be away at any time."""
    namespace = f"rljob-chaos-{uuid.uuid4().hex[:8]}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": release.RESTRICTED}}
    job = Job(plane.access, namespace)
    apply = ("apply", "--server-side", "--filename=-")
    patiently(lambda: job.access.kubectl(*apply, objects=yaml.safe_dump(manifest)))
    patiently(lambda: job.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=60s"))
    try:
        yield job
    finally:
        patiently(lambda: job.access.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found"))


def _about(seed: int, trials: list[Trial]) -> str:
    struck = sum(len(each.struck) for each in trials)
    return (
        f"`make chaos` of commit {last_change(_CODE)} on {os.cpu_count()} CPU cores, {datetime.now(UTC):%Y-%m-%d},"
        f" seed {seed}: {struck} faults in {len(trials)} jobs, {LANES} at a time, on a cluster whose {release.NODES}"
        " nodes share these cores with everything that they run. `recovery.hangAfter` is 5s, and a kubelet restarts a"
        " killed container within 10 s. If a fault ends the attempt (pods, containers, drivers, ranks), times end with"
        " the next attempt's steps."
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster_chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=50, help="how many, over all jobs")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of when they strike")
    parser.add_argument("--output", type=Path, help="folder for recovery.md, its parts and pictures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
