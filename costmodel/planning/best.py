"""What a search keeps of a million priced layouts: the best few, and the front of score against memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Columns = dict[str, Array]

# Points of a sample's front that thin a chunk before it is sorted: most layouts are worse than one.
_SAMPLE = 1024
_ANCHORS = 8


def pareto_indices(score: Array, size: Array) -> NDArray[np.int64]:
    """Return the points that no other beats in one of two costs without losing in the other, by rising score.

    Of points equal in both the first stays.

    >>> pareto_indices(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1, 2, 0]
    """
    alive = np.arange(score.size)
    s, m = score, size
    if score.size > 4 * _SAMPLE:
        # The front of a sample dominates nearly all of the rest; what it leaves is sorted.
        step = score.size // _SAMPLE
        rough = step * pareto_indices(score[::step], size[::step])
        alive = undominated(score, size, score[rough], size[rough])
        s, m = score[alive], size[alive]
    order = np.lexsort((alive, m, s))
    sizes = m[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(sizes)[:-1]])
    return np.asarray(alive[order[sizes < before]], dtype=np.int64)


def undominated(score: Array, size: Array, front_score: Array, front_size: Array) -> NDArray[np.int64]:
    """Return the points that none of a few of a front beats in both.

    >>> one, other = np.array([1.0, 3.0]), np.array([3.0, 1.0])
    >>> undominated(np.array([2.0, 4.0, 4.0, 1.0]), np.array([2.0, 2.0, 1.0, 4.0]), one, other).tolist()
    [0, 2, 3]
    """
    alive = np.arange(score.size)
    anchors = np.linspace(0, front_score.size - 1, min(_ANCHORS, front_score.size)).astype(np.int64)
    for anchor in anchors:
        keep = (score <= front_score[anchor]) | (size <= front_size[anchor])
        alive, score, size = alive[keep], score[keep], size[keep]
    return alive


def smallest_indices(score: Array, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` smallest scores, unordered."""
    if score.size <= count:
        return np.arange(score.size)
    return np.asarray(np.argpartition(score, count - 1)[:count], dtype=np.int64)


class BestLayouts(NamedTuple):
    """Columns of the best layouts, and of the front; `score` and `memory_bytes` are among them."""

    top: Columns
    front: Columns

    def merged(self, other: BestLayouts, count: int) -> BestLayouts:
        """Join the results of two parts of a search."""
        top, front = joined([self.top, other.top]), joined([self.front, other.front])
        return BestLayouts(
            best_rows(top, count), taken(front, pareto_indices(front["score"], front["memory_bytes"]))
        )


def best_rows(columns: Columns, count: int) -> Columns:
    """Return the best `count` rows in order: by score, then memory, then every other column."""
    if columns["score"].size > 4 * count:
        limit = np.partition(columns["score"], count - 1)[count - 1]
        columns = taken(columns, np.flatnonzero(columns["score"] <= limit))
    others = [values for name, values in columns.items() if name not in ("score", "memory_bytes")]
    order = np.lexsort((*reversed(others), columns["memory_bytes"], columns["score"]))
    return taken(columns, order[:count])


def with_firsts(columns: Columns, firsts: Sequence[Columns]) -> Columns:
    """Return rows in order with the best of each job among them: in place of the last where they are not."""
    present = set(columns["job"].tolist())
    missing = [one for one in firsts if float(one["job"][0]) not in present]
    room = columns["score"].size - len(missing)
    if not missing or room < columns["score"].size // 2:
        return columns
    return best_rows(joined([taken(columns, np.arange(room)), *missing]), columns["score"].size)


def taken(columns: Mapping[str, Array], rows: NDArray[np.int64]) -> Columns:
    """Return some rows of every column."""
    return {name: values[rows] for name, values in columns.items()}


def joined(parts: Sequence[Columns]) -> Columns:
    """Put columns below each other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
