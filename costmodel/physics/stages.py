"""How the layers of a model fall on pipeline stages, counted by kind without a loop over stages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class StagePlan(NamedTuple):
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
    head_as_layer: int = 0,
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
    head_as_layer : int
        Layers whose place the head takes. [-]
    every_stage : bool
        All stages of a single layout one by one, instead of one of each make-up.

    Notes
    -----
    With virtual stages a rank holds several shorter runs of layers; for a stack that mixes kinds
    the counts are those of one contiguous run, exact when kinds alternate or only lead.
    """
    stages = np.asarray(pp, dtype=np.float64)[..., None]
    kinds = np.asarray(kind_of_layer, dtype=np.int64)
    before = [np.concatenate([[0.0], np.cumsum(kinds == kind)]) for kind in range(num_kinds)]
    split = _Split(len(kind_of_layer), int(embedding_as_layer), int(head_as_layer), before)
    index = np.arange(float(stages.max())) if every_stage else _representatives(stages, split)
    return StagePlan(
        index=np.asarray(index),
        layers=split.held(index, stages),
        has_embedding=np.asarray(index == 0, dtype=np.float64),
        has_head=np.asarray(index == stages - 1, dtype=np.float64),
    )


class _Split(NamedTuple):
    """How a stack of layers is cut: its layers, the places of embedding and head, layers of each kind before."""

    num_layers: int
    embedding: int
    head: int
    before: list[Array]

    def held(self, index: Array, stages: Array) -> tuple[Array, ...]:
        """Layers of each kind on stage `index` of `stages`."""
        places = self.num_layers + self.embedding + self.head
        cuts = (np.ceil((index + after) * places / stages) - self.embedding for after in (0.0, 1.0))
        begin, end = (np.clip(cut, 0, self.num_layers).astype(np.int64) for cut in cuts)
        return tuple(np.asarray(before[end] - before[begin]) for before in self.before)


def _representatives(stages: Array, split: _Split) -> Array:
    """Return the first stage of each make-up, the last stage at the end, repeated where others have more.

    Stages that hold the same are equally fast, and the first of them keeps most micro-batches in
    flight: no other stage can be the slowest or the fullest.
    """
    chosen: dict[float, list[float]] = {}
    for count in np.unique(stages):
        index = np.arange(count)
        ends = (index == 0, index == count - 1)
        rows = np.stack([*split.held(index, np.asarray(count)), *ends], axis=-1)
        _, first = np.unique(rows, axis=0, return_index=True)
        chosen[float(count)] = sorted(float(i) for i in first)
    width = max(len(found) for found in chosen.values())
    table = {count: found + [found[-1]] * (width - len(found)) for count, found in chosen.items()}
    index = np.empty((*stages.shape[:-1], width))
    for count, found in table.items():
        index[stages[..., 0] == count] = found
    return index
