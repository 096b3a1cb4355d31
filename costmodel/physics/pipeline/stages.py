"""How the layers of a model fall on pipeline stages, counted by kind without a loop over stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """What each looked-at stage holds; the last dimension runs over stages.

    Attributes
    ----------
    index : Array
        Number of the stage, 0 … pp-1. [-]
    layers : tuple of Array
        Layers on the stage, one array a layer kind, multi-token prediction among them. [-]
    behind : Array
        Stages behind the last one that holds the same. [-]
    has_embedding, has_head : Array
        1 on the first and on the last stage. [-]
    """

    index: Array
    behind: Array
    layers: tuple[Array, ...]
    has_embedding: Array
    has_head: Array
    mtp: Array
    """Multi-token-prediction layers among `layers`. [-]"""

    def blocks(self, mtp_layers: int) -> tuple[Array, ...]:
        """Return how many of each block a stage runs: layers by kind, embedding, head, and prediction if any.

        Each layer of multi-token prediction runs the head once more. [-]
        """
        predicting = (self.mtp,) if mtp_layers else ()
        return (*self.layers, self.has_embedding, self.has_head * (1.0 + mtp_layers), *predicting)


@dataclass(frozen=True)
class Split:
    """The rule by which layers are dealt to stages.

    Attributes
    ----------
    embedding, head : Array
        Layers whose place the embedding and the head take on the first and last stage; arrays over
        layouts, or scalars. [-]
    mtp_layers : int
        Multi-token-prediction layers: more layers of the last kind, beside the head unless `chunks`
        say where. [-]
    chunks : tuple of Chunk
        What each chunk holds, in the order of the model; empty where layers are dealt evenly.
    """

    embedding: ArrayLike = 0.0
    head: ArrayLike = 0.0
    mtp_layers: int = 0
    chunks: tuple[Chunk, ...] = field(default=())


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

    Where the embedding or the head counts as layers, the first or last stage holds as many
    less (Llama 3, BLOOM). What does not divide leaves the later stages one layer shorter, which
    is where the head is.

    Parameters
    ----------
    kind_of_layer : sequence of int
        Kind of each layer, first to last.
    num_kinds : int
        Number of kinds. [-]
    pp : array_like
        Pipeline stages. [-]
    split : Split, optional
        What embedding and head count for, and chunks written out; without it an even division.
    fold : array_like
        What one rank holds, as `Fold`; with `BOTH_WAYS` the counts are the mean of its two stages. [-]
    every_stage : bool
        All ranks one by one, instead of one of each make-up: of layouts with as many stages.

    Notes
    -----
    With virtual stages a rank holds several shorter runs of layers; for a stack that mixes kinds
    the counts are those of one contiguous run, exact when kinds alternate or only lead, and always
    where chunks are written out.
    """
    rule = split or Split()
    kinds = tuple(int(kind) for kind in kind_of_layer)
    dealt = _as_dealt(kinds, num_kinds, rule)
    # What layouts hold is looked up among the few ways in which their stages differ.
    cases, which = _distinct(pp, fold, rule.embedding, rule.head)
    columns = [np.array(column)[:, None] for column in zip(*cases, strict=True)]
    if every_stage:
        index = np.tile(np.arange(columns[0].max()), (len(cases), 1))
        behind = columns[0] - 1.0 - index
    else:
        way = kinds, num_kinds, rule.mtp_layers
        looked_at = [
            _ends_of_each(dealt, case) if rule.chunks else _ends_of_each_even(*way, case) for case in cases
        ]
        index = _representatives([first for first, _ in looked_at])
        behind = columns[0] - 1.0 - _representatives([last for _, last in looked_at])
    index, behind, *layers, first, last, mtp = (
        _spread(part, which) for part in (index, behind, *dealt.on_rank(index, *columns))
    )
    return StagePlan(
        index=index, behind=behind, layers=tuple(layers), has_embedding=first, has_head=last, mtp=mtp
    )


