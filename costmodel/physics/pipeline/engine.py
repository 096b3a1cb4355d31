"""Step-by-step simulation of pipeline schedules: every task of every rank, with start and end.

`simulate` runs the orders of `schedule_orders` with given durations and a delay per message.
Nothing here uses the closed forms of `schedules`: the simulation is their oracle, and the source
of Gantt pictures and traces. It is a loop over tasks, for one layout at a time; a search uses the
closed forms.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

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
        """Time from the first start to the last end of all ranks [s]."""
        return float(self._ends(last=True).max() - self._ends(last=False).min())

    def span_s(self) -> Array:
        """Time from first start to last end, of each rank [s]."""
        return self._ends(last=True) - self._ends(last=False)

    def busy_s(self) -> Array:
        """Time in tasks, of each rank [s]."""
        out = np.zeros(self.num_ranks)
        for task in self.tasks:
            out[task.rank] += task.end_s - task.start_s
        return out

    def step_s(self) -> float:
        """Time from one step to the next where ranks start the next step on their own [s]."""
        return float(self.span_s().max())

    def in_flight(self, pending_weight_fraction: float = 1.0) -> Array:
        """Peak activations held by each rank, in micro-batches on a whole stage [-].

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


def _durations(value: ArrayLike, orders: Orders) -> Array:
    """Return the time of a task by rank and chunk, from one of the whole stage or one per chunk."""
    p, chunks = len(orders.ranks), 1 + max(chunk for path in orders.paths for _, chunk in path)
    given = np.asarray(value, dtype=np.float64)
    if given.ndim == 2:
        return given
    by_stage = np.broadcast_to(given, (p,)) / orders.tasks_per_stage
    out = np.repeat(by_stage[:, None], chunks, axis=1)
    if len(orders.paths) == 2:
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
    synchronized: bool = False,
) -> Timeline:
    """Run the orders; every task starts as soon as its rank and its input are there.

    Parameters
    ----------
    orders : Orders
        What `task_orders` returned.
    forward_s, backward_input_s, backward_weight_s : array_like
        Times of one micro-batch: one number for all stages, one per stage (shared equally by the
        stage's chunks), or an array (ranks, chunks) of each chunk. [s]
    message_s : float
        Time of a message from rank to rank. [s]
    blocking : bool
        Whether the sender stands still meanwhile; otherwise only the receiver waits.
    pending_weight_fraction : float
        Share of the activations that W still needs after I, where W fills gaps. [-]
    synchronized : bool
        Whether all ranks wait for each other at the end, so that the shortest order is the one that ends first.

    Returns
    -------
    timeline : Timeline
        Tasks in the order in which they were started.

    Raises
    ------
    AssertionError
        If the orders wait for each other.

    Notes
    -----
    Where W fills gaps in unit time, its places are found by a run in which every pass of a chunk takes the
    same time: the generator of V-Half and V-Min orders passes so, whatever they take.

    Where it fills the gaps that there are, a gap at least as long as W takes one, and a W is forced where the next F would
    exceed the memory limit. Shorter gaps take one by one of three rules, and the shortest step counts, as the
    zero-bubble paper's finder of schedules keeps the best of several heuristics: if otherwise this rank would
    become the one that has been idle longest, as in its own [1]_; or if at least half, or a quarter, of the W fits,
    which is better where stages at the ends are lighter than the others and so are idle longest by themselves.

    References
    ----------
    .. [1] P. Qi et al., "Zero bubble pipeline parallelism," ICLR 2024, arXiv:2401.10241, sec. 3.1.

    Examples
    --------
    >>> from costmodel.physics.pipeline.orders import one_f_one_b
    >>> timeline = simulate(one_f_one_b(4, 8, 1), forward_s=1.0, backward_input_s=1.0,
    ...                     backward_weight_s=1.0)
    >>> timeline.makespan_s()
    33.0
    """
    if orders.in_unit_time:
        orders = _with_weights(orders)
    if not orders.fill_limit:
        return _in_order(orders, forward_s, backward_input_s, backward_weight_s, message_s, blocking)
    ranks = range(len(orders.ranks))
    found = []
    for least in (None, 0.5, 0.25) if orders.fill_limit else (None,):
        run = _Run(orders, forward_s, backward_input_s, backward_weight_s, message_s, blocking)
        run.load = {"F": 1.0, "B": -1.0, "I": pending_weight_fraction - 1.0, "W": -pending_weight_fraction}
        run.least_share = least
        while True:
            choices = [choice for choice in map(run.next_choice, ranks) if choice is not None]
            if not choices:
                break
            run.execute(min(choices, key=itemgetter(0)))
        if any(run.position[rank] < len(orders.ranks[rank]) for rank in ranks):
            raise AssertionError("pipeline orders that wait for each other")
        found.append(Timeline(tuple(run.tasks), len(ranks), orders.tasks_per_stage))
    return min(found, key=Timeline.makespan_s if synchronized else Timeline.step_s)


