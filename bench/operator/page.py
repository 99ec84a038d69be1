"""operator.md."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.commits import last_change
from bench.operator.figures import Compared, Creation, Full, Life, percentile
from bench.operator.site import CLIENT, OPERATOR, OTHERS
from e2e.cluster.binaries import BINARIES, KUBERNETES

CODE = ("bench/operator", "crds", "e2e/cluster", "operator", "tests/rljob_operator/played_head.py")
"""What decides a result."""

START_GOAL, START_GOAL_JOBS, CREATION_GOAL = 30.0, 10_000, 1.0


def write_page(
    lives: Life, calm: Creation, stopped: Creation, running: Creation, stored: Full, pair: tuple[Compared, Compared],
    folder: Path, arguments: str,
) -> None:  # fmt: skip
    kuberay = BINARIES["kuberay-operator"].version
    about = (
        f'`make bench-operator ARGS="{arguments}"`'
        f" of commit {last_change(CODE)} on {os.cpu_count()} CPU cores, {datetime.now(UTC):%Y-%m-%d}:"
        f" Kubernetes {KUBERNETES} (etcd without fsync, all of it with GOGC=300), KubeRay {kuberay} and KWOK's fake"
        " nodes share them with the operator and with what creates the jobs. Each job asks for 2 nodes with 4"
        " GPUs. Times are the API server's, from its audit log."
    )
    parts = ["# The operator on a real API server", about]
    parts += ["## From apply to all children", _creation(calm, stopped, running)]
    parts += ["## A store full of jobs", _full(stored)]
    parts += ["## The calls of a job's life", _life(lives)]
    parts += ["## Beside KubeRay's RayJob", _compared(pair)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "operator.md").write_text("\n\n".join(parts) + "\n")


def _creation(calm: Creation, stopped: Creation, running: Creation) -> str:
    each = {f"stopped, {calm.rate:g} a second": calm, "stopped": stopped, "running": running}
    rows = [
        [
            name, f"{of.jobs / of.seconds:.1f}", f"{of.jobs / of.wall:.1f}", f"{of.p50:.2f} s", f"{of.p99:.2f} s",
            f"{max(of.latencies):.2f} s", f"{sum(of.calls.values()) / of.jobs:.1f}", *_busy(of.cpu, of.wall),
        ]
        for name, of in each.items()
    ]  # fmt: skip
    head = [
        "KubeRay", "created a second", "complete a second", "p50", "p99", "worst", "our calls per job",
        "of the cores, this", "others",
    ]  # fmt: skip
    text = (
        f"{stopped.jobs} RLJobs, {stopped.rate:g} a second: from the moment that a job reaches the API server to the"
        " moment that its last child (ConfigMap, Secret, NetworkPolicy, PodDisruptionBudget, volume claim, RayCluster)"
        f" is stored. With KubeRay stopped it is our share; the goal is a p99 below {CREATION_GOAL:g} s, which is"
        f" {_met(stopped.p99 < CREATION_GOAL)}. So many jobs a second take"
        f" {_cores(stopped, 'kube-apiserver')} cores of the API server and {_cores(stopped, OPERATOR)} of the operator,"
        f" and {_cores(stopped)} with all else that the table below has, but for others; there are {os.cpu_count()}."
        f" {calm.jobs} jobs, {calm.rate:g} a second, show how long a job takes that waits for no other; its"
        f" share of the CPU below has {1 / calm.rate:.2g} s in it of what the cluster does by itself, as renewing the"
        " Leases of its fake nodes."
    )
    cpu = _cpu({name: {who: 1000 * s / of.jobs for who, s in of.cpu.items()} for name, of in each.items()}, "ms")
    return "\n\n".join([text, _table(head, rows), "Milliseconds of CPU per job, by component and KubeRay:", cpu])


def _cores(of: Creation, who: str | None = None) -> str:
    """That a component needs to keep up with the rate; without one, all but others' work."""
    seconds = sum(s for each, s in of.cpu.items() if each != OTHERS) if who is None else of.cpu.get(who, 0.0)
    return f"{of.rate * seconds / of.jobs:.1f}"


