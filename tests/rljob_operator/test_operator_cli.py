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


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--poll-seconds", "0", "0 is not a positive number"),
        ("--poll-seconds", "nan", "nan is not a positive number"),
        ("--poll-seconds", "inf", "inf is not a positive number"),
        ("--listen", "foo", "'foo' is not HOST:PORT"),
        ("--listen", "127.0.0.1:99999", "is not HOST:PORT"),
        ("--head-url", "http://{nope}", "may name {service}, {namespace}, {port}"),
        ("--head-url", "ftp://{service}", "must begin with http:// or https://"),
        ("--namespace", "", "'' is not a namespace's name"),
        ("--namespace", "Bad Name", "'Bad Name' is not a namespace's name"),
        ("--operator-namespace", "", "'' is not a namespace's name"),
        ("--operator-namespace", "../x", "'../x' is not a namespace's name"),
        ("--monitoring-namespace", "a.b", "'a.b' is not a namespace's name"),
        ("--ray-version", "foo", "'foo' is not a version"),
        ("--log-format", "xml", "'xml' is not one of 'json', 'console'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_the_option_s_name(option, value, why):
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", f"{option}={value}"])
    assert ran.exit_code == 2
    assert option in ran.output
    assert why in ran.output
