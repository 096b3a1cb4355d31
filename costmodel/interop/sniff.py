"""What a text looks like: JSON, TOML or YAML with which keys, a script, a table of measurements."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import MOST_CHARACTERS, parse_mapping
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.text_file import TextFile

MOST_OF_JSON = 4_000_000
"""Characters; longer ones are no configuration."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*[a-z]")
_LOG = re.compile(
    r"#[ \t]*nThread\s|#[ \t]+size[ \t]+count\s|_perf\b.{0,500}?(?:-b|--minbytes)|Avg bus bandwidth"
    r"|#[ \t]*Out of bounds values"
    r"|^[ \t]*\d+[ \t]+\d+[ \t]+(?:float|half|bfloat16|int8|uint8|double)[ \t]+(?:\w+[ \t]+)?-?\d+[ \t]+[\d.]+[ \t]+[\d.]+",
    re.M,
)
"""Nothing here matches a line end: over many blank lines that takes the square of their number."""
_SCRIPT = re.compile(
    r"^(?:#!.*\b(?:ba|z|k)?sh\b|#SBATCH\s|[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*\+?=[^=\s])"
    r"|\b(?:torchrun|deepspeed|srun|accelerate launch|torch\.distributed)\b",
    re.M,
)


@dataclass(frozen=True)
class Look:
    """A first look at a text.

    Attributes
    ----------
    form : str
        ``json``, ``toml``, ``yaml`` or empty.
    raw : mapping
        Its content, empty unless it has a form.
    is_script, has_flags, is_log : bool
        Whether it looks like a shell script, has flags of a command, is what nccl-tests print.
    problem : str
        Why it has no form though it begins like one.
    name, start, text : str
        The file's name, its first characters, and all of a text without a form.
    """

    form: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict)
    is_script: bool = False
    has_flags: bool = False
    is_log: bool = False
    problem: str = ""
    name: str = ""
    start: str = ""
    text: str = ""


def look_at(file: TextFile) -> Look:
    """Return what a text looks like; nothing is raised."""
    text, name = file.text, file.name
    suffix = name.rsplit(".", 1)[-1].lower() if "." in name else ""
    is_log = bool(_LOG.search(text[:2_000_000]))
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            raw = parse_json(text, name)
        except CostModelError as error:
            # YAML takes braces too, and comments among them.
            if suffix not in ("yaml", "yml"):
                return Look(problem=str(error).removeprefix(f"{name}: "), name=name, is_log=is_log)
        else:
            return Look("json", raw, name=name)
    script = suffix in ("sh", "slurm", "sbatch", "bash", "job") or text.startswith("#!")
    flags = len(set(_FLAG.findall(text[:200_000])))
    if suffix == "toml" or (
        suffix not in ("yaml", "yml", "sh", "log", "txt")
        and re.search(r"^\[[\w.\"-]+\][ \t\r]*$", text, re.M)
    ):
        try:
            return Look("toml", tomllib.loads(text), name=name)
        except (ValueError, RecursionError) as error:  # of a number of thousands of digits, too
            if suffix == "toml":
                return Look(problem=f"not TOML: {str(error).splitlines()[0][:80]}", name=name)
    is_script = script or (suffix not in ("yaml", "yml") and bool(_SCRIPT.search(text)))
    if (suffix in ("yaml", "yml") or not (is_script or is_log or flags > 3)) and len(text) <= MOST_CHARACTERS:
        try:
            return Look("yaml", parse_mapping(text, name, example="key: value"), name=name, is_log=is_log)
        except CostModelError as error:
            if suffix in ("yaml", "yml"):
                return Look(problem=str(error).removeprefix(f"{name}: "), name=name)
    return Look(
        is_script=is_script and not is_log,
        has_flags=flags > 3,
        is_log=is_log,
        name=name,
        start=text[:200],
        text=text,
    )


def parse_json(text: str, name: str) -> dict[str, Any]:
    """Return the object of a JSON text."""
    if len(text) > MOST_OF_JSON:
        raise FrameworkConfigError(f"{name}: expected at most {MOST_OF_JSON:,} characters")
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
