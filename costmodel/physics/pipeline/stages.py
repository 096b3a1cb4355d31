"""How the layers of a model fall on pipeline stages, counted by kind without a loop over layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.physics.pipeline.chunks import Chunk

Array = NDArray[np.float64]


class Fold(IntEnum):
    """Which of its stages a pipeline rank holds."""

    OWN = 0
    """Its own."""
    BOTH_WAYS = 1
    """Stages i and p-1-i, each for half of the micro-batches (DualPipe)."""
    VEE = 2
    """The i-th chunk from either end of 2 p (schedules in the shape of a V)."""


@dataclass(frozen=True)
class StagePlan:
    """What each of the stages looked at holds; the last dimension runs over stages. [-]"""

    index: Array
    """Number of the stage, 0 … pp-1."""
    behind: Array
    """Stages behind the last one that holds the same."""
    layers: tuple[Array, ...]
    """Layers on the stage, one array a layer kind, multi-token prediction among them."""
    has_embedding: Array
    has_head: Array
    mtp: Array
    """Multi-token-prediction layers among `layers`."""

    def blocks(self, mtp_layers: int) -> tuple[Array, ...]:
        """Return how many of each block a stage runs: layers by kind, embedding, head, and prediction if any.

        Each layer of multi-token prediction runs the head once more. [-]
        """
        predicting = (self.mtp,) if mtp_layers else ()
        return (*self.layers, self.has_embedding, self.has_head * (1.0 + mtp_layers), *predicting)


@dataclass(frozen=True)
class Split:
    """The rule by which layers are divided over stages. [-]"""

    embedding: ArrayLike = 0.0
    """Layers whose place the embedding takes on the first stage, by layout."""
    head: ArrayLike = 0.0
    """Layers whose place the head takes on the last stage, by layout."""
    mtp_layers: int = 0
    """Multi-token-prediction layers: more layers of the last kind, beside the head unless `chunks` say where."""
    chunks: tuple[Chunk, ...] = ()
    """What each chunk holds, in the order of the model; empty where layers are divided evenly."""


class _Stack(NamedTuple):
    """The layers of a model, first to last by kind, and its split but for the places of embedding and head."""

    kinds: tuple[int, ...]
    num_kinds: int
    mtp_layers: int
    chunks: tuple[Chunk, ...]


def _stack(kind_of_layer: Sequence[int], num_kinds: int, split: Split) -> _Stack:
    return _Stack(tuple(map(int, kind_of_layer)), num_kinds, split.mtp_layers, split.chunks)


def plan_stages(
    kind_of_layer: Sequence[int],
    num_kinds: int,
    pp: ArrayLike,
    split: Split | None = None,
    *,
    fold: ArrayLike = Fold.OWN,
    every_stage: bool = False,
) -> StagePlan:
    """Divide the layers over `pp` stages, in order, as evenly as whole layers allow, or as chunks say.

    What does not divide leaves the later stages one layer shorter, which is where the head is.

    Parameters
    ----------
    kind_of_layer : sequence of int
        Kind of each layer, first to last, of `num_kinds`.
    pp, fold : array_like
        Pipeline stages, and what one rank holds, as `Fold`; with `BOTH_WAYS` the mean of its two stages. [-]
    every_stage : bool
        All ranks one by one, of layouts with as many stages; else one of each make-up, the first, which keeps most
        micro-batches in flight: no other of them can be slower or fuller.

    Notes
    -----
    With virtual stages a rank holds several shorter runs of layers; for a stack that mixes kinds
    the counts are those of one contiguous run, exact when kinds alternate or only lead, and always
    where chunks are written out.
    """
    rule = split or Split()
    stack = _stack(kind_of_layer, num_kinds, rule)
    cases, which = _distinct(pp, fold, rule.embedding, rule.head)
    index, behind, *layers, first, last, mtp = _by_layout(
        [_stage_rows(stack, every_stage, *case) for case in cases], which
    )
    return StagePlan(index, behind, tuple(layers), has_embedding=first, has_head=last, mtp=mtp)


@lru_cache(maxsize=8192)
def _stage_rows(
    stack: _Stack, every_stage: bool, pp: float, fold: float, embedding: float, head: float
) -> Array:
    """Return number, stages behind the last of the same make-up, and what it holds, of stages (columns)."""
    rows = _rank_rows(stack, int(pp), fold, embedding, head)
    first = last = np.arange(int(pp))
    if not every_stage:
        _, first = np.unique(rows, axis=1, return_index=True)
        _, from_behind = np.unique(rows[:, ::-1], axis=1, return_index=True)
        order = np.argsort(first)
        first, last = first[order], (int(pp) - 1 - from_behind)[order]
    return np.array([first, pp - 1.0 - last, *rows[:, first]])


def _rank_rows(stack: _Stack, ranks: int, fold: float, embedding: float, head: float) -> Array:
    """Return what each rank (columns) holds, in the rows of `_chunk_rows`. [-]"""
    chunks = ranks * (2 if fold == Fold.VEE else 1)
    return _folded(_chunk_rows(stack, chunks, embedding, head), ranks, fold)


def _folded(chunks: Array, ranks: int, fold: float) -> Array:
    """Return what ranks hold of what chunks do (last dimension, in the order of the model)."""
    if fold == Fold.VEE:
        return np.asarray(chunks[..., :ranks] + chunks[..., : -ranks - 1 : -1])
    held = chunks.reshape(*chunks.shape[:-1], -1, ranks).sum(axis=-2)
    return np.asarray(0.5 * (held + held[..., ::-1]) if fold == Fold.BOTH_WAYS else held)


def _chunk_rows(stack: _Stack, count: int, embedding: float, head: float) -> Array:
    """Return layers by kind, embedding, head and predicting layers of each chunk: (kinds + 3, chunks). [-]

    `count` chunks are as even as whole layers allow, unless they are written out.
    """
    if stack.chunks:
        until = np.cumsum([0, *(chunk.layers for chunk in stack.chunks)])
        ends = np.array([[chunk.embedding, chunk.loss, chunk.mtp] for chunk in stack.chunks], dtype=float).T
    else:
        until = _even_cuts(len(stack.kinds), count, embedding, head).astype(np.int64)
        ends = np.zeros((3, count))
        ends[0, 0], ends[1, -1], ends[2, -1] = 1.0, 1.0, stack.mtp_layers
    before = np.zeros((stack.num_kinds, len(stack.kinds) + 1))
    before[:, 1:] = np.cumsum(np.equal(np.arange(stack.num_kinds)[:, None], stack.kinds), axis=1)
    layers = np.diff(before[:, until])
    layers[stack.kinds[-1]] += ends[2]
    return np.concatenate([layers, ends])


def _even_cuts(layers: int, count: int, embedding: ArrayLike, head: ArrayLike) -> Array:
    """Return the layers before each of `count` even chunks and behind the last (last dimension). [-]"""
    first, last = np.asarray(embedding)[..., None], np.asarray(head)[..., None]
    cuts = np.ceil(np.arange(count + 1.0) * (layers + first + last) / count) - first
    return np.asarray(np.clip(cuts, 0, layers))


def _by_layout(found: Sequence[Array], which: NDArray[np.int64], *, repeats: bool = True) -> list[Array]:
    """Return each row of what was found for cases, (rows, columns), by layout; columns are the last dimension.

    Where other cases have more columns the last is repeated, or zeros stand there. Columns are few: they lie one after
    the other in memory, so that what is computed from them runs along layouts, which are many.
    """
    wide = np.zeros((len(found[0]), max(each.shape[1] for each in found), len(found)))
    for case, each in enumerate(found):
        columns = each.shape[1]
        wide[:, :columns, case] = each
        if repeats:
            wide[:, columns:, case] = each[:, -1:]
    return [np.moveaxis(row.take(which, axis=-1), 0, -1) for row in wide]


def _distinct(*columns: ArrayLike) -> tuple[list[tuple[float, ...]], NDArray[np.int64]]:
    """Return the combinations of numbers that occur, and which of them each element is."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    if all(array.ndim == 0 for array in arrays):
        return [tuple(float(array) for array in arrays)], np.asarray(0)
    values, codes = zip(*(np.unique(array, return_inverse=True) for array in arrays), strict=True)
    sizes = [value.size for value in values]
    shaped = (code.reshape(array.shape) for code, array in zip(codes, arrays, strict=True))
    joint = np.ravel_multi_index(np.broadcast_arrays(*shaped), sizes)
    found, which = np.unique(joint, return_inverse=True)
    taken = np.unravel_index(found, sizes)
    cases = zip(*(value[at].tolist() for value, at in zip(values, taken, strict=True)), strict=True)
    return list(cases), which.reshape(joint.shape)


