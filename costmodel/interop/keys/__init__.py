"""What the keys of other programs' files mean: a YAML table a program beside this module, and its reading.

A table has four parts. ``fields`` gives each key that is used a name of ours: ``name: [kind, default, key, older
keys]``, where a kind may be a table of the words that a value takes. ``unpriced`` names keys that change time or memory
and have no price, with the sentence that says so: ``key: sentence``, ``key: [values that change nothing, sentence]``, or
``key: {value: sentence}``; a sentence under ``stops`` stops the reading.
``irrelevant`` lists, by reason, patterns of keys that change neither; one covers what stands below its key, but no name
that says by itself that it changes what is priced (``stops.yaml``), unless it ends in ``**``. Other parts are the
program's own words. A key that stands nowhere is named by its reader, or stops it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import shown
from costmodel.base.yaml_files import read_mapping
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.shell_words import is_unknown, missing_in, without_marks

_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "count": (int, "a whole number above 0"),
    "whole": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "text": (str, "a text"),
    "switch": (bool, "true or false"),
    "list": (list, "a list"),
    "table": (dict, "a table"),
}
"""Types of a field's value, with how messages call them; values of other kinds are not checked."""


class Field(NamedTuple):
    """A value that is used: its kind, what it is where no key says it, and its keys, that of today first."""

    kind: str | dict[str, Any]
    default: Any
    keys: tuple[str, ...]


@dataclass(frozen=True)
class KeyTable:
    """The keys of one program, as its file has them; ``unsaid`` is a value that somebody else fills in."""

    program: str
    fields: Mapping[str, Field]
    unpriced: Mapping[str, Any]
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

    @cached_property
    def _patterns(self) -> str:
        return " ".join(self.irrelevant.values())

    def knows(self, key: str) -> bool:
        """Whether a key is used, without a price, or irrelevant."""
        return key in self.used or matches(self._patterns, key.lstrip("-"))

    def key(self, name: str) -> str:
        """Return the key of today for a name of ours."""
        return self.fields[name].keys[0]

    def word(self, name: str, value: Any) -> Any:
        """Return a value as a file has it, where the field takes words."""
        kind = self.fields[name].kind
        words = kind.items() if isinstance(kind, dict) else ()
        return next((word for word, ours in words if ours == value), value)

    def flags(self, values: Mapping[str, Any]) -> list[str]:
        """Return values by our names as words of a command: true is a flag alone, false and null are left out."""
        return [
            word
            for name, value in values.items()
            if value is not None
            for word in words_of(self.key(name), self.word(name, value))
        ]

    def nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by our names as tables in tables, as a file of today has them; null is left out."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            if value is None:
                continue
            *path, last = self.key(name).split(".")
            here = found
            for part in path:
                here = here.setdefault(part, {})
            here[last] = self.word(name, value)
        return found


@cache
def _pattern(word: str) -> re.Pattern[str]:
    return re.compile(rf"{translate(word.removesuffix('.**'))[:-2]}(?:\..*)?")


@cache
def _any_pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{_pattern(word).pattern})" for word in words.split()) or "(?!)")


@cache
def matches(words: str, key: str) -> bool:
    """Whether a key is one of some words, of which ``*`` stands for anything, or stands below one.

    >>> matches("lr-* seed", "lr-decay"), matches("job", "job.name"), matches("job", "jobs")
    (True, True, False)
    >>> matches("data-*", "data-parallel-size"), matches("ref.**", "ref.parallel")
    (False, True)
    """
    if not _any_pattern(words).fullmatch(key):
        return False
    telling = {word for word in _telling(key) if _stops()[word] != "lengths"}
    return any(
        _pattern(word).fullmatch(key) and (word.endswith("**") or telling <= {*_telling(word)})
        for word in words.split()
    )


@cache
def key_table(program: str) -> KeyTable:
    """Return the table of a program: the name of a file beside this one."""
    raw = read_mapping(Path(__file__).with_name(f"{program}.yaml"), example="fields:")
    fields = {
        name: Field(kind, default, tuple(keys)) for name, (kind, default, *keys) in raw.pop("fields").items()
    }
    parts = (raw.pop("unpriced", {}), raw.pop("irrelevant", {}), raw.pop("unsaid", ""))
    return KeyTable(program, fields, *parts, raw)


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


