"""Step-by-step simulation of pipeline schedules: every task of every rank, with start and end.

`task_orders` writes down what each rank does, in the order in which published schedules do it;
`simulate` runs these orders with given durations and a delay per message. Nothing here uses the
closed forms of `schedules`: the simulation is their oracle, and the source of Gantt pictures and
traces. It is a loop over tasks, for one layout at a time; a search uses the closed forms.

Kinds of task: F forward, B whole backward, I backward towards the input, W towards the weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.errors import LayoutError, choices_hint

Array = NDArray[np.float64]


class Step(NamedTuple):
    """One entry of a rank's order: a task, and whether it runs as one with the entry after it."""

    kind: str
    chunk: int
    micro_batch: int
    joined: bool = False


class Task(NamedTuple):
    """One executed task; a rank's tasks do not overlap. Times in seconds from the step's start."""

    rank: int
    kind: str
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Orders:
    """What every rank does.

    Attributes
    ----------
    ranks : tuple of tuple of Step
        The order of each rank. Where weight gradients fill gaps they are not listed.
    path : tuple of tuple of (rank, chunk)
        The ways of micro-batches through the pipeline; micro-batch i takes path i % len(path).
    tasks_per_stage : int
        Forward tasks of one micro-batch on one rank: the stage's time is split into so many.
    fill_limit : float
        Where W fills gaps: how many forward tasks' activations a rank may hold before a W must
        make room; 0 where the order itself says when W runs.
    patience : float
        The gap that is worth a W, as a share of W's time: 1 where W must not delay F or I.
    """

    ranks: tuple[tuple[Step, ...], ...]
    path: tuple[tuple[tuple[int, int], ...], ...]
    tasks_per_stage: int
    fill_limit: float = 0.0
    patience: float = 1.0


@dataclass(frozen=True)
class Timeline:
    """The result of a simulation: the tasks, and what follows from them."""

    tasks: tuple[Task, ...]
    num_ranks: int
    tasks_per_stage: int

    def _ends(self, last: bool) -> Array:
        """Return each rank's first start or last end."""
        out = np.full(self.num_ranks, -np.inf if last else np.inf)
        for task in self.tasks:
            out[task.rank] = max(out[task.rank], task.end_s) if last else min(out[task.rank], task.start_s)
        return out

    def makespan_s(self) -> float:
        """Time from the first start to the last end of all ranks. [s]"""
        return float(self._ends(last=True).max() - self._ends(last=False).min())

    def span_s(self) -> Array:
        """Time from first start to last end, of each rank. [s]"""
        return self._ends(last=True) - self._ends(last=False)

    def busy_s(self) -> Array:
        """Time in tasks, of each rank. [s]"""
        out = np.zeros(self.num_ranks)
        for task in self.tasks:
            out[task.rank] += task.end_s - task.start_s
        return out

    def step_s(self) -> float:
        """Time from one step to the next where ranks start the next step on their own. [s]"""
        return float(self.span_s().max())

    def in_flight(self, pending_weight_fraction: float = 1.0) -> Array:
        """Peak activations held by each rank, in micro-batches on a whole stage. [-]

        From the start of F to the end of the backward; between I and W only the given fraction.
        """
        changes: list[list[tuple[float, float]]] = [[] for _ in range(self.num_ranks)]
        share = {"F": 1.0, "B": -1.0, "I": pending_weight_fraction - 1.0, "W": -pending_weight_fraction}
        for task in self.tasks:
            # What ends at the time something starts has freed its memory.
            time = task.start_s if task.kind == "F" else task.end_s
            changes[task.rank].append((round(time, 9), share[task.kind]))
        peaks = [np.cumsum([c for _, c in sorted(per_rank)]).max(initial=0.0) for per_rank in changes]
        return np.asarray(peaks) / self.tasks_per_stage


