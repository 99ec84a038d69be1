"""The reward pool with real processes: hangs, crashes, wrong results, wrong code, and what is left afterwards."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards import process as reward_process
from rljob_trainer.rewards.pool import Response, RewardPool, check_rewards
from rljob_trainer.types import Prompt

BEHAVE = """
import os, signal, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, seconds=60):
    if solution_str == "hang":
        time.sleep(seconds)
    if solution_str == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        time.sleep(seconds)
    if solution_str == "exit":
        os._exit(3)
    if solution_str == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if solution_str == "oom":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "raise":
        raise ValueError("not this one")
    if solution_str == "sys.exit":
        raise SystemExit(4)
    if solution_str == "nan":
        return float("nan")
    if solution_str == "none":
        return None
    if solution_str == "sleep":
        time.sleep(0.4)
    if solution_str == "pid":
        return os.getpid()
    return float(len(solution_str))
"""


def rewards(*functions, timeout="20s", processes=1, on_error="fail"):
    functions = functions or ({"name": "own", "source": BEHAVE},)
    return Rewards.model_validate(
        {"functions": list(functions), "timeout": timeout, "processes": processes, "onError": on_error}
    )


def prompt(number=7):
    return Prompt(f"0/{number}", np.arange(3, dtype=np.int32), "test", "truth", {"a": 1}, "text")


def responses(*texts):
    return [Response(text, tokens=len(text)) for text in texts]


@pytest.fixture
def pool_of(tmp_path):
    pools = []

    def make(given, base_dir=tmp_path, log=None):
        pools.append(RewardPool(given, base_dir, log))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    assert not children()


def children():
    return [
        child for child in psutil.Process().children(recursive=True) if "rewards.child" in " ".join(child.cmdline())
    ]


# ---- scores


def test_the_reward_is_the_weighted_sum_and_each_component_is_kept(pool_of):
    mapping = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, plus=0):\n"
    mapping += "    return {'score': plus, 'tokens': extra_info['response_tokens'], 'word': 'x'}\n"
    pool = pool_of(
        rewards(
            {"name": "own", "source": BEHAVE, "weight": 0.5},
            {"name": "extra", "source": mapping, "weight": -2, "arguments": {"plus": 3}},
        )
    )
    score = pool.score(prompt(), responses("ab", "abcd"))
    assert score.prompt_id == "0/7"
    assert score.rewards.tolist() == [0.5 * 2 - 6, 0.5 * 4 - 6]
    assert score.rewards.dtype == np.float32
    assert {name: values.tolist() for name, values in score.components.items()} == {
        "own": [2, 4],
        "extra": [3, 3],
        "extra/tokens": [2, 4],
    }
    assert score.error is None


def test_a_number_that_some_samples_lack_is_left_out(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    return {'score': 1, 'all': 2, solution_str: 3}\n"
    score = pool_of(rewards({"name": "own", "source": source})).score(prompt(), responses("a", "b"))
    assert set(score.components) == {"own", "own/all"}


def test_a_function_gets_the_row_and_cannot_change_it_for_the_next(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    assert (data_source, ground_truth, extra_info.pop('a')) == ('test', 'truth', 1)\n"
    source += "    assert extra_info == {'response_tokens': 1, 'truncated': False}\n"
    source += "    return 1\n"
    function = {"source": source}
    score = pool_of(rewards({"name": "one", **function}, {"name": "two", **function})).score(prompt(), responses("x"))
    assert score.rewards.tolist() == [2]


def test_groups_are_scored_in_parallel(pool_of):
    pool = pool_of(rewards(processes=4))
    pool.score(prompt(), responses(*["sleep"] * 4))  # all processes have started
    started = time.monotonic()
    futures = [pool.submit(prompt(i), responses("sleep", "sleep")) for i in range(4)]
    assert [future.result().prompt_id for future in futures] == [f"0/{i}" for i in range(4)]
    assert time.monotonic() - started < 8 * 0.4 * 0.75


def test_the_deadline_counts_from_the_start_of_the_call_not_from_queueing(pool_of):
    pool = pool_of(rewards(timeout="1s"))
    futures = [pool.submit(prompt(i), responses("sleep")) for i in range(5)]  # 2 s one after the other
    assert all(future.result().rewards.tolist() == [5] for future in futures)


def test_math_verify_can_use_its_alarm_there(pool_of):
    pool = pool_of(rewards({"name": "math", "builtin": "boxed_math"}))
    row = Prompt("0/0", np.arange(3, dtype=np.int32), "math", "0.5", {}, "")
    assert pool.score(row, responses(r"\boxed{\frac{1}{2}}", r"\boxed{2}")).rewards.tolist() == [1, 0]


# ---- failures


FAILURES = [
    ("hang", "did not return within 0.5 s"),
    ("deaf", "did not return within 0.5 s"),
    ("exit", "ended its process with exit code 3"),
    ("segfault", "crashed its process: SIGSEGV"),
    ("oom", r"crashed its process: SIGKILL \(out of memory\?\)"),
    ("raise", r"raised ValueError: not this one \(line 17 of <spec.rewards.functions\[0\].source>\)"),
    ("sys.exit", r"raised SystemExit: 4 \(line 19 of <spec.rewards.functions\[0\].source>\)"),
    ("nan", "returned nan"),
    ("none", "returned None, not a number"),
]


@pytest.mark.parametrize(("kind", "reason"), FAILURES)
def test_a_failure_ends_the_job_and_names_reward_prompt_sample_and_text(pool_of, kind, reason):
    pool = pool_of(rewards(timeout="500ms"))
    with pytest.raises(
        RewardError, match=f"reward own {reason}, for prompt 0/7, sample 1: '{kind}'; correct it"
    ) as error:
        pool.score(prompt(), responses("fine", kind, "fine"))
    assert error.value.field == "spec.rewards.functions[0]"
    assert pool.score(prompt(), responses("fine")).rewards.tolist() == [4]


@pytest.mark.parametrize(("kind", "reason"), FAILURES[:4])
def test_a_failure_may_drop_its_group_alone(pool_of, kind, reason):
    pool = pool_of(rewards(timeout="500ms", on_error="drop_group", processes=2))
    futures = [pool.submit(prompt(i), responses("ab", kind if i == 1 else "abc")) for i in range(4)]
    scores = [future.result() for future in futures]
    assert reason.split(":")[0] in scores[1].error
    assert "prompt 0/1, sample 1" in scores[1].error
    assert np.isnan(scores[1].rewards).all()
    for score in (scores[0], scores[2], scores[3]):
        assert (score.error, score.rewards.tolist()) == (None, [2, 3])


def test_the_failing_one_of_several_functions_is_named(pool_of):
    pool = pool_of(rewards({"name": "fine", "builtin": "exact_match"}, {"name": "own", "source": BEHAVE}))
    with pytest.raises(RewardError, match="reward own raised") as error:
        pool.score(prompt(), responses("raise"))
    assert error.value.field == "spec.rewards.functions[1]"
    assert pool.score(prompt(), responses("truth")).rewards.tolist() == [6]


def test_long_responses_are_cut_in_messages(pool_of):
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): raise ValueError"
    with pytest.raises(RewardError) as error:
        pool_of(rewards({"name": "own", "source": source})).score(prompt(), responses("x" * 500))
    assert len(error.value.message) < 300


def test_a_process_killed_between_two_calls_is_replaced_and_nobody_is_blamed(pool_of):
    pool = pool_of(rewards())
    first = int(pool.score(prompt(), responses("pid")).rewards[0])
    for child in children():
        child.kill()
        child.wait()
    second = int(pool.score(prompt(), responses("pid")).rewards[0])
    assert first != second


def test_a_hang_costs_other_groups_nothing(pool_of):
    pool = pool_of(rewards(timeout="1500ms", processes=2, on_error="drop_group"))
    pool.score(prompt(), responses("sleep", "sleep"))
    started = time.monotonic()
    hanging = pool.submit(prompt(0), responses("hang"))
    assert pool.score(prompt(1), responses("fine")).rewards.tolist() == [4]
    assert time.monotonic() - started < 1.4
    assert "did not return" in hanging.result().error


def test_when_no_process_can_be_started_it_is_infrastructure(pool_of, monkeypatch, tmp_path):
    pool = pool_of(rewards())
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(RewardError):
        pool.score(prompt(), responses("exit"))
    with pytest.raises(InfrastructureError, match="cannot start a reward process"):
        pool.score(prompt(), responses("fine"))
    with pytest.raises(InfrastructureError, match="cannot start a reward process"):
        check_rewards(rewards(), tmp_path)


def test_a_log_that_cannot_be_written_is_infrastructure(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"cannot start a reward process: .*file"):
        RewardPool(rewards(), tmp_path, tmp_path / "file" / "rewards.log")


# ---- infrastructure


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


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_response_whose_process_is_killed_or_stopped_from_outside_is_scored_again(counted, sign):
    pool, calls = counted
    started = time.monotonic()
    future = pool.submit(prompt(), responses("slow once", "fine"))
    until(calls)
    os.kill(calls()[0], sign)
    score = future.result()
    assert (score.rewards.tolist(), score.error, score.retries) == ([5, 5], None, 1)
    assert len(calls()) == 3
    assert time.monotonic() - started < 10  # of a timeout of 20 s


@pytest.mark.parametrize(("kind", "expected"), [("SIGKILL", 3), ("SIGTERM", 3), ("SIGSTOP", 3), ("SIGSEGV", 1)])
def test_a_function_that_ends_its_own_process_is_blamed_in_the_end(counted, kind, expected):
    pool, calls = counted
    with pytest.raises(RewardError, match=f"reward own .*process.*sample 0: '{kind}'"):
        pool.score(prompt(), responses(kind))
    assert len(calls()) == expected


@pytest.mark.parametrize("kind", ["raise", "exit"])
def test_an_error_of_the_function_is_not_tried_again(counted, kind):
    pool, calls = counted
    with pytest.raises(RewardError):
        pool.score(prompt(), responses(kind))
    assert len(calls()) == 1


def test_retries_are_counted_for_a_dropped_group_too(pool_of):
    score = pool_of(rewards(on_error="drop_group")).score(prompt(), responses("fine", "oom"))
    assert "SIGKILL" in score.error
    assert score.retries == 2


def test_an_idle_process_that_was_stopped_is_replaced(pool_of):
    pool = pool_of(rewards())
    first = int(pool.score(prompt(), responses("pid")).rewards[0])
    os.kill(first, signal.SIGSTOP)
    until(lambda: psutil.Process(first).status() == psutil.STATUS_STOPPED)
    score = pool.score(prompt(), responses("pid"))
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
    assert pool.score(prompt(), responses("x")).rewards.tolist() == [1]
    with pytest.raises(RewardError, match=r"loading the functions crashed its process: SIGKILL \(out of memory\?\)"):
        check_rewards(rewards({"name": "own", "source": "import os; os.kill(os.getpid(), 9)"}), tmp_path)


def test_time_in_which_the_pool_itself_was_stopped_is_not_held_against_the_function(tmp_path):
    program = f"""
        from pathlib import Path
        from rljob_api.v1alpha1 import Rewards
        from rljob_trainer.rewards.pool import RewardPool, Response
        from rljob_trainer.types import Prompt
        import numpy as np, os
        function = {{"name": "own", "source": {BEHAVE!r}, "arguments": {{"seconds": 1.0}}}}
        rewards = Rewards.model_validate({{"functions": [function], "processes": 1, "timeout": "4s"}})
        with RewardPool(rewards, Path(".")) as pool:
            future = pool.submit(Prompt("0/0", np.arange(3), "t", "x", {{}}, ""), [Response("hang", 1)])
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