def is_on(value: object) -> bool:
    """Whether a value says something: not off, nor a table that is not enabled."""
    if isinstance(value, dict) and False in (value.get("enable"), value.get("enabled")):
        return False
    return (value.lower() if isinstance(value, str) else value) not in _OFF


@cache
def _stops() -> dict[str, str]:
    raw = read_mapping(Path(__file__).with_name("stops.yaml"), example="batch: words")
    return {word: topic for topic, words in raw.items() for word in words.split()}


@cache
def _telling(key: str) -> tuple[str, ...]:
    """Return the words of a key's name that say that it changes what is priced."""
    return tuple(word for word in re.split(r"[\W_]+", key.lower()) if word in _stops())


def _names(key: str, value: object) -> Iterator[str]:
    """Yield a key, and those that are on below it."""
    yield key
    if isinstance(value, dict):
        for name, inside in value.items():
            if is_on(inside):
                yield from _names(str(name), inside)


def unknown_keys(said: Mapping[str, Any], program: str = "") -> tuple[str, ...]:
    """Return those of some keys, none of them in a table, that are on and no program's own (``_key``).

    A key whose name says that it changes what is priced (``stops.yaml``) stops the reading.
    """
    found = []
    for key, value in said.items():
        if not is_on(value) or key.rpartition(".")[2].startswith("_"):
            continue
        topics = [_stops()[word] for name in _names(key, value) for word in _telling(name)]
        # A degree of one divides nothing.
        if topics and not (set(topics) == {"parallelism"} and value in (1, "1", ["1"]) and value is not True):
            who = f"{program}: " if program else ""
            raise FrameworkConfigError(
                f"{who}{key}: {shown(value)} is not understood, and by its name changes {topics[0]}; "
                "leave it out where it does not"
            )
        found.append(key)
    return tuple(found)


class Values:
    """What a file says, by our names; `raw` is its content, tables in tables, and `program` stands in messages."""

    def __init__(self, table: KeyTable, raw: Mapping[str, Any], program: str = "") -> None:
        self.table, self.program = table, program
        flat = dict(self._flat(raw))
        self.unsaid = {key for key, value in flat.items() if value == table.unsaid and table.unsaid}
        """Keys whose value somebody else fills in."""
        self.raw: dict[str, Any] = {key: None if key in self.unsaid else value for key, value in flat.items()}

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
        return any(self.raw.get(key) is not None for key in self.table.fields[name].keys)

    def _value(self, key: str, kind: Any) -> Any:
        """Return the value of a key, null where nothing says it."""
        return self.raw.get(key)

    def __getitem__(self, name: str) -> Any:
        """Return a value, what it is by default where the file does not say it; one of the wrong kind is refused."""
        kind, default, _ = self.table.fields[name]
        key = self.key(name)
        value = self._value(key, kind)
        if value is None:
            return default
        if isinstance(kind, dict):
            if not isinstance(value, (str, int, float)) or value not in kind:
                raise self.error(key, f"one of {', '.join(map(str, kind))}", value)
            return kind[value]
        if kind not in _KINDS:
            return value
        kinds, called = _KINDS[kind]
        if kinds is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e9 is one, too
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        if wrong or (kind == "count" and value < 1):
            raise self.error(key, called, value)
        return value

    def need(self, name: str) -> int:
        """Return a whole number that must be there."""
        if self[name] is None:
            raise FrameworkConfigError(f"{self.table.program}: {self.key(name)} is missing")
        return int(self[name])

    def unread(self) -> tuple[str, ...]:
        """Return the keys that nobody knows and that are on; see `unknown_keys`."""
        return unknown_keys(
            {key: value for key, value in self._stated().items() if not self.table.knows(key)}, self.program
        )

    def _stated(self) -> Mapping[str, Any]:
        return self.raw

    def unpriced(self) -> list[str]:
        """Return what to say of keys without a price."""
        found = []
        stated = self._stated()
        for key, said in self.table.unpriced.items():
            value = stated.get(key)
            value = " ".join(value) if isinstance(value, list) and key.startswith("--") else value
            word = str(value).lower()
            if isinstance(said, dict):
                said = {str(key).lower(): sentence for key, sentence in said.items()}.get(word, "")
            harmless, sentence = said if isinstance(said, list) else ([], said)
            if not (is_on(value) and sentence) or word in map(str, harmless):
                continue
            if isinstance(sentence, dict):
                raise FrameworkConfigError(f"{key}: {sentence['stops'].replace('{value}', shown(value))}")
            found.append(f"{key}: {sentence.replace('{value}', str(value))}")
        return found


