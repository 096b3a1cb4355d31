r"""What published runs say of uncertain factors: how each run depends on them, and what their residuals leave.

A run's residual is the logarithm of measured over predicted with the constants of other families of sources. To first
order it is the sum of what each factor is off, times how the run depends on it:
:math:`r = \sum_j g_j \log f_j + e`. Squares of residuals then tell the variances that no micro-benchmark gives
(least squares with none below 0), differences inside a sweep what single layouts differ by, and the residuals of a
class what nothing explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.describe.factors import Factors, factor_keys, factor_name, job_class, nearest, with_tail
from costmodel.estimates.estimate import estimate_job
from costmodel.trust.published_runs import Row, job_of_row

Array = NDArray[np.float64]

STEP = 0.1
"""Of a factor's logarithm, to each side, over which its slope is taken."""
CLIPPED = 0.95
"""Squares beyond this quantile count as it: single rows with a reason of their own must not rule."""
SHARE = 0.8
SWEEP = ("source", "model", "gpus", "global_batch")
"""Columns that layouts of one job share."""
LEAST_LAYOUTS = 3
TIME, MEMORY = "time:", "memory:"


def slopes(rows: Iterable[Row]) -> pd.DataFrame:
    """Return how each run depends on each factor: a row a run by its `id`, and its class.

    Columns are roles with their keys, after ``time:`` of log step time and after ``memory:`` of log memory per GPU.
    """
    found = {}
    for row in rows:
        try:
            job = job_of_row(row)
        except CostModelError:
            continue
        keys = factor_keys(job)
        names = [factor_name(*one) for one in keys]
        # Keys that share a factor stand for it once.
        used = [index for index, name in enumerate(names) if names.index(name) == index]
        values = {names[index]: np.ones(2 * len(used)) for index in used}
        for place, index in enumerate(used):
            values[names[index]][2 * place : 2 * place + 2] = np.exp([STEP, -STEP])
        est = estimate_job(replace(job, factors=Factors(values)))
        of = {TIME: est.step_time_s, MEMORY: est.memory_bytes_per_gpu}
        found[row["id"]] = {
            f"{what}{'.'.join(keys[index])}": slope
            for what, figure in of.items()
            for index, slope in zip(used, _slopes(figure, len(used)), strict=True)
        } | {"class": job_class(job)}
    return pd.DataFrame.from_dict(found, orient="index").fillna(0.0)


def _slopes(figure: Array, count: int) -> Array:
    held = np.log(np.broadcast_to(figure, (2 * count,))).reshape(count, 2)
    return np.asarray((held[:, 0] - held[:, 1]) / (2.0 * STEP))


def known_variance(
    found: pd.DataFrame, spreads: Mapping[str, float], *, prefix: str = TIME
) -> pd.Series[float]:
    """Return the variance of each run's logarithm from factors with a spread; others are left out."""
    total = pd.Series(0.0, index=found.index)
    for column in _columns(found, prefix):
        role, *keys = column.removeprefix(prefix).split(".")
        try:
            spread = spreads[nearest(role, keys, spreads)]
        except CostModelError:
            continue
        total += (found[column] * spread) ** 2
    return total


def of_role(found: pd.DataFrame, role: str, *, prefix: str = TIME) -> pd.Series[float]:
    """Return the size of each run's dependence on all factors of a role together."""
    columns = [name for name in _columns(found, prefix) if name.removeprefix(prefix).split(".")[0] == role]
    size: pd.Series[float] = (found[columns] ** 2).sum(axis=1) ** 0.5
    return size


def _columns(found: pd.DataFrame, prefix: str) -> list[str]:
    """Return the slopes of one figure."""
    return [str(name) for name in found if str(name).startswith(prefix)]


