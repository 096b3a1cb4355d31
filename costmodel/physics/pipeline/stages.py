"""How the layers of a model are split over pipeline stages, counted by kind without a loop over layouts."""

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
    """Which stages of the pipeline are placed on one rank."""

    LINEAR = 0  # Stage i on rank i
    BIDIRECTIONAL = 1  # Stages i and p-1-i on rank i, each for half of the micro-batches (DualPipe)
    V_SHAPED = 2  # Chunks i and 2p-1-i on rank i (ZB-V, V-Half, V-Min, DualPipeV)


@dataclass(frozen=True)
class StagePlan:
    """Contents of the stages that are priced: all, or one of each composition; the last dimension runs over them. [-]"""

    index: Array  # Number of the stage, 0 … pp-1
    behind: Array  # Number of stages after the last one with the same contents
    alike: Array  # Number of stages with the same contents on the same kind of node
    layers: tuple[Array, ...]  # Layers on the stage, one array per layer kind, MTP layers included
    has_embedding: Array
    has_head: Array
    mtp: Array  # MTP layers among `layers`

    def blocks(self, mtp_layers: int) -> tuple[Array, ...]:
        """Return how often a stage runs each block: layers by kind, embedding, head, and MTP projection if any. [-]"""
        # Every MTP layer runs the head once more.
        predicting = (self.mtp,) if mtp_layers else ()
        return (*self.layers, self.has_embedding, self.has_head * (1.0 + mtp_layers), *predicting)


@dataclass(frozen=True)
class Split:
    """The rule by which layers are split over stages. [-]"""

    embedding: ArrayLike = 0.0  # Layers that the embedding is counted as on the first stage, by layout
    head: ArrayLike = 0.0  # Layers that the head is counted as on the last stage, by layout
    mtp_layers: int = 0
    """MTP layers: additional layers of the last kind, on the head's stage unless `chunks` place them."""
    chunks: tuple[Chunk, ...] = ()  # Contents in the order of the model; empty where a rule splits
    others: ArrayLike = 0.0
    """Number of the pipeline's last ranks that run on the second kind of nodes, by layout; a fraction is a rank on both kinds."""
    pace: ArrayLike = 1.0  # Time of a layer on those nodes over that on the cluster's first kind, by layout
    by_speed: bool = False  # Whether layers are distributed by the speed of ranks

    def by_layout(self) -> tuple[ArrayLike, ...]:
        """Return the numbers of a `_Rule`."""
        return self.embedding, self.head, self.others, self.pace


_EVEN = Split()


class _Rule(NamedTuple):
    """The numbers of the split of one layout; see `Split`."""

    embedding: float
    head: float
    others: float = 0.0
    pace: float = 1.0

    def pace_of_ranks(self, ranks: int) -> Array:
        """Return the time of a layer on each rank over that on the cluster's own nodes. [-]"""
        number = np.arange(float(ranks))
        return OtherNodeRanks.ranks(number, number, float(ranks) - self.others).pace(self.pace)

    def pace_of_chunks(self, ranks: int) -> Array:
        """Return the same for each chunk of a V-shaped schedule. [-]"""
        pace = self.pace_of_ranks(ranks)
        return np.concatenate([pace, pace[::-1]])


class OtherNodeRanks(NamedTuple):
    """Which ranks run on the second kind of nodes alone, and which on both kinds."""

    whole: NDArray[np.bool_]
    part: NDArray[np.bool_]

    @classmethod
    def ranks(cls, first: Array, last: Array, own: Array | float) -> OtherNodeRanks:
        """Return it for ranges of equal ranks, `first` to `last`, where the first `own` ranks are on the first kind of nodes."""
        whole = np.asarray(first >= own)
        return cls(whole, ~whole & (last + 1.0 > own))

    def pace(self, share: ArrayLike) -> Array:
        """Return the time of ranks over that on the first kind of nodes; the second kind takes `share` of it. [-]

        A rank on both kinds of nodes waits for the slower.
        """
        return np.where(self.whole, share, np.where(self.part, np.maximum(share, 1.0), 1.0))


