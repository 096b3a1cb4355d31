"""What a site's own runs say of the uncertain factors: a YAML file beside the hardware and the job.

``costmodel observed calibrate runs`` writes it, `site` of a job names it. It holds the posterior of the factors that its runs
speak of: medians that the price is multiplied by, spreads and correlations that samples are drawn from. All others
keep the shipped spreads, so that runs on one machine say nothing of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.errors import DataError, near_hint, shown
from costmodel.base.version import __version__
from costmodel.base.yaml_files import document_text, node, read_mapping
from costmodel.describe.factors import PRIOR, Belief, Factors, factors

SCHEMA_VERSION = 1
_KEYS = ("schema_version", "profile", "made_by", "runs", "factors", "correlation")
_FACTOR_KEYS = ("center", "spread", "tail", "prior_center", "prior_spread")
_MOST_SPREAD = 5.0


@dataclass(frozen=True)
class Site:
    """Factors as a site's own runs leave them: their joint distribution, and what it was before the runs."""

    belief: Belief
    path: str = ""  # File that it was read from, empty for one made in code
    prior: Mapping[str, tuple[float, float]] = field(default_factory=dict, compare=False)
    """Center and spread of each before the runs. [-]"""
    runs: Sequence[Mapping[str, Any]] = field(default=(), compare=False)
    """What was measured: a name, figures, and whether the row fits."""

    @cached_property
    def factors(self) -> Factors:
        """Medians that the calibrated constants are multiplied by."""
        return Factors(dict(zip(self.belief.names, np.exp(self.belief.center), strict=True)))


NO_SITE = Site(PRIOR)
"""What is said of no site."""


def make_belief(
    names: Sequence[str], center: ArrayLike, covariance: ArrayLike, tail: Sequence[float], source: str = ""
) -> Belief:
    """Return the joint distribution of some factors by the covariance of their logarithms."""
    cov = np.asarray(covariance, dtype=np.float64)
    spread = np.sqrt(np.diag(cov))
    correlation = cov / np.outer(spread, spread)
    return Belief(
        names=tuple(names),
        center=tuple(float(one) for one in np.asarray(center)),
        spread=tuple(spread.tolist()),
        correlation=tuple(tuple(row) for row in correlation.tolist()),
        tail=tuple(tail),
        source=source,
    )


def site_text(site: Site) -> str:
    """Return a site as its file."""
    belief = site.belief
    rows = {
        name: (round(center, 5), round(spread, 5), tail, *(round(each, 5) for each in site.prior[name]))
        for name, center, spread, tail in zip(
            belief.names, belief.center, belief.spread, belief.tail, strict=True
        )
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "profile": "site",
        "made_by": f"costmodel observed calibrate runs, version {__version__}",
        "runs": [node(dict(run), inline=True) for run in site.runs],
        "factors": {
            name: node(dict(zip(_FACTOR_KEYS, row, strict=True)), inline=True) for name, row in rows.items()
        },
        "correlation": [node([round(one, 5) for one in row], inline=True) for row in belief.correlation],
    }
    return (
        "# What measured runs say of uncertain factors, natural logarithms; correlation has a row a factor, in their order.\n"
        + document_text(content)
    )


def load_site(path: str | Path) -> Site:
    """Read a site file."""
    raw = read_mapping(Path(path), example="profile: site", error=DataError, name=f"site: {path}")
    if raw.get("profile") != "site":
        raise DataError(
            f"site: {path}: is no site file (profile: site); costmodel observed calibrate runs writes one"
        )
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"site: {path}: schema_version {shown(raw.get('schema_version'))} is not {SCHEMA_VERSION}; calibrate again"
        )
    for key in raw:
        if key not in _KEYS:
            raise DataError(
                f"site: {path}: {key!r} is not a key; {near_hint(key, _KEYS) or ', '.join(_KEYS)}"
            )
    stated_factors = raw.get("factors")
    if not isinstance(stated_factors, dict) or not stated_factors:
        raise DataError(f"site: {path}: factors: expected a mapping of factors")
    for name, stated in stated_factors.items():
        _check_factor(f"site: {path}", name, stated)
    center, spread, tail, *prior = (
        tuple(float(stated[key]) for stated in stated_factors.values()) for key in _FACTOR_KEYS
    )
    correlation = _correlation(str(path), raw.get("correlation"), len(stated_factors))
    belief = Belief(
        names=tuple(stated_factors),
        center=center,
        spread=spread,
        correlation=correlation,
        tail=tail,
        source=str(path),
    )
    before = dict(zip(stated_factors, zip(*prior, strict=True), strict=True))
    return Site(belief, str(path), before, tuple(raw.get("runs") or ()))


def _check_factor(where: str, name: object, stated: object) -> None:
    """Refuse what is no factor, or numbers that one cannot have."""
    if name not in factors():
        hint = f"{near_hint(str(name), factors())} calibrate again if it is of another version".strip()
        raise DataError(f"{where}: {shown(name)} is no factor; {hint}")
    if not isinstance(stated, dict) or set(stated) != set(_FACTOR_KEYS):
        raise DataError(f"{where}: {name}: expected {', '.join(_FACTOR_KEYS)}")
    for key, value in stated.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        least = 0.0 if key in ("tail", "spread", "prior_spread") else -_MOST_SPREAD
        most = float("inf") if key == "tail" else _MOST_SPREAD
        if not number or not least <= value <= most or (key in ("tail", "spread") and value == 0):
            raise DataError(
                f"{where}: {name}: {key}: expected a number from {least:g} to {most:g}, got {shown(value)}"
            )


def _correlation(path: str, stated: object, count: int) -> tuple[tuple[float, ...], ...]:
    """Return a correlation that samples can be drawn from."""
    try:
        matrix = np.asarray(stated, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(())
    sound = matrix.shape == (count, count) and np.isfinite(matrix).all()
    if (
        not sound
        or not np.allclose(matrix, matrix.T, atol=1e-4)
        or not np.allclose(np.diag(matrix), 1.0, atol=1e-4)
    ):
        raise DataError(
            f"site: {path}: correlation: expected {count} rows of {count} numbers, 1 on the diagonal"
        )
    # Rounding may have left it a hair below what is possible.
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    if values.min() < -1e-3:
        raise DataError(f"site: {path}: correlation: no distribution has it")
    mended = (vectors * np.maximum(values, 1e-9)) @ vectors.T
    scale = np.sqrt(np.diag(mended))
    return tuple(tuple(row) for row in (mended / np.outer(scale, scale)).tolist())
