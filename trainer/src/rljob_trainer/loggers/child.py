"""A tracker's process: python -m rljob_trainer.loggers.child MODULE:CLASS. It reads pickled messages from stdin:

RunInfo              first
(step, metrics)      each step
EpisodeTable         each validation
"done"               the Status, last; if it is missing, the driver died and the tracker's own run stays unfinished
"""

import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO

from rljob_trainer.loggers.episodes import EpisodeTable
from rljob_trainer.loggers.protocol import Logger


def main() -> None:
    code = 0
    try:
        serve(_load(sys.argv[1]), _messages(sys.stdin.buffer))
    except Exception:  # noqa: BLE001 - trackers are third-party code; the parent reads the last line
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # exit handlers of trackers may wait for the network without end


def serve(logger: Logger, messages: Iterator[Any]) -> None:
    logger.start(next(messages))
    for message in messages:
        if isinstance(message, tuple):
            logger.log(*message)
        elif isinstance(message, EpisodeTable):
            logger.episodes(message)
        else:
            logger.finish(message)


def _load(target: str) -> Logger:
    module, name = target.split(":")
    logger: Logger = getattr(import_module(module), name)()
    return logger


def _messages(file: BinaryIO) -> Iterator[Any]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return


if __name__ == "__main__":
    main()
