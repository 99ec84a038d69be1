"""The operator as a process, before a real API server, with heads that are played."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.access import Access
from tests.e2e.waiting import eventually


@dataclass
class OperatorProcess:
    """One replica. namespace: that it looks after; None for all. home: of its Lease and key. module: what is run."""

    kubeconfig: Path
    namespace: str | None
    home: str
    head_url: str
    log: Path
    module: str = "rljob_operator"
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": str(self.log.parent),  # keys are written there, which a killed operator leaves
        }
        options = [
            *(["--namespace", self.namespace] if self.namespace else []),
            "--operator-namespace", self.home, "--head-url", self.head_url,
            "--trainer-image", "trainer:1", "--poll-seconds", "0.5", "--listen", "127.0.0.1:0",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "run", *options], env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """As Kubernetes does it. Returns the exit code."""
        return self._signal(signal.SIGTERM)

    def gone(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def metric(self, name: str, **labels: str) -> float:
        """The sum of what it tells Prometheus under that name and these labels, among others."""
        url = re.findall(r'"url": "(http://127\.0\.0\.1:\d+)"', self.log.read_text())[-1]
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def _signal(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=120)


@contextmanager
def running_operator(
    access: Access, namespace: str | None, head_url: str, folder: Path, home: str | None = None,
    module: str = "rljob_operator",
) -> Iterator[OperatorProcess]:  # fmt: skip
    """folder: for its log, whose end is shown where a test fails. home: the namespace, if None."""
    lives_in = home or namespace
    assert lives_in is not None
    kubeconfig = folder / "operator.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(access.settings()))
    operator = OperatorProcess(kubeconfig, namespace, lives_in, head_url, folder / "operator.log", module)
    operator.start()
    try:
        eventually(lambda: "lease_acquired" in operator.log.read_text() or operator.gone())
        assert not operator.gone()
        yield operator
    except BaseException:
        print(operator.log.read_text()[-4000:])
        raise
    finally:
        if not operator.gone():
            operator.thaw()
            operator.kill()


def crashed(operator: OperatorProcess) -> bool:
    return eventually(operator.gone)
