"""Step-by-step simulation of pipeline schedules: every task of every rank, with start and end.

`simulate` runs the orders of `schedules.task_orders` with given durations and a delay per message.
Nothing here uses the closed forms of `schedules`: the simulation is their oracle, and the source
of Gantt pictures and traces. It is a loop over tasks, for one layout at a time; a search uses the
closed forms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.pipeline.orders import KINDS, Orders

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

    orders: Orders  # The steps of each rank as they were run, weight gradients included
    starts: tuple[Array, ...]  # When each of them starts and ends, one array a rank. [s]
    ends: tuple[Array, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, by start."""
        tasks = [
            Task(rank, KINDS[kind], micro_batch, chunk, start, end)
            for rank, (order, starts, ends) in enumerate(
                zip(self.orders.ranks, self.starts, self.ends, strict=True)
            )
            for (kind, chunk, micro_batch, _), start, end in zip(
                order.tolist(), starts.tolist(), ends.tolist(), strict=True
            )
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
    Where W fills gaps in unit time (V-Half, V-Min), its places are found by a run in which every pass of a chunk takes the
    same time. Where it fills the gaps that there are, a gap at least as long as W takes one, and a W is forced where the
    next F would exceed the memory limit. Shorter gaps take one by one of three rules, and the shortest step counts: if
    otherwise this rank would become the one that has been idle longest (P. Qi et al., arXiv:2401.10241, sec. 3.1); or if at
    least half, or a quarter, of the W fits, which is better where stages at the ends are lighter than the others.
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


class _Links(NamedTuple):
    """The passes that the tasks of a rank take inputs from and make, by number, and whether a message takes what they make.

    -1 where nothing is waited for, as a rank has what its own passes kept, and -2 where nothing is made, by weight gradients.
    """

    takes: NDArray[np.int64]
    makes: NDArray[np.int64]
    is_sent: NDArray[np.bool_]


@lru_cache(maxsize=32)
def _linked(orders: Orders) -> tuple[_Links, ...]:
    """Return where the inputs of every task come from, and where its output goes."""
    p, ways = len(orders.ranks), len(orders.paths)
    chunks = 1 + max(chunk for path in orders.paths for _, chunk in path)
    # By direction and path, the place in `rank * chunks + chunk` that inputs come from, and whether outputs are sent.
    source = np.full((2, ways, p * chunks), -1)
    sends = np.zeros((2, ways, p * chunks), dtype=bool)
    for way, path in enumerate(orders.paths):
        for back, passed in enumerate((path, path[::-1])):
            ranks = np.array([rank for rank, _ in passed])
            places = ranks * chunks + [chunk for _, chunk in passed]
            source[back, way, places[1:]] = places[:-1]
            sends[back, way, places[:-1]] = ranks[1:] != ranks[:-1]
    found = []
    count = 1 + max(int(order[:, 2].max()) for order in orders.ranks)
    for rank, order in enumerate(orders.ranks):
        kind, chunk, micro_batch, _ = order.T
        back, here = (kind > 0) * 1, rank * chunks + chunk
        at = back, micro_batch % ways, here
        runs, before = kind != KINDS.index("W"), source[at]
        takes = np.where(runs & (before >= 0), (back * p * chunks + before) * count + micro_batch, -1)
        makes = np.where(runs, (back * p * chunks + here) * count + micro_batch, -2)
        found.append(_Links(takes, makes, sends[at] & runs))
    return tuple(found)


def _require_done(orders: Orders, position: list[int]) -> None:
    if any(at < len(order) for at, order in zip(position, orders.ranks, strict=True)):
        raise AssertionError("pipeline orders that wait for each other")


def _in_order(orders: Orders, times: _Times) -> Timeline:
    """Run orders that say where every task runs: each starts when its input is there.

    Two that run as one wait for what either needs, and what they make is there when the last of them ends.
    """
    durations = np.stack([times.durations[kind] for kind in KINDS])
    whole, todo = [], []
    for rank, (order, links) in enumerate(zip(orders.ranks, _linked(orders), strict=True)):
        kind, chunk, _, joined = order.T
        takes_s = durations[kind, rank, chunk]
        here_s, later_s = takes_s + times.pause_s * links.is_sent, times.delay_s * links.is_sent
        first, other = np.flatnonzero(joined), np.full(len(order), -1)
        other[first] = links.takes[first + 1]
        later_s[first] += here_s[first + 1]
        whole.append((takes_s, here_s))
        columns = (links.takes, other, here_s, links.makes, later_s)
        todo.append(list(zip(*(column.tolist() for column in columns), strict=True)))
    # When what a pass makes is with the rank that takes it; before that it is negative.
    there = [-1.0] * (max(int(links.makes.max()) for links in _linked(orders)) + 2) + [0.0]
    free = [0.0] * len(todo)
    ends: list[list[float]] = [[] for _ in todo]
    moved = True
    while moved:
        moved = False
        for rank, (tasks, done) in enumerate(zip(todo, ends, strict=True)):
            now, before = free[rank], len(done)
            for own, other, here, makes, later in tasks[before:]:
                first, second = there[own], there[other]
                if first < 0.0 or second < 0.0:
                    break
                if first > now or second > now:
                    now = max(first, second)
                now += here
                done.append(now)
                there[makes] = now + later
            free[rank] = now
            moved = moved or len(done) > before
    _require_done(orders, [len(done) for done in ends])
    ended = [np.array(done) - (here_s - takes_s) for done, (takes_s, here_s) in zip(ends, whole, strict=True)]
    starts = [end - takes_s for end, (takes_s, _) in zip(ended, whole, strict=True)]
    return Timeline(orders, tuple(starts), tuple(ended))


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
    kind: str
    chunk: int
    micro_batch: int
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
        self.ranks = [
            list(zip(*order.T[:3].tolist(), *(each.tolist() for each in links), strict=True))
            for order, links in zip(orders.ranks, _linked(orders), strict=True)
        ]
        # When what is made of each pass is with the rank that takes it.
        self.there: dict[int, float] = {-1: 0.0}
        self.run: list[list[tuple[int, int, int, float, float]]] = [[] for _ in range(p)]
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
        tasks = [np.array(of_rank) for of_rank in self.run]
        ran = tuple(np.insert(of_rank[:, :3], 3, 0, axis=1).astype(np.int64) for of_rank in tasks)
        starts, ends = (tuple(of_rank[:, at] for of_rank in tasks) for at in (3, 4))
        return Timeline(replace(self.orders, ranks=ran), starts, ends)

    def next_choice(self, rank: int) -> _Choice | None:
        """Return what `rank` does next if nothing changes; None if it cannot know."""
        order, at, free = self.ranks[rank], self.position[rank], self.free[rank]
        kind, chunk, micro_batch, takes, *_ = order[at] if at < len(order) else (-1, 0, 0, 0)
        start = max(free, self.there[takes]) if kind >= 0 and takes in self.there else None
        stays = start is not None and self.least_share is not None
        if self.waiting[rank]:
            waits = self.waiting[rank][0]
            gap = np.inf if start is None else start - free
            room = self.orders.fill_limit + 1e-9 - self.held[rank]
            full = kind == KINDS.index("F") and room < 1.0
            least = 1.0 - 1e-9 if self.least_share is None else self.least_share
            long = gap >= least * self.durations["W"][rank][waits[0]]
            idlest = self.least_share is None and self.idle[rank] + gap > max(self.idle) + 1e-9
            if full or long or (idlest and gap > 1e-9):
                return _Choice(free, rank, "W", *waits, True, stays)
        return None if start is None else _Choice(start, rank, KINDS[kind], chunk, micro_batch, False, stays)

    def execute(self, choice: _Choice) -> None:
        """Run a task; what it makes is there when it has ended, and a message has come."""
        start, rank, kind, chunk, micro_batch, fills, _ = choice
        end = free = start + self.durations[kind][rank][chunk]
        if fills:
            self.waiting[rank].popleft()
        else:
            at = self.position[rank]
            # The wait for a rank's first task is not idle time: its step starts with it.
            self.idle[rank] += start - self.free[rank] if at else 0.0
            self.position[rank] += 1
            *_, makes, is_sent = self.ranks[rank][at]
            free += self.times.pause_s * is_sent
            self.there[makes] = free + self.times.delay_s * is_sent
        self.run[rank].append((KINDS.index(kind), chunk, micro_batch, start, end))
        self.held[rank] += self.kept[kind]
        if kind == "I":
            self.waiting[rank].append((chunk, micro_batch))
        self.free[rank] = free
