"""`kubectl rljob` as a user has it: on the PATH beside kubectl, with a kubeconfig. And RLJobs with decided statuses."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, CustomObjectsApi

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.fixtures import JOBS
from rljob_api.v1alpha1 import RLJobStatus
from rljob_operator import names
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.settings import Settings
from tests.rljob_operator.decisions import decide
from tests.rljob_operator.snapshots import SETTINGS, SPEC, snapshot

REPOSITORY = Path(__file__).parents[2]
RLJOBS = JOBS[0]

GONE_SECONDS = 30.0
"""How long a command may take to end by Ctrl-C."""


def install(folder: Path) -> Path:
    """The plugin and kubectl, in a folder for the PATH; the plugin as installers write it."""
    scripts = tomllib.loads((REPOSITORY / "operator/pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["kubectl-rljob"].partition(":")
    plugin = folder / "kubectl-rljob"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    plugin.chmod(0o755)
    (folder / "kubectl").symlink_to(BINARIES["kubectl"].path)
    return folder


@dataclass(frozen=True)
class Shell:
    """folder: of the programs. access: to the cluster."""

    folder: Path
    access: Access
    namespace: str

    @property
    def environment(self) -> dict[str, str]:
        variables = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return {**os.environ, **variables, **self.access.variables}

    def command(self, *arguments: str) -> list[str]:
        context = [f"--context={self.access.context}"] if self.access.context else []
        return ["kubectl", "rljob", *arguments, f"--namespace={self.namespace}", *context]

    @contextmanager
    def running(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Ended at last by Ctrl-C, which all that it started gets too."""
        with subprocess.Popen(
            self.command(*arguments), env=self.environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                for number in (signal.SIGINT, signal.SIGKILL):
                    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, number)
                        process.wait(GONE_SECONDS)

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        done = subprocess.run(
            self.command(*arguments), env={**self.environment, **variables}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def output(self, *arguments: str) -> str:
        code, out, errors = self.run(*arguments)
        assert code == 0, errors
        return out

    def error(self, *arguments: str, **variables: str) -> str:
        """The one line of a command that fails."""
        code, out, errors = self.run(*arguments, **variables)
        assert (code, out) == (1, "")
        assert errors.count("\n") == 1
        return errors.removeprefix("error: ").strip()


@dataclass(frozen=True)
class Jobs:
    """RLJobs of one namespace."""

    client: ApiClient
    namespace: str

    @property
    def _api(self) -> CustomObjectsApi:
        return CustomObjectsApi(self.client)

    def create(self, name: str = "job", **spec: Any) -> Job:
        manifest = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
        body = manifest | {"spec": {**SPEC, **spec}}
        made: Any = self._api.create_namespaced_custom_object(**RLJOBS, namespace=self.namespace, body=body)
        return read_job(made)

    def get(self, name: str = "job") -> dict[str, Any]:
        found: Any = self._api.get_namespaced_custom_object(**RLJOBS, namespace=self.namespace, name=name)
        return dict(found)

    def change(self, name: str = "job", **spec: Any) -> None:
        body = {"spec": spec}
        self._api.patch_namespaced_custom_object(**RLJOBS, namespace=self.namespace, name=name, body=body)

    def hold(self, name: str = "job") -> None:
        """With the operator's finalizer, which the namespace's end takes away."""
        body = {"metadata": {"finalizers": [names.FINALIZER]}}
        self._api.patch_namespaced_custom_object(**RLJOBS, namespace=self.namespace, name=name, body=body)

    def delete(self, name: str = "job") -> None:
        self._api.delete_namespaced_custom_object(**RLJOBS, namespace=self.namespace, name=name)

    def decide(self, name: str = "job", settings: Settings = SETTINGS, **given: Any) -> RLJobStatus:
        """Write the status that the operator would, with such a snapshot."""
        status = decide(_at_present(snapshot(read_job(self.get(name)), **given)), settings).status
        assert status is not None
        body = {"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
        self._api.patch_namespaced_custom_object_status(**RLJOBS, namespace=self.namespace, name=name, body=body)
        return status


def pod(name: str, role: str, *containers: str, job: str = "job", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """As KubeRay makes them of our templates, as far as anybody looks. gpus: of the first container."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    first, *others = ({"name": container, "image": "trainer"} for container in containers)
    labels = {**names.labels(job), names.ROLE_LABEL: role}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [first | limits, *others], **spec}}


def _at_present(snapshot: Snapshot) -> Snapshot:
    """Of this job, now: the builders know one job at one time."""
    for cluster in snapshot.children.get(RAY_CLUSTER, {}).values():
        cluster["metadata"]["ownerReferences"][0]["uid"] = snapshot.job.uid
    return replace(snapshot, now=datetime.now(UTC).replace(microsecond=0))
