"""What every rank of a pipeline does, in order, under each published schedule.

The orders are written down without times: `engine` runs them, and the records of `schedules` name them. Each
function takes stages p, micro-batches m and virtual stages v, and trusts its record's rules. Kinds of task: F forward,
B whole backward, I backward towards the input, W backward towards the weights.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

Tasks = NDArray[np.int64]
"""A row a task: its kind, as its place in `KINDS`, its chunk and its micro-batch; and 1 where it runs as one with the next."""

KINDS = "FIWB"


@dataclass(frozen=True, eq=False)
class Orders:
    """What every rank does; long, and so told apart by identity."""

    ranks: tuple[Tasks, ...]  # The order of each rank. Where weight gradients fill gaps they are not listed
    paths: tuple[tuple[tuple[int, int], ...], ...]  # Ways of micro-batches; i takes path i % len(paths)
    tasks_per_stage: int  # Forward tasks of a micro-batch on a rank, which share the stage's time
    fill_limit: float = 0.0
    """Where W fills gaps: how many forward tasks' activations a rank may hold before a W must make room; 0 where the
    order itself says when W runs."""
    in_unit_time: bool = False
    """Whether W fills the gaps that there would be if every pass of a chunk took the same time, and keeps that place
    whatever they take."""


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


def tasks_of(rows: Iterable[tuple[str, int, int]]) -> Tasks:
    """Return tasks given as kind, chunk and micro-batch."""
    return np.array([(KINDS.index(kind), chunk, micro_batch, 0) for kind, chunk, micro_batch in rows])


def _passes(kind: str, chunks: Sequence[int] | Tasks, micro_batches: Sequence[int] | Tasks) -> Tasks:
    """Return passes of one kind."""
    found = np.zeros((len(micro_batches), 4), dtype=np.int64)
    found[:, 0], found[:, 1], found[:, 2] = KINDS.index(kind), chunks, micro_batches
    return found


def _one_f_one_b(forwards: Tasks, backwards: Tasks, warm_up: int) -> Tasks:
    """Return `warm_up` forwards, then forward and backward in turn, then the other backwards."""
    ahead, count = min(warm_up, len(forwards)), len(forwards)
    # Where each stands: backwards after as many forwards as run before them.
    number, found = np.arange(count), np.empty((2 * count, 4), dtype=np.int64)
    found[number + np.maximum(number - ahead, 0)] = forwards
    found[np.minimum(number + ahead + 1, count) + number] = backwards
    return found


def naive(p: int, m: int, v: int) -> Orders:
    """One micro-batch at a time through the whole model."""
    return Orders((tasks_of((kind, 0, i) for i in range(m) for kind in "FB"),) * p, _loop(p, 1), 1)


def gpipe(p: int, m: int, v: int) -> Orders:
    """All forwards, then all backwards."""
    return Orders((tasks_of((kind, 0, i) for kind in "FB" for i in range(m)),) * p, _loop(p, 1), 1)


def _plain(p: int, m: int, kind: str, ahead: int) -> tuple[Tasks, ...]:
    """Return orders of whole stages in which a rank is `ahead` forwards ahead for each rank behind it."""
    forwards, backwards = (_passes(each, [0] * m, range(m)) for each in ("F", kind))
    return tuple(_one_f_one_b(forwards, backwards, ahead * (p - r - 1)) for r in range(p))


def one_f_one_b(p: int, m: int, v: int) -> Orders:
    """PipeDream-flush, 1F1B: rank r is p - r - 1 forwards ahead."""
    return Orders(_plain(p, m, "B", 1), _loop(p, 1), 1)


def interleaved(p: int, m: int, v: int) -> Orders:
    """Megatron's interleaved 1F1B: p micro-batches through a chunk before the next chunk."""
    group, chunk, index = (each.ravel() for each in np.indices((m // p, v, p)))
    forwards = _passes("F", chunk, group * p + index)
    backwards = _passes("B", v - 1 - chunk, group * p + index)
    ranks = [_one_f_one_b(forwards, backwards, 2 * (p - r - 1) + (v - 1) * p) for r in range(p)]
    return Orders(tuple(ranks), _loop(p, v), v)


def zb_h1(p: int, m: int, v: int) -> Orders:
    """1F1B with the weight gradients put off as long as the memory of 1F1B's first rank allows."""
    return Orders(_plain(p, m, "I", 1), _loop(p, 1), 1, fill_limit=p)


def zb_2p(p: int, m: int, v: int) -> Orders:
    """ZB-H2: twice the warm-up, so that no rank waits for the first backward."""
    return Orders(_plain(p, m, "I", 2), _loop(p, 1), 1, fill_limit=2 * p - 1)


def _building_block(
    p: int, m: int, hops: tuple[int, int, int, int], turns: tuple[int, int, int]
) -> tuple[Tasks, ...]:
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
            (6 * i + start, (*task, i)) for i in range(m) for start, task in zip(starts, passes, strict=True)
        ]
        ranks.append(tasks_of(task for _, task in sorted(timed, key=itemgetter(0))))
    return tuple(ranks)


def zb_v(p: int, m: int, v: int) -> Orders:
    """ZB-V: two chunks in a V, the memory of 1F1B, no bubble where F, I and W take the same time."""
    ranks = []
    for r in range(p):
        wanted = [("F", 0)] * (2 * (p - r) - 1) + [("F", 1), ("F", 0)] * r + [("F", 1), ("I", 1)] * (p - r)
        wanted += [("F", 0), ("I", 0), ("F", 1), ("I", 1)] * m + [("I", 0), ("I", 1)] * m
        count = dict.fromkeys(wanted, 0)
        steps = []
        for task in wanted:
            if count[task] < m:
                steps.append((*task, count[task]))
                count[task] += 1
        ranks.append(tasks_of(steps))
    return Orders(tuple(ranks), _vee(p), 2, fill_limit=2 * p)


def v_half(p: int, m: int, v: int) -> Orders:
    """V-Half: half the activations of 1F1B."""
    ranks = _building_block(p, m, (2, 1, 2, 1), (1, 2, 1) if p % 2 else (4, 2, 4))
    return Orders(ranks, _vee(p), 2, fill_limit=2 * ((p + 2) // 2), in_unit_time=True)


def v_min(p: int, m: int, v: int) -> Orders:
    """V-Min: a third of the activations of 1F1B."""
    ranks = _building_block(p, m, (1, 1, 1, 1), (1, 1, 1) if p % 3 else (3, 1, 3))
    return Orders(ranks, _vee(p), 2, fill_limit=2 * ((p + 4) // 3), in_unit_time=True)


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
        steps.append(("I" if late_other else "B", other, False))
        steps.append(("I" if index >= split_from else "B", one, False))
    steps += [("W", -1, False), ("I", one, False)] * outer
    steps += [("W", -1, False)] * (position + 1)
    return steps


def _numbered(steps: list[tuple[str, int, bool]], micro_batches: Sequence[Sequence[int]]) -> Tasks:
    """Give micro-batches to DualPipe's steps, in order; a W takes the oldest I that still waits."""
    forward, backward, waiting = [0, 0], [0, 0], deque[tuple[int, int]]()
    out = []
    for kind, chunk, joined in steps:
        if kind == "W":
            out.append((KINDS.index("W"), *waiting.popleft(), 0))
            continue
        counter = forward if kind == "F" else backward
        micro_batch = micro_batches[chunk][counter[chunk]]
        counter[chunk] += 1
        if kind == "I":
            waiting.append((chunk, micro_batch))
        out.append((KINDS.index(kind), chunk, micro_batch, int(joined)))
    return np.array(out)


def dualpipe(p: int, m: int, v: int) -> Orders:
    """DualPipe: micro-batches enter at both ends, and every rank holds two stages."""
    streams = (range(0, m, 2), range(1, m, 2))
    ranks = [
        _numbered(_dual_order(p // 2, min(r, p - 1 - r), m // 2, int(r >= p // 2)), streams) for r in range(p)
    ]
    return Orders(tuple(ranks), _both_ways(p), 1)


def dualpipe_v(p: int, m: int, v: int) -> Orders:
    """DualPipe cut in half: both chunks of the V on one rank, one copy of the parameters."""
    ranks = [_numbered(_dual_order(p, r, m, 0), (range(m), range(m))) for r in range(p)]
    return Orders(tuple(ranks), _vee(p), 2)
