"""Commands of bench/README.md name programs and options that exist."""

import re
import sys
from pathlib import Path

import pytest

from bench.gpu.__main__ import _arguments as gpu_arguments
from bench.learning.__main__ import _arguments as learning_arguments

BENCH = Path(__file__).parents[2] / "bench"
COMMANDS = re.findall(r"`(?:python -m )?bench\.(\w+)((?: [^`]+)?)`", (BENCH / "README.md").read_text())


def test_all_commands_are_found():
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_a_command_exists_with_its_options(name, arguments, monkeypatch):
    file = BENCH / f"{name}.py"
    source = (file if file.exists() else BENCH / name / "__main__.py").read_text()
    words = arguments.split()
    for option in (each for each in words if each.startswith("--")):
        assert f'"{option}"' in source
    parse = {"gpu": gpu_arguments, "learning": learning_arguments}.get(name)
    if parse is not None:
        monkeypatch.setattr(sys, "argv", [name, *words])
        parse()
