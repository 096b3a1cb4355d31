"""The bill: named lines of seconds and bytes, and nothing else that adds up.

Step time is the sum of the `exposed` seconds of the time lines; memory per GPU is the sum of the
memory lines of the worst pipeline stage. Every value may be a scalar or an array over layouts;
all values of one bill broadcast together. Formulas are kept as text whose names are keys of the
line's `terms`, so that anybody can put the numbers in and get the line's value back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.quantity import Quantity, quantity

Array = NDArray[np.float64]

Axis = Literal["compute", "tp", "cp", "ep", "pp", "dp", "optimizer", "resilience"]
Category = Literal["math", "hbm", "communication", "bubble", "state", "activation", "overhead"]
Phase = Literal[
    "forward", "backward", "backward_weight", "recompute", "grad_sync", "param_sync", "optimizer", "step"
]
"""When a line is paid: `backward_weight` is the weight gradient, which zero-bubble schedules put off, `backward`
all else of that pass."""
Cause = Literal["work", "attention", "host", "proportion"]
"""What makes a line: the work of its axis (of it kernels of fused attention), the host that issues kernels, or a share
of the other lines."""
HostWay = Literal["", "out", "in"]
"""Which way a line goes over the link to the host's memory: none, out of the GPU, into it."""
MemoryPart = Literal["parameters", "gradients", "optimizer", "activation", "buffer", "reserve"]
Seen = Literal["allocated", "reserved", "device"]
"""Which measure of memory first shows a line: `torch.cuda.memory_allocated`, `memory_reserved`, or the driver."""

Lasts = Literal["step", "in_flight", "micro_batch", "pass"]
"""How long memory is held: always, once for each micro-batch in flight, one micro-batch at a time, or in one pass."""

AXES: tuple[Axis, ...] = get_args(Axis)
COMMUNICATING = tuple(axis for axis in AXES if axis not in ("compute", "optimizer", "resilience"))
"""Axes whose ranks send to each other."""
BY_SHARDING: tuple[Axis, ...] = ("dp", "optimizer")
"""Axes whose lines depend on how data parallelism shards, of which a search has many ways."""
CATEGORIES: tuple[Category, ...] = get_args(Category)
CATEGORY_NAMES = {
    "math": "GEMM+attention",
    "hbm": "memory-bound",
    "communication": "exposed communication",
    "bubble": "pipeline bubble",
    "state": "optimizer",
    "activation": "activations",
    "overhead": "overhead",
}
"""Names of the categories in tables."""
PHASES: tuple[Phase, ...] = get_args(Phase)
MEMORY_PARTS: tuple[MemoryPart, ...] = get_args(MemoryPart)


class TimeLine(NamedTuple):
    """One item of time on the critical rank: `count` executions of `each_s` seconds."""

    name: str  # Dotted path, unique in the bill: ``compute.attention.qkv_gemm.forward``
    axis: Axis
    category: Category
    phase: Phase
    """Who causes it (`AXES`), where it is paid (`CATEGORIES`), when (`PHASES`)."""
    cause: Cause  # What makes it: see `Cause`
    group: str  # Dimension of the mesh that a message crosses, "" where none is sent
    count: Array  # type: ignore[assignment]
    """Executions per step on the critical rank. [-]"""
    each_s: Array  # Busy time of one execution. [s]
    exposed_each_s: Array  # What the critical path pays of one execution, 0 where it is hidden. [s]
    bytes_each: Array  # Bytes of one execution: wire bytes sent per GPU, or HBM traffic. [B]
    tier: Array  # Index of the slowest fabric tier used, -1 where none is. [-]
    algorithm: Array  # Index of the algorithm that a collective runs by, 0 where there is none. [-]
    host_way: HostWay  # Which way it goes over the link to the host's memory (`HostWay`)
    formula: str  # Expression for one exposed execution over the names in `terms`
    terms: Mapping[str, ArrayLike]  # The numbers of the formula, in SI units
    source: str  # Paper and equation, or file, that the formula comes from

    @property
    def seconds(self) -> Array:
        """Busy time of all executions. [s]"""
        return np.asarray(self.count * self.each_s)

    @property
    def exposed_seconds(self) -> Array:
        """Time the critical path pays for all executions. [s]"""
        return np.asarray(self.count * self.exposed_each_s)

    @property
    def bytes(self) -> Array:
        """Bytes of all executions. [B]"""
        return np.asarray(self.count * self.bytes_each)


class MemoryLine(NamedTuple):
    """One item of memory on one GPU, with pipeline stages in the last array dimension. [B]

    `lasts` says how long it is held, `seen` which measure shows it.
    """

    name: str
    part: MemoryPart
    axis: Axis
    category: Category
    lasts: Lasts
    seen: Seen
    bytes: Array
    formula: str
    terms: Mapping[str, ArrayLike]
    source: str


