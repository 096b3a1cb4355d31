"""Derive the spread of every uncertain factor from residuals, and write ``factors.yaml`` and ``odds.yaml`` of ``describe/data``.

    python tools/fit/fit_factors.py RUNS.csv MATMUL.csv COLLECTIVES.csv ATTENTION.csv [ATTENTION.csv …]
        [--write]

Kernels and collectives by their micro-benchmarks (`factor_residuals`); what these do not tell, by published runs whose
family of sources was left out of the fitted constants (`factor_runs`). No spread is set by hand: one that nothing tells
is lent, and says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from factor_residuals import (
    collective_residuals,
    collective_spreads,
    kernel_residuals,
    kernel_spreads,
)
from factor_runs import (
    MEMORY,
    SHARE,
    TIME,
    Left,
    known_variance,
    layout_parts,
    layout_scale,
    left_over,
    of_role,
    slopes,
    tail_of,
    variance_parts,
)
from numpy.typing import NDArray

from costmodel.describe.factors import OTHER, UNFITTED, with_tail
from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_link
from costmodel.describe.hardware.profile_files import read_yaml, shipped_folder
from costmodel.describe.odds import FitOdds
from costmodel.step.placed_job import OVERLAPPED_AXES
from costmodel.trust.published_runs import read_rows
from costmodel.trust.shares import (
    FAMILY_POWER,
    errors_of,
    fit_shares,
    fitted_runs,
    left_out_errors,
    source_family,
)
from costmodel.trust.validation import Validation, validate

Array = NDArray[np.float64]

LEAST_RUNS = 8
"""Runs that a class needs for spreads of its own."""
DEPENDS = 0.01
"""Share of a step from which a run tells something of a constant. [-]"""
POOLED = 3.0
"""Families that what classes of one kind have in common counts as, beside a class's own. [-]"""
MOST_OF_LAYOUTS = 0.9
"""Share of what is left that single layouts may differ by: something is common to the jobs of a class."""

HEAD = (
    "# Uncertain factors: median (center) and scale (spread) of the natural logarithm of each, degrees of freedom of\n"
    "# its Student's t (tail), residuals behind it (points); `like` is a role whose factors it has, with `times` their spread.\n"
    "# Written by tools/fit/fit_factors.py.\n"
)


_CORES = ("matmul.", "attention.")
KERNELS = ("matmul", "grouped_matmul", "attention")
"""Roles of kernels that are lent where no benchmark of a device is published."""


class Said(NamedTuple):
    """A line of the file; with `like`, `spread` is a multiple of the spreads of that role."""

    center: float
    spread: float
    tail: float
    points: int
    source: str
    like: str = ""


def _normal(spread: float, points: int, source: str) -> Said:
    return Said(0.0, spread, float("inf"), points, source)


def measured_spreads(matmul: Path, attention: Sequence[Path], collectives: Path) -> dict[str, Said]:
    """Return the spreads of kernels and collectives, and what is lent to those without residuals."""
    found: dict[str, Said] = {}
    for spreads in (
        kernel_spreads(kernel_residuals(matmul, attention)),
        collective_spreads(collective_residuals(collectives)),
    ):
        found |= {name: _normal(*one) for name, one in spreads.items()}
    return found | _lent()


def _lent() -> dict[str, Said]:
    """Return what devices and fabrics without residuals of their own take: how far the measured ones lie apart."""
    said: dict[str, Said] = {}
    own = [load_accelerator(name) for name in list_profiles("accelerator")]
    blocks = [a.kernels.blocks for a in own if a.kernels is not None]
    reached = [
        one.peak_fraction * (1.0 - one.sustained_loss)
        for block in blocks
        for one in block.matmul.values()
        if one.basis == "measured"
    ]
    cores = [
        max(kernel.forward.peak_fractions.values())
        for block in blocks
        for kernel in block.attention.values()
        if kernel.forward.basis == "measured"
    ]
    apart = "unlike any measured one: how far the shares of the peak of {} measured ones lie apart"
    for bits in ("32-bit", "16-bit", "8-bit", "4-bit"):
        for role in ("matmul", "grouped_matmul"):
            said[f"{role}.{OTHER}.{bits}"] = _normal(_apart(reached), 0, apart.format(len(reached)))
    said[f"attention.{OTHER}"] = _normal(_apart(cores), 0, apart.format(len(cores)))
    fitted = [
        load_link(path, size=1024)
        for path in sorted((shipped_folder() / "links").glob("*.yaml"))
        if read_yaml(path).get("fabric", {}).get("basis") == "measured"
    ]
    for part, values in (
        ("latency", [link.latency_s + link.base_latency_s for link in fitted]),
        (
            "transfer",
            [link.efficiency * link.fabric.rate_factor for link in fitted],
        ),
    ):
        said[f"collective.{OTHER}.{part}"] = _normal(
            _apart(values), 0, f"unlike any measured one: how far {len(values)} measured fabrics lie apart"
        )
    return said


