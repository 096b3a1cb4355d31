"""The one constant that is fitted to whole runs, the share of a step's passes that nothing explains, and runs left out.

Kernels and collectives are priced from micro-benchmarks. What real steps take beyond that (jitter between ranks, clocks
under a mixed load, caches that others fill) is a share that a generation of devices has in all frameworks, and how far a
recipe lies from it there, which is believed by `sources / (sources + 1/2)` and no more than half from one family of
sources. How good that is for what nobody has published shows on runs whose family of sources was left out of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.recipe import share_keys

LEAST_RUNS = 7
"""Runs that a generation, or a recipe on it, needs for a share of its own."""

SOURCE_WEIGHT = 60.0
"""Runs of one family of sources that count in full; a family with more weighs as these."""

ALIKE: Mapping[str, str] = {
    "megatron-2022": "megatron-2021",
    "megatron-deepspeed-blocking": "megatron-deepspeed",
    "composer-fsdp-torch1": "composer-fsdp",
    "megatron-bridge-2606": "megatron-bridge",
    "torchtitan-2024": "torchtitan",
}
"""Recipes of one framework share a constant: name -> the framework's."""

HELD_BACK = ("korthikanti22", "deepseek-v3", "llama3", "megatron-moe-modelzoo")
"""Sources of the README's known runs: never used in a fit."""


_FAMILY_STARTS = {
    "dgxc-maxtext": "maxtext",
    "dgxc-pax": "maxtext",
    "megatron-bridge": "megatron-bridge",
    "mbridge": "megatron-bridge",
    "dgxc": "nemo",
    "nemo-automodel": "nemo-automodel",
    "nemo": "nemo",
    "mlperf": "mlperf",
    "vtrain": "vtrain",
    "tpu-recipes": "maxtext",
    "maxtext": "maxtext",
    "torchtitan": "torchtitan",
    "torchao": "torchtitan",
}
"""Start of a source's name -> its family; the first that fits. Other sources are families of their own."""


def source_family(source: str) -> str:
    """Return the family of a source: tables that are near-copies of one another, as of containers of one framework.

    What a prediction is worth where nobody has measured shows only when all of a family are left out.
    """
    return next((family for start, family in _FAMILY_STARTS.items() if source.startswith(start)), source)


class Share(NamedTuple):
    """A share of the passes that nothing explains, and what it was fitted to."""

    share: float
    runs: int
    sources: int
    """Families of sources."""
    spread: float
    """Standard deviation of the medians of families of sources, as logarithms; nan of one. [-]"""


Shares = Mapping[tuple[str, str], Share]
"""By recipe and kind of device: a generation; of ``any`` recipe also `gpu`, `other-stacks` (GPUs beyond CUDA), `other`."""


def fitted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a time of `Validation.judged`, with what their fit needs."""
    runs = runs.dropna(subset=["time_error"])
    devices = {name: load_accelerator(name) for name in set(runs.accelerator)}
    fixed_s = runs.predicted_step_time_s - runs.predicted_unexplained_s - runs.predicted_shared_s
    factor = (runs.measured_step_time_s - fixed_s) / runs.predicted_shared_s
    return runs.assign(
        fixed_s=fixed_s,
        needed=np.log(np.maximum(factor.astype(float), 0.1)),
        family=runs.recipe.map(lambda name: ALIKE.get(name, name)),
        source_family=runs.source.map(source_family),
        is_gpu=runs.accelerator.map(lambda name: devices[name].is_gpu),
        own_stack=runs.accelerator.map(lambda name: devices[name].has_own_stack),
        generation=runs.accelerator.map(lambda name: devices[name].generation),
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


def fit_shares(runs: pd.DataFrame) -> dict[tuple[str, str], Share]:
    """Return the shares of all kinds of devices, and of recipes on generations of them.

    None is below zero: a step takes no less than its parts, and a port would be busy for longer than the step lasts.
    """
    used = runs[~runs.source.isin(HELD_BACK)]
    of_family = used.groupby("source_family").needed.transform("size")
    weights = np.minimum(of_family, SOURCE_WEIGHT) / of_family
    groups = [("gpu", used[used.is_gpu]), ("other", used[~used.is_gpu])]
    groups += [("other-stacks", used[used.is_gpu & used.own_stack]), *used.groupby("generation")]
    found: dict[tuple[str, str], Share] = {}
    for kind, group in groups:
        if len(group) >= LEAST_RUNS:
            found["any", str(kind)] = _share(weighted_median(group.needed, weights[group.index]), group)
    for (family, on), group in used.groupby(["family", "generation"]):
        if len(group) >= LEAST_RUNS:
            usual = float(np.log1p(found["any", str(on)].share))
            sources = group.source_family.nunique()
            believed = sources / (sources + 0.5) if sources > 1 else 0.5
            own = weighted_median(group.needed, weights[group.index])
            found[str(family), str(on)] = _share(usual + believed * (own - usual), group)
    return found


def _share(logarithm: float, group: pd.DataFrame) -> Share:
    medians = group.groupby("source_family").needed.median()
    return Share(max(float(np.expm1(logarithm)), 0.0), len(group), len(medians), float(medians.std()))


def errors_with(runs: pd.DataFrame, shares: Shares) -> pd.Series[float]:
    """Return the relative errors of runs priced with other shares, by run."""
    wanted = [
        share_keys(*of) for of in zip(runs.family, map(load_accelerator, runs.accelerator), strict=True)
    ]
    found = [next((shares[key].share for key in keys if key in shares), 0.0) for keys in wanted]
    share = pd.Series(found, index=runs.index, dtype=float)
    predicted = runs.fixed_s + (1.0 + share) * runs.predicted_shared_s
    errors: pd.Series[float] = (predicted / runs.measured_step_time_s).astype(float) - 1.0
    return errors


def left_out_errors(runs: pd.DataFrame, by: str = "source_family") -> pd.Series[float]:
    """Return the errors of every run with shares that its group did not fit.

    Groups are by source, source_family, or family (of the recipe, so that no run has a share of its own).
    """
    parts = [
        errors_with(group, fit_shares(runs[runs[by] != name])) for name, group in runs.groupby(by, sort=False)
    ]
    errors: pd.Series[float] = pd.concat(parts) if parts else pd.Series(dtype=float)
    return errors.loc[runs.index]