class _Links(NamedTuple):
    """One task of written orders: what it is, and the tasks (numbers, less than none for none) that it waits for."""

    rank: int
    step: Step
    before: int
    ends: tuple[tuple[int, bool], ...]
    sends: bool


@lru_cache(maxsize=8)
def _linked(orders: Orders) -> tuple[_Links, ...]:
    """Return the tasks of orders that say all, each after those that it waits for: by rank before it, and by message.

    Of two that run as one, both wait for what either needs.
    """
    run = _Run(orders, 0.0, 0.0, 0.0, 0.0, False)
    number: dict[tuple[bool, int, int, int], int] = {}
    found: list[_Links] = []
    last, position = [-1] * len(orders.ranks), [0] * len(orders.ranks)

    def needs(rank: int, step: Step) -> list[tuple[tuple[bool, int, int, int], bool]]:
        if step.kind == "W":
            return []
        back, source = step.kind != "F", run.neighbour(rank, step, source=True)
        own = [((False, rank, step.chunk, step.micro_batch), False)] if back else []
        return own + ([((back, *source, step.micro_batch), source[0] != rank)] if source else [])

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders.ranks):
            while position[rank] < len(order):
                at = position[rank]
                steps = order[at : at + 1 + order[at].joined]
                waits = [need for step in steps for need in needs(rank, step)]
                if any(task not in number for task, _ in waits):
                    break
                ends = tuple((number[task], far) for task, far in waits)
                for step in steps:
                    target = None if step.kind == "W" else run.neighbour(rank, step, source=False)
                    found.append(
                        _Links(rank, step, last[rank], ends, target is not None and target[0] != rank)
                    )
                    last[rank], ends = len(found) - 1, ()
                for step in steps:
                    if step.kind != "W":
                        # What two passes in one produce is there when the last of them ends.
                        number[step.kind != "F", rank, step.chunk, step.micro_batch] = last[rank]
                position[rank] += len(steps)
                moved = True
    if any(at < len(order) for at, order in zip(position, orders.ranks, strict=True)):
        raise AssertionError("pipeline orders that wait for each other")
    return tuple(found)


def _in_order(
    orders: Orders,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    message_s: float,
    blocking: bool,
) -> Timeline:
    """Run orders that say where every task runs: each starts when the ones that it waits for have ended."""
    run = _Run(orders, forward_s, backward_input_s, backward_weight_s, message_s, blocking)
    duration = {kind: values.tolist() for kind, values in run.duration.items()}
    free: list[float] = []
    tasks: list[Task] = []
    for rank, step, before, ends, sends in _linked(orders):
        start = free[before] if before >= 0 else 0.0
        for task, far in ends:
            there = free[task] + (run.delay_s if far else 0.0)
            start = max(start, there)
        end = start + duration[step.kind][rank][step.chunk]
        tasks.append(Task(rank, step.kind, step.micro_batch, step.chunk, start, end))
        free.append(end + (run.pause_s if sends else 0.0))
    tasks.sort(key=itemgetter(4))
    return Timeline(tuple(tasks), len(orders.ranks), orders.tasks_per_stage)


@lru_cache(maxsize=64)
def _with_weights(orders: Orders) -> Orders:
    """Write down where W runs if every pass of a chunk takes the same time."""
    run = simulate(
        replace(orders, in_unit_time=False), forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0
    )
    ranks: list[list[Step]] = [[] for _ in orders.ranks]
    for task in run.tasks:
        ranks[task.rank].append(Step(task.kind, task.chunk, task.micro_batch))
    return replace(orders, ranks=tuple(map(tuple, ranks)), fill_limit=0.0, in_unit_time=False)


class _Choice(NamedTuple):
    """What a rank could do next, and when; `fills` where it is a W outside the order."""

    start_s: float
    rank: int
    steps: tuple[Step, ...]
    fills: bool