# ---- loading


@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("x = 1\ndef compute_score(:\n", "source", "line 2: invalid syntax: def compute_score"),
        ("\nimport nothing_of_that_name\n", "source", "No module named 'nothing_of_that_name' \\(line 2 of"),
        ("\n\n1 / 0\n", "source", "ZeroDivisionError: division by zero \\(line 3 of"),
        ("def other(): pass", "function", "no function 'compute_score'; it defines other"),
        ("compute_score = 3", "function", "no function 'compute_score'; it defines none"),
        (
            "def compute_score(a, b): return 1",
            "function",
            r"compute_score\(a, b\) cannot be called as f\(data_source=...,",
        ),
        ("async def compute_score(**row): return 1", "function", "compute_score is async"),
        ("import sys; sys.exit(2)", "source", "SystemExit: 2"),
    ],
)
def test_wrong_code_is_refused_at_the_start(tmp_path, source, field, message):
    with pytest.raises(RewardError, match=message) as error:
        check_rewards(rewards({"name": "own", "source": source}), tmp_path)
    assert error.value.field == f"spec.rewards.functions[0].{field}"
    (tmp_path / "r.py").write_text(source)
    with pytest.raises(RewardError, match=message) as error:
        check_rewards(rewards({"name": "own", "path": "r.py"}), tmp_path)
    assert error.value.field == f"spec.rewards.functions[0].{'path' if field == 'source' else field}"
    assert not children()