class Flags(Values):
    """The flags of a command line, as a text, as words, or each with its value; underscores in a name are dashes."""

    def __init__(self, given: str | Sequence[str] | Mapping[str, Any]) -> None:
        super().__init__(key_table("megatron"), {})
        if isinstance(given, Mapping):
            given = [word for key, value in given.items() for word in words_of(key, value)]
        current: list[str] | None = None
        for word in _split(given) if isinstance(given, str) else given:
            if re.match(r"--?[A-Za-z]", word) and (word.startswith("--") or word in ("-b", "-n")):
                flag, equals, value = word.partition("=")
                current = self.raw[flag.replace("_", "-")] = [value] if equals else []
            elif current is not None:
                current.append(word)
        if not self.raw:
            raise FrameworkConfigError("megatron: no arguments found; expected flags such as --num-layers 32")

    def key(self, name: str) -> str:
        """Return the flag that says a value, one without a value where no other does."""
        keys = self.table.fields[name].keys
        there = (flag for values in (True, False) for flag in keys if bool(self.raw.get(flag)) == values)
        return next((flag for flag in there if flag in self.raw), keys[0])

    def _value(self, key: str, kind: Any) -> Any:
        values = self.raw.get(key)
        if values is None:
            return None
        if kind == "switch":
            return self._is_on(key)
        if kind == "words":
            # What follows the last flag may be a script, or the end of the list that the flags stood in.
            return [
                part for part in values if not part.endswith(".py") and part.count(")") <= part.count("(")
            ]
        if kind == "plain":
            number = _number(values[0]) if values else None
            return None if isinstance(number, str) else number
        text = self.text(key)
        if kind in ("count", "whole"):
            if text.lower() in ("none", "null"):
                return None
            return _number(text, int)
        if kind == "number":
            return _number(text)
        return text or None

    def __getitem__(self, name: str) -> Any:
        """Return a value; a switch is on where any of its flags is."""
        kind, _, keys = self.table.fields[name]
        return any(self._is_on(flag) for flag in keys) if kind == "switch" else super().__getitem__(name)

    def _is_on(self, flag: str) -> bool:
        return flag in self.raw and "".join(self.raw[flag][:1]).lower() not in ("false", "no", "off")

    def text(self, flag: str) -> str:
        """Return the value of a flag; one that only a variable or a program's output says is refused."""
        value = (self.raw.get(flag) or [""])[0]
        missing, rest = missing_in(value), without_marks(value)
        if missing and (not rest or (rest.isdigit() and is_unknown(value))):
            advice = f"; give --env {missing[1:].split()[0]}=…" if missing.startswith("$") else ""
            raise FrameworkConfigError(f"{flag}: its value is not in the script: {missing}{advice}")
        return rest

    def lacks(self, flag: str) -> str:
        """Say what a flag's value lacks, empty if it is there."""
        return missing_in((self.raw.get(flag) or [""])[0])

    def give(self, name: str, value: object) -> None:
        """Set a value by our name, over what the text has."""
        flag, *older = self.table.fields[name].keys
        for other in older:
            self.raw.pop(other, None)
        self.raw[flag] = [str(value)]

    def _stated(self) -> Mapping[str, Any]:
        return {flag: values or True for flag, values in self.raw.items()}


def _number(text: str, kind: type[int | float] = float) -> float | str:
    """Return a finite number, or the text where it is none."""
    try:
        number = kind(text)
    except ValueError:
        return text
    return text if isinstance(number, float) and not isfinite(number) else number


def words_of(key: str, value: Any) -> list[str]:
    """Return a key with its value as words of a command: true is a switch, false, null and tables are left out."""
    if value is None or value is False or isinstance(value, dict):
        return []
    values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
    return [flag_of(key), *map(str, values)]


def flag_of(key: str) -> str:
    """Return a key of a configuration as a flag."""
    return key if key.startswith("--") else f"--{key.replace('_', '-')}"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FrameworkConfigError(f"megatron: cannot read the arguments: {error}") from None
