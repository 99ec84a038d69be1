"""Servers of reward models beside a run: the run waits for them, restarts them, and ends all their processes.

vLLM is played by a package of its name; test_reward_models_served.py has the real one.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import DataError, JobError
from rljob_trainer.local.prepare import prepare
from rljob_trainer.local.reward_servers import Plan, RewardServers
from tests.rljob_trainer.run_support import has_ended, wait_until, write_job

SERVER = """
import http.server, os, pathlib, signal, subprocess, sys, tempfile, time
pathlib.Path(tempfile.gettempdir(), "socket").touch()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as vLLM does while it starts
subprocess.Popen(["sleep", "1000"])            # its engine
print(*sys.argv[1:])
if os.environ.get("PLAY") == "fail":
    time.sleep(0.3)
    print("(EngineCore pid=7) ERROR 11-22 04:00:00 [core.py:1] ValueError: no such model")
    print("RuntimeError: Engine core initialization failed. See root cause above.")
    sys.exit(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
time.sleep(0.5)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

Make = Callable[..., RewardServers]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def servers(tmp_path: Path, temporary: Path) -> Iterator[Make]:
    package = tmp_path / "played" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()  # else the real package would be found first
    path = os.pathsep.join(filter(None, [str(tmp_path / "played"), os.environ.get("PYTHONPATH")]))

    def make(**environment: str) -> RewardServers:
        fields = {"name": "rm", "path": "m", "kind": "classifier", "arguments": ["--dtype", "float32"]}
        plan = Plan(RewardModel.model_validate(fields), "spec.rewards.models[0]", "/models/m", (), environment)
        secrets = {"HF_TOKEN": "t", "RAY_AUTH_TOKEN": "t", "JUDGE": "t", "VLLM_API_KEY": "t", "HTTPS_PROXY": "p"}
        return RewardServers([plan], {}, tmp_path, {**os.environ, **secrets, "PYTHONPATH": path})

    before = below()  # other tests' servers
    yield make
    assert set(below()) <= set(before), "nothing is left"
    assert list(temporary.iterdir()) == []


def below() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]


def test_it_is_waited_for_started_again_at_the_same_place_and_ended_with_its_engine(
    servers: Make, tmp_path: Path, temporary: Path
):
    notes: list[str] = []
    with servers() as made:
        made.wait(notes.append, lambda: False)
        assert notes == [f"waiting for reward model rm (log: {tmp_path / 'reward-model-rm.log'})"]
        assert "--model /models/m --served-model-name rm" in (tmp_path / "reward-model-rm.log").read_text()
        made.restart_ended(notes.append)
        assert len(notes) == 1, "it runs"
        url = made.urls["rm"]
        next(each for each in below() if "vllm.entrypoints.openai.api_server" in each.cmdline()[:3]).kill()
        wait_until(made._servers[0].has_ended)
        made.restart_ended(notes.append)
        assert notes[1].startswith("reward model rm exited; restarting it")
        made.wait(notes.append, lambda: False)
        assert made.urls == {"rm": url}
        (folder,) = temporary.iterdir()
        assert [each.name for each in folder.iterdir()] == ["socket"]


def test_a_server_has_a_key_of_its_own_and_only_the_variables_that_it_needs(servers: Make, tmp_path: Path):
    with servers(HUB="named") as made:
        made.wait(lambda note: None, lambda: False)
        (key,) = made.keys.values()
        server = next(each for each in below() if "vllm.entrypoints.openai.api_server" in each.cmdline()[:3])
        environment, commands = server.environ(), [" ".join(each.cmdline()) for each in below()]
    assert list(made.keys) == ["RLJOB_REWARD_KEY_RM"]
    assert environment["VLLM_API_KEY"] == key
    assert environment["HUB"] == "named"
    assert {"PATH", "HTTPS_PROXY"} <= environment.keys()
    assert not environment.keys() & {"HF_TOKEN", "RAY_AUTH_TOKEN", "JUDGE"}
    assert not [each for each in commands if key in each]
    assert any("--middleware rljob_trainer.rewards.models.guard.KeyGuard" in each for each in commands)


def test_who_listens_at_the_port_of_a_server_is_not_taken_for_it(servers: Make, monkeypatch: pytest.MonkeyPatch):
    with servers() as made:
        made.wait(lambda note: None, lambda: False)
        assert made._missing() == []
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert made._missing() == ["rm"]


def test_files_of_a_killed_guard_are_removed_too(servers: Make, temporary: Path):
    with servers() as made:
        made.wait(lambda note: None, lambda: False)
        next(each for each in below() if "rljob_trainer.local.process_guard" in each.cmdline()).kill()
        assert [each.name for each in temporary.glob("*/*")] == ["socket"]


def test_one_that_does_not_start_is_the_job_s_fault_in_its_own_words(servers: Make):
    with servers(PLAY="fail") as made, pytest.raises(JobError) as error:
        made.wait(lambda note: None, lambda: False)
    assert error.value.field == "spec.rewards.models[0]"
    assert error.value.message.startswith("reward model rm did not start: ValueError: no such model (more in ")


