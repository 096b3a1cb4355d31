"""Flags of a command line: ``--flag value``, ``--flag=value``, ``--flag_name``, values of several words.

What they mean stands in ``keys/megatron.yaml``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from costmodel.base.errors import shown
from costmodel.describe.models.model import MOST_LAYERS
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.keys import key_table, unknown_keys
from costmodel.interop.shell_words import is_unknown, missing_in, without_marks

MEGATRON = key_table("megatron")
_FALSE = ("false", "no", "off")


class Flags:
    """The flags of a command line, by themselves and by our names for them.

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
        if not self._values:
            raise FrameworkConfigError("megatron: no arguments found; expected flags such as --num-layers 32")

    def flag(self, name: str) -> str:
        """Return the flag that says what we have a name for, that of today where none does."""
        keys = MEGATRON.fields[name].keys
        return next((flag for flag in keys if self._values.get(flag)), self._bare(keys))

    def _bare(self, flags: Sequence[str]) -> str:
        return next((flag for flag in flags if flag in self._values), flags[0])

    def said(self, name: str) -> bool:
        """Whether a flag says what we have a name for, be it without a value."""
        return any(flag in self._values for flag in MEGATRON.fields[name].keys)

    def __getitem__(self, name: str) -> Any:
        """Return a value by our name, what it is by default where no flag says it.

        Raises
        ------
        FrameworkConfigError
            If it is of the wrong kind, or depends on what is not in the script.
        """
        kind, default, flags = MEGATRON.fields[name]
        if kind == "switch":
            return any(self.has(flag) for flag in flags)
        flag = self.flag(name)
        if kind == "words":
            return self.words(flag)
        if kind == "plain":
            return self.plain_number(flag)
        if kind == "text":
            return self.text(flag, default)
        if kind == "number":
            return self.real(flag, default)
        number = self.number(flag, default)
        if kind == "count" and number is not None and number < 1:
            raise FrameworkConfigError(f"{flag}: expected a whole number above 0, got {number}")
        return number

    def need(self, name: str) -> int:
        """Return a whole number that must be there."""
        if self[name] is None:
            raise FrameworkConfigError(f"megatron: {self.flag(name)} is missing")
        return int(self[name])

    def choice(self, name: str, choices: Mapping[str, str] | Sequence[str]) -> str:
        """Return what a word means, or the word itself of a plain sequence.

        Raises
        ------
        FrameworkConfigError
            If it is none of them.
        """
        word = str(self[name])
        if word not in choices:
            raise FrameworkConfigError(
                f"{self.flag(name)}: expected one of {', '.join(choices)}, got {word!r}"
            )
        return choices[word] if isinstance(choices, Mapping) else word

    def has(self, flag: str) -> bool:
        """Return whether a switch is there and not turned off (``--flag false``)."""
        return flag in self._values and "".join(self._values[flag][:1]).lower() not in _FALSE

    def words(self, flag: str) -> list[str]:
        """Return the values of a flag that takes several."""
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
        values = self._values.get(flag)
        if not values:
            return default
        missing, rest = missing_in(values[0]), without_marks(values[0])
        if missing and (not rest or (rest.isdigit() and is_unknown(values[0]))):
            raise FrameworkConfigError(f"{flag}: its value is not in the script: {missing}{_advice(missing)}")
        return rest

    def lacks(self, flag: str) -> str:
        """Say what a flag's value lacks, empty if it is there."""
        values = self._values.get(flag)
        return missing_in(values[0]) if values else ""

    def number(self, flag: str, default: Any = None) -> Any:
        """Return a whole number, `default` where the flag is not there or says none.

        Raises
        ------
        FrameworkConfigError
            If it is something else.
        """
        given = self.text(flag, "")
        if flag not in self._values or given.lower() in ("none", "null"):
            return default
        try:
            return int(given)
        except ValueError:
            raise FrameworkConfigError(f"{flag}: expected a whole number, got {given!r}") from None

    def real(self, flag: str, default: float) -> float:
        """Return a number.

        Raises
        ------
        FrameworkConfigError
            If it is none.
        """
        if not self.has(flag):
            return default
        number = self.plain_number(flag)
        if number is None:
            raise FrameworkConfigError(f"{flag}: expected a number, got {self.text(flag, '')!r}")
        return number

    def plain_number(self, flag: str) -> float | None:
        """Return a number that no price depends on, None where the text has none."""
        try:
            number = float((self._values.get(flag) or [""])[0])
        except ValueError:
            return None
        return number if isfinite(number) else None

    def give(self, name: str, value: object) -> None:
        """Set what we have a name for, over what the text has."""
        flag = MEGATRON.key(name)
        for other in MEGATRON.fields[name].keys:
            self._values.pop(other, None)
        self._values[flag] = [str(value)]

    def setdefault(self, flag: str, value: str) -> None:
        """Set a flag that is not there."""
        self._values.setdefault(flag, [value])

    def names(self) -> tuple[str, ...]:
        """Return every flag that is there."""
        return tuple(self._values)

    def unpriced(self) -> list[str]:
        """Return what to say of flags that have no price."""
        return [f"{flag}: {said}" for flag, said in MEGATRON.unpriced.items() if flag in self._values]

    def unread(self) -> tuple[str, ...]:
        """Return the flags that nobody knows; see `unknown_keys`."""
        return unknown_keys(
            {flag: values or True for flag, values in self._values.items() if not MEGATRON.knows(flag)}
        )


def _advice(missing: str) -> str:
    """Say how to give a variable."""
    return f"; give --env {missing[1:].split()[0]}=…" if missing.startswith("$") else ""


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FrameworkConfigError(f"megatron: cannot read the arguments: {error}") from None


def layer_pattern(given: str, num_layers: int, *, flag: str = "--moe-layer-freq") -> list[int]:
    """Read which layers are of a sort: a number for one in so many, or a list expression such as ``([0]*3+[1]*58)``.

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
                f"{flag}: expected a number or a list such as [0]*3+[1]*58, got {given!r}"
            )
        pattern += [int(part) for part in match[1].split(",")] * int(match[2] or 1)
    if len(pattern) != num_layers:
        raise FrameworkConfigError(
            f"{flag}: {given!r} has {len(pattern)} layers, --num-layers is {num_layers}"
        )
    return pattern
