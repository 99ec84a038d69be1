"""Reward processes that others kill or stop, what they print, and what is left of them afterwards."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import psutil
import pytest

from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.pool import RewardPool
from rljob_trainer.rewards.protocol import Failure, Inbox, Score, send
from tests.rljob_trainer.journal_support import task
from tests.rljob_trainer.rewards_support import BEHAVE, children, load, responses, reward_pools, rewards, scored
from tests.rljob_trainer.run_support import has_ended, wait_until


@pytest.fixture
def pool_of(tmp_path):
    with reward_pools(tmp_path) as make:
        yield make


COUNT = """
import os, pathlib, signal, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, folder=""):
    calls = pathlib.Path(folder, "calls")
    with calls.open("a") as file:
        print(os.getpid(), file=file)
    call = len(calls.read_text().splitlines())
    if solution_str == "slow once" and call == 1:
        time.sleep(60)
    if solution_str == "raise":
        raise ValueError
    if solution_str == "exit":
        os._exit(3)
    if solution_str in signal.Signals.__members__:
        os.kill(os.getpid(), signal.Signals[solution_str])
    return 5.0
"""


@pytest.fixture
def counted(pool_of, tmp_path):
    """A pool whose function counts its calls, and the process of each call so far."""

    def calls():
        path = tmp_path / "calls"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    return pool_of(rewards({"name": "own", "source": COUNT, "arguments": {"folder": str(tmp_path)}})), calls


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_response_whose_process_is_killed_or_stopped_from_outside_is_scored_again(counted, sign):
    pool, calls = counted
    future = pool.submit(task(7), responses("slow once", "fine"))
    wait_until(calls)
    os.kill(calls()[0], sign)
    score = future.result()
    assert (score.rewards.tolist(), score.error, score.retries) == ([5, 5], None, 1)
    assert len(calls()) == 3


@pytest.mark.parametrize(
    ("kind", "calls_made"),
    [("SIGKILL", 3), ("SIGTERM", 3), ("SIGSTOP", 3), ("SIGSEGV", 1), ("raise", 1), ("exit", 1)],
)
def test_only_what_may_come_from_outside_is_tried_again_and_the_function_is_blamed(counted, kind, calls_made):
    pool, calls = counted
    with pytest.raises(RewardError, match=f"reward own .*sample 0: '{kind}'"):
        scored(pool, task(7), responses(kind))
    assert len(calls()) == calls_made


def test_an_idle_process_that_was_stopped_is_replaced(pool_of):
    pool = pool_of(rewards())
    first = int(scored(pool, task(7), responses("pid")).rewards[0])
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(first).status() == psutil.STATUS_STOPPED)
    score = scored(pool, task(7), responses("pid"))
    assert (int(score.rewards[0]) != first, score.retries) == (True, 0)


def test_a_process_killed_while_it_loads_is_started_again(tmp_path, pool_of):
    source = f"""
        import os, pathlib, signal

        starts = pathlib.Path({str(tmp_path / "starts")!r})
        with starts.open("a") as file:
            file.write(".")
        if len(starts.read_text()) < 3:
            os.kill(os.getpid(), signal.SIGKILL)

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            return 1
    """
    pool = pool_of(rewards({"name": "own", "source": textwrap.dedent(source)}))
    assert scored(pool, task(7), responses("x")).rewards.tolist() == [1]
    with pytest.raises(RewardError, match=r"loading 'own' crashed its process: SIGKILL \(out of memory\?\)"):
        load(rewards({"name": "own", "source": "import os; os.kill(os.getpid(), 9)"}), tmp_path)


def test_time_in_which_the_pool_itself_was_stopped_is_not_held_against_the_function(tmp_path):
    program = f"""
        from pathlib import Path
        from rljob_api.v1alpha1 import Rewards
        from rljob_trainer.rewards.pool import RewardPool, Response
        from tests.rljob_trainer.journal_support import task
        function = {{"name": "own", "source": {BEHAVE!r}, "arguments": {{"seconds": 1.0}}}}
        rewards = Rewards.model_validate({{"functions": [function], "processes": 1, "timeout": "4s"}})
        with RewardPool(rewards, Path(".")) as pool:
            future = pool.submit(task(), [Response("hang", 1)])
            print("scoring", flush=True)
            print(future.result().rewards.tolist())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "scoring\n"
        reward = psutil.Process(process.pid).children()[0]
        for running in (process, reward):
            os.kill(running.pid, signal.SIGSTOP)
        time.sleep(4.5)
        for stopped in (reward, process):
            os.kill(stopped.pid, signal.SIGCONT)
        assert process.stdout.read() == "[4.0]\n"


# ---- output, and what is left


