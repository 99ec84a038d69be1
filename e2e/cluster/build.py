"""Builds programs from pinned Go modules, once: the results are kept under `binaries.cache()`.

A build is made beside its place and renamed into it, so what is there is whole; two builders wait for each other.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.binaries import BINARIES, Binary, Replaced, cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import LOOK_SECONDS, Progress

GO = (1, 26)
"""The oldest Go that the modules ask for."""

ERROR_LINES = 15


def build(names: Iterable[str]) -> None:
    """Build what is missing; progress goes to stderr."""
    wanted = [_binary(name) for name in names]
    if all(binary.built for binary in wanted):
        return
    go = find_go()
    with only_builder():
        missing = [binary for binary in wanted if not binary.built]
        for number, binary in enumerate(missing, 1):
            _build_one(go, binary, f"building {binary.name} {binary.version} ({number} of {len(missing)})")


def _binary(name: str) -> Binary:
    if name not in BINARIES:
        raise ClusterError(f"{name} is none of the programs that are built here: {', '.join(BINARIES)}")
    return BINARIES[name]


def find_go() -> str:
    """The path of a Go that is new enough."""
    remedy = f"install Go {GO[0]}.{GO[1]} or newer (https://go.dev/dl) and put it into PATH"
    go = shutil.which("go")
    if go is None:
        raise ClusterError(f"the local cluster is built with Go, and PATH has none: {remedy}")
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < GO:
        raise ClusterError(f"{go} is {found[0] if found else 'broken'}, which cannot build the local cluster: {remedy}")
    return go


def go_mod(binary: Binary, original: str) -> str:
    """A go.mod of ours that builds the module as its own, `original`, would.

    Go applies only the main module's `replace` lines, so those that name a version are repeated. Others point at
    folders of the module's repository, whose content is published as modules too.
    """
    (language,) = re.findall(r"^go \S+$", original, re.MULTILINE)
    staged = re.findall(r"^\t(\S+) v0\.0\.0$", original, re.MULTILINE) if binary.staging else ()
    replaces = dict(re.findall(r"^(?:replace |\t)(\S+) => (\S+ v\S+)$", original, re.MULTILINE))
    replaces |= {path: f"{path} {binary.staging}" for path in staged}
    replaces |= {each.module: _changed(each) or f"{each.module} {each.version}" for each in binary.replaced}
    lines = [f"replace {path} => {target}" for path, target in replaces.items()]
    return "\n".join(["module build", language, f"require {binary.module} {binary.version}", *lines, ""])


def _changed(replaced: Replaced) -> str:
    """The folder of the module's copy in which a file is added; "" if none is."""
    return f"./{replaced.module}" if replaced.file else ""


def _build_one(go: str, binary: Binary, title: str) -> None:
    work = cache() / ".building"
    shutil.rmtree(work, ignore_errors=True)  # what a killed builder left
    result = work / "result"
    result.mkdir(parents=True)
    progress = Progress(title)
    module = _download(go, binary.module, binary.version, work)
    if binary.package is not None:
        for each in binary.replaced:
            _change(go, each, work)
        (work / "go.mod").write_text(go_mod(binary, Path(module["GoMod"]).read_text()))
        linker = " ".join(["-s", "-w", *(f"-X {variable}" for variable in binary.variables)])
        package = f"{binary.module}/{binary.package}".rstrip("/")
        target = str(result / binary.name)
        _compile([go, "build", "-mod=mod", "-ldflags", linker, "-o", target, package], work, progress)
    for data in binary.data:
        _copy(Path(module["Dir"]) / data, result / data)
    result.rename(binary.folder)
    shutil.rmtree(work)
    progress.end()


def _change(go: str, replaced: Replaced, work: Path) -> None:
    if replaced.file:
        folder = work / _changed(replaced)
        _copy(Path(_download(go, replaced.module, replaced.version, work)["Dir"]), folder)
        (folder / replaced.file).write_text(replaced.text)


def _download(go: str, path: str, version: str, work: Path) -> dict[str, str]:
    """What Go says about the module, now on this machine: `GoMod` its go.mod, `Dir` its folder."""
    command = [go, "mod", "download", "-json", f"{path}@{version}"]
    run = subprocess.run(command, cwd=work, env=_environment(), capture_output=True, text=True, check=False)
    module: dict[str, str] = json.loads(run.stdout or "{}")
    if run.returncode:
        raise ClusterError(f"cannot fetch {path}@{version}: {module.get('Error') or run.stderr.strip()}")
    return module


def _compile(command: list[str], work: Path, progress: Progress) -> None:
    log = work / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=work, env=_environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                progress.show()
                time.sleep(LOOK_SECONDS)
        except BaseException:  # an interrupted build leaves no compiler behind
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        last = log.read_text().splitlines()[-ERROR_LINES:]
        raise ClusterError("\n".join([f"{progress.title} failed:", *last]))


def _copy(source: Path, target: Path) -> None:
    """Without the modes of Go's folders, which are read-only and so cannot be removed."""
    for file in source.rglob("*"):
        if file.is_file():
            copied = target / file.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)


def _environment() -> dict[str, str]:
    """CGO_ENABLED: without C libraries a program runs in an image that holds nothing else."""
    return os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}


@contextmanager
def only_builder() -> Iterator[None]:
    """Waits for another one. What is built is looked for again then: it may have built that."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process is building; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
