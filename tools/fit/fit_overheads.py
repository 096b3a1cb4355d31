"""The one constant of each recipe that may be fitted to whole runs: the share of a step nothing explains.

    python tools/fit/fit_overheads.py RUNS.csv            # report
    python tools/fit/fit_overheads.py RUNS.csv --write    # and write tables of describe/data
    python tools/fit/fit_overheads.py RUNS.csv --bands    # and write the bands alone, of the constants as they are

Kernels and collectives are priced from micro-benchmarks. What real steps take beyond that (gaps
between kernels, jitter between ranks, clocks under a mixed load) is nearly the same share in all
frameworks; the median of a recipe's runs measures it, each source weighing no more than
`SOURCE_WEIGHT` runs. Accelerators that are no GPUs have a constant of their own: their compiler fuses
and schedules otherwise. How good the constants are for what they have never seen is what the report
says: every source, and every family of sources, is scored with the constants of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from bands import bands_text, classes, error_bands

from costmodel.base.yaml_files import document_text, node
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.recipe import list_recipes, load_recipe, resolved_for
from costmodel.trust.source_families import source_family
from costmodel.trust.validation import Validation, validate

LEAST_RUNS = 7
"""Runs that a recipe needs for a constant of its own; others take the median of all."""

SOURCE_WEIGHT = 25.0
"""Runs of one source that count in full; a source with more weighs as these."""

_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

RECIPE_SPREAD = 0.07
"""Standard deviation of the constants of recipes with a source of their own."""

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

SWITCHES = {True: "overhead_fraction", False: "overhead_fraction_xla"}
"""Switch of a recipe that holds the constant, on GPUs and elsewhere."""

DEVICES = {True: "gpu", False: "xla"}
"""What the table of constants calls them."""

Constants = Mapping[tuple[str, bool], float]
"""Share by recipe family and whether the accelerator is a GPU; family "" is all others."""


def scored_runs(checked: Validation) -> pd.DataFrame:
    """Return the runs with a time, with the log of predicted over measured without any overhead."""
    runs = checked.judged.dropna(subset=["time_error"])
    is_gpu = runs.accelerator.map(lambda name: load_accelerator(name).is_gpu)
    known = pd.Series(
        [
            getattr(resolved_for(load_recipe(name), load_accelerator(device)).host, SWITCHES[gpu])
            for name, device, gpu in zip(runs.recipe, runs.accelerator, is_gpu, strict=True)
        ],
        index=runs.index,
    )
    ratio = runs.predicted_step_time_s / (1.0 + known) / runs.measured_step_time_s
    return runs.assign(
        log_ratio=np.log(ratio.astype(float)),
        family=runs.recipe.map(lambda name: FAMILIES.get(name, name)),
        source_family=runs.source.map(source_family),
        is_gpu=is_gpu,
        own_stack=runs.accelerator.map(lambda name: load_accelerator(name).has_own_stack),
        generation=runs.accelerator.map(lambda name: load_accelerator(name).generation),
    )


def weighted_median(values: pd.Series[float], weights: pd.Series[float]) -> float:
    """Return the value with as much weight below as above.

    >>> weighted_median(pd.Series([1.0, 2.0, 9.0]), pd.Series([1.0, 1.0, 1.0]))
    2.0
    """
    order = np.argsort(values.to_numpy())
    sorted_values, sorted_weights = values.to_numpy()[order], weights.to_numpy()[order]
    middle = np.cumsum(sorted_weights) - 0.5 * sorted_weights
    return float(np.interp(0.5 * sorted_weights.sum(), middle, sorted_values))


def of_generation(name: str) -> str:
    """Return what stands for all recipes on GPUs of a generation among the families of `fit_constants`."""
    return f"any on {name}"


OTHER_STACKS = "any on other stacks"
"""What stands for all recipes on GPUs whose vendor has a framework of its own, among the families of `fit_constants`."""


def fit_constants(runs: pd.DataFrame) -> dict[tuple[str, bool], float]:
    """Return the share by family and kind of accelerator; family "" is the median of all runs of the kind.

    Of GPUs also by generation (`of_generation`), where there are `LEAST_RUNS`: the older, the less it is, as kernels
    were longer beside the gaps between them. And of those beyond CUDA together (`OTHER_STACKS`), which stand for
    generations of theirs that no run is published of: kernels that nobody timed and younger libraries lose more. None is
    below zero: a step takes no less than its parts, and a port would be busy for longer than the step lasts.

    Parameters
    ----------
    runs : DataFrame
        As `scored_runs` returns them.
    """
    used = runs[~runs.source.isin(HELD_BACK)]
    of_source = used.groupby("source").log_ratio.transform("size")
    weights = np.minimum(of_source, SOURCE_WEIGHT) / of_source
    found: dict[tuple[str, bool], float] = {}
    for is_gpu, kind in used.groupby("is_gpu"):
        general = weighted_median(-kind.log_ratio, weights[kind.index])
        found["", bool(is_gpu)] = _share(general)
        for family, group in kind.groupby("family"):
            if len(group) >= LEAST_RUNS:
                own = _family_share(group, weights[group.index], general)
                found[str(family), bool(is_gpu)] = _share(own)
    for generation, group in used[used.is_gpu].groupby("generation"):
        if len(group) >= LEAST_RUNS:
            share = weighted_median(-group.log_ratio, weights[group.index])
            found[of_generation(str(generation)), True] = _share(share)
    others = used[used.is_gpu & used.own_stack]
    if len(others) >= LEAST_RUNS:
        found[OTHER_STACKS, True] = _share(weighted_median(-others.log_ratio, weights[others.index]))
    return found


def _share(logarithm: float) -> float:
    return max(float(np.expm1(logarithm)), 0.0)


def _family_share(group: pd.DataFrame, weights: pd.Series[float], general: float) -> float:
    """Return the share of one recipe, nearer to that of all the less its sources agree (logarithms).

    With several sources the squared error of their median is known: it stands against how far apart
    recipes are, `RECIPE_SPREAD`. One source says nothing of another, and is taken as it is.
    """
    own = weighted_median(-group.log_ratio, weights)
    medians = -group.groupby("source").log_ratio.median()
    counted = weights.groupby(group.source).sum()[medians.index]
    if len(medians) < 2:
        return own
    spread = (_MAD * weighted_median((medians - own).abs(), counted)) ** 2
    squared_error = spread / max(float(counted.sum()) / SOURCE_WEIGHT, 1.0)
    return general + (own - general) * RECIPE_SPREAD**2 / (RECIPE_SPREAD**2 + squared_error)


def share_of(
    constants: Constants, family: str, is_gpu: bool, generation: str = "", own_stack: bool = False
) -> float:
    """Return the constant of a recipe family, or that of all others on GPUs of the generation, of the stack, or on all."""
    usual = constants.get(("", is_gpu), 0.0)
    if own_stack:
        usual = constants.get((OTHER_STACKS, is_gpu), usual)
    usual = constants.get((of_generation(generation), is_gpu), usual)
    return constants.get((family, is_gpu), usual)


def _errors(group: pd.DataFrame, constants: Constants) -> pd.Series[float]:
    """Return relative errors of runs priced with `constants`."""
    share = pd.Series(
        [
            share_of(constants, *of)
            for of in zip(group.family, group.is_gpu, group.generation, group.own_stack, strict=True)
        ],
        index=group.index,
    )
    errors: pd.Series[float] = np.exp(group.log_ratio) * (1.0 + share) - 1.0
    return errors


def held_out_errors(runs: pd.DataFrame, by: str = "source") -> pd.DataFrame:
    """Score every group of `by` with constants that were fitted without it: a row a group.

    `by` is a column: source, source_family, or family (of the recipe, so that no run has a constant
    of its own).
    """
    rows = []
    for name, group in runs.groupby(by):
        error = _errors(group, fit_constants(runs[runs[by] != name]))
        rows.append(
            {
                by: name,
                "runs": len(group),
                "median": error.abs().median(),
                "mean": error.abs().mean(),
                "bias": error.mean(),
                "errors": error,
            }
        )
    return pd.DataFrame(rows)


def joined_errors(held_out: pd.DataFrame) -> pd.Series[float]:
    """Return the errors of all groups of `held_out_errors`, by run."""
    errors: pd.Series[float] = pd.concat(list(held_out.errors))
    return errors


def constants_text(constants: Constants, runs: pd.DataFrame) -> str:
    """Return the shares of recipes as CSV, with what each was fitted to."""
    used = runs[~runs.source.isin(HELD_BACK)]
    rows = ["recipe,on,share,basis"]
    for name in list_recipes():
        family = FAMILIES.get(name, name)
        for is_gpu, device in DEVICES.items():
            if (family, is_gpu) in constants:
                own = used[(used.family == family) & (used.is_gpu == is_gpu)]
                share = round(constants[family, is_gpu], 3) + 0.0
                rows.append(f"{name},{device},{share},{len(own)} runs of {own.source.nunique()} sources")
    rows.append(
        f"any,xla,{round(share_of(constants, '', False), 3) + 0.0},median of the recipes with enough runs"
    )
    return "\n".join(rows) + "\n"


def write_generations(constants: Constants, runs: pd.DataFrame, file: Path) -> None:
    """Write the shares of generations of GPUs, which recipes without a constant of their own take."""
    used = runs[~runs.source.isin(HELD_BACK) & runs.is_gpu]
    shares = node({})
    classes_of = [*used.groupby("generation"), ("other-stacks", used[used.own_stack]), ("any", used)]
    for generation, group in classes_of:
        family = {"any": "", "other-stacks": OTHER_STACKS}.get(
            str(generation), of_generation(str(generation))
        )
        if (family, True) in constants:
            shares[str(generation)] = round(constants[family, True], 3)
            why = f"{len(group)} runs, {group.source.nunique()} sources"
            shares.yaml_add_eol_comment(f"# {why}", str(generation))
    shares.yaml_set_start_comment(_GENERATIONS)
    file.write_text(document_text(shares))


_GENERATIONS = """Share of a step that nothing explains, by generation of GPUs: weighted medians of published runs, for recipes
with too few runs for a constant of their own; other-stacks for generations without runs beyond CUDA. Written
by python tools/fit/fit_overheads.py RUNS.csv --write"""


def left_out_errors(runs: pd.DataFrame, fitted: pd.Series[float]) -> pd.Series[float]:
    """Return the errors that bands are made of, by run: with constants that such runs did not fit, where there are any.

    On GPUs without the run's family of sources, where its class has others. A compiler of whole steps is its own class,
    whatever the chip, and hardly two families share one: elsewhere without the run's source, where the recipe keeps
    `LEAST_RUNS` of others. Where leaving it out would leave the errors of other machines, `fitted` is what there is.
    """
    by_family = joined_errors(held_out_errors(runs, "source_family"))
    by_source = joined_errors(held_out_errors(runs, "source"))
    of_class = runs.source_family.groupby(classes(runs)).transform("nunique") > 1
    of_recipe = runs.groupby(["family", "is_gpu"]).log_ratio.transform("size")
    of_source = runs.groupby(["family", "is_gpu", "source"]).log_ratio.transform("size")
    found = fitted.where(~(runs.is_gpu & of_class), by_family)
    left: pd.Series[float] = found.where(runs.is_gpu | (of_recipe - of_source < LEAST_RUNS), by_source)
    return left


def main(arguments: list[str]) -> int:
    """Fit, report, and write where asked to."""
    checked = validate(arguments[0])
    runs = scored_runs(checked)
    constants = fit_constants(runs)
    out = sys.stdout.write
    for (family, is_gpu), share in sorted(constants.items()):
        out(f"{family or 'all others':30s} {'GPU' if is_gpu else 'other':5s} {share:+.3f}\n")
    by_source = held_out_errors(runs)
    for row in by_source.itertuples():
        out(
            f"{row.source:28s} {row.runs:5d} runs  median {row.median:6.1%}  mean {row.mean:6.1%}  bias {row.bias:+6.1%}\n"
        )
    for by in ("source", "source_family", "family"):
        errors = joined_errors(by_source if by == "source" else held_out_errors(runs, by))
        for title, part in (("all", errors), ("GPUs", errors[runs.is_gpu[errors.index]])):
            out(
                f"leaving each {by} out, {title}: median {part.abs().median():.1%}, mean {part.abs().mean():.1%}, "
                f"p90 {part.abs().quantile(0.9):.1%}, bias {part.mean():+.1%}\n"
            )
    presets = Path(__file__).parents[2] / "costmodel" / "describe" / "data"
    if "--write" in arguments:
        (presets / "overheads.csv").write_text(constants_text(constants, runs))
        write_generations(constants, runs, presets / "unexplained.yaml")
    if "--write" in arguments or "--bands" in arguments:
        fitted_errors = _errors(runs, constants) if "--write" in arguments else runs.time_error
        own = left_out_errors(runs, fitted_errors)
        other = joined_errors(held_out_errors(runs, "family"))
        fitted = {
            is_gpu: [name for name in list_recipes() if (FAMILIES.get(name, name), is_gpu) in constants]
            for is_gpu in SWITCHES
        }
        priced = checked.runs[checked.runs.skipped_reason == ""]
        text = bands_text(
            error_bands(priced, own, other),
            fitted[True],
            fitted[False],
            sorted({load_accelerator(name).name for name in runs.accelerator}),
        )
        (presets / "error_bands.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