class _Stack(NamedTuple):
    """The kind of every layer, and the parts of `Split` that are the same for all layouts; hashable."""

    kinds: tuple[int, ...]
    num_kinds: int
    mtp_layers: int
    chunks: tuple[Chunk, ...]
    by_speed: bool


def _stack(kind_of_layer: Sequence[int], num_kinds: int, split: Split) -> _Stack:
    return _Stack(tuple(map(int, kind_of_layer)), num_kinds, split.mtp_layers, split.chunks, split.by_speed)


def plan_stages(
    kind_of_layer: Sequence[int],
    num_kinds: int,
    pp: ArrayLike,
    split: Split = _EVEN,
    *,
    fold: ArrayLike = Fold.LINEAR,
    every_stage: bool = False,
) -> StagePlan:
    """Split the layers over `pp` stages, in order, as evenly as whole layers allow, or as `split.chunks` lists them.

    Where the layers do not divide, the later stages, which include the head's, have one layer less. `every_stage` returns
    all ranks, else one of each composition: the first, which has the most micro-batches in flight. Counts of a
    bidirectional rank are the mean of its two stages. With virtual stages they are of one contiguous run of layers per
    rank: exact where kinds alternate, where the odd kind comes only first, or where `split.chunks` is given.
    """
    stack = _stack(kind_of_layer, num_kinds, split)
    cases, which = _distinct(pp, fold, *split.by_layout())
    found = [
        _stage_rows(stack, every_stage, stages, fold_of_case, _Rule(*rule))
        for stages, fold_of_case, *rule in cases
    ]
    index, behind, _, *layers, first, last, mtp = _by_layout(found, which)
    (alike,) = _by_layout([rows[2:3] for rows in found], which, repeats=False)
    return StagePlan(index, behind, alike, tuple(layers), has_embedding=first, has_head=last, mtp=mtp)


@lru_cache(maxsize=8192)
def _stage_rows(stack: _Stack, every_stage: bool, pp: float, fold: float, rule: _Rule) -> Array:
    """Return index, stages after the last equal one, number of equal stages, and contents, of each stage (columns)."""
    rows = _rank_rows(stack, int(pp), fold, rule)
    first = last = np.arange(int(pp))
    alike = np.ones(int(pp), dtype=np.int64)
    if not every_stage:
        kinds = np.array([*rows, rule.pace_of_ranks(int(pp))])
        _, first, alike = np.unique(kinds, axis=1, return_index=True, return_counts=True)
        _, from_behind = np.unique(kinds[:, ::-1], axis=1, return_index=True)
        order = np.argsort(first)
        first, last, alike = first[order], (int(pp) - 1 - from_behind)[order], alike[order]
    return np.array([first, pp - 1.0 - last, alike, *rows[:, first]])


def _rank_rows(stack: _Stack, ranks: int, fold: float, rule: _Rule) -> Array:
    """Return the contents of each rank (columns), in the rows of `_chunk_rows`. [-]"""
    pace = rule.pace_of_chunks(ranks) if fold == Fold.V_SHAPED else rule.pace_of_ranks(ranks)
    # A rank of a bidirectional schedule holds one stage of each end: speeds do not apply.
    stack = stack._replace(by_speed=stack.by_speed and fold != Fold.BIDIRECTIONAL)
    return _folded(_chunk_rows(stack, pace, rule), ranks, fold)


def _folded(chunks: Array, ranks: int, fold: float) -> Array:
    """Return the contents of ranks from those of chunks (last dimension, in the order of the model)."""
    if fold == Fold.V_SHAPED:
        return np.asarray(chunks[..., :ranks] + chunks[..., : -ranks - 1 : -1])
    folded = chunks.reshape(*chunks.shape[:-1], -1, ranks).sum(axis=-2)
    return np.asarray(0.5 * (folded + folded[..., ::-1]) if fold == Fold.BIDIRECTIONAL else folded)


