"""Families of published tables: sources whose rows are near-copies of one another (containers of one framework).

A table of one container says nearly what that of the next one says. What a prediction is worth where nobody has
measured shows only when all of a family are left out.
"""

from __future__ import annotations

_STARTS: tuple[tuple[str, str], ...] = (
    ("megatron-bridge", "megatron-bridge"),
    ("mbridge", "megatron-bridge"),
    ("dgxc", "nemo"),
    ("nemo-automodel", "nemo-automodel"),
    ("nemo", "nemo"),
    ("mlperf", "mlperf"),
    ("vtrain", "vtrain"),
    ("tpu-recipes", "maxtext"),
    ("maxtext", "maxtext"),
    ("torchtitan", "torchtitan"),
    ("torchao", "torchtitan"),
)
"""Start of a source's name -> its family; the first that fits. Other sources are families of their own."""

SHARED_RECIPES = {"dgxc-maxtext": "maxtext", "dgxc-pax": "maxtext"}
"""Sources that another framework of the same publisher made."""


def source_family(source: str) -> str:
    """Return the family of a source.

    >>> source_family("megatron-bridge-26.04"), source_family("bloom")
    ('megatron-bridge', 'bloom')
    """
    if source in SHARED_RECIPES:
        return SHARED_RECIPES[source]
    return next((family for start, family in _STARTS if source.startswith(start)), source)
