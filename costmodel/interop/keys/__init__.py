"""The keys of other programs' configuration files: one YAML table per program in this folder, and its reader.

A table has these parts:

* ``fields`` maps our names to the keys that are used: ``name: [kind, default, key, older keys]``. A kind may be a table
  of the words that a value takes, with ours for each.
* ``unpriced`` lists keys that change time or memory but have no price, with the warning: ``key: sentence``,
  ``key: [values that change nothing, sentence]``, or ``key: {value: sentence}``; a sentence under ``stops`` refuses the file.
* ``irrelevant`` lists, by reason, patterns of keys that change neither. A pattern covers the keys nested below it, except
  those whose name contains a word of ``stops.yaml``; one that ends in ``**`` covers these too.
* ``placeholder`` is the value that leaves a key to be filled in by another program, such as ``auto``.

Other parts are specific to the program. A key that is in no part is reported; if its name contains a word of
``stops.yaml``, the file is refused.
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
"""Type of the values of each kind, and its name in messages; values of other kinds are not checked."""


class Field(NamedTuple):
    """A value that is used: its kind, its default, and its keys, the current one first."""

    kind: str | dict[str, Any]
    default: Any
    keys: tuple[str, ...]


@dataclass(frozen=True)
class KeyTable:
    """The keys of one program, by the parts of its YAML table."""

    program: str
    fields: Mapping[str, Field]
    unpriced: Mapping[str, Any]
    irrelevant: Mapping[str, str]
    placeholder: str
    more: Mapping[str, Any]
    """Parts that are specific to the program."""

    @cached_property
    def used(self) -> frozenset[str]:
        """Keys that change time or memory, with a price or without."""
        return frozenset(key for field in self.fields.values() for key in field.keys) | {*self.unpriced}

    @cached_property
    def tables(self) -> frozenset[str]:
        """Keys with nested keys."""
        return frozenset(
            ".".join(parts[:length])
            for parts in (key.split(".") for key in self.used)
            for length in range(1, len(parts))
        )

    @cached_property
    def _patterns(self) -> str:
        return " ".join(self.irrelevant.values())

    def knows(self, key: str) -> bool:
        """Whether a key is in the table."""
        return key in self.used or matches(self._patterns, key.lstrip("-"))

    def key(self, name: str) -> str:
        """Return the current key for a name of ours."""
        return self.fields[name].keys[0]

    def word(self, name: str, value: Any) -> Any:
        """Return a value in the program's word for it, where the field takes words."""
        kind = self.fields[name].kind
        words = kind.items() if isinstance(kind, dict) else ()
        return next((word for word, ours in words if ours == value), value)

    def flags(self, values: Mapping[str, Any]) -> list[str]:
        """Return values by our names as command-line flags: true is a flag without a value, false and None are left out."""
        return [
            word
            for name, value in values.items()
            if value is not None
            for word in words_of(self.key(name), self.word(name, value))
        ]

    def nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by our names as nested tables with current keys; None is left out."""
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
    """Whether a key matches one of some patterns, in which ``*`` is anything, or is nested below such a key.

    >>> matches("lr-* seed", "lr-decay"), matches("job", "job.name"), matches("job", "jobs")
    (True, True, False)
    >>> matches("data-*", "data-parallel-size"), matches("ref.**", "ref.parallel")
    (False, True)
    """
    if not _any_pattern(words).fullmatch(key):
        return False
    stops = {word for word in _stop_words(key) if _stop_topics()[word] not in ("lengths", "sizes")}
    return any(
        _pattern(word).fullmatch(key) and (word.endswith("**") or stops <= {*_stop_words(word)})
        for word in words.split()
    )


@cache
def key_table(program: str) -> KeyTable:
    """Return the table of a program, the stem of a YAML file in this folder."""
    raw = read_mapping(Path(__file__).with_name(f"{program}.yaml"), example="fields:")
    fields = {
        name: Field(kind, default, tuple(keys)) for name, (kind, default, *keys) in raw.pop("fields").items()
    }
    parts = (raw.pop("unpriced", {}), raw.pop("irrelevant", {}), raw.pop("placeholder", ""))
    return KeyTable(program, fields, *parts, raw)


_OFF: tuple[Any, ...] = (None, False, 0, "", "0", "none", "null", "false", "no", "off", [], {})
"""Values that turn a key off, in files and on command lines."""


def is_on(value: object) -> bool:
    """Whether a value is neither off nor a table that is not enabled."""
    if isinstance(value, dict) and False in (value.get("enable"), value.get("enabled")):
        return False
    if isinstance(value, list) and len(value) == 1:
        return is_on(value[0])
    return (value.lower() if isinstance(value, str) else value) not in _OFF


@cache
def _stop_topics() -> dict[str, str]:
    raw = read_mapping(Path(__file__).with_name("stops.yaml"), example="batch: words")
    return {word: topic for topic, words in raw.items() for word in words.split()}


@cache
def _stop_words(key: str) -> tuple[str, ...]:
    """Return the words in a key's name that are in ``stops.yaml``: it may change what is priced."""
    return tuple(word for word in re.split(r"[\W_]+", key.lower()) if word in _stop_topics())


def _names(key: str, value: object) -> Iterator[str]:
    """Yield a key, and the nested keys that are on."""
    yield key
    if isinstance(value, dict):
        for name, inside in value.items():
            if is_on(inside):
                yield from _names(str(name), inside)