@dataclass(frozen=True)
class Rings:
    """What ranks of a V hold that wait for each other in a circle, whatever the rest of the pipeline does.

    Attributes
    ----------
    pairs, threes : tuple of Array
        Layers by kind of two neighbours (ranks 1 and 2, 3 and 4, ...), and of three (the last three, the three before
        them, ...); the last dimension runs over those of unlike make-up. Never of the first rank, which has the ends. [-]
    pair_turns, three_turns : Array
        1 where the last rank is among them, at which the V turns. [-]
    turn : tuple of Array
        Layers by kind in the last chunks of the first three ranks, multi-token prediction among them. [-]
    """

    pairs: tuple[Array, ...]
    pair_turns: Array
    threes: tuple[Array, ...]
    three_turns: Array
    turn: tuple[Array, ...]


def plan_rings(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, split: Split | None = None
) -> Rings:
    """Return what neighbours hold where `pp` ranks hold two chunks each in a V; nothing with fewer than four ranks.

    Parameters
    ----------
    kind_of_layer, num_kinds, pp, split
        As in `plan_stages`.
    """
    rule = split or Split()
    kinds = tuple(int(kind) for kind in kind_of_layer)
    cases, which = _distinct(pp, rule.embedding, rule.head)
    if rule.chunks:
        found = [_rings_of(_as_dealt(kinds, num_kinds, rule), num_kinds, case) for case in cases]
    else:
        found = [_rings_of_even(kinds, num_kinds, rule.mtp_layers, case) for case in cases]
    pairs, threes, turn = (
        [_spread(row, which) for row in _padded(rows)] for rows in zip(*found, strict=True)
    )
    return Rings(
        tuple(pairs[:-1]), pairs[-1], tuple(threes[:-1]), threes[-1], tuple(row[..., 0] for row in turn)
    )


