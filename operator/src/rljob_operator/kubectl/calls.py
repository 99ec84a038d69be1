"""The way to the API server: kubectl, with the user's own kubeconfig, credentials and proxy."""

import json
import os
import re
import subprocess
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

Manifest = dict[str, Any]
Changes = Generator[tuple[str, Manifest], None, None]

RLJOBS = "rljobs.rljob.dev"
FIELD_MANAGER = "kubectl-rljob"

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Of the pod that we run in, if any."""

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

    def watch_rljob(self, seen: Manifest) -> Changes:
        """What came after this version of it: ADDED, MODIFIED or DELETED, and the object. It ends when the API server
        ends it, or has forgotten the version.
        """
        return self._changes(_after(seen))

    def watch_events(self, seen: Manifest) -> Changes:
        """The namespace's, first those that exist, and what came after this version of the RLJob. It ends when the API
        server ends one of the two.
        """
        return self._changes(("get", "events", "--watch", "--output=json", "--output-watch-events"), _after(seen))

    def _changes(self, *watches: Sequence[str]) -> Changes:
        lines = SimpleQueue[tuple["subprocess.Popen[str]", str]]()
        with ExitStack() as running:
            for watch in watches:
                process = started(self._command(*watch), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                running.enter_context(process)
                reader = Thread(target=_read, args=(process, lines), daemon=True)
                reader.start()
                running.callback(reader.join)  # nobody may read what the process's end closes
                running.callback(process.kill)
            while (told := lines.get())[1]:
                event = json.loads(told[1])
                if event["type"] == "ERROR":
                    return
                found = event["object"]
                # More than kubectl asks for at a time come as lists.
                for each in found["items"] if found["kind"].endswith("List") else [found]:
                    yield event["type"], each
            ended, _ = told
            _, words = ended.communicate()
            if ended.returncode:
                raise problem(words)

    def show(self, *arguments: str) -> None:
        """Its output and its errors are ours."""
        with started(self._command(*arguments)) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # of which kubectl may not have heard
                process.terminate()
                raise typer.Exit(130) from None
        if code:
            raise typer.Exit(1)

    def current_namespace(self) -> str:
        """The one that kubectl takes."""
        return self.namespace or self._namespace_of_context() or _namespace_of_pod() or "default"

    def _namespace_of_context(self) -> str:
        query = "--output=jsonpath={.contexts[0].context.namespace}"
        with suppress(Problem):  # there is no context, without which kubectl can do in a pod
            return self._output("config", "view", "--minify", query)
        return ""

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


def _namespace_of_pod() -> str:
    """As kubectl finds it: "In-cluster authentication" in https://kubernetes.io/docs/reference/kubectl/. Or empty."""
    with suppress(OSError):  # we run in no pod
        own = NAMESPACE_FILE.read_text().strip()
        return os.environ.get("POD_NAMESPACE") or own
    return ""


def _after(seen: Manifest) -> Sequence[str]:
    """kubectl's own watch of one object reads it first and then begins at any later time: a deletion in between is
    never told.
    """
    about = seen["metadata"]
    path = f"/apis/{seen['apiVersion']}/namespaces/{about['namespace']}/rljobs"
    since = {"fieldSelector": f"metadata.name={about['name']}", "resourceVersion": about["resourceVersion"]}
    return "get", f"--raw={path}?{urlencode({'watch': 1} | since)}"


def _read(process: "subprocess.Popen[str]", lines: SimpleQueue[tuple["subprocess.Popen[str]", str]]) -> None:
    """An empty line is its end."""
    for line in process.stdout or ():
        lines.put((process, line))
    lines.put((process, ""))


def started(command: Sequence[str], **streams: Any) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(command, text=True, **streams)
    except OSError:
        raise Problem("there is no kubectl on the PATH; install it") from None


_KLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:")
_SERVER = re.compile(r"(?:error: )?(?:Error from server(?: \(\w+\))?: )?")

_NO_KIND = re.compile(r"doesn't have a resource type|could not find the requested resource|no matches for kind")
_NO_CLUSTER = re.compile(
    r"connection to the server|Unable to connect to the server|context was not found|context .* does not exist"
)
_LOGGED_OUT = re.compile(r"\(Unauthorized\)|must be logged in|getting credentials")


def problem(stderr: str) -> Problem:
    """kubectl's last words and what to do about them."""
    said = " ".join(line.strip() for line in stderr.splitlines() if line.strip() and not _KLOG.match(line))
    words = _SERVER.sub("", said, count=1)
    if "(NotFound)" in said and not _NO_KIND.search(said):
        return NotFound(words)
    if "(Forbidden)" in said:
        return Problem(f"{words}; ask for the role view in this namespace, or edit to change and to run commands")
    if _NO_KIND.search(said):
        return Problem("this cluster has no RLJobs; install the operator's chart, or choose another --context")
    if _LOGGED_OUT.search(said):
        return Problem(f"{words}; log in to the cluster again")
    if _NO_CLUSTER.search(said):
        return Problem(f"{words}; choose a cluster that answers with KUBECONFIG or --context")
    return Problem(words or "kubectl failed without a word")