class Rings(NamedTuple):
    """What ranks of a V hold that wait for each other in a circle, whatever the rest of the pipeline does. [-]

    Layers by kind; the last dimension runs over circles of unlike make-up, never with the first rank, which has the ends.
    """

    pairs: tuple[Array, ...]
    """Of two neighbours: ranks 1 and 2, 3 and 4, ..."""
    pair_turns: Array
    """1 where the last rank is among them, at which the V turns."""
    threes: tuple[Array, ...]
    """Of three neighbours: the last three, the three before them, ..."""
    three_turns: Array
    turn: tuple[Array, ...]
    """Layers by kind in the last chunks of the first three ranks, multi-token prediction among them."""


def plan_rings(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, split: Split | None = None
) -> Rings:
    """Return what neighbours hold where `pp` ranks hold two chunks each in a V; nothing with fewer than four ranks."""
    rule = split or Split()
    stack = _stack(kind_of_layer, num_kinds, rule)
    cases, which = _distinct(pp, rule.embedding, rule.head)
    found = [_ring_rows(stack, *case) for case in cases]
    pairs, threes, turn = (_by_layout(rows, which) for rows in zip(*found, strict=True))
    of_turn = tuple(row[..., 0] for row in turn)
    return Rings(tuple(pairs[:-1]), pairs[-1], tuple(threes[:-1]), threes[-1], of_turn)


