"""Step-by-step simulation of pipeline schedules: every task of every rank, with start and end.

`simulate` runs the orders of `schedules.task_orders` with given durations and a delay per message.
Nothing here uses the closed forms of `schedules`: the simulation is their oracle, and the source
of Gantt pictures and traces. It is a loop over tasks, for one layout at a time; a search uses the
closed forms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.pipeline.orders import Orders, Step

Array = NDArray[np.float64]


class Task(NamedTuple):
    """One executed task; a rank's tasks do not overlap. Times in seconds from the step's start."""

    rank: int
    kind: str
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


def _kept(pending_weight_fraction: float) -> dict[str, float]:
    """Return by how much the activations that a rank holds change with each kind of task. [tasks]"""
    return {"F": 1.0, "B": -1.0, "I": pending_weight_fraction - 1.0, "W": -pending_weight_fraction}


@dataclass(frozen=True)
class Timeline:
    """The result of a simulation: what every rank ran, when, and what follows from it."""

    orders: Orders
    """The steps of each rank as they were run, weight gradients included."""
    starts: tuple[Array, ...]
    """When each of them starts and ends, one array a rank. [s]"""
    ends: tuple[Array, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, by start."""
        tasks = [
            Task(rank, step.kind, step.micro_batch, step.chunk, start, end)
            for rank, (steps, starts, ends) in enumerate(
                zip(self.orders.ranks, self.starts, self.ends, strict=True)
            )
            for step, start, end in zip(steps, starts.tolist(), ends.tolist(), strict=True)
        ]
        return tuple(sorted(tasks, key=itemgetter(4)))

    def makespan_s(self) -> float:
        """Time from the first start to the last end of all ranks [s]."""
        return max(float(each[-1]) for each in self.ends) - min(float(each[0]) for each in self.starts)

    def span_s(self) -> Array:
        """Time from first start to last end, of each rank [s]."""
        return np.array([ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True)])

    def busy_s(self) -> Array:
        """Time in tasks, of each rank [s]."""
        return np.array([np.sum(ends - starts) for starts, ends in zip(self.starts, self.ends, strict=True)])

    def step_s(self) -> float:
        """Time from one step to the next where ranks start the next step on their own [s]."""
        return float(self.span_s().max())

    def in_flight(self, pending_weight_fraction: float = 1.0) -> Array:
        """Peak activations held by each rank, in micro-batches on a whole stage [-].

        From the start of F to the end of the backward; between I and W only the given fraction.
        """
        changes: list[list[tuple[float, float]]] = [[] for _ in self.orders.ranks]
        share = _kept(pending_weight_fraction)
        for task in self.tasks:
            # What ends at the time something starts has freed its memory.
            time = task.start_s if task.kind == "F" else task.end_s
            changes[task.rank].append((round(time, 9), share[task.kind]))
        peaks = [np.cumsum([c for _, c in sorted(per_rank)]).max(initial=0.0) for per_rank in changes]
        return np.asarray(peaks) / self.orders.tasks_per_stage


