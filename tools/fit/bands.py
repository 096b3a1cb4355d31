"""Error bands: where measured over predicted lay for comparable runs that the fitted constants had not seen.

By generation of the accelerator and dense or mixture of experts. A recipe with a constant of its own is
judged by runs whose family of sources was left out of the fit; one without, or a machine that no published
run was made on, by runs whose recipe was left out, which is wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from costmodel.describe.hardware.hardware import list_profiles, load_accelerator

LEAST_RUNS = 8
"""Runs that a band needs."""

SHARE = 0.8
"""Of the runs, that a band holds."""

Bands = dict[str, dict[str, float]]

HEAD = (
    "# Measured over predicted: the middle 80 % of published runs, by generation and kind of model. Step times are\n"
    "# those of sources whose family (all containers of a framework) was left out of the fitted constants;\n"
    '# "unfitted" those whose recipe was, "estimated" of them those on machines of generations whose kernels nobody\n'
    "# timed. Written by tools/fit/fit_overheads.py.\n"
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


def band(errors: pd.Series[float]) -> dict[str, float]:
    """Return the middle `SHARE` of measured over predicted."""
    ratio = 1.0 / (1.0 + errors)
    return {
        "low": round(float(ratio.quantile(0.5 - 0.5 * SHARE)), 3),
        "high": round(float(ratio.quantile(0.5 + 0.5 * SHARE)), 3),
        "runs": len(errors),
    }


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
    time: Bands = {}
    for ending, errors in (("", own), ("-unfitted", other)):
        groups = dict(list(errors.groupby(of_run[errors.index])))
        kinds = dict(list(errors.groupby("any-" + of_run[errors.index].str.split("-").str[-1])))
        time |= {
            f"{key}{ending}": band(group)
            for key, group in {**groups, **(kinds if ending else {})}.items()
            if len(group) >= LEAST_RUNS
        }
    # What a machine is worth whose kernels nobody timed shows on those that were priced so.
    guessed = other[unmeasured(runs.accelerator[other.index])]
    for kind, errors in guessed.groupby("any-" + of_run[guessed.index].str.split("-").str[-1]):
        if len(errors) >= LEAST_RUNS:
            time[f"{kind}-estimated"] = band(errors)
    judged = runs[runs.quality.isin(["A", "B"])]
    errors = judged.memory_error.dropna()
    memory = {
        str(key): band(group)
        for key, group in errors.groupby(of_run[errors.index])
        if len(group) >= LEAST_RUNS
    }
    return {"time": time, "memory": {**memory, "any": band(errors)}}


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
    recipes: Sequence[str],
    recipes_xla: Sequence[str],
    accelerators: Sequence[str],
) -> str:
    """Return bands as YAML, with the recipes that have a constant of their own and the machines measured.

    `recipes` have it on GPUs, `recipes_xla` elsewhere.
    """
    lines = [HEAD]
    for of, held in bands.items():
        lines.append(f"{of}:\n")
        lines += [
            f"  {key}: {{low: {one['low']}, high: {one['high']}, runs: {one['runs']:.0f}}}\n"
            for key, one in sorted(held.items())
        ]
    lines += [
        f"fitted_recipes: [{', '.join(recipes)}]\n",
        f"fitted_recipes_xla: [{', '.join(recipes_xla)}]\n",
        f"accelerators: [{', '.join(accelerators)}]\n",
    ]
    return "".join(lines)