@lru_cache(maxsize=8192)
def _ring_rows(stack: _Stack, pp: float, embedding: float, head: float) -> tuple[Array, Array, Array]:
    """Return rows of pairs, of threes (layers by kind, and whether they turn) and of the turn of one layout."""
    ranks, kinds = int(pp), stack.num_kinds
    if ranks < 4:
        return np.zeros((kinds + 1, 1)), np.zeros((kinds + 1, 1)), np.zeros((kinds, 1))
    held = _rank_rows(stack, ranks, Fold.VEE, embedding, head)[:kinds]
    rows = np.array([*held, np.arange(ranks) == ranks - 1])
    # The block of V-Min turns two ranks earlier where three divides the ranks.
    least = ranks - 1 - 2 * (ranks % 3 == 0)
    pairs = [rows[:, i] + rows[:, i + 1] for i in range(1, ranks - 1, 2)]
    threes = [rows[:, i] + rows[:, i - 1] + rows[:, i - 2] for i in range(least, 2, -3)]
    turn = _chunk_rows(stack, 2 * ranks, embedding, head)[:kinds, -3:].sum(axis=1, keepdims=True)
    return np.unique(pairs, axis=0).T, np.unique(threes, axis=0).T, turn


_MOST_PLACES = 16
"""Layers that the head may count for when stages are balanced."""


def balanced_split(
    kind_of_layer: Sequence[int],
    pp: ArrayLike,
    head: float,
    mtp_layers: int = 0,
    *,
    fold: ArrayLike = 0,
    vp: ArrayLike = 1,
) -> Split:
    """Return the split of which a micro-batch takes least: on the busiest stage, or chunk by chunk on the busiest in each.

    Of several chunks a rank all are alike, but for the first and the last ones, which make room for embedding
    and head: ranks of an interleaved schedule wait for each other's larger chunks again and again. Of splits that are
    as good it is the one nearest to an even division; where no places make all chunks alike, any may be taken.

    Parameters
    ----------
    kind_of_layer : sequence of int
        Kind of each layer, first to last; kinds are taken to cost the same.
    pp, fold, vp : array_like
        Stages, what a rank holds (`Fold`), and chunks of ranks that hold stages of their own. [-]
    head : float
        What head and loss cost, in layers. [-]
    mtp_layers : int
        Multi-token-prediction layers, which lie beside the head. [-]
    """
    cases, which = _distinct(pp, fold, vp)
    best = [_best_places(len(kind_of_layer), *case, round(head, 6), mtp_layers) for case in cases]
    places = np.array(best)[which]
    return Split(places[..., 0], places[..., 1], mtp_layers)


