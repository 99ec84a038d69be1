"""The options of `rljob-operator run`, as arguments and as variables."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rljob_operator.cli import app


def told(*arguments: str) -> dict[str, Any]:
    program: Any = typer.main.get_command(app)
    params: dict[str, Any] = program.commands["run"].make_context("run", list(arguments)).params
    return params


def test_each_option_may_be_a_variable(monkeypatch):
    monkeypatch.setenv("RLJOB_OPERATOR_TRAINER_IMAGE", "trainer:1")
    monkeypatch.setenv("RLJOB_OPERATOR_NAMESPACE", "team-a team-b")

    found = told("--poll-seconds=2")
    assert (found["trainer_image"], list(found["namespace"])) == ("trainer:1", ["team-a", "team-b"])
    assert found["poll_seconds"] == 2.0


def test_an_argument_wins_over_a_variable(monkeypatch):
    monkeypatch.setenv("RLJOB_OPERATOR_LISTEN", "127.0.0.1:1")

    assert told("--listen=0.0.0.0:8080")["listen"] == "0.0.0.0:8080"


@pytest.mark.parametrize("listen", [":8080", "[::1]:8080", "localhost:0"])
def test_every_interface_and_ipv6_may_be_listened_on(listen):
    assert told(f"--listen={listen}")["listen"] == listen


REFUSED = {
    "--poll-seconds": ["0", "nan", "inf"],
    "--listen": ["foo", "127.0.0.1:", "127.0.0.1:http"],
    "--head-url": ["http://{nope}", "ftp://{service}"],
    "--namespace": ["", "Bad Name"],
    "--operator-namespace": ["", "../x"],
    "--monitoring-namespace": ["a.b"],
    "--ray-version": ["foo"],
    "--log-format": ["xml"],
}


@pytest.mark.parametrize(("option", "value"), [(option, each) for option, values in REFUSED.items() for each in values])
def test_a_value_that_makes_no_sense_is_refused_by_the_option_s_name(option, value):
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", f"{option}={value}"])
    assert ran.exit_code == 2
    assert option in ran.output