def variance_parts(
    residual: pd.Series[float],
    known: pd.Series[float],
    on: Mapping[str, pd.Series[float]],
    weights: Array,
    *,
    left: bool = True,
) -> dict[str, float]:
    """Return the spread of each of several factors that runs tell together, and "" for what is left.

    Parameters
    ----------
    residual : Series
        Of each run, around the middle of its class. [-]
    known : Series
        Variance that other factors explain. [-]
    on : mapping of str to Series
        How each run depends on the factors looked for. [-]
    weights : Array
        Of each run. [-]
    left : bool
        Whether something may be left that depends on none of them.
    """
    from scipy.optimize import nnls

    square = residual.to_numpy(np.float64) ** 2
    square = np.minimum(square, np.quantile(square, CLIPPED)) - known.to_numpy(np.float64)
    names = [*on, *([""] if left else [])]
    terms = np.column_stack(
        [
            *(slope.to_numpy(np.float64) ** 2 for slope in on.values()),
            *([np.ones(len(square))] if left else []),
        ]
    )
    root = np.sqrt(weights)
    found, _ = nnls(terms * root[:, None], square * root)
    return dict(zip(names, np.sqrt(found).tolist(), strict=True))


def layout_scale(runs: pd.DataFrame, tail: float) -> tuple[float, int]:
    """Return the scale of what layouts of one job differ by, and how many layouts say so; 0 and none where no sweep is.

    By the quantile that holds `SHARE` of the differences of two residuals of a sweep, each layout counted alike.

    Parameters
    ----------
    runs : DataFrame
        With `residual` and the columns of `SWEEP`.
    tail : float
        Degrees of freedom of Student's t that each layout has.
    """
    apart, weights, count = [np.zeros(0)], [np.zeros(0)], 0
    for _, group in runs.groupby(list(SWEEP)):
        if len(group) < LEAST_LAYOUTS:
            continue
        i, j = np.triu_indices(len(group), 1)
        values = group.residual.to_numpy(np.float64)
        apart.append(np.abs(values[i] - values[j]))
        weights.append(np.full(len(i), len(group) / len(i)))
        count += len(group)
    if not count:
        return 0.0, 0
    drawn = with_tail(_normal_draws(), tail)
    unit = float(np.quantile(np.abs(drawn[0] - drawn[1]), SHARE))
    return weighted_quantile(np.concatenate(apart), np.concatenate(weights), SHARE) / unit, count


SETTLES = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")
"""Knobs whose value a layout's own error goes with; those of the others differ no more than two runs of one layout."""
SHRUNK_BY = 50
"""Pairs that count as much as the mean of all knobs does, in what one knob makes. [-]"""


