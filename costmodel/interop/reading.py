"""Which files of other programs can be read, and reading one.

A kind of file is a record of ``keys/readers.yaml``: how its texts are recognised, and the function that turns one into an
`Imported`. A new kind is a record there and its function.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError, ModelConfigError, choices_hint
from costmodel.base.yaml_files import MOST_CHARACTERS, parse_mapping, read_mapping
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, REQUIRED, RL_FIELDS
from costmodel.describe.jobs.merge import merge_jobs, read_job_text
from costmodel.describe.jobs.merge import read_job as read_job_file
from costmodel.describe.jobs.reading import keywords
from costmodel.describe.jobs.reading import read as read_field
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.models.sizes import size_of
from costmodel.interop.framework import FrameworkConfigError, Imported, fields_of
from costmodel.interop.keys import KeyTable, key_table
from costmodel.interop.nccl_tests import read_log_text
from costmodel.interop.text_file import TextFile, parse_json, read_text, shown

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


class FileForm(NamedTuple):
    """The format of a text (``json``, ``toml``, ``yaml`` or none) with its parsed content, or the text itself."""

    form: str = ""
    raw: Mapping[str, Any] = {}
    text: str = ""
    is_script: bool = False
    has_flags: bool = False
    is_log: bool = False
    problem: str = ""
    """Why it could not be parsed although it looks like that format."""


def detect_form(file: TextFile) -> FileForm:
    """Detect the format of a text and parse it; nothing is raised."""
    text, name = file.text, file.name
    suffix = name.rsplit(".", 1)[-1].lower() if "." in name else ""
    is_log = bool(_LOG.search(text[:2_000_000]))
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            raw = parse_json(text, name)
        except CostModelError as error:
            # YAML takes braces too, and comments among them.
            if suffix not in ("yaml", "yml"):
                return FileForm(problem=str(error).removeprefix(f"{name}: "), is_log=is_log)
        else:
            return FileForm("json", raw)
    script = suffix in ("sh", "slurm", "sbatch", "bash", "job") or text.startswith("#!")
    flags = len(set(_FLAG.findall(text[:200_000])))
    if suffix == "toml" or (
        suffix not in ("yaml", "yml", "sh", "log", "txt")
        and re.search(r"^\[[\w.\"-]+\][ \t\r]*$", text, re.M)
    ):
        try:
            return FileForm("toml", tomllib.loads(text))
        except (ValueError, RecursionError) as error:  # of a number of thousands of digits, too
            if suffix == "toml":
                return FileForm(problem=f"not TOML: {str(error).splitlines()[0][:80]}")
    is_script = script or (suffix not in ("yaml", "yml") and bool(_SCRIPT.search(text)))
    if (suffix in ("yaml", "yml") or not (is_script or is_log or flags > 3)) and len(text) <= MOST_CHARACTERS:
        try:
            return FileForm("yaml", parse_mapping(text, name, example="key: value"), is_log=is_log)
        except CostModelError as error:
            if suffix in ("yaml", "yml"):
                return FileForm(problem=str(error).removeprefix(f"{name}: "))
    return FileForm("", {}, text, is_script and not is_log, flags > 3, is_log)


class Reader(NamedTuple):
    """A kind of file: a record of ``keys/readers.yaml``, where its parts are explained."""

    kind: str
    framework: str
    reader: str
    source: str
    rules: Sequence[Mapping[str, Any]]
    keys: str = ""

    def tells(self, detected: FileForm) -> bool:
        """Whether a text is of this kind."""
        return any(_fits(rule, detected) for rule in self.rules)

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
            problem = str(error).removeprefix(f"{name}: ")
            keys = table.fields[name].keys if table is not None and name in table.fields else ()
            plain = text.replace("_", "-")
            there = (key for key in keys if key.rpartition(".")[2].strip("-").replace("_", "-") in plain)
            raise FrameworkConfigError(f"{next(there, name)}: {problem}") from None


def _fits(rule: Mapping[str, Any], detected: FileForm) -> bool:
    """Whether a text is as a rule says."""
    if rule.get("form", detected.form) != detected.form:
        return False
    if "begins" in rule:
        return rule["begins"] in detected.text[:200]
    if "holds" in rule:
        return rule["holds"] in detected.text
    if "looks" in rule:
        return detected.is_log if rule["looks"] == "log" else detected.is_script or detected.has_flags

    def some(words: str, keys: Mapping[str, Any]) -> bool:
        return any(word in keys for word in words.split())

    for key, words in rule.get("below", {}).items():
        table = detected.raw.get(key)
        if not isinstance(table, dict) or not table or (words and not some(words, table)):
            return False
        parts = [part for part in table.values() if isinstance(part, dict)]
        if "inside" in rule and not any(rule["inside"] in part for part in parts):
            return False
    return (
        all(some(rule[name], detected.raw) for name in ("any", "also") if name in rule)
        and all(word in detected.raw for word in rule.get("all", "").split())
        and not some(rule.get("none", ""), detected.raw)
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


def read(path: str | Path, kind: str = "", **given: Any) -> Imported:
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


def read_file(file: TextFile, kind: str = "", **given: Any) -> Imported:
    """Read a file of another program whose text is at hand; see `read`."""
    beside = {name: value for name, value in given.items() if name in _BESIDE}
    requested = keywords(
        {k: v for k, v in given.items() if k not in _BESIDE}, (*JOB_FIELDS, *RL_FIELDS), who="read"
    )
    try:
        reader = READERS[kind] if kind in READERS else _reader_for(file, kind)
        return _clean(
            reader.read(
                file, {**requested, **{key: value for key, value in beside.items() if value is not None}}
            )
        )
    except CostModelError as error:
        message = shown(str(error), most=600)
        called = shown(file.name)
        raise type(error)(message if called in message else f"{called}: {message}") from None
    except RecursionError:
        raise FrameworkConfigError(f"{shown(file.name)}: is nested too deeply") from None


def kind_of(file: str | Path | TextFile) -> str:
    """Return the kind of a file, or of its text, ``job`` where it is of no other."""
    detected = detect_form(file if isinstance(file, TextFile) else read_text(file))
    return next((reader.kind for reader in READERS.values() if reader.tells(detected)), "job")


def _reader_for(file: TextFile, kind: str) -> Reader:
    """Return the reader that a text is for."""
    if kind:
        raise FrameworkConfigError(f"--from: {kind!r} is unknown; {choices_hint(kind, READERS)}")
    detected = detect_form(file)
    for reader in READERS.values():
        if reader.tells(detected):
            return reader
    problem = f"; {detected.problem}" if detected.problem else ""
    raise FrameworkConfigError(
        f"is no file of a known kind{problem}; --from names one of {', '.join(sorted(READERS))}"
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


def read_job(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read our own job file; `given` goes on top of it."""
    own = read_job_text(file.text, file.name) if file.folder is None else read_job_file(file.name)
    job = merge_jobs(own, fields_of(given))
    return Imported(job, tuple(key for key in REQUIRED if key not in job))