def simulate(
    orders: Orders,
    *,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    message_s: float = 0.0,
    blocking: bool = False,
    pending_weight_fraction: float = 1.0,
    synchronized: bool = False,
) -> Timeline:
    """Run the orders; every task starts as soon as its rank and its input are there, and waits for each other are an error.

    Parameters
    ----------
    forward_s, backward_input_s, backward_weight_s : array_like
        Times of one micro-batch: one number for all stages, one per stage (shared equally by the
        stage's chunks), or an array (ranks, chunks) of each chunk. [s]
    message_s, blocking : float, bool
        Time of a message from rank to rank, and whether the sender stands still meanwhile; else only the receiver waits. [s]
    pending_weight_fraction : float
        Share of the activations that W still needs after I, where W fills gaps. [-]
    synchronized : bool
        Whether all ranks wait for each other at the end, so that the shortest order is the one that ends first.

    Notes
    -----
    Where W fills gaps in unit time, its places are found by a run in which every pass of a chunk takes the
    same time: the generator of V-Half and V-Min orders passes so, whatever they take.

    Where it fills the gaps that there are, a gap at least as long as W takes one, and a W is forced where the next F would
    exceed the memory limit. Shorter gaps take one by one of three rules, and the shortest step counts, as the
    zero-bubble paper's finder of schedules keeps the best of several heuristics: if otherwise this rank would
    become the one that has been idle longest, as in its own (P. Qi et al., arXiv:2401.10241, sec. 3.1); or if at least half,
    or a quarter, of the W fits, which is better where stages at the ends are lighter than the others and so are idle longest.

    >>> from costmodel.physics.pipeline.orders import one_f_one_b
    >>> timeline = simulate(one_f_one_b(4, 8, 1), forward_s=1.0, backward_input_s=1.0,
    ...                     backward_weight_s=1.0)
    >>> timeline.makespan_s()
    33.0
    """
    if orders.in_unit_time:
        orders = _with_weights(orders)
    passes = (_by_chunk(each, orders) for each in (forward_s, backward_input_s, backward_weight_s))
    forward, inputs, weights = passes
    durations = {"F": forward, "I": inputs, "W": weights, "B": inputs + weights}
    times = _Times(durations, 0.0 if blocking else message_s, message_s if blocking else 0.0)
    if not orders.fill_limit:
        return _in_order(orders, times)
    found = [
        _Run(orders, times, _kept(pending_weight_fraction), least).whole() for least in (None, 0.5, 0.25)
    ]
    return min(found, key=Timeline.makespan_s if synchronized else Timeline.step_s)


class _Times(NamedTuple):
    """Seconds of a task by kind, rank and chunk; by how much a message comes later, and its sender stands still."""

    durations: dict[str, Array]
    delay_s: float
    pause_s: float


def _by_chunk(value: ArrayLike, orders: Orders) -> Array:
    """Return the time of a task by rank and chunk, from one of the whole stage or one per chunk."""
    given = np.asarray(value, dtype=np.float64)
    if given.ndim == 2:
        return given
    chunks = 1 + max(chunk for path in orders.paths for _, chunk in path)
    by_stage = np.broadcast_to(given, (len(orders.ranks),)) / orders.tasks_per_stage
    out = np.repeat(by_stage[:, None], chunks, axis=1)
    if len(orders.paths) == 2:
        out[:, 1] = by_stage[::-1]
    return out


_KINDS = "FIWB"
_Key = tuple[bool, int, int, int]
"""A pass: whether it is backward, its rank, chunk and micro-batch."""


class _Linked(NamedTuple):
    """A task, the passes that it waits for and whether a message brings what they made, and whether one takes what it makes."""

    step: Step
    waits: tuple[tuple[_Key, bool], ...]
    is_sent: bool


@lru_cache(maxsize=32)
def _linked(orders: Orders) -> tuple[tuple[_Linked, ...], ...]:
    """Return the order of every rank with where its inputs come from."""
    # Of passes by direction, path, rank and chunk: rank and chunk that their inputs come from, and whether they send.
    ways: dict[_Key, tuple[tuple[int, int] | None, bool]] = {}
    for way, path in enumerate(orders.paths):
        for back, passed in ((False, path), (True, path[::-1])):
            for before, here, after in zip((None, *passed), passed, (*passed[1:], None), strict=False):
                ways[back, way, *here] = before, after is not None and after[0] != here[0]

    def linked(rank: int, step: Step) -> _Linked:
        if step.kind == "W":
            return _Linked(step, (), False)
        back = step.kind != "F"
        source, is_sent = ways[back, step.micro_batch % len(orders.paths), rank, step.chunk]
        waits: list[tuple[_Key, bool]] = (
            [((False, rank, step.chunk, step.micro_batch), False)] if back else []
        )
        if source is not None:
            waits.append(((back, *source, step.micro_batch), source[0] != rank))
        return _Linked(step, tuple(waits), is_sent)

    return tuple(tuple(linked(rank, step) for step in order) for rank, order in enumerate(orders.ranks))


def _require_done(orders: Orders, position: list[int]) -> None:
    if any(at < len(order) for at, order in zip(position, orders.ranks, strict=True)):
        raise AssertionError("pipeline orders that wait for each other")


