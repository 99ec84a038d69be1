"""One line of JSON for each event; on a terminal, text and colours. Libraries that log with `logging` look the same."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from rljob_operator.kube.errors import Conflict, KubeError, Terminating

QUIET = ("kopf.objects", "kopf.activities", "kopf._core")
"""They log every event that they handle."""


def configure(level: str = "info", *, json: bool | None = None, stream: TextIO = sys.stderr) -> None:
    """json: None lets the stream decide. Replaces what was configured before, in this process."""
    as_json = not stream.isatty() if json is None else json
    number = logging.getLevelNamesMapping()[level.upper()]
    every: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*every, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*every, structlog.stdlib.add_logger_name, _add_object],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(as_json)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def severity(error: BaseException) -> int:
    """The level for an error that will be retried."""
    if isinstance(error, KubeError) and error.logged:
        return logging.DEBUG
    quiet: dict[type[BaseException], int] = {Terminating: logging.DEBUG, Conflict: logging.INFO}
    return quiet.get(type(error), logging.WARNING)


def _rendering(as_json: bool) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [structlog.dev.ConsoleRenderer()]


def _add_object(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The object that a record of kopf is about."""
    about = getattr(event.get("_record"), "k8s_ref", None)
    if about:
        event["object"] = "/".join(filter(None, (about.get("kind"), about.get("namespace"), about.get("name"))))
    return event
