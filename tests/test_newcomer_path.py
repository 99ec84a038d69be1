"""The files that a newcomer opens lead from one to the next."""

import pytest

from tools.newcomer_path import PATHS, STARTED, file_of, gaps

MOST = 14
"""Files that a newcomer opens for one path."""


@pytest.mark.parametrize("name", PATHS)
def test_each_file_of_a_path_is_imported_on_the_way(name: str) -> None:
    assert gaps(PATHS[name]) == []
    assert len(PATHS[name]) <= MOST


def test_the_module_that_starts_a_process_names_its_command() -> None:
    for starter, command in STARTED.items():
        assert f'"{command.rpartition(".")[2]}"' in file_of(starter).read_text()


def test_a_file_that_nothing_on_the_way_imports_is_a_gap() -> None:
    assert gaps(["rljob_operator.decide", "rljob_operator.perform.performer"]) == ["rljob_operator.perform.performer"]