class _Sequence(NamedTuple):
    """Steps of all ranks, each after what it waits for, whatever anything takes.

    Of two that run as one both wait for what either needs: a step that takes no time waits for the first before them.
    """

    ranks: list[int]
    waits: list[int]
    """The step of another rank that makes the input; -1 where there is none, as what a rank has made itself is there."""
    steps_of: Sequence[Any]
    """Of each rank: which of the sequence are its steps, in order."""
    passes: Sequence[Any]
    """Of each rank: the kind (in `_KINDS`) and the chunk of each step, and whether a message takes what it makes."""


@lru_cache(maxsize=32)
def _sequence(orders: Orders) -> _Sequence:
    """Return an order in which everything can be run."""
    position, moved = [0] * len(orders.ranks), True
    made: dict[_Key, int] = {}
    found = _Sequence([], [], *([[] for _ in orders.ranks] for _ in range(2)))
    while moved:
        moved = False
        for rank, order in enumerate(_linked(orders)):
            at, steps_of, passes = position[rank], found.steps_of[rank], found.passes[rank]
            while at < len(order):
                together = order[at : at + 1 + order[at].step.joined]
                needs = [key for task in together for key, _ in task.waits]
                if not all(key in made for key in needs):
                    break
                others = [made[key] for key in needs if key[1] != rank]
                # The first step waits for the last of the inputs, steps without a task for those before it.
                entries = [*others[:-1], *(others[-1:] or [-1]), *[-1] * (len(together) - 1)]
                found.ranks.extend([rank] * len(entries))
                found.waits.extend(entries)
                end = len(found.ranks)
                steps_of.extend(range(end - len(together), end))
                for step, _, is_sent in together:
                    passes.append((_KINDS.index(step.kind), step.chunk, is_sent))
                    if step.kind != "W":
                        made[step.kind != "F", rank, step.chunk, step.micro_batch] = end - 1
                at += len(together)
                moved = True
            position[rank] = at
    _require_done(orders, position)
    arrays = ([np.array(each).T for each in of_ranks] for of_ranks in (found.steps_of, found.passes))
    return _Sequence(found.ranks, found.waits, *arrays)


def _in_order(orders: Orders, times: _Times) -> Timeline:
    """Run orders that say where every task runs: each starts when the ones that it waits for have ended.

    Of two that run as one, what they make is there when the last of them ends.
    """
    sequence = _sequence(orders)
    takes, pauses = np.zeros((2, len(sequence.ranks)))
    durations = np.stack([times.durations[kind] for kind in _KINDS])
    for rank, (at, (kinds, chunks, is_sent)) in enumerate(
        zip(sequence.steps_of, sequence.passes, strict=True)
    ):
        takes[at] = durations[kinds, rank, chunks]
        pauses[at] = times.pause_s * is_sent
    free, done = [0.0] * len(orders.ranks), list[float]()
    for rank, wait, takes_s in zip(sequence.ranks, sequence.waits, (takes + pauses).tolist(), strict=True):
        now = free[rank]
        if wait >= 0 and (there := done[wait] + times.delay_s) > now:
            now = there
        free[rank] = now = now + takes_s
        done.append(now)
    ends = [np.array(done)[at] - pauses[at] for at in sequence.steps_of]
    starts = [end - takes[at] for end, at in zip(ends, sequence.steps_of, strict=True)]
    return Timeline(orders, tuple(starts), tuple(ends))


@lru_cache(maxsize=64)
def _with_weights(orders: Orders) -> Orders:
    """Write down where W runs if every pass of a chunk takes the same time."""
    run = simulate(
        replace(orders, in_unit_time=False), forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0
    )
    return replace(run.orders, fill_limit=0.0)


class _Choice(NamedTuple):
    """What a rank could do next, and when; `fills` where it is a W outside the order.

    It `stays` where nothing that others do changes it.
    """

    start_s: float
    rank: int
    tasks: tuple[_Linked, ...]
    fills: bool
    stays: bool


