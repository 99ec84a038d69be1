"""What chaos strikes in a cluster: processes of a job, its pods, and those who look after it.

A pod that is deleted ends as any does, also by force: its kubelet runs preStop and sends SIGTERM first. That is a
graceful end. A container that is killed gets SIGKILL from its node, without a request.
"""

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane
from e2e.nodes import containers, kuberay, release
from e2e.scenarios.job import Job
from rljob_operator.names import HEAD, HEAD_CONTAINER, JOB_LABEL, ROLE_LABEL, WORKER, WORKER_CONTAINER

_STRIKE = """
import psutil, sys, time
title, number = sys.argv[1:]
found = []
for process in psutil.process_iter(["cmdline", "cpu_times"]):
    words = process.info["cmdline"] or [""]
    if words[0].startswith(title) or {title, "--attempt"} <= set(words):
        found.append(process)
if found:  # of engines the one that works, not its spare
    struck = max(found, key=lambda each: each.info["cpu_times"].user)
    struck.send_signal(int(number))
    print(time.time())
"""

OPERATOR_CONTAINER = "operator"
"""In the chart's Deployment."""

Strike = Callable[[Job, Plane], float | None]
"""Unix time at which it struck, None where there was nothing to strike."""


@dataclass(frozen=True, slots=True)
class Fault:
    """weight: how often it is drawn.

    costs_attempt: whether the steps that come after are another attempt's. Pods that are deleted live a moment longer.
    scores_again: whether groups that were scored may get another record of their score.
    """

    name: str
    weight: float
    strike: Strike
    costs_attempt: bool = False
    scores_again: bool = False


def _process(title: str, number: signal.Signals) -> Strike:
    def strike(job: Job, _plane: Plane) -> float | None:
        struck = (_exec(job, pod, title, number) for pod in (*job.pods("head"), *job.pods("worker")))
        return next((at for at in struck if at is not None), None)

    return strike


def _exec(job: Job, pod: str, title: str, number: signal.Signals) -> float | None:
    """It takes a second to get there, so the pod says when it was."""
    try:
        told = job.kubectl("exec", pod, "--", "python", "-c", _STRIKE, title, str(int(number)))
    except ClusterError:  # the pod ends, or has not begun
        return None
    return float(told) if told.strip() else None


def _pod(role: str) -> Strike:
    def strike(job: Job, _plane: Plane) -> float | None:
        pods, at = job.pods(role), time.time()
        for pod in pods:
            job.kubectl("delete", pod, "--force", "--grace-period=0", "--ignore-not-found")
        return at if pods else None

    return strike


def _container(role: str, name: str) -> Strike:
    def strike(job: Job, plane: Plane) -> float | None:
        selector = f"--selector={JOB_LABEL}={job.name},{ROLE_LABEL}={role}"
        return _kill(plane, name, f"--namespace={job.namespace}", selector)

    return strike


def _operator_container(name: str, pods: tuple[str, ...]) -> Strike:
    def strike(_job: Job, plane: Plane) -> float | None:
        return _kill(plane, name, *pods)

    return strike


def _kill(plane: Plane, name: str, *pods: str) -> float | None:
    """All running containers of that name. pods: kubectl's arguments that choose theirs."""
    found = json.loads(plane.access.kubectl("get", "pods", *pods, "--output=json"))["items"]
    struck = None
    for container in containers.running(found, name):
        at = time.time()
        with suppress(ClusterError):  # it has ended meanwhile
            containers.kill(plane.folder, container)
            struck = struck or at
    return struck


def _operator_pods(_job: Job, plane: Plane) -> float:
    at = time.time()
    plane.access.kubectl("delete", "pods", *release.PODS, "--force", "--grace-period=0")
    return at


def _component(name: str) -> Strike:
    def strike(_job: Job, plane: Plane) -> float:
        at = time.time()
        plane.stop(name, grace=0)
        plane.start(name)
        return at

    return strike


FAULTS: Final = (
    Fault("driver killed", 3, _process("driver", signal.SIGKILL), costs_attempt=True),
    Fault("driver frozen", 1, _process("driver", signal.SIGSTOP), costs_attempt=True),
    Fault("rank killed", 2, _process("ray::RankHost", signal.SIGKILL), costs_attempt=True),
    Fault("rank frozen", 1, _process("ray::RankHost", signal.SIGSTOP), costs_attempt=True),
    Fault("engine killed", 2, _process("ray::EngineHost", signal.SIGKILL)),
    Fault("engine frozen", 1, _process("ray::EngineHost", signal.SIGSTOP)),
    Fault("scorer killed", 1, _process("ray::RolloutHost", signal.SIGKILL), scores_again=True),
    Fault("worker container killed", 2, _container(WORKER, WORKER_CONTAINER), costs_attempt=True),
    Fault("head container killed", 2, _container(HEAD, HEAD_CONTAINER), costs_attempt=True),
    Fault("worker pod deleted", 2, _pod(WORKER), costs_attempt=True),
    Fault("head pod deleted", 2, _pod(HEAD), costs_attempt=True),
    Fault("operator container killed", 2, _operator_container(OPERATOR_CONTAINER, release.PODS)),
    Fault("operator pod deleted", 1, _operator_pods),
    Fault("API server killed", 1, _component("kube-apiserver")),
    Fault("KubeRay killed", 1, _operator_container(kuberay.CONTAINER, kuberay.PODS)),
)


def draw(dice: random.Random) -> Fault:
    return dice.choices(FAULTS, [fault.weight for fault in FAULTS])[0]
