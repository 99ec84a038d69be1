"""The sandbox against programs that try to leave it. Each attack would work without it, as the same user."""

import http.server
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.sandbox import Limits, child, run

SHORT = Limits(seconds=1.5, memory=256 * 2**20, disk=4 * 2**20)
LIBC = """import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    assert libc.syscall(*arguments) >= 0, os.strerror(ctypes.get_errno())
"""
DEAF = """import signal, time
for number in set(range(1, 32)) - {9, 19}: signal.signal(number, signal.SIG_IGN)
"""
DEEP = "import os, time\nfor i in range(20): os.mkdir('d' * 250); os.chdir('d' * 250)\n"  # paths that no call takes
DELETED = """import mmap, os, time
kept = []
while True:
    file = open('a', 'w+b')
    os.unlink('a')
    file.write(b'x' * 2**20)
    file.flush()
    """


def test_a_program_runs_with_its_input_its_libraries_and_a_folder_of_its_own():
    program = (
        "import math, sys\nopen('a', 'w').write('kept')\nprint(open('a').read(), input(), math.pi, file=sys.stdout)"
    )
    outcome = run(program, "given\n")
    assert (outcome.status, outcome.exit_code, outcome.stderr) == ("finished", 0, "")
    assert outcome.stdout == "kept given 3.141592653589793\n"
    assert run("import os; print(os.listdir())").stdout == "['main.py']\n"
    assert run("import numpy; print(numpy.ones(3) @ numpy.ones(3))").stdout == "3.0\n"


def test_an_error_shows_the_program_s_own_lines_and_no_others():
    outcome = run("def f():\n    return 1 / 0\n\nf()\n")
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert [line.strip().split(", ")[1:] for line in outcome.stderr.splitlines() if "File" in line] == [
        ["line 4", "in <module>"],
        ["line 2", "in f"],
    ]
    assert outcome.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_the_order_of_a_set_is_the_same_in_each_run():
    assert len({run("print(set('abcdefgh'))").stdout for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("import os\nwhile True: os.fork()", "failed", "PermissionError"),
        ("import subprocess; subprocess.run(['/bin/sh', '-c', 'id'])", "failed", "PermissionError"),
        ("import os; os.execv('/bin/sh', ['sh', '-c', 'id'])", "failed", "PermissionError"),
        ("import threading\nfor _ in range(10_000): threading.Thread(target=input).start()", "failed", "new thread"),
        ("kept = bytearray(2**31)", "failed", "MemoryError"),
        ("kept = []\nwhile True: kept.append(bytearray(2**20))", "failed", "MemoryError"),
        (f"{LIBC}call(319, b'x', 0)", "failed", "not permitted"),  # memfd_create: memory that no limit counts
        ("while True: print('x' * 1000)", "too_much_output", ""),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "too_much_output", "x"),
        ("while True: pass", "timed_out", ""),
        (f"{DEAF}while True: time.sleep(9)", "timed_out", ""),
        ("import os, time\nos.close(1); os.close(2); time.sleep(60)", "timed_out", ""),
        ("for i in range(99): open(str(i), 'wb').write(b'x' * 2**20)\nimport time; time.sleep(9)", "too_much_disk", ""),
        ("for i in range(10_000): open(str(i), 'w')\nimport time; time.sleep(9)", "too_much_disk", ""),
        (f"{DEEP}for i in range(40): open(str(i), 'wb').write(b'x' * 2**20)\ntime.sleep(9)", "too_much_disk", ""),
        ("open('a', 'wb').truncate(2**40)", "failed", "File too large"),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "failed", "not permitted|not allowed"),
        (f"{LIBC}call(425, 8, 0)", "failed", "not permitted"),  # io_uring_setup: opens sockets past a filter
        (f"{LIBC}call(272, 0x10000000)", "failed", "not permitted"),  # unshare(CLONE_NEWUSER)
        (f"{LIBC}call(321, 0, 0, 0)", "failed", "not permitted"),  # bpf
        ("import socket; socket.socket(socket.AF_UNIX)", "failed", "PermissionError"),
        ("import socket; socket.socketpair()", "failed", "PermissionError"),
        ("import os; os.symlink('/etc/passwd', 'a')", "failed", "PermissionError"),
        ("print(open('/etc/passwd').read())", "failed", "PermissionError"),
        ("import os; print(os.listdir('/proc'))", "failed", "PermissionError"),
        ("import os; os.chmod('/tmp', 0)", "failed", "PermissionError"),
        ("import os; os.truncate('main.py', 0)", "failed", "PermissionError"),  # Landlock before Linux 6.2 lets it
        ("import os; os.open('main.py', os.O_RDONLY | os.O_TRUNC)", "failed", "PermissionError"),  # and this
        ("import os; os.mkdir('hidden', 0o300)", "failed", "PermissionError"),  # its files are not counted
        (f"{DELETED}kept.append(file)", "too_much_disk", ""),
        (f"{DELETED}kept.append(mmap.mmap(file.fileno(), 1))", "too_much_disk", ""),
    ],
)  # fmt: skip
def test_an_attack_fails(program, status, says):
    outcome = run(program, limits=SHORT)
    assert outcome.status == status
    assert any(each in outcome.stderr for each in says.split("|")), outcome.stderr
    assert len(outcome.stdout) <= SHORT.output