def test_code_that_kills_its_process_while_loading_is_refused(tmp_path):
    with pytest.raises(RewardError, match="loading the functions ended its process with exit code 5"):
        check_rewards(rewards({"name": "own", "source": "import os; os._exit(5)"}), tmp_path)


def test_code_that_hangs_while_loading_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reward_process, "LOAD_SECONDS", 0.7)
    with pytest.raises(RewardError, match=r"did not return within 0\.7 s"):
        check_rewards(rewards({"name": "own", "source": "import time; time.sleep(60)"}), tmp_path)
    assert not children()


def test_a_wrong_argument_blames_the_arguments(tmp_path):
    with pytest.raises(RewardError) as error:
        check_rewards(rewards({"name": "own", "source": BEHAVE, "arguments": {"second": 1}}), tmp_path)
    assert error.value.field == "spec.rewards.functions[0].arguments"
    assert "unexpected keyword argument 'second'" in error.value.message


def test_a_missing_file_and_a_missing_module_are_named(tmp_path):
    with pytest.raises(
        RewardError, match=r"functions\[0\].path: no file .*none.py; a relative path starts at the RLJob"
    ):
        check_rewards(rewards({"name": "own", "path": "none.py"}), tmp_path)
    with pytest.raises(RewardError, match=r"functions\[0\].module: no_such_module: .*No module named"):
        check_rewards(rewards({"name": "own", "module": "no_such_module"}), tmp_path)


