"""What three runs of a source say of its others: published runs as somebody's own.

    python tools/pages/own_runs.py RUNS.csv [--draws 100] [--given 3]

Every source of at least 20 runs with a time is a site; predictions are those with the constants of other families of
sources. Three of its runs are drawn, factors are updated by them as ``calibrate runs`` does, and the others are
predicted: median error before and after, and how many lie inside p10 to p90. `best constant` is the share of the error that
is left where the one constant that suits the source best is known: no common factor does better. `their mean` is the share
where the mean of the runs that were given is that constant, with no prior at all. Runs are linear in the
factors' logarithms here (slopes of `tools/fit/factor_runs.py`), so that thousands of updates take seconds.
Also prints the intraclass correlation that `costmodel.trust.site_fit.SITE_SHARE` is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.describe.factors import ROLES, factor_name, factors, with_tail
from costmodel.trust.posterior import Priors, posterior
from costmodel.trust.published_runs import read_rows
from costmodel.trust.shares import fitted_runs, left_out_errors
from costmodel.trust.site_fit import ROW_TAIL, SITE_SHARE, prior_at_site
from costmodel.trust.validation import validate

sys.path.append(str(Path(__file__).parents[1] / "fit"))
from factor_runs import TIME, slopes

Array = NDArray[np.float64]
LEAST_RUNS, GIVEN, SHARE = 20, 3, 0.8
CLIPPED = 0.95


def site_share(residual: pd.Series, source: pd.Series) -> float:
    """Return the intraclass correlation of residuals by source, clipped."""
    reach = residual.abs().quantile(CLIPPED)
    kept = residual.clip(-reach, reach)
    count = kept.groupby(source).transform("size")
    kept, source = kept[count >= GIVEN], source[count >= GIVEN]
    groups = kept.groupby(source)
    within = ((kept - groups.transform("mean")) ** 2).sum() / (len(kept) - groups.ngroups)
    between = (groups.mean() ** 2).mean() - within * (1.0 / groups.size()).mean()
    return float(between / (between + within))


def by_factor(found: pd.DataFrame) -> pd.DataFrame:
    """Return slopes of log step time by factor: keys that share a factor are added up."""
    parts: dict[str, Any] = {}
    for column in [str(name) for name in found if str(name).startswith(TIME)]:
        role, *keys = column.removeprefix(TIME).split(".")
        if not ROLES[role].each_layout:
            name = factor_name(role, *keys)
            parts[name] = parts.get(name, 0.0) + found[column]
    return pd.DataFrame(parts)


_DRAWS = np.random.default_rng(1).standard_normal((2, 2001))
_GRID = np.linspace(0.0, 10.0, 101)
_REACH = np.quantile(np.abs(with_tail(_DRAWS[0], ROW_TAIL) + _GRID[:, None] * _DRAWS[1]), SHARE, axis=1)


def reach(variance: Array, scale: Array) -> Array:
    """Return how far the middle 80 % of a normal part and a row's own part with tails reaches."""
    ratio = np.sqrt(variance) / scale
    return np.asarray(np.where(ratio < _GRID[-1], np.interp(ratio, _GRID, _REACH), 1.2816 * ratio) * scale)


def split(kind: str) -> tuple[float, float]:
    """Return the scales of what a site shares and of a row, of a class."""
    of_class, of_layout = (factors()[factor_name(role, kind)].spread for role in ("unexplained", "layout"))
    total = of_class**2 + of_layout**2
    shared = max(of_class**2, SITE_SHARE["time"] * total)
    return float(np.sqrt(shared)), float(np.sqrt(max(total - shared, 1e-6)))


