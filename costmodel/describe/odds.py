"""What published runs say of odds: whether a predicted memory fits, and how far layouts of one job err apart.

Both are in ``describe/data/odds.yaml``, which `tools/fit/fit_factors.py` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import exp
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.yaml_files import read_mapping
from costmodel.describe.factors import OTHER
from costmodel.physics.run.distributions import normal_cdf

Array = NDArray[np.float64]

RISK = 0.1
"""Probability of running out of memory that a plan accepts by default. [-]"""


class FitOdds(NamedTuple):
    """How surely a job fits by its predicted memory over what a GPU offers: a probit of its logarithm."""

    center: float  # Logarithm at which as many jobs run out of memory as not. [-]
    spread: float  # How sharply: standard deviation of the normal distribution. [-]
    runs: int  # Published runs with either outcome. [-]
    source: str

    def probability(self, need_bytes: ArrayLike, offered_bytes: ArrayLike) -> Array:
        """Return the probability that a predicted memory fits, 1 where none is needed. [-]"""
        with np.errstate(divide="ignore"):
            spare = -np.log(np.divide(need_bytes, offered_bytes))
        return normal_cdf((spare + self.center) / self.spread)

    def share(self, risk: float) -> float:
        """Return the share of what a GPU offers that may be filled at a risk of running out. [-]"""
        return exp(NormalDist(self.center, self.spread).inv_cdf(risk))


class KnownOdds(NamedTuple):
    """Odds of fitting by recipe; by knob the spread (of a logarithm) that layouts err apart by, ``run`` for repeats."""

    fits: Mapping[str, FitOdds]
    layouts: Mapping[str, float]

    def fits_with(self, recipe: str) -> FitOdds:
        """Return the odds of a recipe: its own, or those of all that nobody published failures of."""
        return self.fits.get(recipe, self.fits[OTHER])


@cache
def odds() -> KnownOdds:
    """Return the shipped odds."""
    path = files("costmodel") / "describe" / "data" / "odds.yaml"
    raw = read_mapping(path, example="layouts: {run: 0.06}")
    return KnownOdds({name: FitOdds(**stated) for name, stated in raw["fits"].items()}, raw["layouts"])
