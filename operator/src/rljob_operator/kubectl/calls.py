"""The way to the API server: kubectl, with the user's own kubeconfig, credentials and proxy."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from threading import Thread
from typing import IO, Annotated, Any

import typer

from rljob_api.printable import printable

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
        found: Manifest = json.loads(self.output("get", resource, *arguments, "--output=json"))
        return found

    def raw(self, path: str) -> Manifest | None:
        """What the API server answers for a path; None if it refuses."""
        with self._started("get", "--raw", path) as process:
            out, _ = process.communicate()
        found: Manifest | None = None if process.returncode else json.loads(out)
        return found

    def patch(self, resource: str, name: str, patch: Manifest) -> Manifest:
        merge = ("--type=merge", f"--patch={json.dumps(patch)}", f"--field-manager={FIELD_MANAGER}", "--output=json")
        changed: Manifest = json.loads(self.output("patch", resource, name, *merge))
        return changed

    def show(self, *arguments: str) -> None:
        """What it and the pod that it asks write goes to the terminal, as plain text."""
        try:
            with self._started(*arguments) as process:
                errors = Thread(target=_copy, args=(process.stderr, sys.stderr))
                errors.start()
                _copy(process.stdout, sys.stdout)
                errors.join()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        if process.returncode:
            raise typer.Exit(1)

    def output(self, *arguments: str) -> str:
        """What it writes, unchanged."""
        with self._started(*arguments) as process:
            out, errors = process.communicate()
        if process.returncode:
            raise problem(errors)
        return out

    def _started(self, verb: str, *arguments: str) -> "subprocess.Popen[str]":
        flags = {"namespace": self.namespace, "context": self.context}
        command = ["kubectl", verb, *(f"--{name}={value}" for name, value in flags.items() if value), *arguments]
        try:
            pipe = subprocess.PIPE
            return subprocess.Popen(command, text=True, errors="replace", stdout=pipe, stderr=pipe)
        except OSError:
            raise Problem("kubectl is not on the PATH; install it") from None


def _copy(source: IO[str] | None, target: IO[str]) -> None:
    assert source is not None
    for line in source:
        print(printable(line), end="", file=target, flush=True)


_KLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:")


def problem(stderr: str) -> Problem:
    """kubectl's own message, on one line and without its log."""
    words = " ".join(line.strip() for line in stderr.splitlines() if line.strip() and not _KLOG.match(line))
    words = words.removeprefix("error: ")
    if "(NotFound)" in words:
        words += "; `kubectl get rljobs --all-namespaces` lists all jobs"
    return Problem(words or "kubectl failed without a message")