@lru_cache(maxsize=8192)
def _best_places(
    layers: int, pp: float, fold: float, vp: float, head: float, mtp_layers: int
) -> tuple[float, float]:
    """Return the places of embedding and head of which a micro-batch takes least."""
    if pp < 2:
        return 0.0, 0.0
    embedding, of_head = np.ix_(np.arange(2.0), np.arange(min(_MOST_PLACES, layers) + 1.0))
    places, count = embedding + of_head, int(pp) * (2 if fold == Fold.VEE else 1)
    first, last = np.broadcast_arrays(embedding, of_head)
    held = _folded(np.diff(_even_cuts(layers, count, first, last)), int(pp), fold)
    paid = (held + (mtp_layers + head) * _folded(np.arange(count) == count - 1.0, int(pp), fold)).max(axis=-1)
    if fold == Fold.OWN and vp > 1:
        by_chunk = _divided_in_chunks(held, int(vp), embedding, of_head)
        by_chunk[..., -1, -1] += mtp_layers + head
        paid = by_chunk.max(axis=-1).sum(axis=-1)
        alike = (layers + places) % (pp * vp) == 0
        paid = np.where(alike, paid, np.inf) if alike.any() else paid
    columns = np.broadcast_arrays(np.round(paid, 9), places, embedding)
    _, least, of_embedding = min(zip(*(column.ravel().tolist() for column in columns), strict=True))
    return of_embedding, least - of_embedding


def chunks_on_ranks(
    plan: StagePlan, vp: int, mtp_layers: int, split: Split | None = None
) -> tuple[Chunk, ...]:
    """Write out which layers run where, in the order of the model: chunk i on rank i mod pp, `vp` of them a rank.

    Every rank of one layout divides the layers that it has by its `plan` and `split` evenly, one more to each of its
    first chunks, so that ranks which hold less wait for no chunk that is larger than the fullest rank's. Places of the
    embedding are left empty in the first chunks, those of the head in the last.
    """
    rule = split or Split()
    held = np.sum(plan.layers, axis=0) - mtp_layers * plan.has_head
    return _written_out(held, vp, mtp_layers, float(np.asarray(rule.embedding)), float(np.asarray(rule.head)))


def _written_out(held: Array, vp: int, mtp_layers: int, embedding: float, head: float) -> tuple[Chunk, ...]:
    """Return the chunks of ranks that hold so many layers, multi-token prediction left out."""
    by_chunk, last = _divided_in_chunks(held, vp, embedding, head), held.size * vp - 1
    return tuple(
        Chunk(int(i == 0), int(layers), mtp_layers * (i == last), int(i == last))
        for i, layers in enumerate(by_chunk.ravel())
    )


def _divided_in_chunks(held: Array, vp: int, embedding: ArrayLike, head: ArrayLike) -> Array:
    """Return the layers of each chunk, (..., chunks of a rank, ranks), from those of each rank (last dimension). [-]

    With places beside them on the first and the last one, which are left empty in its first and its last chunks.

    >>> _divided_in_chunks(np.array([17.0, 18.0, 18.0, 15.0]), 6, 1.0, 3.0).T.astype(int).tolist()
    [[2, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 0]]
    """
    places = np.zeros_like(held)
    places[..., 0] = embedding
    places[..., -1] = places[..., -1] + np.asarray(head)
    full, more = (each[..., None, :] for each in np.divmod(held + places, vp))
    found = np.asarray(full + (np.arange(vp)[:, None] < more))
    for of_rank, left in ((found[..., 0], embedding), (found[..., ::-1, -1], head)):
        emptied = np.minimum(np.cumsum(of_rank, axis=-1), np.asarray(left)[..., None])
        of_rank -= np.diff(emptied, prepend=0.0)
    return found


class Meetings(NamedTuple):
    """What other ranks hold beyond the last one where they run a chunk while it runs one. [-]

    But for `first` the last dimension runs over the meetings of unlike chunks.
    """

    more: tuple[Array, ...]
    """Layers by kind, embedding, head and predicting layers beyond those of the last rank's chunk, or less than none."""
    share: Array
    """The share of micro-batches in which two chunks meet."""
    rank: Array
    """Which of the other ranks it is, numbered from 0."""
    hops: Array
    """How far that is from the last one, round the ranks."""
    of_next: Array
    """1 where the other chunk belongs to the next p micro-batches, so that the last of a step meets none."""
    first: tuple[Array, ...]
    """The same rows of a mean rank's first chunk, without the last rank."""


