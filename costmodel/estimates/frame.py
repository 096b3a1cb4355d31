"""The two tables of an estimate: long form, a row a line of the bill; wide form, a row a layout.

`LONG_COLUMNS` and `WIDE_COLUMNS` document each column and fix their order, which is part of the
interface: new columns come last, none is renamed. Texts are never empty and absent numbers are
empty cells, so that both forms go through a CSV and pandas and come back equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import AXES, TOLLS, MemoryLine, MemoryPart, broadcast_sum
from costmodel.describe.jobs.fields import FIELDS
from costmodel.describe.jobs.layout_text import job_names, job_numbers, plain_values
from costmodel.estimates.priced_job import PricedJob

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
        "toll", "text", "where it is paid: math, hbm, communication, bubble, state, activation, overhead"
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

_BESIDE = {
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
        if field.name in _BESIDE:
            yield _BESIDE[field.name]


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
_BY_TOLL = tuple(ColumnDoc(f"toll_{toll}_s", "s", f"exposed seconds of toll {toll}") for toll in TOLLS)
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
WIDE_COLUMNS = (*_inputs(), *_RESULTS, *_BY_AXIS, *_BY_TOLL, *_BY_MEMORY, *_BY_HOST)


def long_columns(est: PricedJob) -> dict[str, list[Any]]:
    """Return the long form as columns: for each layout its time lines, its memory lines, those of a host."""
    shape, bill = est.shape, est.bill
    size = int(np.prod(shape))
    tiers = np.array([*bill.tier_names, NONE])

    def flat(value: ArrayLike) -> list[Any]:
        return list(np.broadcast_to(value, shape).ravel().tolist())

    lines: list[dict[str, list[Any]]] = []
    for line in bill.time_lines:
        lines.append(
            {
                "bill": ["time"] * size,
                "name": [line.name] * size,
                "axis": [line.axis] * size,
                "toll": [line.toll] * size,
                "phase": [line.phase] * size,
                "count": flat(line.count),
                "bytes": flat(line.bytes),
                "seconds": flat(line.seconds),
                "exposed_seconds": flat(line.exposed_seconds),
                "tier": flat(tiers[line.tier.astype(np.int64)]),
                "formula": [line.formula] * size,
                "source": [line.source] * size,
            }
        )
    held_where = [
        (kind, _worst(of_kind, shape), held)
        for kind, of_kind in (("memory", bill.memory_lines), ("host", bill.host_lines))
        for held in of_kind
    ]
    for kind, worst, held in held_where:
        nothing = [float("nan")] * size
        lines.append(
            {
                "bill": [kind] * size,
                "name": [held.name] * size,
                "axis": [held.axis] * size,
                "toll": [held.toll] * size,
                "phase": [NONE] * size,
                "count": nothing,
                "bytes": _at_stage(held.bytes, worst, shape).ravel().tolist(),
                "seconds": nothing,
                "exposed_seconds": nothing,
                "tier": [NONE] * size,
                "formula": [held.formula] * size,
                "source": [held.source] * size,
            }
        )
    table: dict[str, list[Any]] = {"layout": [index for index in range(size) for _ in lines]}
    for column in LONG_COLUMNS[1:]:
        table[column.name] = [line[column.name][index] for index in range(size) for line in lines]
    return table


def wide_columns(est: PricedJob) -> dict[str, list[Any]]:
    """Return the wide form as columns: inputs, results, and sums of lines by axis, toll and memory part."""
    shape, job = est.shape, est.job
    size = int(np.prod(shape))
    placed = est.priced.placed

    def flat(value: ArrayLike) -> list[Any]:
        return list(np.broadcast_to(value, shape).ravel().tolist())

    table: dict[str, list[Any]] = {
        "layout": list(range(size)),
        "accelerator": [job.cluster.accelerator.name] * size,
        "micro_batches": flat(np.rint(placed.micro_batches).astype(np.int64)),
    }
    for name, text in job_names(job).items():
        table[name] = [text] * size
    for name, numbers in job_numbers(job).items():
        table[name] = plain_values(name, np.broadcast_to(numbers, shape))
    for name in (
        "step_time_s",
        "mfu",
        "mfu_causal",
        "hfu",
        "tokens_per_s_per_gpu",
        "model_tflops_per_gpu",
        "memory_bytes_per_gpu",
        "memory_capacity_bytes",
        "fits",
        "host_memory_bytes",
        "host_memory_capacity_bytes",
    ):
        table[name] = flat(getattr(est, name))
    unknown = float("nan")
    table["days"] = flat(unknown if job.tokens is None else est.days(job.tokens))
    table["gpu_hours"] = flat(unknown if job.tokens is None else est.gpu_hours(job.tokens))
    by_axis, by_toll = est.exposed_by("axis"), est.exposed_by("toll")
    for axis in AXES:
        table[f"{axis}_exposed_s"] = flat(by_axis.get(axis, np.asarray(0.0)))
    for toll in TOLLS:
        table[f"toll_{toll}_s"] = flat(by_toll.get(toll, np.asarray(0.0)))
    worst = _worst(est.bill.memory_lines, shape)
    parts = dict.fromkeys(_MEMORY_PARTS, np.zeros(shape))
    for line in est.bill.memory_lines:
        parts[line.part] = parts[line.part] + _at_stage(line.bytes, worst, shape)
    for part, held in parts.items():
        table[f"memory_{part}_bytes"] = flat(held)
    return {column.name: table[column.name] for column in WIDE_COLUMNS}


def _worst(lines: Sequence[MemoryLine], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the stage with most memory of each layout, as an index that keeps the last dimension."""
    held = np.atleast_1d(broadcast_sum([line.bytes for line in lines]))
    return np.asarray(np.argmax(np.broadcast_to(held, (*shape, held.shape[-1])), axis=-1)[..., None])


def _at_stage(
    values: NDArray[np.float64], stage: NDArray[np.int64], shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return what a memory line holds on the given stage of each layout."""
    values = np.atleast_1d(values)
    num_stages = max(values.shape[-1], int(stage.max()) + 1)
    return np.take_along_axis(np.broadcast_to(values, (*shape, num_stages)), stage, axis=-1)[..., 0]