def _chunk_rows(stack: _Stack, pace: Array, rule: _Rule) -> Array:
    """Return layers by kind, embedding, head and MTP layers of each chunk: (kinds + 3, chunks). [-]

    Chunks are as even as whole layers allow, or by the pace of each, unless `stack.chunks` lists them.
    """
    count, layers = pace.size, len(stack.kinds)
    if stack.chunks:
        until = np.cumsum([0, *(chunk.layers for chunk in stack.chunks)])
        ends = np.array([[chunk.embedding, chunk.loss, chunk.mtp] for chunk in stack.chunks], dtype=float).T
    else:
        by_speed = stack.by_speed and rule.others > 0
        cuts = (
            _cuts_by_speed(layers, pace, rule.embedding, rule.head)
            if by_speed
            else _even_cuts(layers, count, rule.embedding, rule.head)
        )
        until = cuts.astype(np.int64)
        ends = np.zeros((3, count))
        ends[0, 0], ends[1, -1], ends[2, -1] = 1.0, 1.0, stack.mtp_layers
    before = np.zeros((stack.num_kinds, layers + 1))
    before[:, 1:] = np.cumsum(np.equal(np.arange(stack.num_kinds)[:, None], stack.kinds), axis=1)
    by_kind = np.diff(before[:, until])
    by_kind[stack.kinds[-1]] += ends[2]
    return np.concatenate([by_kind, ends])


