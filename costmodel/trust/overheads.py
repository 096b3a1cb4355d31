"""The one constant of each recipe that may be fitted to whole runs: the share of a step nothing explains.

    python -m costmodel.trust.overheads RUNS.csv            # report
    python -m costmodel.trust.overheads RUNS.csv --write    # and write describe/data/recipes, describe/data/error_bands.yaml

Kernels and collectives are priced from micro-benchmarks. What real steps take beyond that (gaps
between kernels, jitter between ranks, clocks under a mixed load) is nearly the same share in all
frameworks; the median of a recipe's runs measures it. How good the constant is for a source that
it has never seen is what the report says: every source is scored with the constant of the
recipe's other sources, or, where it has none, with the median of the other recipes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from costmodel.base.yaml_files import document, document_text, node
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.recipe import list_recipes, load_recipe
from costmodel.trust.validation import Validation, validate

LEAST_RUNS = 8
"""Runs that a recipe needs for a constant of its own; others take the median of all."""

FAMILIES: Mapping[str, str] = {
    "megatron-2022": "megatron-2021",
    "megatron-deepspeed-blocking": "megatron-deepspeed",
    "composer-fsdp-torch1": "composer-fsdp",
    "megatron-bridge-2606": "megatron-bridge",
    "torchtitan-2024": "torchtitan",
}
"""Recipes of one framework share a constant."""

HELD_BACK = ("korthikanti22", "deepseek-v3", "llama3", "megatron-moe-modelzoo")
"""Sources of the README's known runs: never used in a fit."""


def scored_runs(checked: Validation) -> pd.DataFrame:
    """Return the runs with a time, with the log of predicted over measured without any overhead."""
    runs = checked.judged.dropna(subset=["time_error"])
    known = runs.recipe.map(lambda name: load_recipe(name).host.overhead_fraction)
    ratio = runs.predicted_step_time_s / (1.0 + known) / runs.measured_step_time_s
    return runs.assign(
        log_ratio=np.log(ratio.astype(float)), family=runs.recipe.map(lambda name: FAMILIES.get(name, name))
    )


def fit_constants(runs: pd.DataFrame) -> dict[str, float]:
    """Return the share by family, those with enough runs; key "" is the median of them.

    Parameters
    ----------
    runs : DataFrame
        As `scored_runs` returns them.
    """
    used = runs[~runs.source.isin(HELD_BACK)]
    found = {
        str(family): float(np.expm1(-group.log_ratio.median()))
        for family, group in used.groupby("family")
        if len(group) >= LEAST_RUNS
    }
    return {**found, "": float(np.median(list(found.values())))}


def held_out_errors(runs: pd.DataFrame) -> pd.DataFrame:
    """Score every source with constants that were fitted without it: a row a source."""
    rows = []
    for source, group in runs.groupby("source"):
        constants = fit_constants(runs[runs.source != source])
        share = group.family.map(lambda family, known=constants: known.get(family, known[""]))
        error = np.exp(group.log_ratio) * (1.0 + share) - 1.0
        rows.append(
            {
                "source": source,
                "runs": len(group),
                "median": error.abs().median(),
                "mean": error.abs().mean(),
                "bias": error.mean(),
                "errors": error,
            }
        )
    return pd.DataFrame(rows)


def write_constants(constants: Mapping[str, float], runs: pd.DataFrame, folder: Path) -> None:
    """Write `overhead_fraction` into the recipe files of `folder`, with what it was fitted to."""
    used = runs[~runs.source.isin(HELD_BACK)]
    for name in list_recipes():
        family = FAMILIES.get(name, name)
        own = used[used.family == family]
        if family in constants:
            why = f"fitted to {len(own)} runs of {own.source.nunique()} sources"
        else:
            why = "median of the recipes with enough runs"
        path = folder / f"{name}.yaml"
        recipe = document(path.read_text())
        host = recipe.setdefault("host", node({}))
        host["overhead_fraction"] = round(constants.get(family, constants[""]), 3)
        host.yaml_add_eol_comment(f"# {why}, trust/overheads.py", "overhead_fraction")
        path.write_text(document_text(recipe))


def error_bands(held_out: pd.DataFrame, runs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return where 80 % of measured over predicted lie, by accelerator generation and dense or MoE.

    The errors are those of `held_out_errors`: of sources that the constants had not seen.
    """
    errors = pd.concat(list(held_out.errors))
    generation = runs.accelerator.map(lambda name: load_accelerator(name).generation)
    kind = runs.num_experts.map(lambda experts: "moe" if experts else "dense")
    bands = {}
    for key, group in errors.groupby([generation.loc[errors.index], kind.loc[errors.index]]):
        ratio = 1.0 / (1.0 + group)
        if len(group) >= LEAST_RUNS:
            bands["-".join(str(part) for part in key)] = {
                "low": round(float(ratio.quantile(0.1)), 3),
                "high": round(float(ratio.quantile(0.9)), 3),
                "runs": len(group),
            }
    return bands


def write_bands(bands: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write the bands as YAML."""
    head = (
        "# Measured over predicted step time: the middle 80 % of published runs, each source held out.\n"
        "# Written by costmodel.trust.overheads.\n"
    )
    rows = (
        f"{key}: {{low: {band['low']}, high: {band['high']}, runs: {band['runs']}}}\n"
        for key, band in bands.items()
    )
    path.write_text(head + "".join(rows))


def main(arguments: list[str]) -> int:
    """Fit, report, and write where asked to."""
    runs = scored_runs(validate(arguments[0]))
    constants = fit_constants(runs)
    out = sys.stdout.write
    for family, share in sorted(constants.items()):
        out(f"{family or 'all others':30s} {share:+.3f}\n")
    held_out = held_out_errors(runs)
    errors = pd.concat(list(held_out.errors))
    for row in held_out.itertuples():
        out(
            f"{row.source:28s} {row.runs:5d} runs  median {row.median:6.1%}  mean {row.mean:6.1%}  bias {row.bias:+6.1%}\n"
        )
    out(
        f"leaving each source out: median {errors.abs().median():.1%}, mean {errors.abs().mean():.1%}, "
        f"p90 {errors.abs().quantile(0.9):.1%}, bias {errors.mean():+.1%}\n"
    )
    if "--write" in arguments:
        presets = Path(__file__).parents[1] / "describe" / "data"
        write_constants(constants, runs, presets / "recipes")
        write_bands(error_bands(held_out, runs), presets / "error_bands.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
