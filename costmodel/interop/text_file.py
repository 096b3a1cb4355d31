"""Other people's files as text: of bounded size, in any common encoding, and nothing that drives a terminal."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError, DataError
from costmodel.base.files import is_there, refuse_endless, refuse_path
from costmodel.base.yaml_files import parse_mapping
from costmodel.interop.framework import FrameworkConfigError

MOST_BYTES = 64_000_000
"""Logs of whole clusters are long; anything longer is not what it is taken for."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ue000-\ue002]")
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class TextFile(NamedTuple):
    """A file's text, and where it is from."""

    text: str
    name: str
    """Its name, for messages."""
    folder: Path | None = None
    """Where its neighbours are; None for a text that is no file."""


def read_text(path: str | Path, *, most_bytes: int = MOST_BYTES) -> TextFile:
    """Read a file."""
    refuse_path(path, "file")
    file = Path(path)
    called = shown(str(path))
    if file.is_dir():
        inside = [name for name in ("config.json", "run_config.yaml") if (file / name).is_file()]
        if not inside:
            raise CostModelError(f"{called}: is a folder without a config.json or run_config.yaml")
        file = file / inside[0]
        called = shown(str(file))
    refuse_endless(file)
    try:
        known = file.is_file()
        raw = b""
        if known:
            with file.open("rb") as stream:
                raw = stream.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a name of a file"
        raise CostModelError(f"{called}: cannot be read ({reason})") from None
    if not known:
        raise CostModelError(f"{called}: no such file")
    if len(raw) > most_bytes:
        raise CostModelError(f"{called}: expected at most {most_bytes:,} bytes")
    if not raw.strip():
        raise CostModelError(f"{called}: is empty")
    return TextFile(decoded(raw, called), str(path), file.parent)


def beside(file: TextFile, named: str) -> Path | None:
    """Return a file that lies beside another or its folders above, None where there is none."""
    named = re.sub(r"^(?:\.\.?/)+", "", named)
    places = [] if file.folder is None else [file.folder, *list(file.folder.absolute().parents)[:4]]
    inside = not Path(named).is_absolute() and ".." not in Path(named).parts
    return next((place / named for place in places if inside and is_there(place / named)), None)


def encoding_of(raw: bytes, name: str) -> str:
    """Return the encoding of a text by its first bytes: UTF-8 or, as Windows writes it, UTF-16 behind its mark."""
    encoding = next((kind for mark, kind in _MARKS if raw.startswith(mark)), "")
    if encoding:
        return encoding
    if b"\x00" in raw[:4000]:
        raise DataError(f"{name}: is not a text (it has zero bytes)")
    return "utf-8"


def decoded(raw: bytes, name: str) -> str:
    """Return the text of bytes: UTF-8 or, as Windows writes it, UTF-16."""
    try:
        return raw.decode(encoding_of(raw, name))
    except UnicodeDecodeError as error:
        raise CostModelError(f"{name}: is not a text in UTF-8 or UTF-16 (byte {error.start})") from None


def uncoloured(text: str) -> str:
    r"""Return a line without the escape sequences that colour a terminal.

    >>> uncoloured("\x1b[31mstep: 10\x1b[0m")
    'step: 10'
    """
    return _COLOUR.sub("", text) if "\x1b" in text else text


def shown(text: str, *, most: int = 300) -> str:
    r"""Return a foreign text as it may be printed: on one line, without control characters, not too long.

    >>> shown("red \x1b[31mtext\nand more")
    'red text and more'
    """
    plain = _CONTROL.sub("", " ".join(_COLOUR.sub("", text).split()))
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def table_in(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table inside another, an empty one where there is none."""
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the tables of a YAML text."""
    return parse_mapping(text, name, example="key: value", error=FrameworkConfigError)


def value_of_word(text: str) -> Any:
    """Return a word of a command line as YAML reads it, and Python's words for true and null."""
    try:
        value = parse_mapping(f"value: {text}", "word", example="key: value")["value"]
    except CostModelError:
        return text
    return {"True": True, "False": False, "None": None}.get(value, value) if isinstance(value, str) else value


_MOST_OF_JSON = 4_000_000
"""Characters; longer ones are no configuration."""


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Return the object of a JSON text."""
    if len(text) > _MOST_OF_JSON:
        raise FrameworkConfigError(f"{name}: expected at most {_MOST_OF_JSON:,} characters")
    try:
        raw = json.loads(text.lstrip("\ufeff"), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise FrameworkConfigError(f"{name}: not JSON: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError) as error:
        raise FrameworkConfigError(f"{name}: not JSON: {str(error)[:80]}") from None
    if not isinstance(raw, dict):
        raise FrameworkConfigError(f"{name}: expected a JSON object, got {type(raw).__name__}")
    return raw


def _no_constant(word: str) -> float:
    # Python's own writer puts these into files; they are read as what they mean.
    return float(word.replace("Infinity", "inf").replace("NaN", "nan"))