class _Run:
    """The state of a simulation."""

    def __init__(
        self,
        orders: Orders,
        forward_s: ArrayLike,
        backward_input_s: ArrayLike,
        backward_weight_s: ArrayLike,
        message_s: float,
        blocking: bool,
    ) -> None:
        p = len(orders.ranks)
        inputs, weights = _durations(backward_input_s, orders), _durations(backward_weight_s, orders)
        self.duration = {"F": _durations(forward_s, orders), "I": inputs, "W": weights, "B": inputs + weights}
        self.orders = orders
        self.before: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.after: dict[tuple[int, int, int], tuple[int, int]] = {}
        for way, path in enumerate(orders.paths):
            for here, there in pairwise(path):
                self.after[(way, *here)] = there
                self.before[(way, *there)] = here
        self.delay_s, self.pause_s = (0.0, message_s) if blocking else (message_s, 0.0)
        self.load: dict[str, float] = {}
        self.least_share: float | None = None
        self.done: dict[tuple[bool, int, int, int], float] = {}
        self.tasks: list[Task] = []
        self.free, self.idle, self.held = [0.0] * p, [0.0] * p, [0.0] * p
        self.position = [0] * p
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]

    def neighbour(self, rank: int, step: Step, *, source: bool) -> tuple[int, int] | None:
        """Return where the step's input comes from, or where its output goes; None at the ends."""
        links = self.before if source == (step.kind == "F") else self.after
        return links.get((step.micro_batch % len(self.orders.paths), rank, step.chunk))

    def ready_s(self, rank: int, step: Step) -> float | None:
        """Return when the step's inputs are there; None if that is not yet known."""
        if step.kind == "W":
            return 0.0
        backward = step.kind != "F"
        needs = []
        if backward:
            needs.append((self.done.get((False, rank, step.chunk, step.micro_batch)), 0.0))
        source = self.neighbour(rank, step, source=True)
        if source is not None:
            delay = self.delay_s if source[0] != rank else 0.0
            needs.append((self.done.get((backward, *source, step.micro_batch)), delay))
        latest = 0.0
        for end, delay in needs:
            if end is None:
                return None
            latest = max(latest, end + delay)
        return latest

    def next_choice(self, rank: int) -> _Choice | None:
        """Return what `rank` does next if nothing changes; None if it cannot know."""
        order, at = self.orders.ranks[rank], self.position[rank]
        steps = order[at : at + (2 if at < len(order) and order[at].joined else 1)]
        times = [self.ready_s(rank, step) for step in steps]
        known = [time for time in times if time is not None]
        start = max([self.free[rank], *known]) if steps and len(known) == len(times) else None
        if self.waiting[rank]:
            chunk, micro_batch = self.waiting[rank][0]
            gap = np.inf if start is None else start - self.free[rank]
            room = self.orders.fill_limit + 1e-9 - self.held[rank]
            full = bool(steps) and steps[0].kind == "F" and room < 1.0
            by_share = self.least_share is not None
            least = 1.0 - 1e-9 if self.least_share is None else self.least_share
            long = gap >= least * self.duration["W"][rank, chunk]
            worst = not by_share and gap > 1e-9 and self.idle[rank] + gap > max(self.idle) + 1e-9
            if full or long or worst:
                return _Choice(self.free[rank], rank, (Step("W", chunk, micro_batch),), True)
        return None if start is None else _Choice(start, rank, steps, False)

    def execute(self, choice: _Choice) -> None:
        """Run the steps back to back; what they produce is there when the last one ends."""
        rank, now = choice.rank, choice.start_s
        if choice.fills:
            self.waiting[rank].popleft()
        else:
            # The wait for a rank's first task is not idle time: its step starts with it.
            self.idle[rank] += now - self.free[rank] if self.position[rank] else 0.0
            self.position[rank] += len(choice.steps)
        for step in choice.steps:
            target = None if step.kind == "W" else self.neighbour(rank, step, source=False)
            end = now + float(self.duration[step.kind][rank, step.chunk])
            self.tasks.append(Task(rank, step.kind, step.micro_batch, step.chunk, now, end))
            now = end + (self.pause_s if target is not None and target[0] != rank else 0.0)
        for step in choice.steps:
            if step.kind != "W":
                self.done[step.kind != "F", rank, step.chunk, step.micro_batch] = now
            self.held[rank] += self.load[step.kind]
            if step.kind == "I" and self.orders.fill_limit:
                self.waiting[rank].append((step.chunk, step.micro_batch))
        self.free[rank] = now
