"""Flags of a command line: ``--flag value``, ``--flag=value``, ``--flag_name``, values of several words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from math import isfinite
from typing import overload

from costmodel.base.errors import shown
from costmodel.describe.models.model import MOST_LAYERS
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron_flags import HARMLESS
from costmodel.interop.shell.expand import missing_in, without_marks

_FALSE, _TRUE = ("false", "no", "off", "none", "null"), ("true", "yes", "on")


class Flags:
    """The flags of a command line, remembering which have been read.

    Parameters
    ----------
    given : str or sequence of str
        A text with flags, or the words of a command. Underscores in a flag's name count as dashes.
    """

    def __init__(self, given: str | Sequence[str]) -> None:
        self._values: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in _split(given) if isinstance(given, str) else given:
            if re.match(r"--?[A-Za-z]", word) and (word.startswith("--") or word in ("-b", "-n")):
                flag, equals, value = word.partition("=")
                name = flag.replace("_", "-")
                current = self._values[name] = [value] if equals else []
            elif current is not None:
                current.append(word)
        self._read: set[str] = set()
        if not self._values:
            raise FrameworkConfigError("megatron: no arguments found; expected flags such as --num-layers 32")

    def has(self, flag: str) -> bool:
        """Return whether a switch is there and not turned off (``--flag false``)."""
        self._read.add(flag)
        return flag in self._values and [v.lower() for v in self._values[flag][:1]] not in (
            [word] for word in _FALSE[:3]
        )

    def words(self, flag: str) -> list[str]:
        """Return the values of a flag that takes several."""
        self._read.add(flag)
        # What follows the last flag may be a script, or the end of the list that the flags stood in.
        return [
            part
            for part in self._values.get(flag, [])
            if not part.endswith(".py") and part.count(")") <= part.count("(")
        ]

    def text(self, flag: str, default: str) -> str:
        """Return the value of a flag.

        Raises
        ------
        FrameworkConfigError
            If it depends on a variable that is not set, or on a program's output.
        """
        self._read.add(flag)
        values = self._values.get(flag)
        if not values:
            return default
        if missing := missing_in(values[0]):
            if not without_marks(values[0]):
                raise FrameworkConfigError(
                    f"{flag}: its value is not in the script: {missing}{_advice(missing)}"
                )
            return without_marks(values[0])
        return values[0]

    def lacks(self, flag: str) -> str:
        """Say what a flag's value lacks, empty if it is there."""
        values = self._values.get(flag)
        return missing_in(values[0]) if values else ""

    @overload
    def number(self, flag: str, default: int) -> int: ...
    @overload
    def number(self, flag: str, default: None = None) -> int | None: ...
    def number(self, flag: str, default: int | None = None) -> int | None:
        """Return a whole number."""
        self._read.add(flag)
        if flag not in self._values:
            return default
        given = self.text(flag, "")
        if given.lower() in ("none", "null"):
            return default
        try:
            number = int(given)
        except ValueError:
            raise FrameworkConfigError(f"{flag}: expected a whole number, got {given!r}") from None
        if number < 1 and flag.endswith(("-parallel-size", "-divisible-by")):
            raise FrameworkConfigError(f"{flag}: expected a whole number above 0, got {given}")
        return number

    def need(self, flag: str) -> int:
        """Return a whole number that must be there."""
        found = self.number(flag)
        if found is None:
            raise FrameworkConfigError(f"megatron: {flag} is missing")
        return found

    def real(self, flag: str, default: float) -> float:
        """Return a number."""
        if not self.has(flag):
            return default
        given = self.text(flag, "")
        try:
            return float(given)
        except ValueError:
            raise FrameworkConfigError(f"{flag}: expected a number, got {given!r}") from None

    def plain_number(self, flag: str) -> float | None:
        """Return a number that no price depends on, None where the text has none."""
        self._read.add(flag)
        given = (self._values.get(flag) or [""])[0]
        try:
            number = float(given)
        except ValueError:
            return None
        return number if isfinite(number) else None

    def give(self, flag: str, value: object) -> None:
        """Set a flag's value, over what the text has."""
        self._values[flag] = [str(value)]

    def names(self) -> tuple[str, ...]:
        """Return every flag that is there."""
        return tuple(self._values)

    def pass_over(self, *flags: str) -> None:
        """Note flags as read without reading them."""
        self._read.update(flags)

    def unread(self) -> tuple[str, ...]:
        """Return flags that may matter and were not read."""
        return tuple(flag for flag in self._values if flag not in self._read and not HARMLESS.match(flag))


def _advice(missing: str) -> str:
    """Say how to give a variable."""
    return f"; give --env {missing[1:].split()[0]}=…" if missing.startswith("$") else ""


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FrameworkConfigError(f"megatron: cannot read the arguments: {error}") from None


def layer_pattern(given: str, num_layers: int) -> list[int]:
    """Read ``--moe-layer-freq``: a number, or a list expression such as ``([0]*3+[1]*58)``.

    >>> layer_pattern("([0]*2+[1]*3)", 5), layer_pattern("2", 4)
    ([0, 0, 1, 1, 1], [1, 0, 1, 0])
    """
    if num_layers > MOST_LAYERS:
        raise FrameworkConfigError(f"--num-layers: expected at most {MOST_LAYERS:,}, got {shown(num_layers)}")
    text = given.replace(" ", "").strip("()")
    if text.isdecimal() and int(text) > 0:
        return [1 if layer % int(text) == 0 else 0 for layer in range(num_layers)]
    pattern: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\(*\[([01](?:,[01])*),?\](?:\*(\d{1,4}))?\)*", term)
        if match is None:
            raise FrameworkConfigError(
                f"--moe-layer-freq: expected a number or a list such as [0]*3+[1]*58, got {given!r}"
            )
        pattern += [int(part) for part in match[1].split(",")] * int(match[2] or 1)
    if len(pattern) != num_layers:
        raise FrameworkConfigError(
            f"--moe-layer-freq: {given!r} has {len(pattern)} layers, --num-layers is {num_layers}"
        )
    return pattern
