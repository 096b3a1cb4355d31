"""A user's own runs: tables, job files that say what was measured, and training logs, each row a job and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError, DataError, near_hint, shown
from costmodel.base.files import is_there
from costmodel.base.units import read_quantity
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, canonical, names
from costmodel.describe.jobs.merge import MEMORY, TIME, measured_of, merge_jobs, read_job, read_measured
from costmodel.describe.jobs.reading import read
from costmodel.estimates.estimate import Estimate, estimate, estimate_job
from costmodel.trust.published_runs import REQUIRED_COLUMNS, job_of_row, read_table, seen_by_kind
from costmodel.trust.step_times import StepTimes, step_times

NAMED = ("name", "id")
_BESIDE = (*NAMED, *TIME, *MEMORY, "memory_kind", "job", "notes", "source", "reference")
"""Columns of a table that are no fields of a job."""
_MOST_ROWS = 5000
_LOG_ENDINGS = (".log", ".out", ".txt", ".gz", ".err")
_BESIDE_A_TIME = "nvidia-smi"  # How memory that is given beside a step time is taken to be measured
_TABLES, _JOBS = (".csv", ".tsv"), (".yaml", ".yml")


class OwnRun(NamedTuple):
    """A measured run."""

    name: str  # For messages and tables
    est: Estimate  # The job, of one layout
    # What was measured, nan where it was not. [s], [B]
    time_s: float
    memory_bytes: float = float("nan")
    memory_kind: str = ""  # How memory was measured: see `seen_by_kind`
    error: float = 0.0  # Standard error of the time over it. [-]
    times: StepTimes | None = None  # The log that it is from

    @property
    def model_memory_bytes(self) -> float:
        """What the model expects of such a measurement of memory. [B]"""
        return float(seen_by_kind(self.est.bill, self.memory_kind))


def read_runs(files: Sequence[str | Path], job: Mapping[str, Any] | None = None) -> list[OwnRun]:
    """Read measured runs from tables (.csv), job files with `measured` (.yaml), ``job.yaml=5.2s`` and logs (all else)."""
    base = {key: value for key, value in (job or {}).items() if value is not None}
    if not files:
        raise DataError("runs: expected a table, a job file or a log")
    found: list[OwnRun] = []
    stems = Counter(Path(file).stem for file in files)
    for file in map(Path, files):
        # Logs are called alike in every folder: there the folder tells them apart.
        name = file.stem if stems[file.stem] == 1 else str(file)
        if "=" in str(file) and not is_there(file):
            found.append(_stated(str(file), base))
        elif file.suffix.lower() in _TABLES:
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


def given_runs(measured: Mapping[str, tuple[Estimate, float]]) -> list[OwnRun]:
    """Return estimates with the seconds of a step as runs."""
    for name, (_, time_s) in measured.items():
        if not time_s > 0:
            raise DataError(f"{name}: step time: expected more than 0 s")
    return [OwnRun(name, est, float(time_s)) for name, (est, time_s) in measured.items()]


def _stated(text: str, base: Mapping[str, Any]) -> OwnRun:
    """Read ``job.yaml=5.21s,61GiB``, or ``job.yaml=train.log``."""
    name, _, rest = text.rpartition("=")
    path, (time, _, memory) = Path(name), rest.partition(",")
    if not time or not path.name:
        raise DataError(f"{text}: expected a job and its step time or its log, such as job.yaml=5.21s")
    est = estimate(**merge_jobs(base, read_job(path)))
    if Path(time).suffix in _LOG_ENDINGS or is_there(Path(time)):
        return logged(path.stem, est, Path(time))
    time_s = read_quantity("step time", time, "s")
    memory_bytes = read_quantity("memory", memory, "B") if memory else float("nan")
    if not 1e-6 <= time_s <= 1e7:
        raise DataError(f"{text}: step time: expected 1 us to 10,000,000 s")
    if memory_bytes <= 0:
        raise DataError(f"{text}: memory: expected more than 0 B")
    return OwnRun(path.stem, est, time_s, memory_bytes, _BESIDE_A_TIME)


def logged(name: str, est: Estimate, log: Path) -> OwnRun:
    """Return what a training log says of a job."""
    times = step_times(log, est)
    kind = next((kind for kind in ("max_reserved", "max_allocated") if kind in times.memory_bytes), "")
    memory = times.memory_bytes.get(kind, float("nan"))
    return OwnRun(name, est, times.step_time_s, memory, kind, times.error, times)


def _of_table(file: Path, base: Mapping[str, Any]) -> list[OwnRun]:
    """Return the rows of a table that were measured, in the columns of the published runs or in fields of a job."""
    columns, rows = read_table(file)
    published = all(name in columns for name in REQUIRED_COLUMNS)
    if not published:
        _require_known(file, columns)
    found = []
    for line, row in rows:
        cells = {key.strip(): value.strip() for key, value in row.items() if value.strip()}
        try:
            time_s, memory, kind = measured_of(cells)
            if not (np.isfinite(time_s) or np.isfinite(memory)) or cells.get("oom") == "true":
                continue
            if published:
                est = estimate_job(job_of_row({**dict.fromkeys(REQUIRED_COLUMNS, ""), **cells}))
            else:
                est = _estimated(cells, base, file.parent)
        except CostModelError as error:
            raise DataError(f"{file}: line {line}: {error}") from None
        name = next((cells[key] for key in NAMED if key in cells), f"{file.name}:{line}")
        found.append(OwnRun(name, est, time_s, memory, kind))
    if not found:
        raise DataError(f"{file}: no row has a measured step time ({' or '.join(TIME[:2])}) or memory")
    return found


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


def _estimated(row: Mapping[str, str], base: Mapping[str, Any], folder: Path) -> Estimate:
    """Price a row in the fields of a job, over those of the job file that it names."""
    below = merge_jobs(base, read_job(folder / row["job"])) if "job" in row else base
    fields = {
        canonical(key): read(canonical(key), value) for key, value in row.items() if canonical(key) in FIELD
    }
    return estimate(**merge_jobs(below, fields))


def _of_job_file(file: Path, base: Mapping[str, Any]) -> OwnRun:
    """Return a job file with what was measured."""
    stated = read_mapping(file, example="measured: {step_time: 5.2s}").get("measured")
    time_s, memory, kind = read_measured(stated, str(file))
    est = estimate(**merge_jobs(base, read_job(file)))
    return OwnRun(file.stem, est, time_s, memory, kind)
