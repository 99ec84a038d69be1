"""Configure structlog and the standard library's logging, once per process.

Events are verbs with keys: `checkpoint_saved step=120 seconds=3.1`.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import structlog
from structlog.stdlib import ProcessorFormatter

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(*, json: bool, file: Path | None = None, level: int = logging.INFO) -> None:
    """Log to stderr, as JSON or for people, and as JSON to `file`: our events from `level`, libraries' from warning."""
    handlers = [_handler(logging.StreamHandler(sys.stderr), json=json)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_handler(logging.FileHandler(file), json=True))
    logging.basicConfig(handlers=handlers, level=logging.WARNING, force=True)
    logging.getLogger("rljob_trainer").setLevel(level)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _handler(handler: logging.Handler, *, json: bool) -> logging.Handler:
    last: list[Any] = [ProcessorFormatter.remove_processors_meta]
    if json:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    handler.setFormatter(ProcessorFormatter(processors=last, foreign_pre_chain=_SHARED))
    return handler