def _loop(p: int, v: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the one path of looping chunks: ranks 0..p-1, v times."""
    return (tuple((rank, chunk) for chunk in range(v) for rank in range(p)),)


def _vee(p: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the one path of two chunks: down the ranks and up again."""
    down = [(rank, 0) for rank in range(p)]
    return (tuple(down + [(rank, 1) for rank in reversed(range(p))]),)


def _both_ways(p: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the two paths of DualPipe: even micro-batches down the ranks, odd ones up."""
    return (tuple((r, 0) for r in range(p)), tuple((r, 1) for r in reversed(range(p))))


def _one_f_one_b(forwards: Sequence[tuple[int, int]], backwards: Sequence[tuple[int, int]], warm_up: int,
                 kind: str) -> tuple[Step, ...]:  # fmt: skip
    """Return `warm_up` forwards, then forward and backward in turn, then the other backwards."""
    ahead = min(warm_up, len(forwards))
    steps = [Step("F", *task) for task in forwards[:ahead]]
    for index, task in enumerate(backwards):
        if ahead + index < len(forwards):
            steps.append(Step("F", *forwards[ahead + index]))
        steps.append(Step(kind, *task))
    return tuple(steps)


def _naive(p: int, m: int, v: int) -> Orders:
    """One micro-batch at a time through the whole model."""
    steps = tuple(Step(kind, 0, i) for i in range(m) for kind in "FB")
    return Orders((steps,) * p, _loop(p, 1), 1)


def _gpipe(p: int, m: int, v: int) -> Orders:
    """All forwards, then all backwards."""
    steps = tuple(Step(kind, 0, i) for kind in "FB" for i in range(m))
    return Orders((steps,) * p, _loop(p, 1), 1)


def _plain(p: int, m: int, v: int) -> Orders:
    """PipeDream-flush, 1F1B: rank r is p - r - 1 forwards ahead."""
    tasks = [(0, i) for i in range(m)]
    return Orders(tuple(_one_f_one_b(tasks, tasks, p - r - 1, "B") for r in range(p)), _loop(p, 1), 1)


def _interleaved(p: int, m: int, v: int) -> Orders:
    """Megatron's interleaved 1F1B: p micro-batches through a chunk before the next chunk."""
    if m % p:
        raise LayoutError(f"micro_batches: {m} is not a multiple of {p} stages, as 'interleaved' needs")
    forwards = [(c, g + i) for g in range(0, m, p) for c in range(v) for i in range(p)]
    backwards = [(v - 1 - c, i) for c, i in forwards]
    ranks = [_one_f_one_b(forwards, backwards, 2 * (p - r - 1) + (v - 1) * p, "B") for r in range(p)]
    return Orders(tuple(ranks), _loop(p, v), v)


def _zb_h1(p: int, m: int, v: int) -> Orders:
    """1F1B with the weight gradients put off as long as the memory of 1F1B's first rank allows."""
    tasks = [(0, i) for i in range(m)]
    ranks = tuple(_one_f_one_b(tasks, tasks, p - r - 1, "I") for r in range(p))
    return Orders(ranks, _loop(p, 1), 1, fill_limit=p)


def _zb_2p(p: int, m: int, v: int) -> Orders:
    """ZB-H2: twice the warm-up, so that no rank waits for the first backward."""
    tasks = [(0, i) for i in range(m)]
    ranks = tuple(_one_f_one_b(tasks, tasks, 2 * (p - r - 1), "I") for r in range(p))
    return Orders(ranks, _loop(p, 1), 1, fill_limit=2 * p - 1, patience=0.1)


def _building_block(
    p: int, m: int, hops: tuple[int, int, int, int], turns: tuple[int, int, int]
) -> tuple[tuple[Step, ...], ...]:
    """Return orders of F and I from a block of passes that repeats every six units of time.

    `hops` are the units from rank to rank of F of chunk 0, F of chunk 1, I of chunk 1 and I of
    chunk 0, `turns` those between these four passes. They are right if no rank has two passes in
    the same unit of the period; the other two units of the period are left to W.
    """
    passes = (("F", 0), ("F", 1), ("I", 1), ("I", 0))
    begins = [sum(hops[:i]) * (p - 1) + sum(turns[:i]) for i in range(4)]
    ranks = []
    for rank in range(p):
        away = (rank, p - 1 - rank, rank, p - 1 - rank)
        starts = [begins[i] + hops[i] * away[i] for i in range(4)]
        timed = [
            (6 * i + start, Step(*task, i))
            for i in range(m)
            for start, task in zip(starts, passes, strict=True)
        ]
        ranks.append(tuple(step for _, step in sorted(timed, key=itemgetter(0))))
    return tuple(ranks)


def _zb_v(p: int, m: int, v: int) -> Orders:
    """ZB-V: two chunks in a V, the memory of 1F1B, no bubble where F, I and W take the same time."""
    ranks = []
    for r in range(p):
        steps: list[Step] = []
        count = {("F", 0): 0, ("F", 1): 0, ("I", 0): 0, ("I", 1): 0}

        def put(*tasks: tuple[str, int], steps: list[Step] = steps, count: dict[tuple[str, int], int] = count) -> None:
            for kind, chunk in tasks:
                if count[kind, chunk] < m:
                    steps.append(Step(kind, chunk, count[kind, chunk]))
                    count[kind, chunk] += 1

        for _ in range(2 * (p - r) - 1):
            put(("F", 0))
        for _ in range(r):
            put(("F", 1), ("F", 0))
        for _ in range(p - r):
            put(("F", 1), ("I", 1))
        while count["F", 1] < m:
            put(("F", 0), ("I", 0), ("F", 1), ("I", 1))
        while count["I", 0] < m or count["I", 1] < m:
            put(("I", 0), ("I", 1))
        ranks.append(tuple(steps))
    return Orders(tuple(ranks), _vee(p), 2, fill_limit=2 * p, patience=0.5)


def _v_half(p: int, m: int, v: int) -> Orders:
    """V-Half: half the activations of 1F1B."""
    ranks = _building_block(p, m, (2, 1, 2, 1), (1, 2, 1) if p % 2 else (4, 2, 4))
    return Orders(ranks, _vee(p), 2, fill_limit=2 * ((p + 2) // 2), patience=0.1)


def _v_min(p: int, m: int, v: int) -> Orders:
    """V-Min: a third of the activations of 1F1B."""
    ranks = _building_block(p, m, (1, 1, 1, 1), (1, 1, 1) if p % 3 else (3, 1, 3))
    return Orders(ranks, _vee(p), 2, fill_limit=2 * ((p + 4) // 3))


def _dual_order(half: int, position: int, count: int, first: int) -> list[tuple[str, int, bool]]:
    """Return DualPipe's eight phases for one rank as (kind, chunk, joined with the next).

    `half` ranks lie between an end and the turn, `position` of them before this one; each of the
    two chunks gets `count` micro-batches; `first` is the chunk that enters at this rank's end.
    """
    one, other = first, 1 - first
    outer = half - position - 1
    steps = [("F", one, False)] * (2 * outer)
    steps += [("F", one, False), ("F", other, False)] * (position + 1)
    steps += [("I", other, False), ("W", other, False), ("F", other, False)] * outer
    steady = count - 2 * half + position + 1
    for index in range(steady):
        # At the turn the first forward's own backward would be its partner.
        apart = index == 0 and position == half - 1
        steps += [("F", one, not apart), ("B", other, False), ("F", other, True), ("B", one, False)]
    steps += [("B", other, False), ("F", other, True), ("B", one, False)] * outer
    split_from = (position + 1) // 2
    for index in range(position + 1):
        late_other = index > split_from or (index == split_from and position % 2 == 1)
        steps += [("I" if late_other else "B", other, False), ("I" if index >= split_from else "B", one, False)]
    steps += [("W", -1, False), ("I", one, False)] * outer
    steps += [("W", -1, False)] * (position + 1)
    return steps


def _numbered(steps: list[tuple[str, int, bool]], micro_batches: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """Give micro-batches to DualPipe's steps, in order; a W takes the oldest I that still waits."""
    forward, backward, waiting = [0, 0], [0, 0], deque[tuple[int, int]]()
    out = []
    for kind, chunk, joined in steps:
        if kind == "W":
            out.append(Step("W", *waiting.popleft()))
            continue
        counter = forward if kind == "F" else backward
        micro_batch = micro_batches[chunk][counter[chunk]]
        counter[chunk] += 1
        if kind == "I":
            waiting.append((chunk, micro_batch))
        out.append(Step(kind, chunk, micro_batch, joined))
    return tuple(out)


def _dualpipe(p: int, m: int, v: int) -> Orders:
    """DualPipe: micro-batches enter at both ends, and every rank holds two stages."""
    if p % 2 or m % 2 or m < 2 * p:
        raise LayoutError(f"micro_batches: 'dualpipe' needs even stages and an even number of at least {2 * p} "
                          f"micro-batches, got {p} stages and {m} micro-batches")  # fmt: skip
    streams = (range(0, m, 2), range(1, m, 2))
    ranks = [
        _numbered(_dual_order(p // 2, min(r, p - 1 - r), m // 2, int(r >= p // 2)), streams) for r in range(p)
    ]
    return Orders(tuple(ranks), _both_ways(p), 1)


def _dualpipe_v(p: int, m: int, v: int) -> Orders:
    """DualPipe cut in half: both chunks of the V on one rank, one copy of the parameters."""
    if m < 2 * p:
        raise LayoutError(f"micro_batches: 'dualpipe-v' needs at least {2 * p} with {p} stages, got {m}")
    ranks = [_numbered(_dual_order(p, r, m, 0), (range(m), range(m))) for r in range(p)]
    return Orders(tuple(ranks), _vee(p), 2)


_ORDERS: dict[str, Callable[[int, int, int], Orders]] = {
    "none": _plain, "naive": _naive, "gpipe": _gpipe, "1f1b": _plain, "interleaved": _interleaved,
    "zb-h1": _zb_h1, "zb-2p": _zb_2p, "zb-v": _zb_v, "dualpipe": _dualpipe, "dualpipe-v": _dualpipe_v,
    "v-half": _v_half, "v-min": _v_min,
}  # fmt: skip


def task_orders(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Orders:
    """Return what every rank does under `schedule`, without times."""
    if schedule not in _ORDERS:
        raise LayoutError(f"schedule: no schedule is called {schedule!r}; {choices_hint(schedule, _ORDERS)}")
    return _ORDERS[schedule](stages, micro_batches, virtual_stages)


def _durations(value: ArrayLike, orders: Orders) -> Array:
    """Return the time of a task by rank and chunk, from one of the whole stage or one per chunk."""
    p, chunks = len(orders.ranks), 1 + max(chunk for path in orders.path for _, chunk in path)
    given = np.asarray(value, dtype=np.float64)
    if given.ndim == 2:
        return given
    by_stage = np.broadcast_to(given, (p,)) / orders.tasks_per_stage
    out = np.repeat(by_stage[:, None], chunks, axis=1)
    if len(orders.path) == 2:
        out[:, 1] = by_stage[::-1]
    return out


def simulate(
    orders: Orders,
    *,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    message_s: float = 0.0,
    blocking: bool = False,
    pending_weight_fraction: float = 1.0,
) -> Timeline:
    """Run the orders; every task starts as soon as its rank and its input are there."""
    p = len(orders.ranks)
    forward, inputs = _durations(forward_s, orders), _durations(backward_input_s, orders)
    weights = _durations(backward_weight_s, orders)
    duration = {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}
    before: dict[tuple[int, int, int], tuple[int, int]] = {}
    after: dict[tuple[int, int, int], tuple[int, int]] = {}
    for way, path in enumerate(orders.path):
        for here, there in zip(path, path[1:], strict=False):
            after[(way, *here)] = there
            before[(way, *there)] = here
    num_ways = len(orders.path)
    done: dict[tuple[bool, int, int, int], float] = {}
    tasks: list[Task] = []
    free, position, held = [0.0] * p, [0] * p, [0.0] * p
    kept = pending_weight_fraction
    load = {"F": 1.0, "B": -1.0, "I": kept - 1.0, "W": -kept}
    waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]
    delay = 0.0 if blocking else message_s

    def ready(rank: int, step: Step) -> float | None:
        """Return when the step's input is there; None if that is not yet known."""
        if step.kind == "W":
            return 0.0
        way = step.micro_batch % num_ways
        key = (way, rank, step.chunk)
        source = before.get(key) if step.kind == "F" else after.get(key)
        backward = step.kind != "F"
        times = [0.0]
        if backward:
            own = done.get((False, rank, step.chunk, step.micro_batch))
            if own is None:
                return None
            times.append(own)
        if source is not None:
            end = done.get((backward, *source, step.micro_batch))
            if end is None:
                return None
            times.append(end + (delay if source[0] != rank else 0.0))
        return max(times)

    def group(rank: int) -> tuple[Step, ...]:
        """Return the rank's next step, with the one it is joined to."""
        order, at = orders.ranks[rank], position[rank]
        if at >= len(order):
            return ()
        return order[at : at + 2] if order[at].joined else order[at : at + 1]

    def run(rank: int, steps: Sequence[Step], start: float) -> None:
        """Execute the steps back to back; what they produce is there when the last one ends."""
        now = start
        for step in steps:
            sends = False
            if step.kind != "W":
                target = (after if step.kind == "F" else before).get(
                    (step.micro_batch % num_ways, rank, step.chunk)
                )
                sends = target is not None and target[0] != rank
            end = now + float(duration[step.kind][rank, step.chunk])
            tasks.append(Task(rank, step.kind, step.micro_batch, step.chunk, now, end))
            now = end + (message_s if blocking and sends else 0.0)
        for step in steps:
            if step.kind != "W":
                done[step.kind != "F", rank, step.chunk, step.micro_batch] = now
            held[rank] += load[step.kind]
            if step.kind == "I" and orders.fill_limit:
                waiting[rank].append((step.chunk, step.micro_batch))
        free[rank] = now

    while True:
        best: tuple[float, int, tuple[Step, ...], bool] | None = None
        for rank in range(p):
            steps = group(rank)
            times = [ready(rank, step) for step in steps]
            start = max([free[rank], *[t for t in times if t is not None]]) if None not in times and steps else None
            choice: tuple[float, int, tuple[Step, ...], bool] | None = None
            if start is not None:
                choice = (start, rank, steps, False)
            if waiting[rank]:
                chunk, micro_batch = waiting[rank][0]
                gap = np.inf if start is None else start - free[rank]
                full = bool(steps) and steps[0].kind == "F" and held[rank] + 1.0 > orders.fill_limit + 1e-9
                if full or gap > 0.0 and gap >= orders.patience * weights[rank, chunk] * (1.0 - 1e-9):
                    choice = (free[rank], rank, (Step("W", chunk, micro_batch),), True)
            if choice is not None and (best is None or choice[0] < best[0]):
                best = choice
        if best is None:
            break
        start, rank, steps, filler = best
        run(rank, steps, start)
        if filler:
            waiting[rank].popleft()
        else:
            position[rank] += len(steps)
    if any(position[rank] < len(orders.ranks[rank]) for rank in range(p)):
        raise AssertionError("a pipeline order that waits for itself")
    return Timeline(tuple(tasks), p, orders.tasks_per_stage)
