import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rljob_operator.runtime.logging import configure


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


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


def test_the_last_configuration_counts_and_kopf_is_quiet_of_what_it_handles() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure(json=False, stream=second)
    structlog.get_logger().debug("unimportant")
    logging.getLogger("kopf.objects").info("unimportant")
    structlog.get_logger().info("job_started", job="ns/a")
    assert first.getvalue() == ""
    assert "job_started" in second.getvalue()
    assert "unimportant" not in second.getvalue()
    assert not second.getvalue().startswith("{")


def test_text_of_pods_does_not_steer_a_terminal() -> None:
    stream = io.StringIO()
    configure(json=False, stream=stream)
    structlog.get_logger().warning("head_unreachable", reason="\x1b[2Jgone")
    assert "\x1b[2J" not in stream.getvalue()
    assert "gone" in stream.getvalue()
