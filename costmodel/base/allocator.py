"""The C library's memory: whether what arrays give back is kept for the next ones."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Of mallopt in malloc.h of the GNU C library.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 2**25
_MOST_KEPT = 2**30


def keep_freed_memory() -> None:
    """Let the program keep memory that arrays of some MB give back; of other C libraries than GNU's nothing changes.

    A search makes thousands of them. Without it the system takes each back, and clears the pages of the next one:
    a fifth of the time of a large search. What a program holds at its peak stays.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        library.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
