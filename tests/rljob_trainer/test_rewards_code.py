"""What users write in reward code, each with the scores that it should have. Each row stands for a kind."""

import textwrap
from dataclasses import replace

import pytest

from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.check import check_data_sources
from rljob_trainer.rewards.scorer import by_environment
from tests.rljob_trainer.journal_support import task
from tests.rljob_trainer.rewards_support import responses, reward_pools, rewards, scored

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"


@pytest.fixture
def pool_of(tmp_path):
    with reward_pools(tmp_path) as make:
        yield make


def scores_of(pool_of, *functions, texts=("a", "bb"), row=None, **given):
    return scored(pool_of(rewards(*functions, **given)), row or task(7), responses(*texts)).rewards.tolist()


# ---- imports

HELPER = "def g(): return 0.5\n"
CALLS_H = f"from h import g\n{HEAD}    return g()"
DEEP = f"from ..h import g\nfrom . import i\nimport p.h, i as j\n{HEAD}    return g() + i.g() + j.g()"


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        ({"math.py": f"import math, random\n{HEAD}    return math.sqrt(4.0)"}, "math.py", 2),
        ({"random.py": f"import random, tempfile\n{HEAD}    return len([random.random()])"}, "random.py", 1),
        ({"json.py": f"import json\n{HEAD}    return json.loads('3')"}, "json.py", 3),
        ({"numpy.py": f"import numpy as np\n{HEAD}    return np.float32(0.5)"}, "numpy.py", 0.5),
        ({"dataclasses.py": f"import dataclasses\n{HEAD}    return len(dataclasses.__all__) > 5"}, "dataclasses.py", 1),
        ({"my-reward.v2.py": f"{HEAD}    return 1"}, "my-reward.v2.py", 1),
        # neighbours before the standard library and installed packages, by every form of import
        ({"r.py": f"from code import g\n{HEAD}    return g()", "code.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"import tests\n{HEAD}    return tests.g()", "tests.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"import u.v as w\n{HEAD}    return w.g()", "u/__init__.py": "", "u/v.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"import u.v\n{HEAD}    return u.v.g()", "u/__init__.py": "", "u/v.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"from u import v\n{HEAD}    return v.g()", "u/__init__.py": "", "u/v.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"{HEAD}    from types import g\n    return g()", "types.py": HELPER}, "r.py", 0.5),
        ({"r.py": f"import importlib\n{HEAD}    return importlib.import_module('h').g()", "h.py": HELPER}, "r.py", 0.5),
        # a library does not see them
        ({"r.py": f"import tempfile\n{HEAD}    return 1", "random.py": "1 / 0", "os.py": "1 / 0"}, "r.py", 1),
        # a neighbour of a neighbour; a file named like a module is none
        ({"r.py": CALLS_H, "h.py": "from code import g", "code.py": HELPER}, "r.py", 0.5),
        ({"math.py": CALLS_H, "h.py": "import math\ng = lambda: math.sqrt(4)"}, "math.py", 2),
        # relative imports
        ({"r.py": f"from .h import g\n{HEAD}    return g()", "h.py": HELPER}, "r.py", 0.5),
        (
            {
                "p/__init__.py": "", "p/q/__init__.py": "", "p/h.py": HELPER, "p/q/i.py": HELPER,
                "p/q/r.py": DEEP,
            },
            "p/q/r.py",
            1.5,
        ),
    ],
)  # fmt: skip
def test_imports(tmp_path, pool_of, files, path, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert scores_of(pool_of, {"name": "own", "path": path}) == [expected, expected]
    assert not list(tmp_path.rglob("*.pyc"))


def test_two_folders_may_have_neighbours_of_one_name_and_a_module_lies_beside_the_job(tmp_path, pool_of):
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "utils.py").write_text(f"VALUE = {value}")
        (tmp_path / folder / "math.py").write_text(f"{HEAD}    import math, utils\n    return math.floor(utils.VALUE)")
    (tmp_path / "code.py").write_text(f"{HEAD}    return 10")
    functions = [{"name": name, "path": f"{name}/math.py", "weight": 100**i} for i, name in enumerate("ab")]
    assert scores_of(pool_of, *functions, {"name": "module", "module": "code"}) == [211, 211]


