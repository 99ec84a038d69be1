"""The Helm that is built here, without any settings of the user's."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError


@dataclass(frozen=True)
class Helm:
    """home: what it keeps for itself. access: to the cluster that it installs into."""

    home: Path
    access: Access | None = None

    def __call__(self, *arguments: str, values: str = "") -> str:
        """Its output. values: YAML that the argument --values=- reads."""
        command = [str(BINARIES["helm"].path), *arguments]
        folders = {f"HELM_{part}_HOME": str(self.home / part.lower()) for part in ("CACHE", "CONFIG", "DATA")}
        run = subprocess.run(
            command, input=values, env={**os.environ, **folders, **self._cluster()}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if run.returncode:
            raise ClusterError(f"helm {' '.join(arguments)} failed: {run.stderr.strip()}")
        return run.stdout

    def _cluster(self) -> dict[str, str]:
        """It knows no cluster but the named one, whatever the user's kubeconfig says."""
        if self.access is None:
            return {"KUBECONFIG": os.devnull}
        context = {"HELM_KUBECONTEXT": self.access.context} if self.access.context else {}
        return {**self.access.variables, **context}
