"""Which files of other programs can be read, and reading one.

A kind of file is a record of ``keys/readers.yaml``: how its texts are told, and the function that turns one into an
`Imported`. A new kind is a record there and its function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, RL_FIELDS
from costmodel.describe.jobs.keywords import ReadKeywords
from costmodel.describe.jobs.reading import keywords
from costmodel.describe.jobs.reading import read as read_field
from costmodel.interop.framework import FrameworkConfigError, Imported
from costmodel.interop.keys import KeyTable, key_table
from costmodel.interop.sniff import Look, look_at
from costmodel.interop.text_file import TextFile, read_text, shown


class Reader(NamedTuple):
    """A kind of file.

    Attributes
    ----------
    kind : str
        Name for ``--from``.
    framework : str
        The program whose files these are.
    reader : str
        Module of this package and function that read one: ``(TextFile, given) -> Imported``.
    keys : str
        Program whose table of keys it reads by, empty where it has none.
    source : str
        Where the names of its keys are from.
    rules : sequence of mapping
        How its texts are told, any of them.
    """

    kind: str
    framework: str
    reader: str
    source: str
    rules: Sequence[Mapping[str, Any]]
    keys: str = ""

    def tells(self, look: Look) -> bool:
        """Whether a text is of this kind."""
        return any(_fits(rule, look) for rule in self.rules)

    def read(self, file: TextFile, given: Mapping[str, Any]) -> Imported:
        """Read a file of this kind."""
        module, function = self.reader.split(":")
        found: Imported = getattr(import_module(f"costmodel.interop.{module}"), function)(file, given)
        _check_values(found.job, key_table(self.keys) if self.keys else None, file.text)
        return dataclasses.replace(found, kind=self.kind, framework=found.framework or self.framework)


def _check_values(job: Mapping[str, Any], table: KeyTable | None, text: str) -> None:
    """Refuse what no field of a job takes, by the name that the file has for it."""
    for name in job.keys() & FIELD.keys():
        if FIELD[name].kind not in ("whole", "number", "word", "truth"):
            continue
        try:
            read_field(name, job[name])
        except CostModelError as error:
            said = str(error).removeprefix(f"{name}: ")
            keys = table.fields[name].keys if table is not None and name in table.fields else ()
            plain = text.replace("_", "-")
            there = (key for key in keys if key.rpartition(".")[2].strip("-").replace("_", "-") in plain)
            raise FrameworkConfigError(f"{next(there, name)}: {said}") from None


def _fits(rule: Mapping[str, Any], look: Look) -> bool:
    """Whether a text is as a rule says."""
    if rule.get("form", look.form) != look.form:
        return False
    if "begins" in rule:
        return rule["begins"] in look.start
    if "holds" in rule:
        return rule["holds"] in look.text
    if "looks" in rule:
        return look.is_log if rule["looks"] == "log" else look.is_script or look.has_flags

    def some(words: str, keys: Mapping[str, Any]) -> bool:
        return any(word in keys for word in words.split())

    for key, words in rule.get("below", {}).items():
        table = look.raw.get(key)
        if not isinstance(table, dict) or not table or (words and not some(words, table)):
            return False
        parts = [part for part in table.values() if isinstance(part, dict)]
        if "inside" in rule and not any(rule["inside"] in part for part in parts):
            return False
    return (
        all(some(rule[name], look.raw) for name in ("any", "also") if name in rule)
        and all(word in look.raw for word in rule.get("all", "").split())
        and not some(rule.get("none", ""), look.raw)
    )


READERS: dict[str, Reader] = {
    kind: Reader(kind, **record)
    for kind, record in read_mapping(
        Path(__file__).with_name("keys") / "readers.yaml", example="kind:", error=FrameworkConfigError
    ).items()
}
"""Every kind of file, in the order in which a text is tried."""


_BESIDE = ("env", "allow_source", "vocab_size", "collective", "ranks", "nodes")
"""What a file may leave to its surroundings that is no field of a job."""


def read(path: str | Path, kind: str = "", **given: Unpack[ReadKeywords]) -> Imported:
    """Read a file of another program: a launch script, a configuration, a model, a log.

    Parameters
    ----------
    path : path
        The file, or a folder with a ``config.json``.
    kind : str, optional
        What it is; by default its content tells.
    **given
        What the file leaves to its surroundings: ``gpus``, ``vocab_size``, any keyword of
        `costmodel.estimate`, ``env`` (variables of a script), ``allow_source`` (folders that it may source files from beside
        its own). It goes on top of the file.

    Returns
    -------
    Imported
        Job, model and measurements in our names, with what was not understood.

    Raises
    ------
    CostModelError
        One line: what is wrong with the file, without control characters of it.
    """
    return read_file(read_text(path), kind, **given)


def read_file(file: TextFile, kind: str = "", **given: Unpack[ReadKeywords]) -> Imported:
    """Read a file of another program whose text is at hand; see `read`."""
    beside = {name: value for name, value in given.items() if name in _BESIDE}
    asked = keywords(
        {k: v for k, v in given.items() if k not in _BESIDE}, (*JOB_FIELDS, *RL_FIELDS), who="read"
    )
    try:
        reader = READERS[kind] if kind in READERS else _reader_for(file, kind)
        return _clean(
            reader.read(file, {**asked, **{key: value for key, value in beside.items() if value is not None}})
        )
    except CostModelError as error:
        message = shown(str(error), most=600)
        called = shown(file.name)
        raise type(error)(message if called in message else f"{called}: {message}") from None
    except RecursionError:
        raise FrameworkConfigError(f"{shown(file.name)}: is nested too deeply") from None


def kind_of(file: str | Path | TextFile) -> str:
    """Return the kind of a file, or of its text, ``job`` where it is of no other."""
    look = look_at(file if isinstance(file, TextFile) else read_text(file))
    return next((reader.kind for reader in READERS.values() if reader.tells(look)), "job")


def _reader_for(file: TextFile, kind: str) -> Reader:
    """Return the reader that a text is for."""
    if kind:
        raise FrameworkConfigError(f"--from: {kind!r} is unknown; {choices_hint(kind, READERS)}")
    look = look_at(file)
    for reader in READERS.values():
        if reader.tells(look):
            return reader
    said = f"; {look.problem}" if look.problem else ""
    raise FrameworkConfigError(
        f"is no file of a known kind{said}; --from names one of {', '.join(sorted(READERS))}"
    )


def _clean(found: Imported) -> Imported:
    """Return an answer whose texts may be printed."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return shown(value)
        if isinstance(value, Mapping):
            return {shown(str(key)): plain(item) for key, item in value.items()}
        return tuple(plain(item) for item in value) if isinstance(value, (list, tuple)) else value

    job = {
        key: value if key == "model" and not isinstance(value, str) else plain(value)
        for key, value in found.job.items()
    }
    texts = {
        name: plain(getattr(found, name))
        for name in ("missing", "ignored", "notes", "warnings", "facts", "shape", "unpriced", "sweeps")
    }
    return dataclasses.replace(found, job=job, **texts)
