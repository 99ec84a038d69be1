"""The operator is a small process: it starts without the trainer and without what the trainer needs."""

import subprocess
import sys

TRAINER_ONLY = ("rljob_trainer", "ray", "torch", "transformers", "vllm")


def test_importing_the_operator_loads_the_api_and_nothing_of_the_trainer() -> None:
    program = "import sys, rljob_operator, rljob_api; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert {"rljob_operator", "rljob_api"} <= loaded
    assert not loaded.intersection(TRAINER_ONLY)
