"""Where it is measured: a control plane of its own, and the operator in a process, as a user of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from e2e.cluster import processes
from e2e.cluster.access import Access
from e2e.cluster.plane import Plane
from e2e.cluster.sharing import shared
from rljob_trainer.local.machine import dying_with_its_parent

NAMESPACE = "bench"
OPERATOR = "rljob-operator"
CLIENT, OTHERS = "what creates the jobs", "others on the machine"
USERS = {f"system:serviceaccount:{NAMESPACE}:{OPERATOR}": OPERATOR, "kuberay-operator": "kuberay-operator"}
PATIENCE_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API server. received, answered: seconds since the epoch, by the server's clock."""

    user: str
    verb: str
    resource: str
    name: str
    code: int
    received: float
    answered: float

    @property
    def writes(self) -> bool:
        return self.verb not in {"get", "list", "watch"}


@dataclass
class Site:
    """plane: running. heads: template of the heads' address. account: the operator's way into the cluster."""

    plane: Plane
    account: Access
    folder: Path
    heads: str
    operator: subprocess.Popen[bytes] | None = None
    _port: int = 0
    _read: int = field(default=0, repr=False)

    def start_operator(self) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        options = [
            "--namespace", NAMESPACE, "--operator-namespace", NAMESPACE, "--trainer-image", "trainer:1",
            "--head-url", self.heads, "--listen", f"127.0.0.1:{self._port}",
        ]  # fmt: skip
        environment = os.environ | {"KUBECONFIG": str(self.account.kubeconfig), "TMPDIR": str(self.folder)}
        command = dying_with_its_parent([sys.executable, "-m", "rljob_operator", "run", *options])
        with self._log.open("ab") as log:
            self.operator = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def end_operator(self) -> None:
        assert self.operator is not None
        self.operator.send_signal(signal.SIGTERM)
        self.operator.wait(60)
        self.operator = None

    @property
    def _log(self) -> Path:
        return self.folder / "operator.log"

    def metric(self, name: str) -> float:
        """Sum over all labels; 0 while the operator does not answer. Raises LookupError for one that it lacks."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        if not any(line.startswith(f"# HELP {name.removesuffix('_count')} ") for line in lines):
            raise LookupError(f"the operator has no metric {name}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each component has used, this process, and whatever else is on the machine."""
        found = processes.find(self.plane.folder)
        used = {name: sum(map(_seconds, pids)) for name, pids in found.items() if name != "guard"}
        if self.operator is not None and self.operator.poll() is None:
            used[OPERATOR] = _seconds(self.operator.pid)
        used[CLIENT] = _seconds(os.getpid())
        return used | {OTHERS: _machine_seconds() - sum(used.values())}

    def memory(self) -> int:
        """Bytes of the operator."""
        assert self.operator is not None
        return int(psutil.Process(self.operator.pid).memory_info().rss)

    def calls(self) -> list[Call]:
        """Those in the namespace since the last look. Raises RuntimeError where the operator has ended by itself."""
        if self.operator is not None and self.operator.poll() is not None:
            raise RuntimeError(f"the operator has ended: {self._log.read_text()[-2000:]}")
        found: list[Call] = []
        with self.plane.layout.audit_log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                event = json.loads(line)
                about = event.get("objectRef", {})
                if about.get("namespace") == NAMESPACE and event["stage"] == "ResponseComplete":
                    found.append(_call(event, about))
        return found

    @contextmanager
    def without_kuberay(self) -> Iterator[None]:
        self.plane.stop("kuberay-operator")
        try:
            yield
        finally:
            self.plane.start("kuberay-operator")


def _call(event: dict[str, Any], about: dict[str, Any]) -> Call:
    user = event["user"]["username"]
    resource = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
    received, answered = (
        datetime.fromisoformat(event[moment]).timestamp() for moment in ("requestReceivedTimestamp", "stageTimestamp")
    )
    code = event["responseStatus"]["code"]
    asked = event.get("requestObject", {}).get("metadata", {})
    name = about.get("name") or asked.get("generateName", "")  # a name that the API server makes is not in its log
    return Call(USERS.get(user, user), event["verb"], resource, name, code, received, answered)


def _seconds(process: int) -> float:
    try:
        times = psutil.Process(process).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _machine_seconds() -> float:
    """In which its cores were not idle."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """By component, the largest first."""
    seconds = Counter({name: after[name] - before.get(name, 0.0) for name in after})
    return dict(seconds.most_common())


def wait(what: str, holds: Callable[[], bool], pause: float = 0.5, patience: float = PATIENCE_SECONDS) -> None:
    """Says what it waits for, once a minute."""
    begin = said = time.monotonic()
    while not holds():
        now = time.monotonic()
        if now - begin > patience:
            raise TimeoutError(f"waited {patience:.0f} s for {what}")
        if now - said > 60:
            said = now
            print(f"waiting for {what} since {now - begin:.0f} s", flush=True)
        time.sleep(pause)


@contextmanager
def site(folder: Path, nodes: int, gpus: int, heads: str, kueue: bool = False) -> Iterator[Site]:
    cluster = Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex[:8]}"  # the guard removes it, after this process
    with shared(cluster, nodes, gpus, kueue=kueue) as plane:
        access = plane.access
        access.kubectl("create", "namespace", NAMESPACE)
        access.kubectl("create", "serviceaccount", OPERATOR, f"--namespace={NAMESPACE}")
        binding = ["clusterrolebinding", OPERATOR, "--clusterrole=cluster-admin"]
        access.kubectl("create", *binding, f"--serviceaccount={NAMESPACE}:{OPERATOR}")
        account = access.as_service_account(NAMESPACE, OPERATOR, folder / "operator.kubeconfig")
        made = Site(plane, account, folder, heads)
        try:
            yield made
        finally:
            if made.operator is not None and made.operator.poll() is None:
                made.operator.kill()
                made.operator.wait()
