"""Messages between an environment process and the pool, over a socket; length first. Needs only Python 3.11.

    pool -> process   a Setup's fields; then  play ID TASK SAMPLE | answer ID CALL VALUE | refuse ID CALL KIND TEXT
                      | cancel ID
    process -> pool   loaded | unusable MESSAGE FIELD;
                      then  call ID CALL METHOD ARGUMENT | end ID REWARD TURN_REWARDS METRICS | raised ID REASON

The pool sends pickles of plain values. A process sends JSON: the pool unpickles nothing that a user's code can write.
"""

import asyncio
import json
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
_LARGEST = 1 << 28
"""Bytes of a message."""


class WrongMessage(ValueError):
    """A process wrote what is no message."""


def pack_plain(*message: Any) -> bytes:
    """For the process."""
    return _framed(pickle.dumps(message, protocol=4))


def pack_json(*message: Any) -> bytes:
    """For the pool. Raises TypeError or ValueError for what JSON does not have."""
    return _framed(json.dumps(message, allow_nan=False).encode())


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


async def read_plain(reader: asyncio.StreamReader) -> Any:
    """Raises asyncio.IncompleteReadError at the end."""
    return pickle.loads(await _read(reader))


async def read_json(reader: asyncio.StreamReader) -> list[Any]:
    """Raises WrongMessage, and asyncio.IncompleteReadError at the end."""
    try:
        message = json.loads(await _read(reader))
    except (ValueError, RecursionError) as error:
        raise WrongMessage("no JSON") from error
    if not isinstance(message, list) or not message:
        raise WrongMessage("no list")
    return message


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _LARGEST:
        raise WrongMessage("too long")
    return await reader.readexactly(length)
