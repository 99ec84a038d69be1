"""The way to the API server: kubectl, with the user's own kubeconfig, credentials and proxy."""

import json
import re
import subprocess
from dataclasses import dataclass
from typing import Annotated, Any

import typer

Manifest = dict[str, Any]

RLJOBS = "rljobs.rljob.dev"
FIELD_MANAGER = "kubectl-rljob"

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="The default is the context's.", show_default=False),
]
Context = Annotated[
    str | None, typer.Option("--context", help="Of the kubeconfig; the default is the current one.", show_default=False)
]


class Problem(Exception):
    """What ends a command, in one line with its remedy."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Raises Problems. namespace, context: None for kubectl's own choice."""

    namespace: str | None = None
    context: str | None = None

    def get(self, resource: str, *arguments: str) -> Manifest:
        """One object, or a list of them."""
        found: Manifest = json.loads(self._output("get", resource, *arguments, "--output=json"))
        return found

    def raw(self, path: str) -> Manifest | None:
        """What the API server answers for a path; None if it refuses."""
        done = self._run("get", "--raw", path, capture=True)
        found: Manifest | None = None if done.returncode else json.loads(done.stdout)
        return found

    def patch(self, resource: str, name: str, patch: Manifest) -> Manifest:
        merge = ("--type=merge", f"--patch={json.dumps(patch)}", f"--field-manager={FIELD_MANAGER}", "--output=json")
        changed: Manifest = json.loads(self._output("patch", resource, name, *merge))
        return changed

    def show(self, *arguments: str) -> None:
        """Its output and its errors go to the terminal."""
        try:
            code = self._run(*arguments, capture=False).returncode
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if code:
            raise typer.Exit(1)

    def _output(self, *arguments: str) -> str:
        done = self._run(*arguments, capture=True)
        if done.returncode:
            raise problem(done.stderr)
        return done.stdout

    def _run(self, verb: str, *arguments: str, capture: bool) -> "subprocess.CompletedProcess[str]":
        flags = {"namespace": self.namespace, "context": self.context}
        command = ["kubectl", verb, *(f"--{name}={value}" for name, value in flags.items() if value), *arguments]
        try:
            return subprocess.run(command, text=True, check=False, capture_output=capture)
        except OSError:
            raise Problem("kubectl is not on the PATH; install it") from None


_KLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:")


def problem(stderr: str) -> Problem:
    """kubectl's own message, on one line and without its log."""
    words = " ".join(line.strip() for line in stderr.splitlines() if line.strip() and not _KLOG.match(line))
    words = words.removeprefix("error: ")
    if "(NotFound)" in words:
        words += "; `kubectl get rljobs --all-namespaces` lists all jobs"
    return Problem(words or "kubectl failed without a message")