def _cuts_by_speed(layers: int, pace: Array, embedding: float, head: float) -> Array:
    """Return the layers before each chunk and after the last, with the least maximum time of a chunk.

    Greedy: each layer goes to the chunk that would finish it first, which is optimal for equal layers. Embedding and
    head are counted as `embedding` and `head` layers of their chunks.
    """
    done = np.arange(1.0, layers + 1.0) * pace[:, None]
    done[0] += embedding * pace[0]
    done[-1] += head * pace[-1]
    # Ties go to the faster chunk.
    first = np.lexsort([np.broadcast_to(pace[:, None], done.shape).ravel(), np.round(done.ravel(), 9)])[
        :layers
    ]
    return np.concatenate([[0.0], np.cumsum(np.bincount(first // layers, minlength=pace.size))])


def _even_cuts(layers: int, count: int, embedding: ArrayLike, head: ArrayLike) -> Array:
    """Return the layers before each of `count` even chunks and after the last (last dimension). [-]"""
    first, last = np.asarray(embedding)[..., None], np.asarray(head)[..., None]
    cuts = np.ceil(np.arange(count + 1.0) * (layers + first + last) / count) - first
    return np.asarray(np.clip(cuts, 0, layers))


def _by_layout(found: Sequence[Array], which: NDArray[np.int64], *, repeats: bool = True) -> list[Array]:
    """Return each row of tables found per case, (rows, columns), by layout; columns are the last dimension.

    Cases with fewer columns are padded with their last one, or with zeros. Layouts are contiguous in memory, since they
    are many and columns few.
    """
    wide = np.zeros((len(found[0]), max(each.shape[1] for each in found), len(found)))
    for case, each in enumerate(found):
        columns = each.shape[1]
        wide[:, :columns, case] = each
        if repeats:
            wide[:, columns:, case] = each[:, -1:]
    return [np.moveaxis(row.take(which, axis=-1), 0, -1) for row in wide]


def _distinct(*columns: ArrayLike) -> tuple[list[tuple[float, ...]], NDArray[np.int64]]:
    """Return the distinct combinations of numbers, and the index of the combination of each element."""
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


class WaitCycles(NamedTuple):
    """Layers of neighbouring ranks of a V-shaped schedule that wait for each other in a cycle. [-]

    Layers by kind; the last dimension runs over distinct cycles. The first rank is in no cycle.
    """

    pairs: tuple[Array, ...]  # Layers of two neighbours: ranks 1 and 2, 3 and 4, …
    pair_turns: Array  # 1 where the last rank, at which the V turns, is among them
    threes: tuple[Array, ...]  # Layers of three neighbours: the last three, the three before them, …
    three_turns: Array
    turn: tuple[Array, ...]  # Layers by kind in the last chunks of the first three ranks, with MTP layers


def plan_wait_cycles(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, split: Split = _EVEN
) -> WaitCycles:
    """Return the wait cycles where `pp` ranks hold two chunks each in a V; zeros with fewer than four ranks."""
    stack = _stack(kind_of_layer, num_kinds, split)
    cases, which = _distinct(pp, *split.by_layout())
    found = [_wait_cycle_rows(stack, ranks, _Rule(*rule)) for ranks, *rule in cases]
    pairs, threes, turn = (_by_layout(rows, which) for rows in zip(*found, strict=True))
    of_turn = tuple(row[..., 0] for row in turn)
    return WaitCycles(tuple(pairs[:-1]), pairs[-1], tuple(threes[:-1]), threes[-1], of_turn)


@lru_cache(maxsize=8192)
def _wait_cycle_rows(stack: _Stack, pp: float, rule: _Rule) -> tuple[Array, Array, Array]:
    """Return rows of pairs, of threes (layers by kind, and whether they turn) and of the turn of one layout.

    A layer on the second kind of nodes is counted by its time over that on the first kind.
    """
    ranks, kinds = int(pp), stack.num_kinds
    if ranks < 4:
        return np.zeros((kinds + 1, 1)), np.zeros((kinds + 1, 1)), np.zeros((kinds, 1))
    pace = rule.pace_of_ranks(ranks)
    held = _rank_rows(stack, ranks, Fold.V_SHAPED, rule)[:kinds] * pace
    rows = np.array([*held, np.arange(ranks) == ranks - 1])
    # The block of V-Min turns two ranks earlier where three divides the ranks.
    least = ranks - 1 - 2 * (ranks % 3 == 0)
    pairs = [rows[:, i] + rows[:, i + 1] for i in range(1, ranks - 1, 2)]
    threes = [rows[:, i] + rows[:, i - 1] + rows[:, i - 2] for i in range(least, 2, -3)]
    chunks = _chunk_rows(stack, rule.pace_of_chunks(ranks), rule)[:kinds, -3:]
    turn = (chunks * pace[2::-1]).sum(axis=1, keepdims=True)
    of_pairs, of_threes = (np.unique(rows, axis=0, return_index=True)[0].T for rows in (pairs, threes))
    return of_pairs, of_threes, turn


_MAX_HEAD_OFFSET = 16  # Upper limit of the layers that the head is counted as when stages are balanced


def balanced_split(
    kind_of_layer: Sequence[int],
    pp: ArrayLike,
    head: float,
    mtp_layers: int = 0,
    *,
    fold: ArrayLike = 0,
    vp: ArrayLike = 1,
) -> Split:
    """Return the split with the least time per micro-batch: of the busiest stage, or summed over the largest of each chunk.

    With virtual stages all chunks have the same size, except that the first and last ones are smaller to offset embedding
    and head: ranks of an interleaved schedule wait for each other's larger chunks. Ties go to the most even split.
    Where no split makes all chunks the same size, every split is considered. Kinds of layers are taken to cost the same,
    and head and loss as much as `head` of them.
    """
    cases, which = _distinct(pp, fold, vp)
    best = [_best_offsets(len(kind_of_layer), *case, round(head, 6), mtp_layers) for case in cases]
    places = np.array(best)[which]
    return Split(places[..., 0], places[..., 1], mtp_layers)


@lru_cache(maxsize=8192)
def _best_offsets(
    layers: int, pp: float, fold: float, vp: float, head: float, mtp_layers: int
) -> tuple[float, float]:
    """Return the layers that embedding and head are counted as in the split with the least time per micro-batch."""
    if pp < 2:
        return 0.0, 0.0
    embedding, head_offset = np.ix_(np.arange(2.0), np.arange(min(_MAX_HEAD_OFFSET, layers) + 1.0))
    offsets, count = embedding + head_offset, int(pp) * (2 if fold == Fold.V_SHAPED else 1)
    first, last = np.broadcast_arrays(embedding, head_offset)
    layers_of_rank = _folded(np.diff(_even_cuts(layers, count, first, last)), int(pp), fold)
    cost = (
        layers_of_rank + (mtp_layers + head) * _folded(np.arange(count) == count - 1.0, int(pp), fold)
    ).max(axis=-1)
    if fold == Fold.LINEAR and vp > 1:
        by_chunk = _divided_in_chunks(layers_of_rank, int(vp), embedding, head_offset)
        by_chunk[..., -1, -1] += mtp_layers + head
        cost = by_chunk.max(axis=-1).sum(axis=-1)
        is_even = (layers + offsets) % (pp * vp) == 0
        cost = np.where(is_even, cost, np.inf) if is_even.any() else cost
    columns = np.broadcast_arrays(np.round(cost, 9), offsets, embedding)
    _, best_offset, best_embedding = min(zip(*(column.ravel().tolist() for column in columns), strict=True))
    return best_embedding, best_offset - best_embedding


def chunks_on_ranks(plan: StagePlan, vp: int, mtp_layers: int, split: Split = _EVEN) -> tuple[Chunk, ...]:
    """Return the contents of every chunk of one layout, in the order of the model: chunk i on rank i mod pp, `vp` per rank.

    Each rank splits its layers over its chunks evenly, the remainder in the first chunks; the first and last chunks are
    shorter by the layers that embedding and head are counted as.
    """
    layers_of_rank = np.sum(plan.layers, axis=0) - mtp_layers * plan.has_head
    embedding, head = (float(np.asarray(each)) for each in (split.embedding, split.head))
    return _listed_chunks(layers_of_rank, vp, mtp_layers, embedding, head)


def v_chunks_by_speed(layers: int, ranks: int, split: Split) -> tuple[Chunk, ...]:
    """Return the chunks of one V-shaped layout by the speed of its ranks, in the order of the model."""
    rule = _Rule(*(float(np.asarray(each)) for each in split.by_layout()))
    counts = np.diff(_cuts_by_speed(layers, rule.pace_of_chunks(ranks), rule.embedding, rule.head))
    return _as_chunks(counts, split.mtp_layers)


def _listed_chunks(
    layers: Array, vp: int, mtp_layers: int, embedding: float, head: float
) -> tuple[Chunk, ...]:
    """Return the chunks of ranks with `layers` layers each, MTP layers apart."""
    by_chunk = _divided_in_chunks(layers, vp, *np.rint([embedding, head]))
    return _as_chunks(by_chunk.ravel(), mtp_layers)


def _as_chunks(layers: Array, mtp_layers: int) -> tuple[Chunk, ...]:
    """Return chunks of so many layers, in the order of the model."""
    last = layers.size - 1
    return tuple(
        Chunk(int(i == 0), int(count), mtp_layers * (i == last), int(i == last))
        for i, count in enumerate(layers)
    )


def _divided_in_chunks(layers_of_rank: Array, vp: int, embedding: ArrayLike, head: ArrayLike) -> Array:
    """Return the layers of each chunk, (..., chunks of a rank, ranks), from those of each rank (last dimension). [-]

    `embedding` and `head` are counted as so many layers: the first and the last chunks are shorter by them.

    >>> _divided_in_chunks(np.array([17.0, 18.0, 18.0, 15.0]), 6, 1.0, 3.0).T.astype(int).tolist()
    [[2, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 0]]
    """
    offsets = np.zeros_like(layers_of_rank)
    offsets[..., 0] = embedding
    offsets[..., -1] = offsets[..., -1] + np.asarray(head)
    even, remainder = (each[..., None, :] for each in np.divmod(layers_of_rank + offsets, vp))
    by_chunk = np.asarray(even + (np.arange(vp)[:, None] < remainder))
    for of_rank, offset in ((by_chunk[..., 0], embedding), (by_chunk[..., ::-1, -1], head)):
        removed = np.minimum(np.cumsum(of_rank, axis=-1), np.asarray(offset)[..., None])
        of_rank -= np.diff(removed, prepend=0.0)
    return by_chunk


class ChunkWaits(NamedTuple):
    """Where the last rank, which has the head, waits for ranks that run a larger chunk at the same time. [-]

    The last dimension runs over distinct pairs of chunks, except in `first`.
    """

    more: tuple[Array, ...]
    """Layers by kind, embedding, head and MTP layers of the other rank's chunk less those of the last rank's."""
    share: Array  # Share of micro-batches in which these two chunks run at the same time
    rank: Array  # Index of the other rank among those considered, from 0
    hops: Array  # Hops between the two ranks, cyclic
    next_group: Array
    """1 where the other chunk is of the next group of p micro-batches, so that the last group of a step has no wait."""
    first: tuple[Array, ...]  # Contents of the first chunk, in the same rows, mean of all ranks but the last


def plan_chunk_waits(
    kind_of_layer: Sequence[int], num_kinds: int, pp: ArrayLike, vp: ArrayLike, split: Split = _EVEN
) -> ChunkWaits:
    """Return where the last rank waits for larger chunks of other ranks, with `vp` chunks each.

    The rank k before the last is k passes ahead: of p micro-batches it runs the same chunk in p - k and the next chunk
    in k. Of ranks with the same contents only the nearest to the last one, on either side, are considered.
    """
    stack = _stack(kind_of_layer, num_kinds, split)
    cases, which = _distinct(pp, vp, *split.by_layout())
    found = [_chunk_wait_rows(stack, ranks, chunks, _Rule(*rule)) for ranks, chunks, *rule in cases]
    columns, first = zip(*found, strict=True)
    *more, share, rank, hops, next_group = _by_layout(columns, which, repeats=False)
    firsts = tuple(row[..., 0] for row in _by_layout(first, which))
    return ChunkWaits(tuple(more), share, rank, hops, next_group, firsts)


@lru_cache(maxsize=8192)
def _chunk_wait_rows(stack: _Stack, pp: float, vp: float, rule: _Rule) -> tuple[Array, Array]:
    """Return the waits of one layout (rows: more, share, rank, hops and next_group), and the mean first chunk.

    A layer on the second kind of nodes is counted by its time over that on the first kind.
    """
    ranks, chunks = int(pp), int(vp)
    zeros = np.zeros((stack.num_kinds + 7, 1))
    if ranks < 2 or chunks < 2:
        return zeros, zeros[4:]
    pace, listed = rule.pace_of_ranks(ranks), stack.chunks
    if not listed:
        of_ranks = _rank_rows(stack._replace(mtp_layers=0), ranks, Fold.LINEAR, rule)
        layers_of_rank = of_ranks[: stack.num_kinds].sum(axis=0)
        listed = _listed_chunks(layers_of_rank, chunks, stack.mtp_layers, rule.embedding, rule.head)
    rows = _chunk_rows(stack._replace(chunks=listed), pace, rule)
    held = rows.reshape(len(rows), chunks, ranks) * pace
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
        columns += [(*more, share, number, hops, next_group) for (*more, next_group), share in alike.items()]
    return np.array(columns).T if columns else zeros, held[:, 0, :-1].mean(axis=1, keepdims=True)


def chunk_shares(plan: StagePlan, vp: ArrayLike, chunks: Sequence[Chunk] = ()) -> tuple[Array, Array]:
    """Return the share of the fullest rank's layers in its largest and its smallest of `vp` chunks, 1 / vp if even. [-]

    Chunks are even, as in `chunks_on_ranks`, unless `chunks` lists them.
    """
    fullest = np.maximum(np.sum(plan.layers, axis=0).max(axis=-1), 1.0)
    if chunks:
        layers = np.array([chunk.layers + chunk.mtp for chunk in chunks], dtype=np.float64)
        by_rank = layers.reshape(int(np.max(vp)), -1)
        full = by_rank.sum(axis=0) == by_rank.sum(axis=0).max()
        return np.asarray(layers.max() / fullest), np.asarray(by_rank[:, full].min() / fullest)
    each = fullest / np.asarray(vp, dtype=np.float64)
    return np.asarray(np.ceil(each) / fullest), np.asarray(np.floor(each) / fullest)
