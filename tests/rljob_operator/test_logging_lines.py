import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
import structlog

from rljob_operator.runtime.logging import configure


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root, settings = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.configure(**settings)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_events_and_the_libraries_records_are_lines_of_one_form() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    structlog.get_logger().info("job_started", job="ns/a", attempt=2)
    logging.getLogger("asyncio").warning("slow %s", "callback")
    ours, theirs = lines(stream)
    assert (ours["event"], ours["level"], ours["job"], ours["attempt"]) == ("job_started", "info", "ns/a", 2)
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("slow callback", "warning", "asyncio")
    assert set(ours) & set(theirs) == {"event", "level", "timestamp"}


def test_what_kopf_says_of_an_object_names_it_and_nothing_else_of_kopfs() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    about = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "namespace": "ns", "name": "a", "uid": "u"}
    # Where kopf has run in this process, its own handler of this logger reads the settings too.
    extra = {"k8s_ref": about, "k8s_skip": True, "settings": kopf.OperatorSettings()}
    logging.getLogger("kopf.objects").warning("seen", extra=extra)
    (line,) = lines(stream)
    assert line["object"] == "RLJob/ns/a"
    assert set(line) == {"event", "level", "logger", "object", "timestamp"}


def test_an_exception_is_part_of_its_line() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    try:
        raise LookupError("lost")
    except LookupError:
        structlog.get_logger().exception("reconcile_failed")
        logging.getLogger("kopf").exception("failed")
    assert all("LookupError: lost" in line["exception"] for line in lines(stream))
    assert len(lines(stream)) == 2


def test_what_is_below_the_level_is_not_written_and_a_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure("warning", stream=second)
    structlog.get_logger().info("unimportant")
    logging.getLogger("kopf").info("unimportant")
    structlog.get_logger().warning("important")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["important"]


def test_a_terminal_gets_text() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure(stream=stream)
    structlog.get_logger().info("job_started", job="ns/a")
    assert "job_started" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
