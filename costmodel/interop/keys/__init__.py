"""What the keys of other programs' files mean: a YAML table a program beside this module, and its reading.

A table has four parts. ``fields`` gives each key that is used a name of ours: ``name: [kind, default, key, older
keys]``. ``unpriced`` names keys that change time or memory and have no price, with the sentence that says so.
``irrelevant`` lists, by reason, patterns of keys that change neither. Other parts are the program's own words. A key
that stands nowhere is named by its reader, or stops it: `unknown_keys`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import shown
from costmodel.base.yaml_files import read_mapping
from costmodel.interop.framework import FrameworkConfigError

_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "count": (int, "a whole number above 0"),
    "whole": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "text": (str, "a text"),
    "switch": (bool, "true or false"),
    "list": (list, "a list"),
    "table": (dict, "a table"),
}
"""Types of a field's value, with how messages call them; ``any`` is not checked."""


class Field(NamedTuple):
    """A value that is used: its kind, what it is where no key says it, and its keys, that of today first."""

    kind: str
    default: Any
    keys: tuple[str, ...]


@dataclass(frozen=True)
class KeyTable:
    """The keys of one program.

    Attributes
    ----------
    fields : mapping
        Keys that are used, by our name for their value.
    unpriced : mapping
        Keys that matter and have no price, with what to say.
    irrelevant : mapping
        Patterns of keys that change no time and no memory, by reason; one covers all that stands below its key.
    unsaid : str
        A word that stands for no value, because somebody else fills it in.
    more : mapping
        The program's own words.
    """

    fields: Mapping[str, Field]
    unpriced: Mapping[str, str]
    irrelevant: Mapping[str, str]
    unsaid: str
    more: Mapping[str, Any]

    @cached_property
    def used(self) -> frozenset[str]:
        """Keys that matter, with a price or without."""
        return frozenset(key for field in self.fields.values() for key in field.keys) | {*self.unpriced}

    @cached_property
    def tables(self) -> frozenset[str]:
        """Keys that others stand below."""
        return frozenset(
            ".".join(parts[:length])
            for parts in (key.split(".") for key in self.used)
            for length in range(1, len(parts))
        )

    def knows(self, key: str) -> bool:
        """Whether a key is used, without a price, or irrelevant."""
        return key in self.used or any(matches(words, key.lstrip("-")) for words in self.irrelevant.values())

    def key(self, name: str) -> str:
        """Return the key of today for a name of ours."""
        return self.fields[name].keys[0]

    def flags(self, values: Mapping[str, Any]) -> list[str]:
        """Return values by our names as words of a command: true is a flag alone, false and null are left out."""
        words: list[str] = []
        for name, value in values.items():
            if value is None or value is False:
                continue
            said = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [self.key(name), *map(str, said)]
        return words

    def nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by our names as tables in tables, as a file of today has them."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            *path, last = self.key(name).split(".")
            here = found
            for part in path:
                here = here.setdefault(part, {})
            here[last] = value
        return found


@cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(rf"{translate(word)[:-2]}(?:\..*)?" for word in words.split()))


def matches(words: str, key: str) -> bool:
    """Whether a key is one of some words, of which ``*`` stands for anything, or stands below one.

    >>> matches("lr-* seed", "lr-decay"), matches("job", "job.name"), matches("job", "jobs")
    (True, True, False)
    """
    return bool(_pattern(words).fullmatch(key))


@cache
def key_table(program: str) -> KeyTable:
    """Return the table of a program: the name of a file beside this one."""
    raw = read_mapping(Path(__file__).with_name(f"{program}.yaml"), example="fields:")
    fields = {
        name: Field(kind, default, tuple(keys)) for name, (kind, default, *keys) in raw.pop("fields").items()
    }
    return KeyTable(fields, raw.pop("unpriced", {}), raw.pop("irrelevant", {}), raw.pop("unsaid", ""), raw)


_OFF: tuple[Any, ...] = (
    None,
    False,
    0,
    "",
    "0",
    "none",
    "null",
    "false",
    "no",
    "off",
    [],
    {},
    ["0"],
    ["false"],
    ["none"],
)
"""Values of a key that is not used, as files and command lines have them."""


@cache
def _stops() -> dict[str, str]:
    raw = read_mapping(Path(__file__).with_name("stops.yaml"), example="batch: words")
    return {word: topic for topic, words in raw.items() for word in words.split()}


