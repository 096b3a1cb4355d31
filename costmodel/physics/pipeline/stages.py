"""How the layers of a model fall on pipeline stages, counted by kind without a loop over stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StagePlan:
    """What each looked-at stage holds; the last dimension runs over stages.

    Attributes
    ----------
    index : Array
        Number of the stage, 0 … pp-1. [-]
    layers : tuple of Array
        Layers on the stage, one array a layer kind. [-]
    has_embedding, has_head : Array
        1 on the first and on the last stage. [-]
    """

    index: Array
    layers: tuple[Array, ...]
    has_embedding: Array
    has_head: Array


def plan_stages(
    kind_of_layer: Sequence[int],
    num_kinds: int,
    pp: ArrayLike,
    *,
    embedding_as_layer: bool = False,
    head_as_layer: float = 0.0,
    fold: ArrayLike = 0,
    every_stage: bool = False,
) -> StagePlan:
    """Divide the layers over `pp` stages, in order, as evenly as whole layers allow.

    Where the embedding or the head counts as a layer, the first or last stage holds one layer
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
    embedding_as_layer : bool
        Whether it takes the place of a layer.
    head_as_layer : float
        Layers whose place the head takes, or whose work it does. [-]
    fold : array_like
        What one rank holds: 0 its stage; 1 stage i and stage p-1-i, each for half of the
        micro-batches, so that the counts are their mean (DualPipe); 2 the i-th chunk from either
        end of 2 p (schedules in the shape of a V). [-]
    every_stage : bool
        All ranks of a single layout one by one, instead of one of each make-up.

    Notes
    -----
    With virtual stages a rank holds several shorter runs of layers; for a stack that mixes kinds
    the counts are those of one contiguous run, exact when kinds alternate or only lead.
    """
    stages, folds = np.broadcast_arrays(np.asarray(pp, dtype=np.float64), np.asarray(fold, dtype=np.float64))
    stages, folds = stages[..., None], folds[..., None]
    kinds = np.asarray(kind_of_layer, dtype=np.int64)
    before = [np.concatenate([[0.0], np.cumsum(kinds == kind)]) for kind in range(num_kinds)]
    split = _Split(len(kind_of_layer), int(embedding_as_layer), float(head_as_layer), before)
    index = np.arange(float(stages.max())) if every_stage else _representatives(stages, folds, split)
    *layers, embedding, head = split.on_rank(index, stages, folds)
    return StagePlan(index=np.asarray(index), layers=tuple(layers), has_embedding=embedding, has_head=head)


class _Split(NamedTuple):
    """How a stack of layers is cut: its layers, the places of embedding and head, layers of each kind before."""

    num_layers: int
    embedding: int
    head: float
    before: list[Array]

    def held(self, index: Array, stages: Array) -> tuple[Array, ...]:
        """Layers of each kind on stage `index` of `stages`."""
        places = self.num_layers + self.embedding + self.head
        cuts = (np.ceil((index + after) * places / stages) - self.embedding for after in (0.0, 1.0))
        begin, end = (np.clip(cut, 0, self.num_layers).astype(np.int64) for cut in cuts)
        return tuple(np.asarray(before[end] - before[begin]) for before in self.before)

    def on_rank(self, index: Array, stages: Array, folds: Array) -> list[Array]:
        """Layers of each kind, embedding and head on pipeline rank `index`."""

        def whole(at: Array, of: Array) -> list[Array]:
            return [*self.held(at, of), np.asarray(at == 0), np.asarray(at == of - 1)]

        plain = whole(index, stages)
        if not folds.any():
            return [np.asarray(part, dtype=np.float64) for part in plain]
        mirrored = whole(stages - 1 - index, stages)
        ends = zip(whole(index, 2 * stages), whole(2 * stages - 1 - index, 2 * stages), strict=True)
        return [
            np.where(folds == 1, 0.5 * (a + 1.0 * b), np.where(folds == 2, first + 1.0 * last, 1.0 * a))
            for a, b, (first, last) in zip(plain, mirrored, ends, strict=True)
        ]


def _representatives(stages: Array, folds: Array, split: _Split) -> Array:
    """Return the first stage of each make-up, the last stage at the end, repeated where others have more.

    Stages that hold the same are equally fast, and the first of them keeps most micro-batches in
    flight: no other stage can be the slowest or the fullest.
    """
    chosen: dict[tuple[float, float], list[float]] = {}
    for count, fold in {*zip(stages.ravel().tolist(), folds.ravel().tolist(), strict=True)}:
        rows = np.stack(split.on_rank(np.arange(count), np.asarray(count), np.asarray(fold)), axis=-1)
        _, first = np.unique(rows, axis=0, return_index=True)
        chosen[count, fold] = sorted(float(i) for i in first)
    width = max(len(found) for found in chosen.values())
    index = np.empty((*stages.shape[:-1], width))
    for (count, fold), found in chosen.items():
        here = (stages[..., 0] == count) & (folds[..., 0] == fold)
        index[here] = found + [found[-1]] * (width - len(found))
    return index
