"""How records lie in a file, so that one cut off by a crash, or damaged by a disk, is never taken for a whole one.

    magic     8 bytes: name and format version
    frames    length (8 bytes), CRC-32 of the payload, CRC-32 of these 12 bytes, all little-endian; then the payload

The head has a checksum of its own: a damaged payload costs one record, and only a damaged head the rest of the file.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

MAGIC = b"RLJOBJ1\n"

_CONTENT = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_HEAD = _CONTENT.size + _CHECK.size


class Frame(NamedTuple):
    """One frame that is there as a whole. payload: None if it is damaged. end: where the next one begins."""

    offset: int
    payload: bytes | None
    end: int


def frame(payload: bytes) -> bytes:
    """The payload as it goes into a file."""
    content = _CONTENT.pack(len(payload), zlib.crc32(payload))
    return b"".join([content, _CHECK.pack(zlib.crc32(content)), payload])


def read_frames(file: BinaryIO, offset: int = 0) -> Iterator[Frame]:
    """Frames from `offset` on, until the end or the first that is unfinished or whose head is damaged.

    offset: 0, or the end of a frame.
    """
    file.seek(offset)
    if offset == 0:
        if file.read(len(MAGIC)) != MAGIC:
            return
        offset = len(MAGIC)
    while (found := _next(file, offset)) is not None:
        yield found
        offset = found.end


def readable_end(file: BinaryIO) -> int:
    """Where the next frame belongs; 0 in a file without the magic."""
    file.seek(0)
    end = len(MAGIC) if file.read(len(MAGIC)) == MAGIC else 0
    for found in read_frames(file):
        end = found.end
    return end


def _next(file: BinaryIO, offset: int) -> Frame | None:
    head = file.read(_HEAD)
    content = head[: _CONTENT.size]
    if len(head) < _HEAD or _CHECK.unpack_from(head, _CONTENT.size) != (zlib.crc32(content),):
        return None
    length, crc = _CONTENT.unpack(content)
    payload = file.read(length)
    if len(payload) < length:
        return None
    return Frame(offset, payload if zlib.crc32(payload) == crc else None, offset + _HEAD + length)