def _full(of: Full) -> str:
    empty, filled = of.memory
    verdict = _met(of.start < START_GOAL) if of.jobs >= START_GOAL_JOBS else f"for {START_GOAL_JOBS} jobs"
    goal = f"goal {START_GOAL:g} s: {verdict}"
    rows = [
        ["from operator start to every one decided", f"{of.start:.1f} s ({goal})"],
        ["writes meanwhile", str(of.writes)],
        ["reconciles", str(of.reconciles)],
        ["of the cores meanwhile, this and others", ", ".join(_busy(of.start_cpu, of.start))],
        ["memory of the operator, without jobs and with them", f"{empty / 2**20:.0f} and {filled / 2**20:.0f} MiB"],
        ["memory per job", f"{(filled - empty) / of.jobs / 2**10:.1f} KiB"],
    ]  # fmt: skip
    text = (
        f"{of.jobs} RLJobs whose children exist, KubeRay stopped, all but the first ones with one claim. It took"
        f" {of.filled:.0f} s to create them. Rest is the time from one listing of everything to the next."
    )
    cpu = _cpu(
        {
            "start": of.start_cpu,
            f"rest, {of.rest_seconds:.0f} s": of.rest,
        },
        "s",
    )
    return "\n\n".join([text, _table(["what", "measured"], rows), "Seconds of CPU, by component:", cpu])


def _life(of: Life) -> str:
    rows = [[verb, resource, f"{number:.1f}"] for (verb, resource), number in of.calls.items()]
    rows.append(["all", "", f"{sum(of.calls.values()):.1f}"])
    text = (
        f"Calls of the operator to the API server from a job's creation to Succeeded, the mean of {of.jobs} jobs whose"
        f" played drivers take {of.steps} steps of a second and save a checkpoint every {of.every} steps. Watches,"
        " lists and the Lease are shared by all jobs."
    )
    return "\n\n".join([text, _table(["verb", "resource", "calls"], rows)])


def _compared(pair: tuple[Compared, Compared]) -> str:
    rows = [
        [
            of.kind, _spread(of.cluster), _spread(of.pods), f"{len(of.pods)} of {of.jobs}",
            f"{sum(of.calls.values()):.0f}",
        ]
        for of in pair
    ]  # fmt: skip
    text = (
        f"{pair[0].jobs} jobs of each kind, created as fast as the API server takes them, one kind after the other;"
        " the RayJobs have the spec of the RLJobs' RayClusters, without our labels and without upgradeStrategy, which"
        " KubeRay refuses there. What one kind left is gone before the other one begins."
        " Their CRD has no schema in this control plane, so the API server judges an RLJob more closely than a RayJob."
        " Seconds from a job's arrival (p50 and p99)."
        " An RLJob has five more children than a RayJob, and a status that follows its pods."
    )
    head = ["kind", "to its RayCluster", "to its last pod", "with all pods", "calls per job, of all clients"]
    calls = {of.kind: dict(of.calls) for of in pair}
    return "\n\n".join([
        text, _table(head, rows), "Calls to the API server per job, by who makes them:", _cpu(calls, ""),
        "Milliseconds of CPU per job, by component:",
        _cpu({of.kind: {who: 1000 * seconds for who, seconds in of.cpu.items()} for of in pair}, "ms"),
    ])  # fmt: skip


def _busy(cpu: Mapping[str, float], wall: float) -> tuple[str, str]:
    """Share of the cores that the components had, clients left out; and what is none of this."""
    others = cpu.get(OTHERS, 0.0)
    ours = sum(cpu.values()) - others - cpu.get(CLIENT, 0.0)
    cores = wall * (os.cpu_count() or 1)
    return f"{100 * ours / cores:.0f} %", f"{100 * others / cores:.0f} %"


def _spread(seconds: Sequence[float]) -> str:
    return f"{percentile(50, seconds):.2f}, {percentile(99, seconds):.2f}"


def _cpu(columns: Mapping[str, Mapping[str, float]], unit: str) -> str:
    names = sorted({who for column in columns.values() for who in column}, key=lambda who: -max(
        column.get(who, 0.0) for column in columns.values()
    ))  # fmt: skip
    rows = [[name, *(f"{column.get(name, 0.0):.1f}" for column in columns.values())] for name in names]
    head = ["who", *(f"{name} ({unit})" if unit else name for name in columns)]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _met(met: bool) -> str:
    return "met" if met else "missed"
