"""Leaders in processes of their own, against a real API server: frozen, killed, and told to hand over."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import yaml

from tests.e2e import lease_leader
from tests.e2e.waiting import SECONDS, eventually

SHORT = ("10", "8", "0.5")  # duration, renew deadline, retry
AN_HOUR = ("3600", "3000", "0.5")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cluster, namespace, tmp_path) -> Iterator[Start]:
    """Starts a leader; all are gone afterwards."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(cluster.settings()))
    variables = {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as running:

        def start(terms: tuple[str, str, str]) -> "subprocess.Popen[str]":
            command = [sys.executable, "-m", "tests.e2e.lease_leader", namespace, *terms]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
            running.enter_context(process)
            running.callback(process.kill)
            return process

        yield start


def leads(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return any("leads" in line for line in iter(process.stdout.readline, ""))


@pytest.fixture
def written(cluster, namespace) -> Callable[["subprocess.Popen[str]"], set[str]]:
    def names(process: "subprocess.Popen[str]") -> set[str]:
        selector = f"--selector=writer={process.pid}"
        return set(cluster.kubectl("get", "configmaps", f"--namespace={namespace}", selector, "--output=name").split())

    return names


def test_a_frozen_leader_is_replaced_and_writes_nothing_when_it_thaws(start, written) -> None:
    """Frozen at its own hands, not between a look at the fence and the socket: what is handed over there goes out."""
    first = start(SHORT)
    assert leads(first)
    eventually(lambda: written(first))
    second = start(SHORT)
    first.send_signal(lease_leader.FREEZE)
    try:
        assert leads(second)
        before = eventually(lambda: written(first))
    finally:
        first.send_signal(signal.SIGCONT)
    assert first.wait(SECONDS) == lease_leader.LOST
    assert written(first) == before
    eventually(lambda: written(second))


def test_a_killed_leader_is_replaced(start, written) -> None:
    first = start(SHORT)
    assert leads(first)
    first.kill()
    second = start(SHORT)
    assert leads(second)
    eventually(lambda: written(second))


def test_a_leader_that_is_told_to_end_hands_over_long_before_its_lease_runs_out(cluster, namespace, start) -> None:
    first = start(AN_HOUR)
    assert leads(first)
    second = start(AN_HOUR)
    first.terminate()
    assert first.wait(SECONDS) == 0
    assert leads(second)
    record = yaml.safe_load(cluster.kubectl("get", "lease/leader", f"--namespace={namespace}", "--output=yaml"))["spec"]
    assert record["leaseTransitions"] == 1
    assert record["leaseDurationSeconds"] == 3600