class HostLine(MemoryLine):
    """One item of the main memory of one host, its GPUs together; stages of a pipeline as in `MemoryLine`. [B]"""

    __slots__ = ()


_ZERO, _NOWHERE = np.asarray(0.0), np.asarray(-1.0)


def time_line(
    name: str,
    *,
    axis: Axis,
    category: Category,
    phase: Phase,
    count: ArrayLike = 1.0,
    cause: Cause = "work",
    group: str = "",
    formula: str = "",
    terms: Mapping[str, ArrayLike] | None = None,
    made: Quantity | None = None,
    bytes_each: ArrayLike = _ZERO,
    tier: ArrayLike = _NOWHERE,
    algorithm: ArrayLike = _ZERO,
    host_way: HostWay = "",
    source: str,
) -> TimeLine:
    """Build a `TimeLine` from its formula and the numbers of its names, or from a quantity already `made`.

    The formula gives the exposed seconds of one execution; a step called ``busy_s`` gives its busy
    seconds, which are the exposed ones where there is no such step.
    """
    if made is None:
        made = quantity(formula, **(terms or {}))
    return TimeLine(
        name=name,
        axis=axis,
        category=category,
        phase=phase,
        cause=cause,
        group=group,
        count=np.asarray(count, dtype=np.float64),
        each_s=np.asarray(made.steps.get("busy_s", made.value), dtype=np.float64),
        exposed_each_s=made.value,
        bytes_each=np.asarray(bytes_each, dtype=np.float64),
        tier=np.asarray(tier, dtype=np.float64),
        algorithm=np.asarray(algorithm, dtype=np.float64),
        host_way=host_way,
        formula=made.formula,
        terms=made.terms,
        source=source,
    )


def memory_line(
    name: str,
    *,
    part: MemoryPart,
    axis: Axis,
    category: Category | None = None,
    lasts: Lasts = "step",
    seen: Seen = "allocated",
    formula: str = "",
    terms: Mapping[str, ArrayLike] | None = None,
    made: Quantity | None = None,
    source: str,
) -> MemoryLine:
    """Build a `MemoryLine` as `time_line` does a `TimeLine`; pipeline stages are the last dimension.

    Activations and buffers are for what a pass needs, all else is state, unless a `category` says otherwise.
    """
    usual: Category = "activation" if part in ("activation", "buffer") else "state"
    if made is None:
        made = quantity(formula, **(terms or {}))
    return MemoryLine(
        name=name,
        part=part,
        axis=axis,
        category=category or usual,
        lasts=lasts,
        seen=seen,
        bytes=made.value,
        formula=made.formula,
        terms=made.terms,
        source=source,
    )


def any_nonzero(mask: ArrayLike) -> bool:
    """Tell whether a mask or number is nonzero in any layout; fast for a single layout."""
    array = np.asarray(mask)
    return bool(array) if array.ndim == 0 else bool(np.count_nonzero(array))