def _apart(values: Sequence[float]) -> float:
    return float(np.std(np.log(np.asarray(values))))


class Runs(NamedTuple):
    """Published runs: time residuals without and with a constant of the recipe, memory residuals, slopes."""

    time: pd.DataFrame
    other: pd.Series[float]
    memory: pd.DataFrame
    priced: pd.DataFrame


def read_runs(table: Path) -> Runs:
    """Price published runs, with the constants of other families of sources, and how each depends on the factors."""
    checked = validate(table)
    return residual_runs(checked, slopes(read_rows(table)))


def residual_runs(checked: Validation, found: pd.DataFrame) -> Runs:
    """Return residuals of priced runs beside their slopes; elsewhere than on GPUs as fitted."""
    runs = fitted_runs(checked.judged)
    own = left_out_errors(runs).where(runs.is_gpu, errors_of(runs, fit_shares(runs)))
    other = left_out_errors(runs, "family")
    of_other = pd.Series(-np.log1p(other.to_numpy()), index=runs.id)
    runs = runs.assign(residual=-np.log1p(own)).set_index("id").join(found, how="inner")
    judged = checked.judged.dropna(subset=["memory_error"])
    memory = judged.assign(residual=-np.log1p(judged.memory_error)).set_index("id").join(found, how="inner")
    priced = checked.runs[checked.runs.skipped_reason == ""].set_index("id").join(found, how="inner")
    return Runs(runs, of_other, memory, priced)


def family_weights(runs: pd.DataFrame) -> Array:
    """Return weights by which a family of sources counts as the root of its runs."""
    return np.asarray(1.0 / np.sqrt(runs.groupby("source_family").residual.transform("size")))


def time_spreads(runs: Runs, known: Mapping[str, Said]) -> dict[str, Said]:
    """Return the spreads that only whole runs tell: host, memory-bound kernels, overlaps, layouts, and what is left."""
    found = dict(known)
    spreads = {name: one.spread for name, one in found.items()}
    gpu = _timed(runs.time)
    middle = gpu.residual - gpu.groupby("class").residual.transform("median")
    roles = ("launch", "memory_kernels", "overlap")
    told = variance_parts(
        middle,
        known_variance(gpu, spreads),
        {role: of_role(gpu, role) for role in roles},
        family_weights(gpu),
    )
    how = f"estimated from {len(gpu)} published runs, each family left out"
    for role, names in (
        ("launch", ["launch"]),
        ("memory_kernels", [f"memory_kernels.{OTHER}"]),
        ("overlap", [f"overlap.{axis}" for axis in OVERLAPPED_AXES]),
    ):
        said = _normal(told[role], len(gpu), how)
        if not told[role]:
            lent = [one.spread for name, one in known.items() if name.startswith(_CORES) and one.points]
            size = float(np.sqrt(np.mean(np.square(lent))))
            said = _normal(size, 0, f"lent by {len(lent)} matrix kernels: runs do not tell it from the rest")
        found |= dict.fromkeys(names, said)
    largest = float(of_role(gpu, "routing").max())
    found["routing"] = _normal(
        told["overlap"], 0, f"lent by overlaps: no published run depends on it by more than {largest:.1%}"
    )
    variance = known_variance(gpu, {name: one.spread for name, one in found.items()})
    tail = tail_of((middle / np.sqrt(variance + told[""] ** 2)).to_numpy(np.float64))
    found |= without_constant_axes(runs, found)
    return found | unexplained(runs, {name: one.spread for name, one in found.items()}, tail)


