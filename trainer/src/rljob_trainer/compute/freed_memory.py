"""What the C library does with memory that is freed."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_KEPT = 64 << 20
"""Bytes of a block that is kept. In threads other than the first, glibc maps what is larger anyway."""


def keep_freed_memory() -> None:
    """Keep it for the next tensor, where the C library is glibc; elsewhere nothing changes.

    By default glibc gives a tensor of 128 KiB and more back to the kernel, or the top of its heap, and the next one's
    pages come one fault after the other, each of them zeroed: 7,000 in each step of a rank with a 376k model, and 400
    since. For processes that compute on a CPU; they stay as large as they once were.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT):
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
