"""What chaos strikes in a cluster: processes of a job, its pods, and those who look after it."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane
from e2e.nodes import release
from e2e.scenarios.job import Job

_STRIKE = """
import psutil, sys
title, number = sys.argv[1:]
found = []
for process in psutil.process_iter(["cmdline", "cpu_times"]):
    words = process.info["cmdline"] or [""]
    if words[0].startswith(title) or {title, "--attempt"} <= set(words):
        found.append(process)
if found:  # of engines the one that works, not its spare
    struck = max(found, key=lambda each: each.info["cpu_times"].user)
    struck.send_signal(int(number))
    print(struck.pid)
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """strike: whether it struck anything. weight: how often it is drawn.

    costs_attempt: whether the steps that come after are another attempt's. Pods that are deleted live a moment longer.
    """

    name: str
    weight: float
    strike: Callable[[Job, Plane], bool]
    costs_attempt: bool = False


def _process(title: str, number: signal.Signals) -> Callable[[Job, Plane], bool]:
    def strike(job: Job, _plane: Plane) -> bool:
        pods = [*job.pods("head"), *job.pods("worker")]
        return any(_exec(job, pod, title, number) for pod in pods)

    return strike


def _exec(job: Job, pod: str, title: str, number: signal.Signals) -> bool:
    try:
        return bool(job.kubectl("exec", pod, "--", "python", "-c", _STRIKE, title, str(int(number))).strip())
    except ClusterError:  # the pod ends, or has not begun
        return False


def _pod(role: str) -> Callable[[Job, Plane], bool]:
    def strike(job: Job, _plane: Plane) -> bool:
        pods = job.pods(role)
        for pod in pods:
            job.kubectl("delete", pod, "--force", "--grace-period=0", "--ignore-not-found")
        return bool(pods)

    return strike


def _operator(_job: Job, plane: Plane) -> bool:
    plane.access.kubectl("delete", "pods", *release.PODS, "--force", "--grace-period=0")
    return True


def _component(name: str) -> Callable[[Job, Plane], bool]:
    def strike(_job: Job, plane: Plane) -> bool:
        plane.stop(name, grace=0)
        plane.start(name)
        return True

    return strike


FAULTS: Final = (
    Fault("driver killed", 3, _process("driver", signal.SIGKILL)),
    Fault("driver frozen", 1, _process("driver", signal.SIGSTOP)),
    Fault("rank killed", 2, _process("ray::ActorHost", signal.SIGKILL)),
    Fault("rank frozen", 1, _process("ray::ActorHost", signal.SIGSTOP)),
    Fault("engine killed", 2, _process("ray::EngineHost", signal.SIGKILL)),
    Fault("engine frozen", 1, _process("ray::EngineHost", signal.SIGSTOP)),
    Fault("scorer killed", 1, _process("ray::RewardHost", signal.SIGKILL)),
    Fault("worker pod deleted", 2, _pod("worker"), costs_attempt=True),
    Fault("head pod deleted", 2, _pod("head"), costs_attempt=True),
    Fault("operator killed", 2, _operator),
    Fault("API server killed", 1, _component("kube-apiserver")),
    Fault("KubeRay killed", 1, _component("kuberay-operator")),
)


def draw(dice: random.Random) -> Fault:
    return dice.choices(FAULTS, [fault.weight for fault in FAULTS])[0]
