"""Standard streams as they come: in any encoding, closed, on a full disk, or with nobody left to read."""

import codecs
import contextlib
import errno
import io
import os
import sys
from typing import TextIO

_SPELT = {
    **dict(zip("−–—─━╺╸│×÷·µ“”’•", '-------|x/*u""\'*', strict=True)),
    **dict(zip("█▓▒░▚▤◆▥◇▦▞╱┃●★", "#=o.%+@x&-$/|O*", strict=True)),  # what figures in a terminal are made of
    **dict(
        zip(
            "…≤≥≈→±αβγ√⁻°",
            ["...", "<=", ">=", "~", "->", "+-", "alpha", "beta", "gamma", "sqrt", "^-", "deg"],
            strict=True,
        )
    ),
    **{character: f"^{digit}" for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
"""What stands for a character that an encoding does not have."""


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded by how people write it without, or by a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_SPELT.get(character, "?") for character in text), error.end


class _Closed(io.TextIOBase):
    """A stream that was closed before the program began: writing to it is an error, as it is on a full disk."""

    def write(self, text: str) -> int:
        """Refuse to write."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def prepare() -> None:
    """Make standard streams take every text: none is a traceback because of how it would be written.

    A file that is opened later must not become a closed standard stream, where messages would end up in it.
    """
    if sys.stdout is None or sys.stderr is None:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the program
    codecs.register_error("costmodel-spell", _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="costmodel-spell")


def say(message: str) -> None:
    """Print a line on stderr; where that is full or gone, the exit code has to say it."""
    try:
        print(message, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _drop(sys.stderr)


def drop_output() -> None:
    """Leave nothing for the interpreter to flush into an output that takes nothing."""
    _drop(sys.stdout)


def _drop(stream: TextIO) -> None:
    # A stream without a file has nothing that could be flushed.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