def _rings_of(dealt: _Chunks | _Even, num_kinds: int, case: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """Return rows of pairs, of threes (layers by kind, and whether they turn) and of the turn of one layout."""
    stages, *places = (np.asarray(value) for value in case)
    ranks, fold = int(stages), np.asarray(float(Fold.VEE))
    if ranks < 4:
        return np.zeros((num_kinds + 1, 1)), np.zeros((num_kinds + 1, 1)), np.zeros((num_kinds, 1))
    of_rank = dealt.on_rank(np.arange(float(ranks)), stages, fold, *places)[:num_kinds]
    rows = np.array([*of_rank, np.arange(ranks) == ranks - 1])
    # The block of V-Min turns two ranks earlier where three divides the ranks.
    least = ranks - 1 - 2 * (ranks % 3 == 0)
    pairs = np.array([rows[:, i] + rows[:, i + 1] for i in range(1, ranks - 1, 2)])
    threes = np.array([rows[:, i] + rows[:, i - 1] + rows[:, i - 2] for i in range(least, 2, -3)])
    turn = dealt.on_chunk(np.arange(2.0 * ranks - 3, 2.0 * ranks), 2.0 * stages, *places)[:num_kinds]
    unlike = (np.unique(each, axis=0).T for each in (pairs, threes))
    return (*unlike, np.array(turn).sum(axis=1, keepdims=True))


@lru_cache(maxsize=8192)
def _rings_of_even(
    kinds: tuple[int, ...], num_kinds: int, mtp_layers: int, case: tuple[float, ...]
) -> tuple[Array, Array, Array]:
    return _rings_of(_dealt_evenly(kinds, num_kinds, mtp_layers), num_kinds, case)


def _padded(found: Sequence[Array]) -> Array:
    """Return (rows, cases, columns) of each case's (rows, columns), the first repeated where others have more."""
    width = max(each.shape[1] for each in found)
    wide = [
        np.concatenate([each, np.repeat(each[:, :1], width - each.shape[1], axis=1)], axis=1)
        for each in found
    ]
    return np.stack(wide, axis=1)


def _as_dealt(kinds: tuple[int, ...], num_kinds: int, rule: Split) -> _Chunks | _Even:
    """Return how layers are dealt: as chunks say, or evenly."""
    if not rule.chunks:
        return _dealt_evenly(kinds, num_kinds, rule.mtp_layers)
    return _Chunks(_chunk_rows(rule.chunks, _layers_before(kinds, num_kinds), kinds[-1]))


def _layers_before(kinds: Sequence[int], num_kinds: int) -> list[Array]:
    """Count the layers of each kind before every layer, and in all. [-]"""
    of_layer = np.asarray(kinds)
    return [np.concatenate([[0.0], np.cumsum(of_layer == kind)]) for kind in range(num_kinds)]


@lru_cache(maxsize=64)
def _dealt_evenly(kinds: tuple[int, ...], num_kinds: int, mtp_layers: int) -> _Even:
    extra = np.zeros(num_kinds)
    extra[kinds[-1]] = mtp_layers
    return _Even(len(kinds), _layers_before(kinds, num_kinds), extra)


def _spread(held: Array, which: NDArray[np.int64]) -> Array:
    """Return what each layout's stages hold, one stage after the other in memory though they are the last dimension.

    There are few of them: what is computed from it then runs along layouts, of which there are many.
    """
    return np.moveaxis(np.asarray(held, dtype=np.float64).T[:, which], 0, -1)


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


def _chunk_rows(chunks: Sequence[Chunk], before: Sequence[Array], last_kind: int) -> Array:
    """Layers of each kind, embedding, loss and predicting layers of every chunk: (kinds + 3, chunks). [-]"""
    until = np.cumsum([chunk.layers for chunk in chunks])
    begins = until - [chunk.layers for chunk in chunks]
    rows = np.array([each[until] - each[begins] for each in before])
    rows[last_kind] += [chunk.mtp for chunk in chunks]
    ends = [[c.embedding for c in chunks], [c.loss for c in chunks], [c.mtp for c in chunks]]
    return np.array([*rows, *ends], dtype=np.float64)


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
    and head: ranks of an interleaved schedule wait for each other's larger chunks again and again.

    Parameters
    ----------
    kind_of_layer : sequence of int
        Kind of each layer, first to last; kinds are taken to cost the same.
    pp : array_like
        Pipeline stages. [-]
    head : float
        What head and loss cost, in layers. [-]
    mtp_layers : int
        Multi-token-prediction layers, which lie beside the head. [-]
    fold : array_like
        As in `plan_stages`.
    vp : array_like
        Chunks on each rank, for ranks that hold stages of their own. [-]

    Returns
    -------
    split : Split
        Places of embedding (0 or 1) and head (whole layers) as arrays in the shape of `pp`, `fold` and `vp`;
        of several splits that are as good, the one nearest to an even division. Where no places make all
        chunks alike, any may be taken.
    """
    cases, which = _distinct(pp, fold, vp)
    best = [_best_places(len(kind_of_layer), *case, round(head, 6), mtp_layers) for case in cases]
    places = np.array(best)[which]
    return Split(places[..., 0], places[..., 1], mtp_layers)


@lru_cache(maxsize=8192)
def _best_places(
    layers: int, pp: float, fold: float, vp: float, head: float, mtp_layers: int
) -> tuple[float, float]:
    """Places of embedding and head of which a micro-batch takes least."""
    if pp < 2:
        return 0.0, 0.0
    embedding, of_head = _looked_at_places(layers)
    plan, places = _plan_of_places(layers, pp, fold, mtp_layers), embedding + of_head
    paid = (plan.layers[0] + head * plan.has_head).max(axis=-1)
    if fold == Fold.OWN and vp > 1:
        by_chunk = _dealt_to_chunks(plan.layers[0] - mtp_layers * plan.has_head, int(vp), embedding, of_head)
        by_chunk[..., -1, -1] += mtp_layers + head
        paid = by_chunk.max(axis=-1).sum(axis=-1)
        alike = (layers + places) % (pp * vp) == 0
        paid = np.where(alike, paid, np.inf) if alike.any() else paid
    columns = np.broadcast_arrays(np.round(paid, 9), places, embedding)
    _, least, of_embedding = min(zip(*(column.ravel().tolist() for column in columns), strict=True))
    return of_embedding, least - of_embedding


def _looked_at_places(layers: int) -> tuple[Array, ...]:
    """Return the places of embedding and of head that are looked at, as an open mesh."""
    return np.ix_(np.arange(2.0), np.arange(min(_MOST_PLACES, layers) + 1.0))


@lru_cache(maxsize=2048)
def _plan_of_places(layers: int, pp: float, fold: float, mtp_layers: int) -> StagePlan:
    """Return what all ranks hold with each place of embedding and head: once for all numbers of chunks."""
    embedding, head = _looked_at_places(layers)
    split = Split(embedding, head, mtp_layers)
    return plan_stages([0] * layers, 1, pp, split, fold=fold, every_stage=True)


def chunks_on_ranks(
    plan: StagePlan, vp: int, mtp_layers: int, split: Split | None = None
) -> tuple[Chunk, ...]:
    """Write out which layers run where: chunk i of the model on rank i mod pp, `vp` of them a rank.

    Parameters
    ----------
    plan : StagePlan
        Every rank of one layout whose ranks hold a stage of their own.
    vp : int
        Chunks on each rank. [-]
    mtp_layers : int
        Multi-token-prediction layers, which the plan counts with the last rank's layers. [-]
    split : Split, optional
        By which the plan was made: whose places the embedding and the head take.

    Returns
    -------
    chunks : tuple of Chunk
        In the order of the model. Every rank deals its layers evenly, one more to each of its first chunks, so that
        ranks which hold less wait for no chunk that is larger than the fullest rank's. Places of the embedding are
        left empty in the first chunks, those of the head in the last.
    """
    rule = split or Split()
    held = np.sum(plan.layers, axis=0) - mtp_layers * plan.has_head
    by_chunk = _dealt_to_chunks(
        held, vp, *(float(np.asarray(places)) for places in (rule.embedding, rule.head))
    )
    last = held.size * vp - 1
    return tuple(
        Chunk(int(i == 0), int(layers), mtp_layers * (i == last), int(i == last))
        for i, layers in enumerate(by_chunk.ravel())
    )


def _dealt_to_chunks(held: Array, vp: int, embedding: ArrayLike, head: ArrayLike) -> Array:
    """Return the layers of each chunk, (..., chunks of a rank, ranks), from those of each rank (last dimension). [-]

    With places beside them on the first and the last one, which are left empty in its first and its last chunks.

    >>> _dealt_to_chunks(np.array([17.0, 18.0, 18.0, 15.0]), 6, 1.0, 3.0).T.astype(int).tolist()
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
    """What other ranks hold beyond the last one where they run a chunk while it runs one.

    Attributes
    ----------
    more : tuple of Array
        Layers by kind, embedding, head and predicting layers beyond those of the last rank's chunk, less than none
        where that has more; the last dimension runs over the meetings of unlike chunks. [-]
    share : Array
        The share of micro-batches in which two chunks meet. [-]
    rank : Array
        Which of the other ranks it is, numbered from 0. [-]
    hops : Array
        How far that is from the last one, round the ranks. [-]
    of_next : Array
        1 where the other chunk belongs to the next p micro-batches, so that the last of a step meets none. [-]
    first : tuple of Array
        Layers by kind, embedding, head and predicting layers of a mean rank's first chunk, without the last rank; no
        dimension of meetings. [-]
    """

    more: tuple[Array, ...]
    share: Array
    rank: Array
    hops: Array
    of_next: Array
    first: tuple[Array, ...]


def plan_meetings(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, vp: ArrayLike, split: Split | None = None
) -> Meetings:
    """Return where chunks of the last rank, which has the head, meet larger ones of other ranks.

    A rank k before the last is k passes ahead of it: of p micro-batches it runs the same chunk in all but k, and in
    those the next one. Of ranks that hold the same only those nearest to the last one on either side are looked at.

    Parameters
    ----------
    kind_of_layer, num_kinds, pp, split
        As in `plan_stages`, for ranks that hold a stage of their own.
    vp : array_like
        Chunks on each rank; with one there is nothing to meet. [-]
    """
    rule = split or Split()
    kinds = tuple(int(kind) for kind in kind_of_layer)
    cases, which = _distinct(pp, vp, rule.embedding, rule.head)
    if rule.chunks:
        rows = _chunk_rows(rule.chunks, _layers_before(kinds, num_kinds), kinds[-1])
        found = [_meetings_of(rows, case) for case in cases]
    else:
        found = [_meetings_of_even(kinds, num_kinds, rule.mtp_layers, case) for case in cases]
    width = max(columns.shape[1] for columns, _ in found)
    wide = np.stack(
        [np.pad(columns, ((0, 0), (0, width - columns.shape[1]))) for columns, _ in found], axis=1
    )
    *more, share, rank, hops, of_next = (_spread(row, which) for row in wide)
    firsts = np.stack([first for _, first in found], axis=1)
    return Meetings(tuple(more), share, rank, hops, of_next, tuple(row[which] for row in firsts))


def _meetings_of(rows: Array, case: tuple[float, ...]) -> tuple[Array, Array]:
    """Return the meetings of one layout in columns (what is more, share, rank, hops and of_next), and a mean first chunk."""
    ranks, chunks = int(case[0]), int(case[1])
    if ranks < 2 or chunks < 2:
        return np.zeros((len(rows) + 4, 1)), np.zeros(len(rows))
    held = rows.reshape(len(rows), chunks, ranks)
    _, below = np.unique(held[..., -2::-1].reshape(-1, ranks - 1), axis=1, return_index=True)
    _, above = np.unique(held[..., :-1].reshape(-1, ranks - 1), axis=1, return_index=True)
    nearest = np.unique([*(ranks - 2 - below), *above])
    columns = []
    for number, rank in enumerate(nearest.tolist()):
        ahead, alike = ranks - 1 - rank, Counter[tuple[float, ...]]()
        for shift, share in ((0, 1.0 - ahead / ranks), (1, ahead / ranks)):
            more = np.roll(held[..., rank], -shift, axis=1) - held[..., -1]
            for chunk in np.flatnonzero((more > 0).any(axis=0)).tolist():
                alike[*more[:, chunk].tolist(), shift > 0 and chunk == chunks - 1] += share
        hops = min(ahead, ranks - ahead)
        columns += [(*more, share, number, hops, of_next) for (*more, of_next), share in alike.items()]
    found = np.array(columns).T if columns else np.zeros((len(rows) + 4, 1))
    return found, held[:, 0, :-1].mean(axis=1)


@lru_cache(maxsize=8192)
def _meetings_of_even(
    kinds: tuple[int, ...], num_kinds: int, mtp_layers: int, case: tuple[float, ...]
) -> tuple[Array, Array]:
    ranks, chunks, *places = case
    dealt, count = _dealt_evenly(kinds, num_kinds, mtp_layers), int(ranks * chunks)
    if chunks < 2 or ranks < 2:
        return _meetings_of(np.zeros((num_kinds + 3, count)), case)
    scalars = [np.asarray(value) for value in (ranks, 0.0, *places)]
    of_ranks = np.sum(dealt.on_rank(np.arange(ranks), *scalars)[:num_kinds], axis=0)
    of_ranks[-1] -= mtp_layers
    until = np.cumsum(_dealt_to_chunks(of_ranks, int(chunks), *places)).astype(np.int64)
    rows = np.zeros((num_kinds + 3, count))
    rows[:num_kinds] = [np.diff(before[until], prepend=0.0) for before in dealt.before]
    rows[:num_kinds, -1] += dealt.beside_head
    rows[num_kinds, 0], rows[num_kinds + 1, -1], rows[num_kinds + 2, -1] = 1.0, 1.0, mtp_layers
    return _meetings_of(rows, case)


def chunk_shares(plan: StagePlan, vp: ArrayLike, chunks: Sequence[Chunk] = ()) -> tuple[Array, Array]:
    """Return what part of a full rank's layers is in its largest and in its smallest chunk.

    Parameters
    ----------
    plan : StagePlan
        Layers by rank (last dimension).
    vp : array_like
        Chunks on each rank. [-]
    chunks : sequence of Chunk
        What each holds where that is written out; else layers are dealt evenly, as in `chunks_on_ranks`.

    Returns
    -------
    largest, smallest : ndarray
        Shares of the layers of the rank that holds most, without the dimension of ranks; 1 / vp where
        the chunks are even. [-]
    """
    most = np.maximum(np.sum(plan.layers, axis=0).max(axis=-1), 1.0)
    if chunks:
        held = np.array([chunk.layers + chunk.mtp for chunk in chunks], dtype=np.float64)
        by_rank = held.reshape(int(np.max(vp)), -1)
        full = by_rank.sum(axis=0) == by_rank.sum(axis=0).max()
        return np.asarray(held.max() / most), np.asarray(by_rank[:, full].min() / most)
    largest = np.ceil(most / np.asarray(vp, dtype=np.float64))
    smallest = np.floor(most / np.asarray(vp, dtype=np.float64))
    return np.asarray(largest / most), np.asarray(smallest / most)


class _Chunks(NamedTuple):
    """Chunks that were written out, `rows` of what each holds; every layout has the same."""

    rows: Array

    def on_rank(self, index: Array, stages: Array, folds: Array, *_: Array) -> list[Array]:
        """Layers of each kind, embedding, head and predicting layers on pipeline rank `index`."""
        pp, fold = int(stages.flat[0]), int(folds.flat[0])
        by_rank = self.rows.reshape(len(self.rows), -1, pp).sum(axis=1)
        if fold == Fold.BOTH_WAYS:
            by_rank = 0.5 * (by_rank + by_rank[:, ::-1])
        if fold == Fold.VEE:
            by_rank = self.rows[:, :pp] + self.rows[:, : pp - 1 : -1]
        return list(by_rank[:, index.astype(np.int64)])

    def on_chunk(self, index: Array, *_: Array) -> list[Array]:
        """Layers of each kind, embedding, head and predicting layers of chunk `index` in the order of the model."""
        return list(self.rows[:, index.astype(np.int64)])


class _Even(NamedTuple):
    """Layers dealt evenly: their number, layers of each kind before, and what is beside the head."""

    num_layers: int
    before: list[Array]
    beside_head: Array

    def on_chunk(self, index: Array, stages: Array, embedding: Array, head: Array) -> list[Array]:
        """Layers of each kind, embedding, head and predicting layers of chunk `index` in the order of the model."""
        return self.held(index, stages, embedding, head)

    def held(self, index: Array, stages: Array, embedding: Array, head: Array) -> list[Array]:
        """Layers of each kind, embedding, head and predicting layers on stage `index` of `stages`."""
        places = self.num_layers + embedding + head
        cuts = (np.ceil((index + after) * places / stages) - embedding for after in (0.0, 1.0))
        begin, end = (np.clip(cut, 0, self.num_layers).astype(np.int64) for cut in cuts)
        last = np.asarray(index == stages - 1)
        layers = [
            np.asarray(before[end] - before[begin] + more * last)
            for before, more in zip(self.before, self.beside_head, strict=True)
        ]
        mtp = float(np.sum(self.beside_head)) * last
        return [*layers, np.asarray(index == 0), last, np.asarray(mtp)]

    def on_rank(
        self, index: Array, stages: Array, folds: Array, embedding: Array, head: Array
    ) -> list[Array]:
        """Layers of each kind, embedding, head and predicting layers on pipeline rank `index`."""
        places = embedding, head
        plain = self.held(index, stages, *places)
        if not folds.any():
            return plain
        mirrored = self.held(stages - 1 - index, stages, *places)
        ends = zip(
            self.held(index, 2 * stages, *places),
            self.held(2 * stages - 1 - index, 2 * stages, *places),
            strict=True,
        )
        return [
            np.where(
                folds == Fold.BOTH_WAYS,
                0.5 * (a + 1.0 * b),
                np.where(folds == Fold.VEE, first + 1.0 * last, 1.0 * a),
            )
            for a, b, (first, last) in zip(plain, mirrored, ends, strict=True)
        ]


def _ends_of_each(dealt: _Chunks | _Even, case: tuple[float, ...]) -> tuple[list[float], list[float]]:
    """Return the first rank of each make-up in one layout, in order, and the last rank of the same one."""
    held = np.stack(dealt.on_rank(np.arange(case[0]), *(np.asarray(value) for value in case)), axis=-1)
    _, first = np.unique(held, axis=0, return_index=True)
    _, from_behind = np.unique(held[::-1], axis=0, return_index=True)
    ends = sorted(zip(first.tolist(), (len(held) - 1 - from_behind).tolist(), strict=True))
    return [float(i) for i, _ in ends], [float(i) for _, i in ends]


@lru_cache(maxsize=8192)
def _ends_of_each_even(
    kinds: tuple[int, ...], num_kinds: int, mtp_layers: int, case: tuple[float, ...]
) -> tuple[list[float], list[float]]:
    return _ends_of_each(_dealt_evenly(kinds, num_kinds, mtp_layers), case)


def _representatives(found: Sequence[list[float]]) -> Array:
    """Return the first stage of each make-up, the last stage at the end, repeated where others have more.

    Stages that hold the same are equally fast, and the first of them keeps most micro-batches in
    flight: no other stage can be the slowest or the fullest.
    """
    width = max(map(len, found))
    return np.array([first + [first[-1]] * (width - len(first)) for first in found])
