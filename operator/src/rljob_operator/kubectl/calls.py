"""The way to the API server: kubectl, with the user's own kubeconfig, credentials and proxy."""

import json
import re
import subprocess
from collections.abc import Sequence
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


class NotFound(Problem):
    """There is no object of this name."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Raises Problems. namespace, context: None for kubectl's own choice."""

    namespace: str | None = None
    context: str | None = None

    def get(self, resource: str, *arguments: str) -> Manifest:
        """One object, or a list of them."""
        found: Manifest = json.loads(self._output("get", resource, *arguments, "--output=json"))
        return found

    def patch(self, resource: str, name: str, patch: Manifest) -> Manifest:
        merge = ("--type=merge", f"--patch={json.dumps(patch)}", f"--field-manager={FIELD_MANAGER}", "--output=json")
        changed: Manifest = json.loads(self._output("patch", resource, name, *merge))
        return changed

    def show(self, *arguments: str) -> None:
        """Its output and its errors go to the terminal."""
        with started(self._command(*arguments)) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # kubectl may not have received it
                process.terminate()
                raise typer.Exit(130) from None
        if code:
            raise typer.Exit(1)

    def _output(self, *arguments: str) -> str:
        with started(self._command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, words = process.communicate()
        if process.returncode:
            raise problem(words)
        return str(output)

    def _command(self, *arguments: str) -> Sequence[str]:
        flags = {"namespace": self.namespace, "context": self.context}
        verb, *rest = arguments
        return ["kubectl", verb, *(f"--{name}={value}" for name, value in flags.items() if value), *rest]


def started(command: Sequence[str], **streams: Any) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(command, text=True, **streams)
    except OSError:
        raise Problem("kubectl is not on the PATH; install it") from None


_KLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:")


def problem(stderr: str) -> Problem:
    """kubectl's own message, on one line and without its log."""
    words = " ".join(line.strip() for line in stderr.splitlines() if line.strip() and not _KLOG.match(line))
    words = words.removeprefix("error: ")
    if "(NotFound)" in words:
        return NotFound(f"{words}; `kubectl get rljobs --all-namespaces` lists all jobs")
    return Problem(words or "kubectl failed without a message")