def without_constant_axes(values: ArrayLike) -> Array:
    """Return an array without the dimensions along which it is the same, one number where it is everywhere.

    What a search holds fixed in all its layouts then spreads no line over their dimension.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or not array.size:
        return array
    if (array == array.flat[0]).all():
        return np.asarray(array.flat[0])
    for axis in range(array.ndim):
        first = array.take([0], axis=axis)
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array


def broadcast_sum(values: Iterable[Array]) -> Array:
    """Sum arrays of different broadcastable shapes, the smallest first.

    Lines that depend on few knobs are added up on their own small grid before they meet the
    large one, so that a search pays for the large grid once per sum and not once per line.
    """
    alike: dict[tuple[int, ...], list[Array]] = {}
    for value in values:
        alike.setdefault(value.shape, []).append(value)
    sums = sorted((_sum_alike(each) for each in alike.values()), key=lambda each: each.size)
    return np.asarray(reduce(np.add, sums)) if sums else _ZERO


def _sum_alike(values: Sequence[Array]) -> Array:
    """Sum arrays of one shape; a new array where there are several."""
    if len(values) == 1:
        return values[0]
    if values[0].ndim == 0:
        return np.asarray(sum(map(float, values)))
    total = np.asarray(values[0] + values[1])
    for value in values[2:]:
        total += value
    return total


def sum_exposed(lines: Iterable[TimeLine], before: Array | None = None) -> Array:
    """Sum the exposed seconds of `lines`, and of those `before`; lines with one count are added up first."""
    by_count: dict[int, tuple[Array, list[Array]]] = {}
    for line in lines:
        by_count.setdefault(id(line.count), (line.count, []))[1].append(line.exposed_each_s)
    sums = [] if before is None else [before]
    return broadcast_sum([*sums, *(counted(count, broadcast_sum(each)) for count, each in by_count.values())])


def counted(count: Array, each: Array) -> Array:
    """Return `count` times as much; what is counted once is not worth a pass over a large grid."""
    return each if count.ndim == 0 and count == 1.0 else np.asarray(count * each)


def repeated(lines: Iterable[TimeLine], factor: Array) -> list[TimeLine]:
    """Return lines executed `factor` times as often; those that share a count go on sharing one."""
    listed = list(lines)
    counts = {id(line.count): line.count for line in listed}
    more = {key: np.asarray(count * factor) for key, count in counts.items()}
    return [line._replace(count=more[id(line.count)]) for line in listed]


Line = TimeLine | MemoryLine | HostLine


@dataclass(frozen=True)
class Bill:
    """All lines of one estimate (or of an array of estimates)."""

    time_lines: tuple[TimeLine, ...]
    memory_lines: tuple[MemoryLine, ...]
    tier_names: tuple[str, ...] = field(default=())
    host_lines: tuple[HostLine, ...] = field(default=())
    _known: dict[bool, tuple[int, Array]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of `exposed_s`: the number of lines already summed, and their sum, by `by_sharding`."""

    def plus(self, lines: Iterable[Line]) -> Bill:
        """Return the bill with more lines, each where it belongs."""
        more = list(lines)
        if not more:
            return self
        time, memory, host = list(self.time_lines), list(self.memory_lines), list(self.host_lines)
        for line in more:
            if isinstance(line, TimeLine):
                time.append(line)
            elif isinstance(line, HostLine):
                host.append(line)
            else:
                memory.append(line)
        bill = Bill(tuple(time), tuple(memory), self.tier_names, tuple(host))
        bill._known.update(self._known)
        return bill

    def exposed_s(self, *, by_sharding: bool) -> Array:
        """Exposed seconds of the lines of the axes `BY_SHARDING`, or of all others. [s]

        The two lie on different grids: apart, a search adds up neither on the other's.
        """
        count, known = self._known.get(by_sharding, (0, None))
        if known is None or count < len(self.time_lines):
            new = [line for line in self.time_lines[count:] if (line.axis in BY_SHARDING) == by_sharding]
            known = sum_exposed(new, known)
            self._known[by_sharding] = (len(self.time_lines), known)
        return known

    def step_time_s(self) -> Array:
        """Step time: the sum of the exposed seconds of all time lines. [s]"""
        return broadcast_sum([self.exposed_s(by_sharding=some) for some in (False, True)])

    def memory_per_stage_bytes(self) -> Array:
        """Memory per GPU by pipeline stage (last dimension): the sum of the memory lines. [B]"""
        return broadcast_sum([line.bytes for line in self.memory_lines])

    def memory_bytes(self) -> Array:
        """Memory per GPU of the worst pipeline stage. [B]"""
        return _on_worst_stage([line.bytes for line in self.memory_lines])

    def host_memory_bytes(self) -> Array:
        """Memory of a host all of whose GPUs hold the worst pipeline stage; 0 without host lines. [B]"""
        return _on_worst_stage([line.bytes for line in self.host_lines])


def _on_worst_stage(lines: Sequence[Array]) -> Array:
    """Return the largest sum of memory lines over pipeline stages, their last dimension. [B]"""
    stages = max((line.shape[-1] if line.ndim else 1 for line in lines), default=1)
    if all(line.ndim <= 1 for line in lines):
        return np.asarray(broadcast_sum(lines).max(axis=-1) if lines else 0.0)
    alike: dict[tuple[int, ...], list[Array]] = {}
    for line in lines:
        alike.setdefault(line.shape, []).append(line)
    sums = [_sum_alike(each) for each in alike.values()]
    # Stage by stage, so that a search never holds all stages of the large grid at once.
    worst: Array | None = None
    for stage in range(stages):
        stage_bytes = broadcast_sum([at_stage(each, stage) for each in sums])
        # The first result may be a line's own array; later ones are ours and can be overwritten.
        worst = (
            stage_bytes if worst is None else np.maximum(worst, stage_bytes, out=worst if stage > 1 else None)
        )
    return np.asarray(worst)


def highest_on_stages(values: Array) -> Array:
    """Return the largest along pipeline stages, the last dimension.

    >>> highest_on_stages(np.asarray([[1.0, 3.0], [2.0, 0.0]])).tolist()
    [3.0, 2.0]
    """
    return _over_stages(np.maximum, values)


def lowest_on_stages(values: Array) -> Array:
    """Return the smallest along pipeline stages, the last dimension."""
    return _over_stages(np.minimum, values)


def _over_stages(pick: np.ufunc, values: Array) -> Array:
    if values.ndim == 1:
        return np.asarray(pick.reduce(values))
    # Stages are few and layouts many: NumPy would go through the former for each of the latter.
    return np.asarray(reduce(pick, (values[..., stage] for stage in range(values.shape[-1]))))


def at_stage(values: Array, stage: int) -> Array:
    """Return the values of one stage (the last dimension); values without that dimension hold for all."""
    if values.ndim == 0:
        return values
    return np.asarray(values[..., stage if values.shape[-1] > 1 else 0])