def test_a_stop_request_ends_the_wait(servers: Make):
    with servers() as made:
        made.wait(lambda note: None, lambda: True)


PARENT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from rljob_trainer.local.machine import start_child
child = start_child(sys.argv[2:], Path(sys.argv[1]), os.environ, orphaned=signal.SIGTERM, stdin=subprocess.PIPE)
time.sleep(1000)
"""


@pytest.mark.parametrize("frozen", [False, True], ids=["that runs", "that is frozen"])
def test_the_processes_of_a_guard_end_also_when_its_parent_is_killed(tmp_path: Path, frozen: bool):
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "rljob_trainer.local.process_guard", str(folder)]
    command += ["sh", "-c", 'touch "$TMPDIR/socket"; sleep 1001 & sleep 1002']
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "log"), *command])
    wait_until(lambda: any("1001" in each.cmdline() for each in psutil.Process(parent.pid).children(recursive=True)))
    started = psutil.Process(parent.pid).children(recursive=True)
    assert [each.name for each in folder.iterdir()] == ["socket"]
    if frozen:
        psutil.Process(parent.pid).children()[0].suspend()
    parent.kill()
    parent.wait()
    wait_until(lambda: all(map(has_ended, started)), 60.0)
    assert not folder.exists()


SHARER = """
import time
from multiprocessing.shared_memory import SharedMemory
held = SharedMemory(create=True, size=1)
print(held.name, flush=True)
time.sleep(1000)
"""


def test_the_shared_memory_of_what_is_killed_goes_with_it(tmp_path: Path):
    holder = [sys.executable, "-m", "rljob_trainer.local.process_guard", str(tmp_path)]
    ignorant = ["sh", "-c", 'trap "" TERM; "$@"; sleep 1000', "sh", sys.executable, "-c", SHARER]
    pipe = subprocess.PIPE
    with subprocess.Popen([*holder, *ignorant], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        segment = Path("/dev/shm") / process.stdout.readline().strip()
        assert segment.exists()
        process.terminate()
        process.wait(60)
    assert not segment.exists()


# ---- what is planned


def job(folder: Path, gpus: int = 1) -> Path:
    (folder / "rm").mkdir(exist_ok=True)
    models = [
        {"name": "rm", "path": "./rm", "kind": "classifier", "gpusPerReplica": gpus, "replicas": 2},
        {"name": "hub", "path": "org/m", "kind": "classifier", "gpusPerReplica": 1},
    ]
    return write_job(folder, rewards={"functions": [], "models": models})


def test_on_cpus_a_folder_beside_the_file_is_served_and_replicas_are_not_applied(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = prepare(job(tmp_path), None, None, [])
    assert [(plan.path, plan.gpus) for plan in run.servers] == [(str(tmp_path / "rm"), ()), ("org/m", ())]
    assert run.notes == ("not applied on this machine: cluster, rewards.models[].replicas",)


def test_gpus_are_shared_out_and_too_few_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    run = prepare(job(tmp_path, gpus=2), None, None, [])
    assert (run.gpus, run.environment["CUDA_VISIBLE_DEVICES"]) == (2, "4,5")
    assert [plan.gpus for plan in run.servers] == [("6", "7"), ("8",)]

    elsewhere = prepare(job(tmp_path, gpus=2), None, 4, [], ["rm=http://elsewhere:8000/"])
    assert elsewhere.running == {"rm": "http://elsewhere:8000"}
    assert [plan.gpus for plan in elsewhere.servers] == [("8",)]
    with pytest.raises(JobError, match="need 6, but 5 are present"):
        prepare(job(tmp_path, gpus=2), None, 3, [])


def test_a_folder_that_is_missing_is_refused_unless_the_model_runs_elsewhere(tmp_path: Path):
    file = job(tmp_path)
    (tmp_path / "rm").rmdir()
    with pytest.raises(DataError, match=r"^spec\.rewards\.models\[0\]\.path: no folder \./rm: correct the path"):
        prepare(file, None, None, [])
    assert [plan.path for plan in prepare(file, None, None, [], ["rm=http://elsewhere:8000"]).servers] == ["org/m"]


@pytest.mark.parametrize(
    ("given", "words"), [("other=http://x", "spec.rewards.models has no 'other'"), ("rm=x:80", "write NAME=URL")]
)
def test_a_wrong_reward_model_url_is_refused(tmp_path: Path, given: str, words: str):
    with pytest.raises(JobError, match=words):
        prepare(job(tmp_path), None, None, [], [given])


LATE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline(), flush=True)
child.wait()
"""

UNSIGNALLED = """
import time
from rljob_trainer.local.machine import wake_when_orphaned
wake_when_orphaned()
print("here", flush=True)
time.sleep(1000)
"""


def test_a_process_that_was_orphaned_before_it_asked_for_the_signal_ends_too():
    parent = subprocess.Popen([sys.executable, "-c", LATE, UNSIGNALLED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline().split()[0]))
    parent.kill()
    parent.wait()
    wait_until(lambda: has_ended(child), 60.0)