def score(runs: pd.DataFrame, parts: pd.DataFrame, draws: int, count: int = GIVEN) -> dict[str, float]:
    """Return errors and coverage of one source before and after some of its runs, means over draws."""
    names = [name for name in parts if (parts.loc[runs.id, name].abs() > 1e-6).any()]
    on = parts.loc[runs.id, names].to_numpy(np.float64)
    known = factors()
    scales = np.array([known[name].spread for name in names])
    for kind in set(runs["class"]):
        scales[names.index(factor_name("unexplained", kind))] = split(kind)[0]
    center, wider, tail = np.array([prior_at_site(name) for name in names]).T
    priors = Priors(center, np.maximum(wider * scales, 1e-3), tail)
    row = np.array([split(kind)[1] for kind in runs["class"]])
    measured = runs.r.to_numpy(np.float64)  # over predicted, logarithms
    rng, found = np.random.default_rng(0), []
    before = np.abs(np.expm1(-measured))
    wide = reach(on**2 @ priors.scale**2, row)
    for _ in range(draws):
        given = rng.choice(len(runs), count, replace=False)
        rest = np.setdiff1d(np.arange(len(runs)), given)
        told = posterior(
            lambda points, at=given: points @ on[at].T, measured[given], priors, row[given], ROW_TAIL
        )
        left = measured[rest] - on[rest] @ told.center
        within = reach(
            np.einsum("ij,jk,ik->i", on[rest], told.covariance, on[rest]), told.widening * row[rest]
        )
        found.append(
            (
                np.median(before[rest]),
                np.median(np.abs(np.expm1(-left))),
                np.mean(np.abs(measured[rest] - on[rest] @ priors.center) <= wide[rest]),
                np.mean(np.abs(left) <= within),
                np.median(wide[rest]),
                np.median(within),
                np.median(np.abs(np.expm1(measured[given].mean() - measured[rest]))),
            )
        )
    keys = ("before", "after", "inside before", "inside after", "reach before", "reach after", "their mean")
    means = dict(zip(keys, np.mean(found, axis=0).tolist(), strict=True))
    return {
        "runs": len(runs),
        **means,
        "their mean": means["their mean"] / means["before"],
        "best constant": float(least(measured) / np.median(before)),
    }


def least(residual: Array) -> float:
    """Return the median error that is left when all runs are corrected by the one constant that suits them best. [-]"""
    constants = np.linspace(residual.min(), residual.max(), 401)
    return float(np.median(np.abs(np.expm1(constants[:, None] - residual)), axis=1).min())


def main(arguments: list[str]) -> int:
    """Print the table."""
    draws, count = (
        int(arguments[arguments.index(flag) + 1]) if flag in arguments else usual
        for flag, usual in (("--draws", 100), ("--given", GIVEN))
    )
    rows = [row for row in read_rows(arguments[0]) if (row.get("use") or "time") != "none"]
    found = slopes(rows)
    checked = validate(rows)
    runs = fitted_runs(checked.judged)
    runs = runs.assign(r=-np.log1p(left_out_errors(runs)))
    runs = runs[runs.id.isin(found.index)]
    runs = runs.assign(**{"class": found.loc[runs.id, "class"].to_numpy()})
    parts = by_factor(found)
    apart = runs.r - runs.groupby("class").r.transform("median")
    memory = checked.judged.dropna(subset=["memory_error"])
    peak = -np.log1p(memory.memory_error.astype(float))
    shares = site_share(apart, runs.source), site_share(peak - peak.median(), memory.source)
    print("share of a site: time {:.2f}, memory {:.2f}".format(*shares))
    table = pd.DataFrame(
        {
            source: score(group, parts, draws, count)
            for source, group in runs.groupby("source")
            if len(group) >= LEAST_RUNS
        }
    ).T
    table.insert(3, "ratio", table.after / table.before)
    print(table.sort_values("ratio").round(3).to_string())
    weight = table.runs / table.runs.sum()
    print(
        f"{(table.ratio <= 0.65).sum()} of {len(table)} sources at 65 % or less, "
        f"{(table['best constant'] <= 0.65).sum()} with one constant that is known exactly, "
        f"{(table['their mean'] <= 0.65).sum()} with the mean of the runs that are given; inside p10 to p90, all runs alike: "
        f"{(table['inside before'] * weight).sum():.1%} before, {(table['inside after'] * weight).sum():.1%} after"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
