"""A user's own runs: tables, job files that say what was measured, and training logs, each row a job and its figures."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError, DataError, near_hint, shown
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, canonical, names
from costmodel.describe.jobs.merge import (
    MEMORY,
    TIME,
    measured_of,
    merge_jobs,
    read_job,
    read_measured,
)
from costmodel.describe.jobs.reading import read
from costmodel.estimates.estimate import Estimate, estimate, estimate_job
from costmodel.interop.text_file import read_text
from costmodel.trust.memory_kinds import seen_memory_bytes
from costmodel.trust.published_runs import REQUIRED_COLUMNS, job_of_row
from costmodel.trust.step_times import StepTimes, step_times

NAMED = ("name", "id")
_BESIDE = (*NAMED, *TIME, *MEMORY, "memory_kind", "job", "notes", "source", "reference")
"""Columns of a table that are no fields of a job."""
_MOST_ROWS = 5000
_TABLES, _JOBS = (".csv", ".tsv"), (".yaml", ".yml")


class OwnRun(NamedTuple):
    """A measured run.

    Attributes
    ----------
    name : str
        For messages and tables.
    est : Estimate
        The job, of one layout.
    time_s, memory_bytes : float
        What was measured, nan where it was not. [s], [B]
    memory_kind : str
        How memory was measured: see `costmodel.trust.memory_kinds`.
    error : float
        Standard error of the time over it. [-]
    times : StepTimes, optional
        The log that it is from.
    """

    name: str
    est: Estimate
    time_s: float
    memory_bytes: float = float("nan")
    memory_kind: str = ""
    error: float = 0.0
    times: StepTimes | None = None

    @property
    def model_memory_bytes(self) -> float:
        """What the model expects of such a measurement of memory. [B]"""
        return seen_memory_bytes(self.est.bill, self.memory_kind)


def read_runs(files: Sequence[str | Path], job: Mapping[str, Any] | None = None) -> list[OwnRun]:
    """Read measured runs from tables (.csv), job files with `measured` (.yaml) and training logs (anything else).

    Parameters
    ----------
    files : sequence of path
        At least one.
    job : mapping, optional
        Fields below those of every row, and the job of every log.

    Raises
    ------
    CostModelError
        Naming file, row and field, if one cannot be read.
    """
    base = {key: value for key, value in (job or {}).items() if value is not None}
    if not files:
        raise DataError("runs: expected a table, a job file or a log")
    found: list[OwnRun] = []
    stems = Counter(Path(file).stem for file in files)
    for file in map(Path, files):
        # Logs are called alike in every folder: there the folder tells them apart.
        name = file.stem if stems[file.stem] == 1 else str(file)
        if file.suffix.lower() in _TABLES:
            found += _of_table(file, base)
        elif file.suffix.lower() in _JOBS:
            found.append(_of_job_file(file, base)._replace(name=name))
        elif not base:
            raise DataError(f"{file}: a training log needs the job that it is of (--job)")
        else:
            est = estimate(**base)
            found.append(logged(name, est, file))
    if len(found) > _MOST_ROWS:
        raise DataError(f"runs: expected at most {_MOST_ROWS:,} rows, got {len(found):,}")
    return found


def logged(name: str, est: Estimate, log: Path) -> OwnRun:
    """Return what a training log says of a job."""
    times = step_times(log, est)
    kind = next((kind for kind in ("max_reserved", "max_allocated") if kind in times.memory_bytes), "")
    memory = times.memory_bytes.get(kind, float("nan"))
    return OwnRun(name, est, times.step_time_s, memory, kind, times.error, times)


def _of_table(file: Path, base: Mapping[str, Any]) -> list[OwnRun]:
    """Return the rows of a table that were measured."""
    text = read_text(file).text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    reader = csv.DictReader(io.StringIO(lines), delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
    try:
        columns = [name for name in (reader.fieldnames or ()) if name is not None]
    except csv.Error as error:
        raise DataError(f"{file}: cannot read its head ({error})") from None
    published = all(name in columns for name in REQUIRED_COLUMNS)
    if not published:
        _require_known(file, columns)
    found = []
    for row in _whole_rows(reader, file):
        where = f"{file}: line {reader.line_num}"
        said = {key.strip(): value.strip() for key, value in row.items() if value and value.strip()}
        try:
            run = (
                _published(said)
                if published
                else _of_row(said, base, file.parent, f"{file.name}:{reader.line_num}")
            )
        except CostModelError as error:
            raise DataError(f"{where}: {error}") from None
        if run is not None:
            found.append(run)
    if not found:
        raise DataError(f"{file}: no row has a measured step time ({' or '.join(TIME[:2])}) or memory")
    return found


def _whole_rows(reader: csv.DictReader[str], file: Path) -> Iterator[dict[str, str]]:
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{file}: line {reader.line_num}: has more or fewer cells than the header")
            yield row
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num}: {error}") from None


def _require_known(file: Path, columns: Sequence[str]) -> None:
    """Refuse a column that is neither a field of a job nor a measurement."""
    known = (*names(JOB_FIELDS), *_BESIDE)
    for name in columns:
        if canonical(name.strip()) not in known:
            raise DataError(
                f"{file}: {shown(name)} is no column; {near_hint(name, known) or 'see docs/your-runs.md'}"
            )
    if not {*columns} & {*TIME, *MEMORY}:
        raise DataError(f"{file}: has no column of a measurement: {', '.join((*TIME[:2], *MEMORY[:2]))}")


def _published(row: Mapping[str, str]) -> OwnRun | None:
    """Return a row in the columns of the published runs, none where it was not measured."""
    time_s, memory, kind = measured_of(row)
    if row.get("oom") == "true" or not (np.isfinite(time_s) or np.isfinite(memory)):
        return None
    full = {**dict.fromkeys((*REQUIRED_COLUMNS, "source", "notes", "reference"), ""), **row}
    return OwnRun(row.get("id", "row"), estimate_job(job_of_row(full)), time_s, memory, kind)


def _of_row(row: Mapping[str, str], base: Mapping[str, Any], folder: Path, place: str) -> OwnRun | None:
    """Return a row in the fields of a job, called by its place where it has no name; none where it was not measured."""
    time_s, memory, kind = measured_of(row)
    if not (np.isfinite(time_s) or np.isfinite(memory)):
        return None
    below = merge_jobs(base, read_job(folder / row["job"])) if "job" in row else base
    fields = {
        canonical(key): read(canonical(key), value) for key, value in row.items() if canonical(key) in FIELD
    }
    est = estimate(**merge_jobs(below, fields))
    name = next((row[key] for key in NAMED if key in row), place)
    return OwnRun(name, est, time_s, memory, kind)


def _of_job_file(file: Path, base: Mapping[str, Any]) -> OwnRun:
    """Return a job file with what was measured."""
    said = read_mapping(file, example="measured: {step_time: 5.2s}").get("measured")
    time_s, memory, kind = read_measured(said, str(file))
    est = estimate(**merge_jobs(base, read_job(file)))
    return OwnRun(file.stem, est, time_s, memory, kind)