def plan_meetings(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, vp: ArrayLike, split: Split | None = None
) -> Meetings:
    """Return where chunks of the last rank, which has the head, meet larger ones of other ranks, of `vp` on each.

    A rank k before the last is k passes ahead of it: of p micro-batches it runs the same chunk in all but k, and in
    those the next one. Of ranks that hold the same only those nearest to the last one on either side are looked at.
    """
    rule = split or Split()
    stack = _stack(kind_of_layer, num_kinds, rule)
    cases, which = _distinct(pp, vp, rule.embedding, rule.head)
    columns, first = zip(*(_meeting_rows(stack, *case) for case in cases), strict=True)
    *more, share, rank, hops, of_next = _by_layout(columns, which, repeats=False)
    firsts = tuple(row[..., 0] for row in _by_layout(first, which))
    return Meetings(tuple(more), share, rank, hops, of_next, firsts)


@lru_cache(maxsize=8192)
def _meeting_rows(stack: _Stack, pp: float, vp: float, embedding: float, head: float) -> tuple[Array, Array]:
    """Return the meetings of one layout (rows: what is more, share, rank, hops and of_next), and a mean first chunk."""
    ranks, chunks = int(pp), int(vp)
    rows = _chunk_rows(stack, ranks * chunks, embedding, head)
    none = np.zeros((len(rows) + 4, 1))
    if ranks < 2 or chunks < 2:
        return none, none[4:]
    if not stack.chunks:
        of_ranks = _rank_rows(stack._replace(mtp_layers=0), ranks, Fold.OWN, embedding, head)
        held_layers = of_ranks[: stack.num_kinds].sum(axis=0)
        written = _written_out(held_layers, chunks, stack.mtp_layers, embedding, head)
        rows = _chunk_rows(stack._replace(chunks=written), 0, embedding, head)
    held = rows.reshape(len(rows), chunks, ranks)
    _, below = np.unique(held[..., -2::-1].reshape(-1, ranks - 1), axis=1, return_index=True)
    _, above = np.unique(held[..., :-1].reshape(-1, ranks - 1), axis=1, return_index=True)
    nearest = sorted({*(ranks - 2 - below).tolist(), *above.tolist()})
    columns = []
    for number, rank in enumerate(nearest):
        ahead, alike = ranks - 1 - rank, Counter[tuple[float, ...]]()
        for shift, share in ((0, 1.0 - ahead / ranks), (1, ahead / ranks)):
            more = np.roll(held[..., rank], -shift, axis=1) - held[..., -1]
            for chunk in np.flatnonzero((more > 0).any(axis=0)).tolist():
                alike[*more[:, chunk].tolist(), shift > 0 and chunk == chunks - 1] += share
        hops = min(ahead, ranks - ahead)
        columns += [(*more, share, number, hops, of_next) for (*more, of_next), share in alike.items()]
    return np.array(columns).T if columns else none, held[:, 0, :-1].mean(axis=1, keepdims=True)


def chunk_shares(plan: StagePlan, vp: ArrayLike, chunks: Sequence[Chunk] = ()) -> tuple[Array, Array]:
    """Return what part of a full rank's layers is in its largest and in its smallest of `vp` chunks, 1 / vp if even. [-]

    Chunks are even, as in `chunks_on_ranks`, unless they are written out.
    """
    most = np.maximum(np.sum(plan.layers, axis=0).max(axis=-1), 1.0)
    if chunks:
        held = np.array([chunk.layers + chunk.mtp for chunk in chunks], dtype=np.float64)
        by_rank = held.reshape(int(np.max(vp)), -1)
        full = by_rank.sum(axis=0) == by_rank.sum(axis=0).max()
        return np.asarray(held.max() / most), np.asarray(by_rank[:, full].min() / most)
    each = most / np.asarray(vp, dtype=np.float64)
    return np.asarray(np.ceil(each) / most), np.asarray(np.floor(each) / most)