def unknown_keys(values: Mapping[str, Any], program: str = "") -> tuple[str, ...]:
    """Return those of some keys, none of them in a table, that are on and not private (``_key``).

    A key with a word of ``stops.yaml`` in its name, which may change what is priced, is an error.
    """
    found = []
    for key, value in values.items():
        if not is_on(value) or key.rpartition(".")[2].startswith("_"):
            continue
        topics = [_stop_topics()[word] for name in _names(key, value) for word in _stop_words(name)]
        # A degree of 1 changes nothing.
        if topics and not (set(topics) == {"parallelism"} and value in (1, "1", ["1"]) and value is not True):
            who = f"{program}: " if program else ""
            raise FrameworkConfigError(
                f"{who}{key}: {shown(value)} is not understood, and by its name changes {topics[0]}; "
                "leave it out where it does not"
            )
        found.append(key)
    return tuple(found)


class Values:
    """The values of a configuration file, by our names; `raw` is its content, `program` the name for messages."""

    def __init__(self, table: KeyTable, raw: Mapping[str, Any], program: str = "") -> None:
        self.table, self.program = table, program
        flat = dict(self._flat(raw))
        self.placeholders = {
            key for key, value in flat.items() if value == table.placeholder and table.placeholder
        }
        """Keys whose value another program fills in."""
        self.raw: dict[str, Any] = {
            key: None if key in self.placeholders else value for key, value in flat.items()
        }

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
        """Return the error of a value of the wrong kind."""
        who = f"{self.program}: " if self.program else ""
        return FrameworkConfigError(f"{who}{key}: expected {expected}, got {shown(value)}")

    def key(self, name: str) -> str:
        """Return the key that sets a value, the current one where none does."""
        keys = self.table.fields[name].keys
        return next((key for key in keys if self.raw.get(key) is not None), keys[0])

    def has(self, name: str) -> bool:
        """Whether the file sets a value."""
        return any(self.raw.get(key) is not None for key in self.table.fields[name].keys)

    def _value(self, key: str, kind: Any) -> Any:
        """Return the value of a key, None where it is not set."""
        return self.raw.get(key)

    def __getitem__(self, name: str) -> Any:
        """Return a value, its default where the file does not set it; one of the wrong kind is an error."""
        kind, default, _ = self.table.fields[name]
        key = self.key(name)
        value = self._value(key, kind)
        if value is None:
            return default
        if isinstance(kind, dict):
            if not isinstance(value, (str, int, float)) or value not in kind:
                words = dict.fromkeys(str(one).lower() if isinstance(one, bool) else str(one) for one in kind)
                raise self.error(key, f"one of {', '.join(words)}", value)
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

    def require(self, name: str) -> int:
        """Return a whole number that the file must set."""
        if self[name] is None:
            raise FrameworkConfigError(f"{self.table.program}: {self.key(name)} is missing")
        return int(self[name])

    def unknown(self) -> tuple[str, ...]:
        """Return the keys that are on and not in the table; see `unknown_keys`."""
        return unknown_keys(
            {key: value for key, value in self._set_keys().items() if not self.table.knows(key)}, self.program
        )

    def _set_keys(self) -> Mapping[str, Any]:
        return self.raw

    def unpriced(self) -> list[str]:
        """Return the warnings about keys without a price."""
        found = []
        set_keys = self._set_keys()
        for key, warning in self.table.unpriced.items():
            value = set_keys.get(key)
            value = " ".join(value) if isinstance(value, list) and key.startswith("--") else value
            word = str(value).lower()
            if isinstance(warning, dict):
                warning = {str(key).lower(): sentence for key, sentence in warning.items()}.get(word, "")
            harmless, sentence = warning if isinstance(warning, list) else ([], warning)
            if not (is_on(value) and sentence) or word in map(str, harmless):
                continue
            if isinstance(sentence, dict):
                raise FrameworkConfigError(f"{key}: {sentence['stops'].replace('{value}', shown(value))}")
            found.append(f"{key}: {sentence.replace('{value}', str(value))}")
        return found


class Flags(Values):
    """The flags of a command line: a text, its words, or a mapping of flags; underscores in a name become dashes."""

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
        """Return the flag that sets a value; a flag with a value takes precedence over one without."""
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
            # The last flag may be followed by a script, or by the closing bracket of a list of flags.
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
        """Return the value of a flag; one that depends on an unset variable or a program's output is an error."""
        value = (self.raw.get(flag) or [""])[0]
        missing, rest = missing_in(value), without_marks(value)
        if missing and (not rest or (rest.isdigit() and is_unknown(value))):
            advice = f"; give --env {missing[1:].split()[0]}=…" if missing.startswith("$") else ""
            raise FrameworkConfigError(f"{flag}: its value is not in the script: {missing}{advice}")
        return rest

    def unresolved(self, flag: str) -> str:
        """Return the variable or command that a flag's value depends on, empty if it is known."""
        return missing_in((self.raw.get(flag) or [""])[0])

    def set(self, name: str, value: object) -> None:
        """Set a value by our name, in place of that of the command line."""
        flag, *older = self.table.fields[name].keys
        for other in older:
            self.raw.pop(other, None)
        self.raw[flag] = [str(value)]

    def _set_keys(self) -> Mapping[str, Any]:
        return {flag: values or True for flag, values in self.raw.items()}


def _number(text: str, kind: type[int | float] = float) -> float | str:
    """Return a finite number, or the text where it is none."""
    try:
        number = kind(text)
    except ValueError:
        return text
    return text if isinstance(number, float) and not isfinite(number) else number


def words_of(key: str, value: Any) -> list[str]:
    """Return a key and its value as command-line words: true is a flag alone; false, None and tables are left out."""
    if value is None or value is False or isinstance(value, dict):
        return []
    values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
    return [flag_of(key), *map(str, values)]


def flag_of(key: str) -> str:
    """Return a key of a configuration as a command-line flag."""
    return key if key.startswith("--") else f"--{key.replace('_', '-')}"


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise FrameworkConfigError(f"megatron: cannot read the arguments: {error}") from None