def test_the_time_of_a_program_begins_when_it_does(monkeypatch, tmp_path):
    """A start that a busy machine delays is no fault of the program."""
    slow = tmp_path / "child.py"
    slow.write_text("import time\ntime.sleep(2)\n" + Path(child.__file__).read_text())
    monkeypatch.setattr(child, "__file__", str(slow))
    outcome = run("print(1)", limits=Limits(seconds=1.5))
    assert (outcome.status, outcome.stdout) == ("finished", "1\n")
    slow.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(sys.modules[run.__module__], "_START_SECONDS", 0.2)
    with pytest.raises(InfrastructureError, match="cannot confine"):
        run("print(1)")


def test_folders_in_folders_are_deleted_however_many_they_are(monkeypatch, tmp_path):
    """As many as a program makes while a busy machine does not look."""
    monkeypatch.setattr(sys.modules[run.__module__], "_LOOK_SECONDS", 5.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, time\nfor i in range(2000): os.mkdir('d'); os.chdir('d')\nprint('made', flush=True); time.sleep(9)"
    )
    outcome = run(program, limits=Limits(seconds=20))
    assert (outcome.status, outcome.stdout) == ("too_much_disk", "made\n")
    assert not list(tmp_path.iterdir())


ATTACKS_ON_THE_PARENT = [
    "import os; os.kill(os.getppid(), 9)",
    "import os; os.killpg(os.getpgid(os.getppid()), 9)",
    f"{LIBC}call(424, call(434, os.getppid(), 0), 9, 0, 0)",  # pidfd_send_signal of pidfd_open
    f"{LIBC}call(101, 16, os.getppid(), 0, 0)",  # ptrace
    f"{LIBC}call(310, os.getppid(), 0, 0, 0, 0, 0)",  # process_vm_readv
    "import os; print(open(f'/proc/{os.getppid()}/environ').read())",
]


@pytest.mark.parametrize("program", ATTACKS_ON_THE_PARENT)
def test_the_process_that_started_it_is_out_of_reach(program, monkeypatch):
    monkeypatch.setenv("A_SECRET", "word")
    outcome = run(program + "\nprint('reached')", limits=SHORT)
    assert (outcome.status, outcome.stdout) == ("failed", "")
    assert "not permitted" in outcome.stderr or "denied" in outcome.stderr
    assert "A_SECRET" not in run("import os; print(os.environ)").stdout


def test_no_signal_comes_from_a_pipe():
    with subprocess.Popen(["sleep", "60"]) as bystander:
        owns = f"import fcntl, os\nfile = os.pipe()[0]\nfcntl.fcntl(file, fcntl.F_SETOWN, {bystander.pid})"
        signal = "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, 9)"
        outcomes = [run(program, limits=SHORT) for program in (owns, signal)]
        bystander.kill()
    assert all("PermissionError" in outcome.stderr for outcome in outcomes)


def test_files_of_a_checkpoint_volume_are_neither_read_nor_written(tmp_path: Path):
    secret = tmp_path / "checkpoint" / "weights"
    secret.parent.mkdir()
    secret.write_text("word")
    for path in (str(secret), os.path.relpath(secret, "/tmp/sandbox-x")):  # from the program's folder
        for use in (
            f"open({path!r}).read()",
            f"open({path!r}, 'w')",
            f"os.unlink({path!r})",
            f"os.rename({path!r}, 'a')",
        ):
            outcome = run(f"import os\nprint({use})", limits=SHORT)
            assert (outcome.status, outcome.stdout) == ("failed", ""), use
    assert secret.read_text() == "word"


def test_a_server_on_loopback_hears_nothing():
    heard: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        outcome = run(f"import urllib.request; urllib.request.urlopen({address!r})", limits=SHORT)
        server.shutdown()
    assert (outcome.status, heard) == ("failed", [])
    assert "not permitted" in outcome.stderr
