"""The two tables of an estimate: long form, a row a line of the bill; wide form, a row a layout.

`LONG_COLUMNS` and `WIDE_COLUMNS` document each column and fix their order, which is part of the
interface: new columns come last, none is renamed. Texts are never empty and absent numbers are
empty cells, so that both forms go through a CSV and pandas and come back equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import AXES, CATEGORIES, MemoryLine, MemoryPart, TimeLine, broadcast_sum
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


LONG_COLUMNS = (
    ColumnDoc("layout", "-", "number of the layout, 0 for a single one; joins both forms"),
    ColumnDoc("bill", "text", "time, memory (of a GPU) or host (memory of a host, its GPUs together)"),
    ColumnDoc("name", "text", "dotted name of the line, unique within a layout and bill"),
    ColumnDoc("axis", "text", "who causes it: compute, tp, cp, ep, pp, dp, optimizer or resilience"),
    ColumnDoc(
        "category", "text", "where it is paid: math, hbm, communication, bubble, state, activation, overhead"
    ),
    ColumnDoc("phase", "text", "when it is paid; none for memory"),
    ColumnDoc("count", "-", "executions a step on the critical rank; empty for memory"),
    ColumnDoc("bytes", "B", "time: sent per GPU, or HBM traffic, of all executions; memory: bytes held"),
    ColumnDoc("seconds", "s", "busy time of all executions; empty for memory"),
    ColumnDoc("exposed_seconds", "s", "part of it that the step waits for; their sum is the step time"),
    ColumnDoc("tier", "text", "slowest fabric tier used, none where none is"),
    ColumnDoc("formula", "text", "formula of one execution"),
    ColumnDoc("source", "text", "paper and equation, or file, that the formula is from"),
)

_COLUMNS_OF = {
    "cluster": ColumnDoc("accelerator", "text", "accelerator profile"),
    "micro_batch": ColumnDoc("micro_batches", "-", "micro-batches a step"),
}
"""What follows from fields, by the field that its column stands behind."""


def _inputs() -> Iterator[ColumnDoc]:
    """Yield the columns of what was asked, from the table of fields."""
    yield ColumnDoc("layout", "-", "number of the layout, 0 for a single one; joins both forms")
    for field in FIELDS:
        if field.column:
            yield ColumnDoc(field.name, field.unit, field.meaning)
        if field.name in _COLUMNS_OF:
            yield _COLUMNS_OF[field.name]


_RESULTS = (
    ColumnDoc("step_time_s", "s", "time of a step: the sum of the exposed seconds"),
    ColumnDoc("mfu", "-", "model FLOPs utilisation, full attention matrix"),
    ColumnDoc("mfu_causal", "-", "the same with half the attention matrix"),
    ColumnDoc("hfu", "-", "hardware FLOPs utilisation: recomputation counted too"),
    ColumnDoc("tokens_per_s_per_gpu", "1/s", "tokens a second and GPU"),
    ColumnDoc("model_tflops_per_gpu", "TFLOP/s", "model FLOPs a second and GPU, full attention matrix"),
    ColumnDoc("memory_bytes_per_gpu", "B", "memory of the worst pipeline stage"),
    ColumnDoc("memory_capacity_bytes", "B", "what the accelerator offers a program"),
    ColumnDoc("fits", "bool", "whether the worst stage fits, on the GPU and on the host"),
    ColumnDoc("days", "d", "days for the tokens of the run; empty without them"),
    ColumnDoc("gpu_hours", "h", "GPU-hours for the tokens of the run; empty without them"),
)
_BY_AXIS = tuple(ColumnDoc(f"{axis}_exposed_s", "s", f"exposed seconds of axis {axis}") for axis in AXES)
_BY_CATEGORY = tuple(
    ColumnDoc(f"category_{category}_s", "s", f"exposed seconds of category {category}")
    for category in CATEGORIES
)
_MEMORY_PARTS: dict[MemoryPart, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states and main weights",
    "activation": "activations",
    "buffer": "communication and gather buffers",
    "reserve": "allocator slack, CUDA context, communicators",
}
_BY_MEMORY = tuple(
    ColumnDoc(f"memory_{part}_bytes", "B", f"{meaning}, on the worst stage")
    for part, meaning in _MEMORY_PARTS.items()
)
_BY_HOST = (
    ColumnDoc("host_memory_bytes", "B", "main memory of a host that its GPUs fill, on the worst stage"),
    ColumnDoc("host_memory_capacity_bytes", "B", "main memory of a host"),
)
WIDE_COLUMNS = (*_inputs(), *_RESULTS, *_BY_AXIS, *_BY_CATEGORY, *_BY_MEMORY, *_BY_HOST)


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