# ---- what a function is and does

ALARM = "import signal\nfrom time import sleep\nalarm = signal.alarm"
GUARD = f"import builtins, json, os\n{HEAD}    builtins.exit = os.kill = os.getcwd = json.dumps = None"
PATCHED = f"""
from unittest.mock import patch
{HEAD}    with patch("builtins.input", lambda: "7"):
        exec("import math; answer = math.floor(int(input()))", made := {{}})
    return made["answer"]
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # signatures
        ("def compute_score(solution_str, ground_truth, method='x', score=3.0): return score", 3),
        ("def compute_score(response): return 2", 2),
        ("def compute_score(**row): return len(row)", 4),
        ("async def compute_score(solution_str, ground_truth): return 1.5", 1.5),
        ("class C:\n    async def __call__(self, solution_str): return 2\ncompute_score = C()", 2),
        ("import functools\nasync def f(x, solution_str): return x\ncompute_score = functools.partial(f, 4)", 4),
        (f"import asyncio\n{HEAD}    async def g(): return 5\n    return asyncio.run(g())", 5),
        # lists of a group
        ("def compute_score(responses, ground_truths): return [len(responses)] * 2", 2),
        ("async def compute_score(solution_strs, ground_truths, **k): return [len(k['data_sources'])] * 2", 2),
        ("import numpy\ndef compute_score(responses): return numpy.ones(len(responses))", 1),
        # numbers
        (f"from decimal import Decimal\n{HEAD}    return Decimal('0.5')", 0.5),
        (f"from fractions import Fraction\n{HEAD}    return Fraction(1, 2)", 0.5),
        (f"import numpy\n{HEAD}    return numpy.bool_(True)", 1),
        (f"{HEAD}    return {{'score': 1, 'loss': float('nan'), 'n': float('inf')}}", 1),
        # programs under test
        (PATCHED, 7),
        (f"{GUARD}\n    return 1", 1),
        # output
        (f"import sys\n{HEAD}    sys.stdout = None\n    return 1", 1),
        (f"import sys\n{HEAD}    sys.stdout.close()\n    return 1", 1),
        (f"{HEAD}    print('\\ud800')\n    return 1", 1),
        (f"import logging\nlogging.basicConfig(level=10)\n{HEAD}    logging.info('x')\n    return 1", 1),
        # what it leaves behind, and what it changes
        (f"{ALARM}\n{HEAD}    alarm(2) if solution_str == 'a' else sleep(2.5)\n    return 1", 1),
        (
            f"{HEAD}    for each in (extra_info['l'], ground_truth): each.append(1)\n    return 2 * len(each)",
            2,
        ),
        (f"import argparse\nargparse.ArgumentParser().parse_args()\n{HEAD}    return 1", 1),
        (f"{HEAD}    return 1\nif __name__ == '__main__': 1 / 0", 1),
        (f"import pickle\nclass A: pass\n{HEAD}    return isinstance(pickle.loads(pickle.dumps(A())), A)", 1),
    ],
)
def test_what_users_write(tmp_path, pool_of, source, expected):
    (tmp_path / "r.py").write_text(source)
    row = replace(task(7), ground_truth=[], extra_info={"l": []})
    assert scores_of(pool_of, {"name": "own", "path": "r.py"}, row=row) == [expected, expected]
    assert scores_of(pool_of, {"name": "own", "source": source}, row=row) == [expected, expected]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(tmp_path, pool_of, method):
    source = f"""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        from helper import g

        def compute_score(solution_str, ground_truth):
            with ProcessPoolExecutor(1, mp_context=get_context({method!r})) as pool:
                return pool.submit(g, 1).result() + pool.submit(h, 1).result()

        def h(x): return 2 * x
    """
    (tmp_path / "math.py").write_text(textwrap.dedent(source))
    (tmp_path / "helper.py").write_text("def g(x): return x")
    assert scores_of(pool_of, {"name": "own", "path": "math.py"}, texts=["a"]) == [3]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"{HEAD}    raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        (f"class Late(BaseException): pass\n{HEAD}    raise Late('5 s')", r"raised Late: 5 s \(line 3"),
        ("async def compute_score(response): raise ValueError('no')", "raised ValueError: no"),
        ("import asyncio\nasync def compute_score(response): await asyncio.sleep(60)", "did not return within 2 s"),
        ("def compute_score(responses): return [1]", "returned 1 scores for 2 responses"),
        ("def compute_score(responses): return [1, None]", "returned None, not a number.*sample 1"),
        ("def compute_score(responses): return 1", "raised TypeError"),
        (f"class E(Exception):\n    def __str__(self): 1 / 0\n{HEAD}    raise E", "raised E: <E>"),
        (f"{HEAD}    raise ValueError('\\x1b[2J\\ud800')", "raised ValueError: \ufffd"),
        (f"import os\n{HEAD}    os.write(FD, b'\\0' * 7 + b'\\4null')\n    return 1", "wrote to the connection"),
        (f"import os\n{HEAD}    os.write(FD, b'\\xff' * 9)\n    return 1", "wrote to the connection"),
        (f"import os\n{HEAD}    os.closerange(3, 9999)\n    return 1", "(ended its process|closed the connection)"),
    ],
)
def test_what_goes_wrong_is_named(pool_of, source, reason):
    source = (
        f"import sys\nFD = int(open('/proc/self/cmdline').read().split('\\0')[-3])\n{source}"
        if "FD" in source
        else source
    )
    with pytest.raises(RewardError, match=f"reward own {reason}"):
        scores_of(pool_of, {"name": "own", "source": source}, timeout="2s")


def test_a_missing_ground_truth_reaches_the_function_as_none(pool_of):
    row = replace(task(7), ground_truth=None)
    assert scores_of(pool_of, {"name": "own", "source": f"{HEAD}    return ground_truth is None"}, row=row) == [1, 1]


# ---- data sources, environment


def test_functions_score_the_rows_of_their_data_sources(pool_of):
    functions = [
        {"name": "a", "source": f"{HEAD}    return 1", "dataSources": ["openai/gsm8k", "aime*"]},
        {"name": "b", "source": f"{HEAD}    return 2", "dataSources": ["lighteval/MATH", "math[0]"]},
        {"name": "all", "source": f"{HEAD}    return 4"},
    ]
    pool = pool_of(rewards(*functions))
    for source, expected, components in [
        ("openai/gsm8k", 5, {"a", "all"}), ("aime2024", 5, {"a", "all"}), ("lighteval/MATH", 6, {"b", "all"}),
        ("math[0]", 6, {"b", "all"}), ("other", 4, {"all"}),
    ]:  # fmt: skip
        score = scored(pool, replace(task(7), data_source=source), responses("x", "y"))
        assert (score.rewards.tolist(), set(score.components)) == ([expected] * 2, components)


def test_data_that_no_function_scores_is_refused_at_the_start():
    one, other = {"name": "a", "builtin": "gsm8k", "dataSources": ["aime*"]}, {"name": "b", "builtin": "gsm8k"}
    check_data_sources(rewards(one), lambda: ["aime2024", "aime"])
    check_data_sources(rewards(one, other), lambda: pytest.fail("the data need not be read"))
    with pytest.raises(RewardError, match="'math'") as refused:
        check_data_sources(rewards(one), lambda: ["aime", "math"])
    assert refused.value.field == "spec.rewards.functions"


def test_a_function_sees_the_variables_that_it_names_and_never_rays(pool_of, monkeypatch):
    for name in ("HF_TOKEN", "JUDGE_KEY", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "https_proxy"):
        monkeypatch.setenv(name, "secret")
    source = f"import os\n{HEAD}    return sum(value == 'secret' for value in os.environ.values())"
    assert scores_of(pool_of, {"name": "own", "source": source}) == [0, 0]
    assert scores_of(pool_of, {"name": "own", "source": source, "env": ["JUDGE_KEY"]}) == [1, 1]
    apart = rewards({"name": "a", "source": source}, {"name": "b", "source": source, "env": ["JUDGE_KEY"]})
    assert list(by_environment(apart)) == [[0], [1]]