def test_what_functions_print_goes_to_the_log_and_never_to_our_output(tmp_path, pool_of, capfd):
    source = "print('loading')\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    print('scoring', solution_str)\n    return 1\n"
    given = rewards({"name": "own", "source": source})
    scored(pool_of(given, log=tmp_path / "log"), task(7), responses("abc"))
    assert (tmp_path / "log").read_text() == "loading\nscoring abc\n"
    assert capfd.readouterr() == ("", "")
    scored(pool_of(given), task(7), responses("abc"))
    assert capfd.readouterr() == ("", "loading\nscoring abc\n")


def test_messages_arrive_whole_however_the_socket_cuts_them():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = Inbox(ours.fileno())
        send(theirs.fileno(), Failure("first"))
        send(theirs.fileno(), Score(2.0, {"n": 3.0}))
        inbox.receive()
        assert [inbox.next(), inbox.next()] == [Failure("first"), Score(2.0, {"n": 3.0})]
        large = Failure("x" * 300_000)  # more than a read takes, and than the socket holds
        writer = threading.Thread(target=send, args=(theirs.fileno(), large))
        writer.start()
        while not inbox:
            inbox.receive()
        writer.join()
        assert inbox.next() == large
        theirs.sendall(bytes([0, 0, 0, 0, 0, 0, 0, 9, 1]))  # of a message that is cut off
        theirs.close()
        inbox.receive()
        assert not inbox
        with pytest.raises(EOFError):
            inbox.receive()


def test_reward_processes_import_nothing_heavy(pool_of):
    source = """
        import sys

        heavy = {"torch", "ray", "transformers", "numpy", "pydantic"} & set(sys.modules)

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            return len(heavy)
    """
    pool = pool_of(rewards({"name": "own", "source": textwrap.dedent(source)}))
    assert scored(pool, task(7), responses("x")).rewards.tolist() == [0]


def test_closing_ends_a_call_and_whoever_waits_for_it(tmp_path):
    pool = RewardPool(rewards(processes=2), tmp_path)
    futures = [pool.submit(task(i), responses("hang", "deaf")) for i in range(3)]
    time.sleep(0.3)
    pool.close()
    assert not children()
    for future in futures:
        with pytest.raises(InfrastructureError, match="closed"):
            future.result(timeout=0)
    with pytest.raises(InfrastructureError, match="closed"):
        scored(pool, task(7), responses("fine"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward-")]


FORK = """
    import os, pathlib, subprocess, time

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        child = subprocess.Popen(["sleep", "60"], start_new_session=SESSION)
        if DAEMON and os.fork() == 0:
            os.setsid()
            child = subprocess.Popen(["sleep", "60"], start_new_session=True)
            pathlib.Path(PID).write_text(str(child.pid))
            os._exit(0)
        if not DAEMON:
            pathlib.Path(PID).write_text(str(child.pid))
        time.sleep(60)
"""


@pytest.mark.parametrize(("session", "daemon"), [(False, False), (True, False), (True, True)])
def test_a_hanging_functions_own_children_die_with_it(tmp_path, pool_of, session, daemon):
    """Also those in a session of their own, and those whose parent has ended."""
    source = textwrap.dedent(FORK).replace("PID", repr(str(tmp_path / "pid")))
    source = source.replace("SESSION", str(session)).replace("DAEMON", str(daemon))
    pool = pool_of(rewards({"name": "own", "source": source}, timeout="3s"))
    with pytest.raises(RewardError, match="did not return"):
        scored(pool, task(7), responses("x"))
    wait_for_end(int((tmp_path / "pid").read_text()))


def wait_for_end(pid):
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        wait_until(lambda: has_ended(process), 5.0)


@pytest.mark.parametrize("how", ["idle", "hang", "deaf"])
def test_reward_processes_die_with_a_killed_parent(tmp_path, how):
    program = f"""
        from pathlib import Path
        from rljob_api.v1alpha1 import Rewards
        from rljob_trainer.rewards.pool import RewardPool, Response
        from tests.rljob_trainer.journal_support import task
        import psutil, time
        rewards = Rewards.model_validate({{"functions": [{{"name": "own", "source": {BEHAVE!r}}}], "processes": 2}})
        pool = RewardPool(rewards, Path("."))
        pool.submit(task(), [Response("sleep", 1)] * 2).result()
        if {how!r} != "idle":
            pool.submit(task(), [Response({how!r}, 1)] * 2)
            time.sleep(0.5)
        print(*[child.pid for child in psutil.Process().children()], flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        os.kill(parent.pid, signal.SIGKILL)
    assert len(pids) == 2
    for pid in pids:
        wait_for_end(pid)
