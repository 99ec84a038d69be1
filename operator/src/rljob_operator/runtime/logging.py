"""One line of JSON for each event, or text and colours. Libraries that log with `logging` look the same."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from rljob_api.printable import printable
from rljob_operator.kube.errors import Conflict, KubeError, Terminating

QUIET = ("kopf.objects", "kopf.activities", "kopf._core")
"""They log every event that they handle."""


def configure(*, json: bool = True, stream: TextIO = sys.stderr) -> None:
    """json: or text, for a terminal. Replaces what was configured before, in this process."""
    every: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*every, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    as_json: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*every, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(as_json if json else [_as_plain_text, structlog.dev.ConsoleRenderer()]),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _as_plain_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Users' pods and the API server wrote some of it; a terminal shows it."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def severity(error: BaseException) -> int:
    """The level for an error that will be retried."""
    if isinstance(error, KubeError) and error.logged:
        return logging.DEBUG
    quiet: dict[type[BaseException], int] = {Terminating: logging.DEBUG, Conflict: logging.INFO}
    return quiet.get(type(error), logging.WARNING)
