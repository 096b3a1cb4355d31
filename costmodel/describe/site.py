"""What a site's own runs say of the uncertain factors: a YAML file beside the hardware and the job.

``costmodel calibrate runs`` writes it, `site` of a job names it. It holds the posterior of the factors that its runs
speak of: medians that the price is multiplied by, spreads and correlations that samples are drawn from. All others
keep the shipped spreads, so that runs on one machine say nothing of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.errors import DataError, near_hint, shown
from costmodel.base.files import refuse_endless
from costmodel.base.version import __version__
from costmodel.base.yaml_files import document_text, node, parse_mapping
from costmodel.describe.factors import PRIOR, Belief, Factors, factors

SCHEMA_VERSION = 1
_KEYS = ("schema_version", "profile", "made_by", "runs", "factors", "correlation")
_FACTOR_KEYS = ("center", "spread", "tail", "prior_center", "prior_spread")
_MOST_SPREAD = 5.0


@dataclass(frozen=True)
class Site:
    """Factors as a site's own runs leave them.

    Attributes
    ----------
    belief : Belief
        Their joint distribution.
    path : str
        File that it was read from, empty for one made in code.
    prior : mapping of str to (float, float)
        Center and spread of each before the runs. [-]
    runs : tuple of mapping
        What was measured: a name, figures, and whether the row fits.
    """

    belief: Belief
    path: str = ""
    prior: Mapping[str, tuple[float, float]] = field(default_factory=dict, compare=False)
    runs: Sequence[Mapping[str, Any]] = field(default=(), compare=False)

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
    held = {
        name: node(
            {
                "center": round(belief.center[i], 5),
                "spread": round(belief.spread[i], 5),
                "tail": belief.tail[i],
                "prior_center": round(site.prior[name][0], 5),
                "prior_spread": round(site.prior[name][1], 5),
            },
            inline=True,
        )
        for i, name in enumerate(belief.names)
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "profile": "site",
        "made_by": f"costmodel calibrate runs, version {__version__}",
        "runs": [node(dict(run), inline=True) for run in site.runs],
        "factors": held,
        "correlation": [node([round(one, 5) for one in row], inline=True) for row in belief.correlation],
    }
    return (
        "# What measured runs say of uncertain factors, natural logarithms; correlation has a row a factor, in their order.\n"
        + document_text(content)
    )


def load_site(path: str | Path) -> Site:
    """Read a site file.

    Raises
    ------
    DataError
        If it cannot be read, is no site file, is of another version, or names what is no factor.
    """
    file = Path(path)
    refuse_endless(file, DataError)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"site: {file}: is not a text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"site: {file}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    return _parsed(text, str(path))


@lru_cache(maxsize=16)
def _parsed(text: str, path: str) -> Site:
    raw = parse_mapping(text, name=path, example="profile: site", error=DataError)
    if raw.get("profile") != "site":
        raise DataError(f"site: {path}: is no site file (profile: site); costmodel calibrate runs writes one")
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"site: {path}: schema_version {shown(raw.get('schema_version'))} is not {SCHEMA_VERSION}; calibrate again"
        )
    for key in raw:
        if key not in _KEYS:
            raise DataError(
                f"site: {path}: {key!r} is not a key; {near_hint(str(key), _KEYS) or ', '.join(_KEYS)}"
            )
    held = raw.get("factors")
    if not isinstance(held, dict) or not held:
        raise DataError(f"site: {path}: factors: expected a mapping of factors")
    values = {name: _factor(path, name, said) for name, said in held.items()}
    correlation = _correlation(path, raw.get("correlation"), len(values))
    belief = Belief(
        names=tuple(values),
        center=tuple(one["center"] for one in values.values()),
        spread=tuple(one["spread"] for one in values.values()),
        correlation=correlation,
        tail=tuple(one["tail"] for one in values.values()),
        source=path,
    )
    prior = {name: (one["prior_center"], one["prior_spread"]) for name, one in values.items()}
    return Site(belief, path, prior, tuple(raw.get("runs") or ()))


def _factor(path: str, name: object, said: object) -> dict[str, float]:
    """Return the numbers of one factor."""
    if name not in factors():
        hint = " ".join(
            filter(None, (near_hint(str(name), factors()), "calibrate again if it is of another version"))
        )
        raise DataError(f"site: {path}: {shown(name)} is no factor; {hint}")
    if not isinstance(said, dict) or set(said) != set(_FACTOR_KEYS):
        raise DataError(f"site: {path}: {name}: expected {', '.join(_FACTOR_KEYS)}")
    for key, value in said.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
        least = 0.0 if key in ("tail", "spread", "prior_spread") else -_MOST_SPREAD
        most = float("inf") if key == "tail" else _MOST_SPREAD
        if not number or not least <= value <= most or (key in ("tail", "spread") and value == 0):
            raise DataError(
                f"site: {path}: {name}: {key}: expected a number from {least:g} to {most:g}, got {shown(value)}"
            )
    return {key: float(said[key]) for key in _FACTOR_KEYS}


def _correlation(path: str, said: object, count: int) -> tuple[tuple[float, ...], ...]:
    """Return a correlation that samples can be drawn from."""
    try:
        held = np.asarray(said, dtype=np.float64)
    except (TypeError, ValueError):
        held = np.zeros(())
    sound = held.shape == (count, count) and np.isfinite(held).all()
    if (
        not sound
        or not np.allclose(held, held.T, atol=1e-4)
        or not np.allclose(np.diag(held), 1.0, atol=1e-4)
    ):
        raise DataError(
            f"site: {path}: correlation: expected {count} rows of {count} numbers, 1 on the diagonal"
        )
    # Rounding may have left it a hair below what is possible.
    values, vectors = np.linalg.eigh(0.5 * (held + held.T))
    if values.min() < -1e-3:
        raise DataError(f"site: {path}: correlation: no distribution has it")
    mended = (vectors * np.maximum(values, 1e-9)) @ vectors.T
    scale = np.sqrt(np.diag(mended))
    return tuple(tuple(row) for row in (mended / np.outer(scale, scale)).tolist())
