"""A way into a Kubernetes cluster: the local one, or any that a kubeconfig names."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import write_secret

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


@dataclass(frozen=True)
class Access:
    """None is kubectl's own choice: $KUBECONFIG or ~/.kube/config, and the current context of that.

    cache: where kubectl and Helm keep what they have discovered; None is ~/.kube/cache.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    cache: Path | None = None

    def client(self) -> "ApiClient":
        from kubernetes.config import new_client_from_config  # a second of imports, which few need

        file = str(self.kubeconfig) if self.kubeconfig else None
        client: ApiClient = new_client_from_config(config_file=file, context=self.context)
        return client

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        """Its output. objects: its standard input."""
        run = subprocess.run(self.command(*arguments), input=objects, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)} failed: {run.stderr.strip()}")
        return run.stdout

    def rljob(self, *arguments: str) -> str:
        """What `kubectl rljob` prints."""
        folders = (Path(_kubectl()).parent, Path(sys.executable).parent)  # the plugin is installed beside Python
        path = os.pathsep.join((*map(str, folders), os.environ["PATH"]))
        context = [f"--context={self.context}"] if self.context else []
        run = subprocess.run(
            ["kubectl", "rljob", *arguments, *context],
            env={**os.environ, **self.variables, "PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            raise ClusterError(f"kubectl rljob {' '.join(arguments)} failed: {run.stderr.strip()}")
        return run.stdout

    def command(self, *arguments: str) -> list[str]:
        """kubectl's, for users who run it themselves."""
        return [_kubectl(), *self._flags(), *arguments]

    def _flags(self) -> list[str]:
        values = {"kubeconfig": self.kubeconfig, "context": self.context, "cache-dir": self.cache}
        return [f"--{name}={value}" for name, value in values.items() if value is not None]

    @property
    def variables(self) -> dict[str, str]:
        """For programs that look into their environment. They get the context by their own options."""
        values = {"KUBECONFIG": self.kubeconfig, "KUBECACHEDIR": self.cache}
        return {name: str(value) for name, value in values.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """A kubeconfig of this cluster and this user alone, with certificates and tokens in it."""
        view = self.kubectl("config", "view", "--minify", "--flatten", "--raw", "--output=yaml")
        settings: dict[str, Any] = yaml.safe_load(view)
        return settings

    def as_service_account(self, namespace: str, name: str, target: Path) -> "Access":
        """The same cluster with a ServiceAccount's token, and so with the rights of its roles; writes a kubeconfig."""
        token = self.kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h").strip()
        settings = self.settings()
        settings["users"] = [{"name": name, "user": {"token": token}}]
        settings["contexts"][0]["context"] |= {"user": name, "namespace": namespace}
        write_secret(target, yaml.safe_dump(settings).encode())
        return Access(target, cache=self.cache)


def _kubectl() -> str:
    built = BINARIES["kubectl"]
    found = str(built.path) if built.built else shutil.which("kubectl")
    if found is None:
        raise ClusterError("there is no kubectl: install it, or run .venv/bin/python -m e2e.cluster build kubectl")
    return found