def read_model(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a HuggingFace ``config.json``; `given` may complete a job around the model."""
    raw = parse_json(file.text, file.name)
    name = _name_of(file, raw)
    try:
        found = read_hf_config(raw, name)
    except ModelConfigError as error:
        size = size_of(raw, file.name, name)
        if size is None:
            raise
        reason = str(error).split(": ", 1)[-1]
        return Imported(fields_of(given), warnings=size.left_out, shape=size.shape, unpriced=reason)
    job = {**fields_of(given), "model": found.model}
    missing = [key for key in ("gpus", "global_batch", "seq_len") if key not in job]
    left_out = tuple(note for note in found.notes if note.endswith("is priced"))
    notes = tuple(note for note in found.notes if note not in left_out)
    if given.get("images_per_sample"):
        left_out = tuple(note for note in left_out if "without images_per_sample" not in note)
    return Imported(job, tuple(missing), found.ignored, notes, left_out)


def _name_of(file: TextFile, raw: Mapping[str, Any]) -> str:
    """Return the model's name: as the file has it, else its folder or its own name."""
    named = str(raw.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    if named or file.folder is None:
        return named
    stem = file.name.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".json")
    return file.folder.absolute().name if stem in ("config", file.folder.name) else stem


def read_log(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read the sweeps of a log; `given` says ``collective``, ``ranks`` and ``nodes`` where it does not."""
    beside = {name: given[name] for name in ("collective", "ranks", "nodes") if given.get(name)}
    log = read_log_text(file.text, Path(file.name).name, **beside)
    if not log.sweeps:
        more = f" (and {len(log.problems) - 1} more)" if len(log.problems) > 1 else ""
        raise FrameworkConfigError(f"{log.problems[0]}{more}" if log.problems else "holds no sweep")
    fields = ("primitive", "algorithm", "ranks", "nodes", "gpu", "version")
    sweeps = [
        {name: getattr(sweep, name) for name in fields}
        | {
            "sizes": [int(size) for size in sweep.size_bytes],
            "time_s": [float(time) for time in sweep.time_s],
        }
        for sweep in log.sweeps
    ]
    return Imported(
        {},
        notes=tuple(str(note) for note in log.notes[:5]),
        warnings=tuple(str(problem) for problem in log.problems[:10]),
        sweeps=tuple(sweeps),
    )