def require_known(key: str, value: object, program: str = "") -> None:
    """Refuse a key that is in no table and whose name says that it changes what is priced (``stops.yaml``).

    Raises
    ------
    FrameworkConfigError
        Naming the key, its value, and what it is about.
    """
    topics = [_stops()[word] for word in re.split(r"[\W_]+", key.lower()) if word in _stops()]
    # A degree of one divides nothing.
    if topics and not (topics == ["parallelism"] and value in (1, "1", ["1"])):
        who = f"{program}: " if program else ""
        raise FrameworkConfigError(
            f"{who}{key}: {shown(value)} is not understood, and by its name changes {topics[0]}; "
            "leave it out where it does not"
        )


def unknown_keys(said: Mapping[str, Any], program: str = "") -> tuple[str, ...]:
    """Return those of some keys, none of them in a table, that are on and no program's own (``_key``).

    Raises
    ------
    FrameworkConfigError
        If one of them says that it changes what is priced.
    """
    found = []
    for key, value in said.items():
        plain = value.lower() if isinstance(value, str) else value
        if plain not in _OFF and not key.rpartition(".")[2].startswith("_"):
            require_known(key, value, program)
            found.append(key)
    return tuple(found)


class Values:
    """What a file says, by our names.

    Parameters
    ----------
    table : KeyTable
        Of the file's program.
    raw : mapping
        Its content, tables in tables.
    program : str
        For messages.
    """

    def __init__(self, table: KeyTable, raw: Mapping[str, Any], program: str = "") -> None:
        self.table, self.program = table, program
        flat = dict(self._flat(raw))
        self.unsaid = {key for key, value in flat.items() if value == table.unsaid and table.unsaid}
        """Keys whose value somebody else fills in."""
        self.raw = {key: None if key in self.unsaid else value for key, value in flat.items()}

    def _flat(self, raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in raw.items():
            key = f"{path}{name}"
            if isinstance(value, dict) and key in self.table.tables:
                yield from self._flat(value, f"{key}.")
                continue
            if key in self.table.tables and value not in (None, False) and key not in self.table.used:
                raise self.error(key, "a table", value)
            yield key, value

    def error(self, key: str, expected: str, value: object) -> FrameworkConfigError:
        """Return the error of a value that is not what it has to be."""
        who = f"{self.program}: " if self.program else ""
        return FrameworkConfigError(f"{who}{key}: expected {expected}, got {shown(value)}")

    def key(self, name: str) -> str:
        """Return the key that says a value, that of today where none does."""
        keys = self.table.fields[name].keys
        return next((key for key in keys if self.raw.get(key) is not None), keys[0])

    def said(self, name: str) -> bool:
        """Whether the file says a value."""
        return self.raw.get(self.key(name)) is not None

    def __getitem__(self, name: str) -> Any:
        """Return a value, what it is by default where the file does not say it.

        Raises
        ------
        FrameworkConfigError
            If it is of the wrong kind.
        """
        field, key = self.table.fields[name], self.key(name)
        value = self.raw.get(key)
        if value is None:
            return field.default
        if field.kind == "any":
            return value
        kind, called = _KINDS[field.kind]
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e9 is one, too
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if wrong or (field.kind == "count" and value < 1):
            raise self.error(key, called, value)
        return value

    def choice(self, name: str, choices: Mapping[str, Any] | Sequence[str]) -> Any:
        """Return what a word means, or the word itself of a plain sequence.

        Raises
        ------
        FrameworkConfigError
            If it is none of them.
        """
        word = self[name]
        if word not in choices:
            raise self.error(self.key(name), f"one of {', '.join(choices)}", word)
        return choices[word] if isinstance(choices, Mapping) else word

    def left(self) -> dict[str, Any]:
        """Return the keys that nobody knows, with their values; a private one, with an underscore, is none of a user's."""
        return {
            key: value
            for key, value in self.raw.items()
            if not self.table.knows(key) and not key.rpartition(".")[2].startswith("_")
        }

    def unread(self) -> tuple[str, ...]:
        """Return the keys that nobody knows and that are on; see `unknown_keys`."""
        return unknown_keys(self.left(), self.program)

    def unpriced(self) -> list[str]:
        """Return what to say of keys without a price."""
        off = [
            key
            for key, value in self.raw.items()
            if isinstance(value, dict) and value.get("enabled") is False
        ]
        return [
            f"{key}: {said}"
            for key, said in self.table.unpriced.items()
            if self.raw.get(key) and key not in off
        ]
