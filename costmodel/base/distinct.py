"""The different numbers of an array."""

import numpy as np
from numpy.typing import ArrayLike


def distinct(values: ArrayLike) -> list[float]:
    """Return the different numbers of an array, the smallest first.

    As `np.unique`, which imports masked arrays for it: a thirtieth of what a short command takes.

    >>> distinct([[8, 2], [2, 4]])
    [2.0, 4.0, 8.0]
    """
    return sorted(set(np.asarray(values, dtype=np.float64).ravel().tolist()))