def test_the_failing_functions_place_is_named(tmp_path):
    with pytest.raises(RewardError, match=r"^spec.rewards.functions\[1\].arguments: pattern: Field required"):
        check_rewards(rewards({"name": "a", "builtin": "exact_match"}, {"name": "b", "builtin": "regex"}), tmp_path)


def test_a_file_may_import_its_neighbours_and_a_module_lies_beside_the_job(tmp_path, pool_of):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "neighbour.py").write_text("VALUE = 5")
    function = "def grade(data_source, solution_str, ground_truth, extra_info=None): return VALUE"
    (tmp_path / "sub" / "mine.py").write_text(f"from neighbour import VALUE\n{function}")
    (tmp_path / "beside.py").write_text(f"VALUE = 7\n{function}")
    pool = pool_of(
        rewards(
            {"name": "file", "path": "sub/mine.py", "function": "grade"},
            {"name": "module", "module": "beside", "function": "grade"},
        )
    )
    assert pool.score(prompt(), responses("x")).rewards.tolist() == [12]


def test_code_may_define_dataclasses(pool_of):
    source = """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Parsed:
            value: float

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            return Parsed(2.0).value
    """
    pool = pool_of(rewards({"name": "my-own", "source": textwrap.dedent(source)}))
    assert pool.score(prompt(), responses("x")).rewards.tolist() == [2]


# ---- output, and what is left


def test_what_functions_print_goes_to_the_log_and_never_to_our_output(tmp_path, pool_of, capfd):
    source = "print('loading')\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    source += "    print('scoring', solution_str)\n    return 1\n"
    given = rewards({"name": "own", "source": source})
    pool_of(given, log=tmp_path / "log").score(prompt(), responses("abc"))
    assert (tmp_path / "log").read_text() == "loading\nscoring abc\n"
    assert capfd.readouterr() == ("", "")
    pool_of(given).score(prompt(), responses("abc"))
    assert capfd.readouterr() == ("", "loading\nscoring abc\n")


def test_reward_processes_import_nothing_heavy(pool_of):
    source = """
        import sys

        heavy = {"torch", "ray", "transformers", "numpy", "pydantic"} & set(sys.modules)

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            return len(heavy)
    """
    pool = pool_of(rewards({"name": "own", "source": textwrap.dedent(source)}))
    assert pool.score(prompt(), responses("x")).rewards.tolist() == [0]


def test_closing_ends_a_call_and_whoever_waits_for_it(tmp_path):
    pool = RewardPool(rewards(processes=2), tmp_path)
    futures = [pool.submit(prompt(i), responses("hang", "deaf")) for i in range(3)]
    time.sleep(0.3)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 5
    assert not children()
    for future in futures:
        with pytest.raises(InfrastructureError, match="closed"):
            future.result(timeout=0)
    with pytest.raises(InfrastructureError, match="closed"):
        pool.score(prompt(), responses("fine"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward-")]


def test_a_hanging_functions_own_children_die_with_it(tmp_path, pool_of):
    source = f"""
        import pathlib, subprocess

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            child = subprocess.Popen(["sleep", "60"])
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
            child.wait()
    """
    pool = pool_of(rewards({"name": "own", "source": textwrap.dedent(source)}, timeout="500ms"))
    with pytest.raises(RewardError, match="did not return"):
        pool.score(prompt(), responses("x"))
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["idle", "hang", "deaf"])
def test_reward_processes_die_with_a_killed_parent(tmp_path, how):
    program = f"""
        from pathlib import Path
        from rljob_api.v1alpha1 import Rewards
        from rljob_trainer.rewards.pool import RewardPool, Response
        from rljob_trainer.types import Prompt
        import numpy as np, psutil, time
        rewards = Rewards.model_validate({{"functions": [{{"name": "own", "source": {BEHAVE!r}}}], "processes": 2}})
        pool = RewardPool(rewards, Path("."))
        prompt = Prompt("0/0", np.arange(3), "t", "x", {{}}, "")
        pool.score(prompt, [Response("sleep", 1)] * 2)
        if {how!r} != "idle":
            pool.submit(prompt, [Response({how!r}, 1)] * 2)
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
    assert all(gone(pid) for pid in pids)
