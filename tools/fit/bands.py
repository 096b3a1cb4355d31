"""Error bands: where measured over predicted lay for comparable runs that the fitted constants had not seen.

By generation of the accelerator and dense or mixture of experts. A recipe with a constant of its own is judged by runs
whose family of sources was left out of the fit; one without, or a machine that no published run was made on, by runs
whose recipe was left out. The next source is like none of those there are: families of sources count as a power of
their runs, and a band is as wide as
each of them needed while it was left out; where there are few, the fewer the wider, by Student's t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from factor_runs import weighted_quantile
from numpy.typing import NDArray

from costmodel.describe.hardware.hardware import list_profiles, load_accelerator
from costmodel.estimates.priced_job import LARGE
from costmodel.physics.run.distributions import student_quantile
from costmodel.trust.shares import FAMILY_POWER, source_family

LEAST_RUNS = 8
"""Runs that a band needs."""
LEAST_PEAKS = 50
"""Measured memory peaks that a class needs for a band of its own: a source publishes many of one job, alike to a byte."""

SHARE = 0.8
"""Of the runs, that a band holds."""

_Z = 1.2816
"""Standard normal quantile of its upper end."""

FEWEST_FAMILIES = 4
"""Families of sources of which `SHARE` of one more than there are is no more than all: what one left out needs is known."""

Array = NDArray[np.float64]
Bands = dict[str, dict[str, float]]

HEAD = (
    "# Measured over predicted: the middle 80 % of published runs, by generation and kind of model. Step times are\n"
    "# those of sources whose family (all containers of a framework) was left out of the fitted constants;\n"
    '# "unfitted" those whose recipe was, "estimated" of them those on machines of generations whose kernels nobody\n'
    '# timed, "large" those on more than 2,000 GPUs. Families of sources count as the 3/4 power of their runs. A band is\n'
    "# as wide as families needed while they were left out of it, few of them widen it (Student's t), one alone has at\n"
    "# least the estimated one. Written by tools/fit/fit_overheads.py.\n"
)


def classes(runs: pd.DataFrame) -> pd.Series[str]:
    """Return generation and kind of model of every run: `hopper-moe`."""
    generation = runs.accelerator.map(lambda name: load_accelerator(name).generation)
    kind = runs.num_experts.map(lambda experts: "moe" if experts else "dense")
    joined: pd.Series[str] = generation + "-" + kind
    return joined


def unmeasured(accelerators: pd.Series[str]) -> pd.Series[bool]:
    """Return whether the products of nothing of an accelerator's generation are measured, by run."""
    shipped = [load_accelerator(name) for name in list_profiles("accelerator")]
    measured = {one.generation for one in shipped if not one.is_estimated}
    found: pd.Series[bool] = ~accelerators.map(lambda name: load_accelerator(name).generation in measured)
    return found


def band(errors: pd.Series[float], families: pd.Series[str]) -> dict[str, float]:
    """Return the middle `SHARE` of measured over predicted, as much wider as a family needs that had no part in it.

    How far runs lie outside of the band of all other families (negative inside) is a score, whose quantile is added on
    both sides: conformalised quantiles (Romano et al., arXiv:1905.03222), with families in place of runs left out.
    Fewer than `FEWEST_FAMILIES` say nothing of that; by Student's t they are the wider the fewer they are.
    """
    of = families[errors.index]
    size = of.groupby(of).transform("size").to_numpy(np.float64)
    weights, logs = size ** (FAMILY_POWER - 1.0), -np.log1p(errors.to_numpy(np.float64))
    low, high = _middle(logs, weights)
    sources, wider = of.nunique(), 0.0
    if sources >= FEWEST_FAMILIES:
        outside = np.zeros(len(logs))
        for name in of.unique():
            own = (of == name).to_numpy()
            least, most = _middle(logs[~own], weights[~own])
            outside[own] = np.maximum(least - logs[own], logs[own] - most)
        wider = max(weighted_quantile(outside, weights, SHARE), 0.5 * (low - high))
    elif sources > 1:
        wider = 0.5 * (high - low) * (float(student_quantile(sources - 1.0, _Z)) / _Z - 1.0)
    return {
        "low": round(float(np.exp(low - wider)), 3),
        "high": round(float(np.exp(high + wider)), 3),
        "runs": len(errors),
        "sources": sources,
    }


def _middle(logs: Array, weights: Array) -> tuple[float, float]:
    """Return the ends of the middle `SHARE` of the weight."""
    low, high = (weighted_quantile(logs, weights, 0.5 + side * SHARE) for side in (-0.5, 0.5))
    return low, high


def at_least(one: dict[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return a band that holds another too."""
    return {**one, "low": min(one["low"], other["low"]), "high": max(one["high"], other["high"])}


def error_bands(runs: pd.DataFrame, own: pd.Series[float], other: pd.Series[float]) -> dict[str, Bands]:
    """Return the bands of step time and of memory.

    Parameters
    ----------
    runs : DataFrame
        Of a `Validation`: all that were priced.
    own, other : Series
        Errors of step time by run, with the constants of other families of sources, and of other recipes.
    """
    of_run = classes(runs)
    kind = "any-" + of_run.str.split("-").str[-1]
    families = runs.source.map(source_family)

    def bands(errors: pd.Series[float], by: pd.Series[str], least: int = LEAST_RUNS) -> Bands:
        groups = errors.groupby(by[errors.index])
        return {str(key): band(group, families) for key, group in groups if len(group) >= least}

    # What a machine is worth whose kernels nobody timed shows on those that were priced so.
    guessed = bands(other[unmeasured(runs.accelerator[other.index])], kind)
    time = {f"{key}-estimated": one for key, one in guessed.items()}
    for key, one in bands(own, of_run).items():
        alone = time.get(f"any-{key.rpartition('-')[2]}-estimated")
        time[key] = at_least(one, alone) if alone and one["sources"] < 2 else one
    for key, one in (bands(other, of_run) | bands(other, kind)).items():
        time[f"{key}-unfitted"] = at_least(one, time.get(key, one))
    large = own[runs.gpus[own.index] > LARGE]
    if len(large) >= LEAST_RUNS:
        time["any-large"] = band(large, families)
    errors = runs[runs.quality.isin(["A", "B"])].memory_error.dropna()
    return {"time": time, "memory": {**bands(errors, of_run, LEAST_PEAKS), "any": band(errors, families)}}


def coverage(
    runs: pd.DataFrame, errors: pd.Series[float], bands: Mapping[str, Mapping[str, float]]
) -> pd.DataFrame:
    """Return the share of runs inside the band of their class: a row a class, with its runs."""
    of_run = classes(runs.loc[errors.index])
    ratio = 1.0 / (1.0 + errors)
    rows = []
    for key, group in ratio.groupby(of_run):
        if key in bands:
            found = bands[str(key)]
            inside = (group >= found["low"]) & (group <= found["high"])
            rows.append({"class": key, "runs": len(group), "inside": float(inside.mean())})
    return pd.DataFrame(rows, columns=["class", "runs", "inside"])


def bands_text(
    bands: Mapping[str, Bands],
    accelerators: Sequence[str],
) -> str:
    """Return bands as YAML, with the machines measured."""
    lines = [HEAD]
    for of, held in bands.items():
        lines.append(f"{of}:\n")
        lines += [
            f"  {key}: {{low: {one['low']}, high: {one['high']}, runs: {one['runs']:.0f}, sources: {one['sources']:.0f}}}\n"
            for key, one in sorted(held.items())
        ]
    lines.append(f"accelerators: [{', '.join(accelerators)}]\n")
    return "".join(lines)