def without_constant_axes(runs: Runs, known: Mapping[str, Said]) -> dict[str, Said]:
    """Return the kernels of generations that no benchmark tells but enough runs do: what they were lent, by the root of these.

    What kernels are off is common to all runs of a generation, whose center has it; lent in full, it would be counted
    twice, and leave nothing for what the runs differ by.
    """
    found: dict[str, Said] = {}
    time = runs.time
    generations = _of_devices(time.accelerator, lambda device: device.generation)
    for generation, group in time.groupby(generations):
        for name, one in known.items():
            role, *keys = name.split(".")
            own = ".".join([role, str(generation), *keys[1:]])
            if role not in KERNELS or keys[0] != OTHER or own in known or f"{TIME}{own}" not in group:
                continue
            count = int((group[f"{TIME}{own}"].abs() > DEPENDS).sum())
            if count >= LEAST_RUNS:
                how = f"lent to {count} runs of the generation, which tell what is common to them: by their root"
                found[own] = _normal(one.spread / float(np.sqrt(count)), 0, how)
    return found


def _timed(time: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of GPUs whose kernels somebody timed: what else is off there says nothing of all others."""
    return time[time.is_gpu & _of_devices(time.accelerator, _is_timed).astype(bool)]


def _of_devices(names: pd.Series, what: Callable[[Accelerator], Any]) -> pd.Series:
    """Return something of the accelerator of every run, whose profile is read once."""
    return names.map({name: what(load_accelerator(name)) for name in names.unique()})


def _is_timed(device: Accelerator) -> bool:
    kernels = device.kernels
    return kernels is not None and any(one.basis == "measured" for one in kernels.blocks.matmul.values())


def unexplained(runs: Runs, spreads: Mapping[str, float], tail: float) -> dict[str, Said]:
    """Return what single layouts differ by, and what is left of each class beyond that and the factors with a spread."""
    time, gpu = runs.time, _timed(runs.time)
    kind = gpu["class"].str.split("-").str[-1]
    groups = {
        OTHER: gpu,
        **{f"{UNFITTED}-{name}": group for name, group in gpu.groupby(kind)},
        **_classes(time),
    }
    # What of it single layouts differ by is one share of all classes: single ones have too few sweeps.
    scale, layouts = layout_scale(gpu, tail)
    all_of_it = _left(runs.other, gpu, spreads, 1.0, tail).scale
    of_layouts = min((scale / all_of_it) ** 2, MOST_OF_LAYOUTS)
    # Few families speak of a class: some of the scale is taken from all classes of the kind.
    kinds = {
        str(name): _left(group.residual, group, spreads, of_layouts, tail, even=True)
        for name, group in gpu.groupby(kind)
    }
    # Residuals elsewhere are around constants of recipes that these runs settled, and lean on one another.
    other = time[~time.is_gpu]
    elsewhere = _left(other.residual, other, spreads, of_layouts, tail, even=True) if len(other) else None
    said: dict[str, Said] = {}
    for name, group in groups.items():
        if len(group) < LEAST_RUNS:
            continue
        seen = name == OTHER or name.startswith(UNFITTED)
        if seen:
            left = _left(runs.other[group.index], group, spreads, of_layouts, tail)
        else:
            alike = kinds[name.rpartition("-")[2]]
            if elsewhere is not None and not group.is_gpu.any():
                left = _leant(group, elsewhere, spreads, of_layouts, tail, LEAST_RUNS)
            else:
                left = _leant(group, alike, spreads, of_layouts, tail)
        of = f"{left.runs} runs of {group.source_family.nunique()} families of sources"
        how = f"{of}, {'recipes' if seen else 'families'} left out of the constants"
        common = float(np.sqrt(1.0 - of_layouts) * left.scale)
        said[f"unexplained.{name}"] = Said(0.0, common, tail, left.runs, how)
    times = float(np.sqrt(of_layouts / (1.0 - of_layouts)))
    how = f"{of_layouts:.0%} of it, as differences inside sweeps of {layouts} layouts"
    return said | {"layout": Said(0.0, times, tail, layouts, how, like="unexplained")}


def _leant(
    group: pd.DataFrame,
    alike: Left,
    spreads: Mapping[str, float],
    of_layouts: float,
    tail: float,
    family: int | None = None,
) -> Left:
    """Return what is left of a class, its scale leaning on its kind by as much as `POOLED` families.

    Where residuals are as fitted, families say no more than runs: so many of them count as a `family`.
    """
    own = _left(group.residual, group, spreads, of_layouts, tail, even=True)
    families = group.source_family.nunique() if family is None else len(group) / family
    pooled = (families * own.scale**2 + POOLED * alike.scale**2) / (families + POOLED)
    return own._replace(scale=float(np.sqrt(pooled)))


def _family_counts(group: pd.DataFrame) -> Array:
    """Return weights by which a family of sources counts as `FAMILY_POWER` of its runs."""
    size = group.groupby("source_family").residual.transform("size").to_numpy(np.float64)
    return np.asarray(size ** (FAMILY_POWER - 1.0))


def _left(
    residual: pd.Series[float],
    group: pd.DataFrame,
    spreads: Mapping[str, float],
    of_layouts: float,
    tail: float,
    *,
    even: bool = False,
) -> Left:
    """Return what is left of some runs beyond the factors with a spread; `even` weighs families by `FAMILY_POWER`."""
    known = np.asarray(known_variance(group, spreads), dtype=np.float64)
    weights = _family_counts(group) if even else np.ones(len(group))
    values = np.asarray(residual[group.index], dtype=np.float64)
    return left_over(values, known, of_layouts, tail, weights=weights)


def _classes(time: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the runs by generation and kind of model."""
    kind = np.where(time.num_experts > 0, "moe", "dense")
    generation = _of_devices(time.accelerator, lambda device: device.generation)
    return {str(name): group for name, group in time.groupby(generation + "-" + kind)}


def memory_spreads(runs: Runs) -> dict[str, Said]:
    """Return the spreads of memory, and of what a GPU gives before an allocation fails."""
    from scipy.special import ndtri

    memory = runs.memory
    on = {role: of_role(memory, role, prefix=MEMORY) for role in ("activations", "states", "slack")}
    told = told_apart(memory.residual, {role: on[role] for role in ("activations", "states")})
    # What neither depends on is the allocator's, which takes a share of both.
    told["slack"] = told.pop("")
    # Clipped squares are too small, those of single rows too large: as many runs as should lie inside settle the size.
    variance = sum(((slope * told[role]) ** 2 for role, slope in on.items()), 0.0 * memory.residual)
    reach = (memory.residual.abs() / np.sqrt(variance)).to_numpy(np.float64)
    tail = tail_of(reach)
    wider = float(np.quantile(reach, SHARE) / with_tail(np.asarray(ndtri(0.5 + 0.5 * SHARE)), tail))
    how = f"estimated from {len(memory)} measured memory peaks"
    found = {role: Said(0.0, wider * told[role], tail, len(memory), how) for role in on}
    spreads = {role: one.spread for role, one in found.items()}
    return found | {f"room.{name}": room(runs, name, one, spreads) for name, one in fit_odds(runs).items()}


def told_apart(residual: pd.Series[float], on: Mapping[str, pd.Series[float]]) -> dict[str, float]:
    """Return the spread of each factor, and "" for what is left; one spread for all where runs call one of them certain.

    Where they call all of the factors certain, what is left is of the same spread.

    Least squares give all of the variance to one of two factors that come together, and 0 to the other: runs cannot tell
    them apart, which does not make one of them exact.

    Parameters
    ----------
    residual : Series
        Of each run, of which the median is no spread. [-]
    on : mapping of str to Series
        How each run depends on the factors. [-]
    """
    from_middle, none, alike = residual - residual.median(), 0.0 * residual, np.ones(len(residual))
    told = variance_parts(from_middle, none, on, alike)
    if all(told[role] for role in on):
        return told
    together = sum((slope**2 for slope in on.values()), none) ** 0.5
    pooled = variance_parts(from_middle, none, {"all": together}, alike)
    if not pooled["all"]:
        one = variance_parts(from_middle, none, {"all": (together**2 + 1.0) ** 0.5}, alike, left=False)["all"]
        pooled = {"all": one, "": one}
    return {role: pooled["all"] for role in on} | {"": pooled[""]}


def fit_odds(runs: Runs) -> dict[str, FitOdds]:
    """Return how surely a job fits by its predicted memory: by recipe where somebody says what did not, and of others."""
    told = {
        str(name): _told_odds(group)
        for name, group in _both(runs).groupby("recipe")
        if min(group.oom.sum(), (~group.oom.astype(bool)).sum()) >= FEWEST_OUTCOMES
    }
    return {**told, OTHER: _ran_odds(_ran(runs), runs.memory)}


def _over(runs: pd.DataFrame) -> Array:
    """Return the logarithm of predicted memory over what the GPU offers. [-]"""
    offered = _of_devices(runs.accelerator, lambda device: device.memory_bytes / 2**30)
    return np.asarray(np.log((runs.predicted_need_gib / offered).to_numpy(np.float64)))


FEWEST_OUTCOMES = 10
"""Runs of a recipe that ran, and that did not, from which on they settle its odds: one failure settles nothing."""
NEAR = 0.3
"""Logarithm of predicted memory over what is offered, up to which runs that ran say something. [-]"""
WRONG = 0.02
"""Share of published runs whose memory is predicted wrong for a reason of their own: no edge explains them. [-]"""


def _ran(runs: Runs) -> pd.DataFrame:
    """Return runs of GPUs that ran close to what is offered, of sources that publish no others."""
    both = _both(runs)
    rest = runs.priced[~runs.priced.index.isin(both.index) & ~runs.priced.oom.astype(bool)]
    rest = rest[_of_devices(rest.accelerator, lambda device: device.is_gpu).astype(bool)]
    return rest[np.abs(_over(rest)) < NEAR]


def _ran_odds(ran: pd.DataFrame, memory: pd.DataFrame) -> FitOdds:
    """Return the odds of recipes that nobody published failures of: where published runs cease, and measured peaks.

    As many layouts are taken to be tried at every predicted memory around what is offered; those that ran are as many as
    fit. A peak lies about its prediction as the center of the odds about the largest peak that a GPU is known to have
    held. Families count by the root of their runs.
    """
    from scipy.optimize import minimize
    from scipy.special import ndtr

    over, at = _over(ran), np.linspace(-NEAR, NEAR, 301)
    peaks = memory[_of_devices(memory.accelerator, lambda device: device.is_gpu).astype(bool)]
    offered = _of_devices(peaks.accelerator, lambda device: device.memory_bytes / 2**30)
    held = float((peaks.measured_peak_memory_gib / offered).max())
    edge = np.log(held) - peaks.residual.to_numpy(np.float64)

    def unlikely(parameters: Array) -> float:
        center, scale = parameters[0], np.exp(parameters[1])
        fitting = float(np.mean(ndtr((center - at) / scale)))
        ceased = ndtr((center - over) / scale) / fitting
        # Relative to the uniform density of what is wrong.
        normal = np.exp(-0.5 * ((edge - center) / scale) ** 2) / (np.sqrt(2.0 * np.pi) * scale) * 2.0 * NEAR
        parts = ((_even(ran), ceased), (_even(peaks), normal))
        return -float(sum((weight * np.log((1.0 - WRONG) * one + WRONG)).sum() for weight, one in parts))

    center, log_scale = minimize(unlikely, np.array([0.0, np.log(0.1)]), method="Nelder-Mead").x
    how = f"where {len(over)} runs that ran cease, and {len(peaks)} measured peaks, the largest of {held:.1%} of a GPU's memory"
    return FitOdds(float(center), float(np.exp(log_scale)), len(over) + len(peaks), how)


def _even(runs: pd.DataFrame) -> Array:
    """Return weights by which a family of sources counts as the root of its runs."""
    families = runs.source.map(source_family)
    return np.asarray(families.groupby(families).transform("size").to_numpy(np.float64) ** -0.5)


def _told_odds(both: pd.DataFrame) -> FitOdds:
    """Return the odds by sources that say which layouts ran out of memory and which not.

    A probit fit of the outcome on the logarithm of predicted memory over what the GPU offers, of which `WRONG` are as
    likely to fail as not whatever is predicted.
    """
    from scipy.optimize import minimize
    from scipy.special import ndtr

    over = _over(both)
    failed = both.oom.to_numpy(bool)

    def unlikely(parameters: Array) -> float:
        score = (over - parameters[0]) / np.exp(parameters[1])
        outcome = ndtr(np.where(failed, score, -score))
        return -float(np.log((1.0 - WRONG) * outcome + 0.5 * WRONG).sum())

    center, log_scale = minimize(unlikely, np.array([0.0, np.log(0.1)]), method="Nelder-Mead").x
    told = f"{int(failed.sum())} runs out of memory and {int((~failed).sum())} not"
    how = f"{told}, of sources that tell both: {', '.join(sorted(both.source.unique()))}"
    return FitOdds(float(center), float(np.exp(log_scale)), len(both), how)


def room(runs: Runs, recipe: str, fits: FitOdds, spreads: Mapping[str, float]) -> Said:
    """Return what share of its memory a GPU gives: the odds of fitting, less what the other factors of memory explain."""
    both = _both(runs)
    rows = _ran(runs) if recipe == OTHER else both[both.recipe == recipe]
    held = float(known_variance(rows, spreads, prefix=MEMORY).mean())
    return Said(
        fits.center, float(np.sqrt(max(fits.spread**2 - held, 0.0))), float("inf"), fits.runs, fits.source
    )


def _both(runs: Runs) -> pd.DataFrame:
    """Return the runs of sources that say what ran out of memory and what did not."""
    both: pd.DataFrame = runs.priced.groupby("source").filter(
        lambda rows: rows.oom.any() and not rows.oom.all()
    )
    return both


def text(said: Mapping[str, Said]) -> str:
    """Return the file."""
    lines = [HEAD]
    for name, one in sorted(said.items()):
        if one.like:
            lines.append(f'{name}: {{like: {one.like}, times: {one.spread:.4f}, source: "{one.source}"}}\n')
            continue
        tail = ".inf" if np.isinf(one.tail) else f"{one.tail:g}"
        lines.append(
            f"{name}: {{center: {one.center:.4f}, spread: {one.spread:.4f}, tail: {tail}, points: {one.points}, "
            f'source: "{one.source}"}}\n'
        )
    return "".join(lines)


def odds_text(fits: Mapping[str, FitOdds], alike: Mapping[str, float]) -> str:
    """Return ``odds.yaml``: the odds of fitting, and how far layouts of one job err apart."""
    parts = ", ".join(f"{knob}: {spread:.4f}" for knob, spread in alike.items())
    lines = "".join(
        f'  {name}: {{center: {one.center:.4f}, spread: {one.spread:.4f}, runs: {one.runs}, source: "{one.source}"}}\n'
        for name, one in fits.items()
    )
    return (
        "# Whether a predicted memory fits, by recipe and by its logarithm over what a GPU offers; the spread that each\n"
        "# knob adds to a layout's own error, with what two runs of one layout differ by. Written by\n"
        "# tools/fit/fit_factors.py.\n"
        f"fits:\n{lines}"
        f"layouts: {{{parts}}}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Derive, print, and write where asked to."""
    parser = argparse.ArgumentParser(
        prog="tools/fit/fit_factors.py", description=(__doc__ or "").split("\n")[0]
    )
    for name in ("runs", "matmul", "collectives"):
        parser.add_argument(name, type=Path)
    parser.add_argument("attention", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="write describe/data/factors.yaml and odds.yaml")
    options = parser.parse_args(arguments)
    measured = measured_spreads(options.matmul, options.attention, options.collectives)
    runs = read_runs(options.runs)
    said = time_spreads(runs, measured) | memory_spreads(runs)
    gpus = runs.time[runs.time.is_gpu]
    files = {"factors.yaml": text(said), "odds.yaml": odds_text(fit_odds(runs), layout_parts(gpus))}
    for name, written in files.items():
        sys.stdout.write(written)
        if options.write:
            (Path(__file__).parents[2] / "costmodel" / "describe" / "data" / name).write_text(
                written, "utf-8"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
