"""What must start fast or run in a small container imports neither torch nor Ray; import-linter cannot tell, as it
counts the imports inside functions too."""

import subprocess
import sys

import pytest

HEAVY = ("ray", "torch", "transformers", "vllm")


@pytest.mark.parametrize(
    "module",
    ["rljob_trainer", "rljob_trainer.agent", "rljob_trainer.cli", "rljob_trainer.rewards.host", "rljob_trainer.types"],
)
def test_importing_it_loads_neither_torch_nor_ray(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines())
    assert module in loaded
    assert not loaded.intersection(HEAVY)
