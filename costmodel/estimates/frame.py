"""The two tables of an estimate: long form, a row a line of the bill; wide form, a row a layout.

`LONG_COLUMNS` and `WIDE_COLUMNS` document each column and fix their order, which is part of the
interface: new columns come last, none is renamed. Texts are never empty and absent numbers are
empty cells, so that both forms go through a CSV and pandas and come back equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.csv_text import read_rows
from costmodel.bill.lines import AXES, CATEGORIES, MemoryLine, TimeLine, broadcast_sum
from costmodel.describe.jobs.fields import FIELDS
from costmodel.describe.jobs.layout_text import job_names, job_numbers, plain_values
from costmodel.estimates.priced_job import PricedJob

Array = NDArray[np.float64]
NONE = "none"


class ColumnDoc(NamedTuple):
    """A column of a table: its name, the unit of its numbers, and what it says."""

    name: str
    unit: str
    meaning: str


_ROWS = read_rows(Path(__file__).with_name("columns.csv"))


def _columns(table: str) -> tuple[ColumnDoc, ...]:
    """Return the columns of one part of ``columns.csv``."""
    return tuple(
        ColumnDoc(row["name"], row["unit"], row["meaning"]) for row in _ROWS if row["table"] == table
    )


_NUMBER = ColumnDoc("layout", "-", "number of the layout, 0 for a single one; joins both forms")
LONG_COLUMNS = (_NUMBER, *_columns("long"))

_COLUMNS_OF = {
    "cluster": ColumnDoc("accelerator", "text", "accelerator profile"),
    "micro_batch": ColumnDoc("micro_batches", "-", "micro-batches a step"),
}
"""What follows from fields, by the field that its column stands behind."""


def _inputs() -> Iterator[ColumnDoc]:
    """Yield the columns of what was asked, from the table of fields."""
    yield _NUMBER
    for field in FIELDS:
        if field.column:
            yield ColumnDoc(field.name, field.unit, field.meaning)
        if field.name in _COLUMNS_OF:
            yield _COLUMNS_OF[field.name]


_RESULTS, _BY_HOST = _columns("results"), _columns("host")
_BY_AXIS = tuple(ColumnDoc(f"{axis}_exposed_s", "s", f"exposed seconds of axis {axis}") for axis in AXES)
_BY_CATEGORY = tuple(
    ColumnDoc(f"category_{category}_s", "s", f"exposed seconds of category {category}")
    for category in CATEGORIES
)
WIDE_COLUMNS = (*_inputs(), *_RESULTS, *_BY_AXIS, *_BY_CATEGORY, *_columns("memory"), *_BY_HOST)


def bill_rows(est: PricedJob) -> list[dict[str, Any]]:
    """Return the one long table that every view of a bill is taken from: a row a line, its figures by layout.

    Rows of time, of memory, then of a host's memory, each on the stage that needs most. Beside `LONG_COLUMNS` a row has
    what `each` execution pays, the index of its `algorithm`, and of a single layout the `terms` of its formula.
    """
    shape, bill = est.shape, est.bill
    tiers = np.array([*bill.tier_names, NONE])

    def row(
        kind: str, line: TimeLine | MemoryLine, at: Callable[[Any], Array], **figures: Any
    ) -> dict[str, Any]:
        terms = {} if shape else {key: float(at(value)) for key, value in line.terms.items()}
        nothing = dict.fromkeys(("count", "seconds", "exposed_seconds"), np.nan)
        return {
            "bill": kind,
            "name": line.name,
            "axis": line.axis,
            "category": line.category,
            "phase": NONE,
            **nothing,
            "bytes": at(line.bytes),
            "tier": NONE,
            "formula": line.formula,
            "source": line.source,
            "terms": terms,
            **figures,
        }

    rows = [
        row(
            "time",
            line,
            np.asarray,
            phase=line.phase,
            count=line.count,
            seconds=line.seconds,
            exposed_seconds=line.exposed_seconds,
            tier=tiers[line.tier.astype(np.int64)],
            each=line.exposed_each_s,
            algorithm=line.algorithm,
        )
        for line in bill.time_lines
    ]
    for kind, lines in (("memory", bill.memory_lines), ("host", bill.host_lines)):
        if lines:
            at_worst = partial(_at_stage, stage=_worst(lines, shape), shape=shape)
            rows += [row(kind, line, at_worst) for line in lines]
    return rows


_NUMBERS = ("count", "bytes", "seconds", "exposed_seconds")
_HELD = ("name", "axis", "category", "bytes", "formula", "terms", "source")
"""What is said of a line of memory; of a line of time more."""
_SPENT = ("name", "axis", "category", "phase", *_NUMBERS, "tier", "formula", "terms", "source")


def line_records(est: PricedJob) -> dict[str, list[dict[str, Any]]]:
    """Return every line of one layout as plain data, by its bill; `tier` is none where no fabric is used."""
    est.require_single("lines")
    found: dict[str, list[dict[str, Any]]] = {"time": [], "memory": [], "host": []}
    for row in bill_rows(est):
        record = {name: row[name] for name in (_SPENT if row["bill"] == "time" else _HELD)}
        record |= {name: float(record[name]) for name in _NUMBERS if name in record}
        if "tier" in record:
            record["tier"] = None if record["tier"] == NONE else str(record["tier"])
        found[row["bill"]].append(record)
    return found


def _flat(value: ArrayLike, shape: tuple[int, ...]) -> list[Any]:
    return list(np.broadcast_to(value, shape).ravel().tolist())


def long_columns(est: PricedJob) -> dict[str, list[Any]]:
    """Return the long form as columns: for each layout its time lines, its memory lines, those of a host."""
    shape, rows = est.shape, bill_rows(est)
    size = int(np.prod(shape))
    table: dict[str, list[Any]] = {"layout": [index for index in range(size) for _ in rows]}
    for column in LONG_COLUMNS[1:]:
        by_line = [_flat(row[column.name], shape) for row in rows]
        table[column.name] = [cells[index] for index in range(size) for cells in by_line]
    return table


def wide_columns(est: PricedJob) -> dict[str, list[Any]]:
    """Return the wide form as columns: inputs, results, and sums of lines by axis, category and memory part."""
    shape, job = est.shape, est.job
    size = int(np.prod(shape))
    values: dict[str, Any] = {
        "accelerator": job.cluster.accelerator.name,
        "micro_batches": np.rint(est.priced.placed.micro_batches).astype(np.int64),
        "days": np.nan if job.tokens is None else est.days(job.tokens),
        "gpu_hours": np.nan if job.tokens is None else est.gpu_hours(job.tokens),
        **job_names(job),
        **{f"{axis}_exposed_s": seconds for axis, seconds in est.exposed_by("axis").items()},
        **{f"category_{category}_s": seconds for category, seconds in est.exposed_by("category").items()},
    }
    worst = _worst(est.bill.memory_lines, shape)
    for line in est.bill.memory_lines:
        name = f"memory_{line.part}_bytes"
        values[name] = np.asarray(values.get(name, 0.0)) + _at_stage(line.bytes, worst, shape)
    for column in (*_RESULTS, *_BY_HOST):
        if column.name not in values:
            values[column.name] = getattr(est, column.name)
    table = {"layout": list(range(size))}
    table |= {
        name: plain_values(name, np.broadcast_to(numbers, shape))
        for name, numbers in job_numbers(job).items()
    }
    # An axis, a category or a part without lines costs nothing.
    table |= {
        column.name: _flat(values.get(column.name, 0.0), shape)
        for column in WIDE_COLUMNS
        if column.name not in table
    }
    return {column.name: table[column.name] for column in WIDE_COLUMNS}


def _worst(lines: Sequence[MemoryLine], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the stage with most memory of each layout, as an index that keeps the last dimension."""
    per_stage = np.atleast_1d(broadcast_sum([line.bytes for line in lines]))
    return np.asarray(
        np.argmax(np.broadcast_to(per_stage, (*shape, per_stage.shape[-1])), axis=-1)[..., None]
    )


def _at_stage(values: ArrayLike, stage: NDArray[np.int64], shape: tuple[int, ...]) -> Array:
    """Return what a memory line holds on the given stage of each layout."""
    per_stage = np.atleast_1d(values)
    num_stages = max(per_stage.shape[-1], int(stage.max()) + 1)
    return np.take_along_axis(np.broadcast_to(per_stage, (*shape, num_stages)), stage, axis=-1)[..., 0]
