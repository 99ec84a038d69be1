"""Ray's workers are forked from a process that has imported torch; where that cannot be, they start as ever."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.local.ray_cluster import LocalRay, local_ray, ray_environment
from tests.rljob_trainer.run_support import Machine, machine, wait_until

DRIVER = """
import json, os, sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0)
class Probe:
    def look(self):
        print("this worker was looked at", flush=True)
        loaded = "torch" in sys.modules
        import numpy, torch
        status = open("/proc/self/status").read().splitlines()
        return {"pid": os.getpid(), "parent": os.getppid(), "loaded": loaded, "own": os.environ.get("OWN"),
                "job": os.environ["RAY_JOB_ID"], "random": numpy.random.random(), "threads": torch.get_num_threads(),
                "leads": os.getpgid(0) == os.getpid(), "session": os.getsid(0),
                "expendable": open("/proc/self/oom_score_adj").read(),
                "signals": [line for line in status if line.startswith("SigBlk")]}

probes = [Probe.options(runtime_env=json.loads(options)).remote() for options in sys.argv[2:]]
print(json.dumps(ray.get([probe.look.remote() for probe in probes])))
"""


class Cluster:
    """address: Ray's. folder: Ray's. source: the process that workers are forked from."""

    def __init__(self, place: Machine, environment: dict[str, str], folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.address = (folder / "address").read_text()
        self.source = next(each for each in psutil.process_iter() if _is_source(each, folder))

    def look(self, *environments: dict[str, Any]) -> list[dict[str, Any]]:
        """What new workers see."""
        command = [sys.executable, "-c", DRIVER, self.address, *map(json.dumps, environments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found


def _is_source(process: psutil.Process, folder: Path) -> bool:
    try:
        return str(folder / "preloaded") in process.cmdline()
    except psutil.Error:
        return False


def _settled(ray: LocalRay) -> bool:
    return ray.address_file.exists() or ray.is_gone()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with machine() as place:
        monkeypatch.setenv("TMPDIR", str(place.temporary))
        monkeypatch.setattr("tempfile.tempdir", None)  # it is read again
        environment = {**os.environ, **place.environment, **ray_environment()}
        del environment["OMP_NUM_THREADS"]  # which tests set, and nobody else
        for _ in range(3):  # as the supervisor does: now and then a raylet ends while it starts
            with local_ray(0, "hf", tmp_path / "ray.log", environment) as ray:
                wait_until(partial(_settled, ray))
                if ray.address_file.exists():
                    yield Cluster(place, environment, ray.address_file.parent)
                    return
        raise AssertionError((tmp_path / "ray.log").read_text())


def test_workers_are_forked_with_what_they_need_and_are_otherwise_as_rays_own(cluster: Cluster):
    first, second = cluster.look({}, {})
    for seen in (first, second):
        assert seen["loaded"]
        assert seen["parent"] == cluster.source.pid
    assert first["pid"] != second["pid"]
    assert first["random"] != second["random"]
    (later,) = cluster.look({})
    assert later["job"] != first["job"]
    logs = [path.read_text() for path in cluster.folder.rglob(f"worker-*-{first['pid']}.out")]
    assert any("this worker was looked at" in log for log in logs)


@pytest.mark.slow
def test_an_environment_of_its_own_is_rays_to_make(cluster: Cluster):
    (seen,) = cluster.look({"env_vars": {"OWN": "yes"}})
    assert (seen["own"], seen["loaded"]) == ("yes", False)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_without_that_process_workers_start_as_ever_and_are_the_same(cluster: Cluster, sign: signal.Signals):
    (forked,) = cluster.look({})
    cluster.source.send_signal(sign)
    own = next(each for each in cluster.look(*[{}] * 4) if not each["loaded"])  # a few were forked before
    assert not cluster.source.is_running()
    for alike in ("threads", "leads", "session", "expendable", "signals"):
        assert forked[alike] == own[alike], alike