def layout_parts(runs: pd.DataFrame) -> dict[str, float]:
    """Return the spread that each knob adds to a layout's error, and ``run``: what two runs of one layout differ by. [-]

    Half of the squared differences of residuals inside sweeps, of runs that differ in nothing but the layout, by least
    squares with none below 0, each shrunk to the mean of all knobs: two pairs say little of one. Layouts with another
    micro-batch or other virtual stages alone are found to differ no more than two runs of one layout do.

    Parameters
    ----------
    runs : DataFrame
        With `residual`, `layout` (as `Run.layout`), `precision` and the columns of `SWEEP`.
    """
    from scipy.optimize import nnls

    names = {**{knob: knob for knob in SETTLES}, "mbs": "micro_batch", "vp": "vp"}
    held = {
        said: runs.layout.str.extract(rf"(?:^| ){name}([^ ]*)", expand=False).fillna("")
        for name, said in names.items()
    }
    rest = runs.layout.str.extract(r"( seq_len[^ ]*).*?( switches.*)").fillna("").sum(axis=1) + runs.precision
    differs, halves, weights = [], [], []
    for _, group in runs.groupby([*(runs[name] for name in SWEEP), rest]):
        i, j = np.triu_indices(len(group), 1)
        columns = [values[group.index].to_numpy() for values in held.values()]
        differs.append(np.column_stack([*(one[i] != one[j] for one in columns), np.ones(len(i))]))
        values = group.residual.to_numpy(np.float64)
        halves.append(0.5 * (values[i] - values[j]) ** 2)
        weights.append(np.full(len(i), len(group) / max(len(i), 1)))
    terms, square = np.vstack(differs).astype(float), np.concatenate(halves)
    root = np.sqrt(np.concatenate(weights))
    square = np.minimum(square, np.quantile(square, CLIPPED))
    found, _ = nnls(terms * root[:, None], square * root)
    part_of = dict(zip([*held, "run"], found.tolist(), strict=True))
    pairs = dict(zip(held, terms[:, :-1].sum(axis=0).tolist(), strict=True))
    mean = sum(pairs[knob] * part_of[knob] for knob in SETTLES) / sum(pairs[knob] for knob in SETTLES)
    shrunk = {
        knob: (pairs[knob] * part_of[knob] + SHRUNK_BY * mean) / (pairs[knob] + SHRUNK_BY) for knob in SETTLES
    }
    return {knob: float(np.sqrt(part)) for knob, part in {**shrunk, "run": part_of["run"]}.items()}


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Return the value that a share of the weight does not exceed.

    >>> weighted_quantile(np.array([1.0, 2.0, 3.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values)
    held = np.cumsum(weights[order]) - 0.5 * weights[order]
    return float(np.interp(share * weights.sum(), held, values[order]))


class Left(NamedTuple):
    """What nothing explains in a class: scale of its logarithm about what a bill says, and the runs that say so."""

    scale: float
    runs: int


def left_over(
    residual: Array,
    known: Array,
    of_layouts: float,
    tail: float,
    *,
    weights: Array | None = None,
) -> Left:
    """Return what is left of a class, so that the middle `SHARE` of all parts together holds as many of its runs.

    The interval is around what bills say, which is the median: constants are fitted to medians of runs.

    Parameters
    ----------
    residual, known : Array
        Of each run: its residual, and the variance of the factors with a spread. [-]
    weights : Array, optional
        Of each run. [-]
    of_layouts : float
        Share of what is left that single layouts differ by; the rest is common to a class. [-]
    tail : float
        Degrees of freedom of Student's t of both.
    """
    weights = np.ones(len(residual)) if weights is None else weights
    reach = np.abs(residual)
    least, most = 0.0, 2.0
    for _ in range(15):
        middle = 0.5 * (least + most)
        inside = reach <= interval_reach(known, of_layouts, middle, tail)
        short = np.average(inside, weights=weights) < SHARE
        least, most = (middle, most) if short else (least, middle)
    return Left(most, len(residual))


def interval_reach(known: Array, of_layouts: float, scale: float, tail: float) -> Array:
    """Return how far the middle `SHARE` of a sum reaches: a normal part of a variance, and two with tails."""
    grid = np.linspace(0.0, np.sqrt(np.max(known, initial=1e-12)) + 1e-6, 9)
    normal, of_layout, of_class = _tailed_draws(tail)
    unit = np.sqrt(of_layouts) * of_layout + np.sqrt(1.0 - of_layouts) * of_class
    drawn = np.abs(grid[:, None] * normal + scale * unit)
    return np.asarray(np.interp(np.sqrt(known), grid, np.quantile(drawn, SHARE, axis=1)))


@cache
def _tailed_draws(tail: float) -> Array:
    """Return a normal sample and two of Student's t, spread evenly over their space."""
    normal, *others = _normal_draws()
    return np.stack([normal, *(with_tail(z, tail) for z in others)])


@cache
def _normal_draws() -> Array:
    """Return three independent normal samples, spread evenly over their space (scrambled Sobol points)."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    return np.asarray(ndtri(Sobol(3, seed=0).random_base2(12)).T)


def tail_of(standard: Array) -> float:
    """Return the degrees of freedom of Student's t that scaled residuals look like: 3 and more.

    By the ratio of p95 to p80 of their size: both are quantiles that single rows do not rule.
    """
    from scipy.special import stdtrit

    ratio = float(np.quantile(np.abs(standard), 0.95) / np.quantile(np.abs(standard), 0.8))
    degrees = np.array([3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 30.0])
    ratios = stdtrit(degrees, 0.975) / stdtrit(degrees, 0.9)
    return float(degrees[int(np.argmin(np.abs(ratios - ratio)))])