class _Run:
    """A simulation in which W fills gaps: those of which at least `least_share` fits, or by the idle time of ranks."""

    def __init__(
        self, orders: Orders, times: _Times, kept: dict[str, float], least_share: float | None
    ) -> None:
        p = len(orders.ranks)
        self.orders, self.times, self.kept, self.least_share = orders, times, kept, least_share
        self.durations = {kind: each.tolist() for kind, each in times.durations.items()}
        self.ranks = _linked(orders)
        self.done: dict[_Key, float] = {}
        self.run: list[list[tuple[Step, float, float]]] = [[] for _ in range(p)]
        self.free, self.idle, self.held = [0.0] * p, [0.0] * p, [0.0] * p
        self.position = [0] * p
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]

    def whole(self) -> Timeline:
        """Run everything."""
        ranks = range(len(self.orders.ranks))
        staying: dict[int, _Choice] = {}
        while choices := [
            choice for rank in ranks if (choice := staying.get(rank) or self.next_choice(rank)) is not None
        ]:
            next_one = min(choices, key=itemgetter(0))
            self.execute(next_one)
            staying = {choice.rank: choice for choice in choices if choice.stays and choice is not next_one}
        _require_done(self.orders, self.position)
        steps, starts, ends = zip(*(zip(*of_rank, strict=True) for of_rank in self.run), strict=True)
        return Timeline(
            replace(self.orders, ranks=steps), *(tuple(map(np.array, each)) for each in (starts, ends))
        )

    def ready_s(self, task: _Linked) -> float | None:
        """Return when the inputs of a task are there; None if that is not yet known."""
        latest = 0.0
        for key, far in task.waits:
            if key not in self.done:
                return None
            latest = max(latest, self.done[key] + (self.times.delay_s if far else 0.0))
        return latest

    def next_choice(self, rank: int) -> _Choice | None:
        """Return what `rank` does next if nothing changes; None if it cannot know."""
        order, at = self.ranks[rank], self.position[rank]
        tasks = order[at : at + (2 if at < len(order) and order[at].step.joined else 1)]
        times = [self.ready_s(task) for task in tasks]
        known = [time for time in times if time is not None]
        start = max([self.free[rank], *known]) if tasks and len(known) == len(times) else None
        stays = start is not None and self.least_share is not None
        if self.waiting[rank]:
            chunk, micro_batch = self.waiting[rank][0]
            gap = np.inf if start is None else start - self.free[rank]
            room = self.orders.fill_limit + 1e-9 - self.held[rank]
            full = bool(tasks) and tasks[0].step.kind == "F" and room < 1.0
            least = 1.0 - 1e-9 if self.least_share is None else self.least_share
            long = gap >= least * self.durations["W"][rank][chunk]
            idlest = self.least_share is None and self.idle[rank] + gap > max(self.idle) + 1e-9
            if full or long or (idlest and gap > 1e-9):
                weight = _Linked(Step("W", chunk, micro_batch), (), False)
                return _Choice(self.free[rank], rank, (weight,), True, stays)
        return None if start is None else _Choice(start, rank, tasks, False, stays)

    def execute(self, choice: _Choice) -> None:
        """Run the tasks back to back; what they produce is there when the last one ends."""
        rank, now = choice.rank, choice.start_s
        if choice.fills:
            self.waiting[rank].popleft()
        else:
            # The wait for a rank's first task is not idle time: its step starts with it.
            self.idle[rank] += now - self.free[rank] if self.position[rank] else 0.0
            self.position[rank] += len(choice.tasks)
        for step, _, is_sent in choice.tasks:
            end = now + self.durations[step.kind][rank][step.chunk]
            self.run[rank].append((step, now, end))
            now = end + self.times.pause_s * is_sent
        for step, _, _ in choice.tasks:
            if step.kind != "W":
                self.done[step.kind != "F", rank, step.chunk, step.micro_batch] = now
            self.held[rank] += self.kept[step.kind]
            if step.kind == "I" and self.orders.fill_limit:
                self.waiting[rank].append((step.chunk, step.micro_batch))
        self.free[rank] = now
