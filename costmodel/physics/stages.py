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
        All stages of a single layout one by one, instead of the first, a middle and the last
        one of every layout.

    Notes
    -----
    With virtual stages a rank holds several shorter runs of layers; for a stack that mixes kinds
    the counts are those of one contiguous run, exact when kinds alternate or only lead.
    """
    stages = np.asarray(pp, dtype=np.float64)[..., None]
    if every_stage:
        index = np.arange(float(stages.max()))
    else:
        # The middle sits early so that a remainder falls on it as on most stages.
        index = np.concatenate([np.zeros_like(stages), np.minimum(1.0, stages - 1.0), stages - 1.0], axis=-1)
    num_layers = len(kind_of_layer)
    places = num_layers + int(embedding_as_layer) + int(head_as_layer)
    begin = np.clip(np.ceil(index * places / stages) - int(embedding_as_layer), 0, num_layers)
    end = np.clip(np.ceil((index + 1) * places / stages) - int(embedding_as_layer), 0, num_layers)
    kinds = np.asarray(kind_of_layer, dtype=np.int64)
    layers = []
    for kind in range(num_kinds):
        before = np.concatenate([[0.0], np.cumsum(kinds == kind)])
        layers.append(before[end.astype(np.int64)] - before[begin.astype(np.int64)])
    return StagePlan(
        index=np.asarray(index),
        layers=tuple(layers),
        has_embedding=np.asarray(index == 0, dtype=np.float64),
        has_head=np.asarray(index == stages - 1, dtype=np.float64),
    )
