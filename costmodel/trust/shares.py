"""The only constant fitted to whole runs: the unexplained share of a step's compute and communication.

Kernels and collectives are priced from micro-benchmarks. Real steps take longer (jitter between ranks, clocks under a
mixed load, shared caches) by a share fitted per generation of devices over all frameworks, and per recipe on it. A
recipe's own share is shrunk towards its generation's, and that towards all of its kind of devices, by
`sources / (sources + 1/2)`, with one family of sources by 1/2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.recipe import share_keys

MIN_RUNS = 7  # Fewest runs of a generation, or of a recipe on it, for which a share is fitted

FAMILY_POWER = 0.75
"""A family of sources counts as this power of its runs: the next is like none of them more than the others."""

LEAST_OFFSET = 0.02
"""Least difference of a recipe's logarithm from its generation's; smaller ones are ignored."""

FRAMEWORK_OF_RECIPE: Mapping[str, str] = {
    "megatron-2022": "megatron-2021",
    "megatron-deepspeed-blocking": "megatron-deepspeed",
    "composer-fsdp-torch1": "composer-fsdp",
    "megatron-bridge-2606": "megatron-bridge",
    "torchtitan-2024": "torchtitan",
}
"""Recipe -> recipe of the same framework whose share it uses."""

HELD_OUT_SOURCES = ("korthikanti22", "deepseek-v3", "llama3", "megatron-moe-modelzoo")
"""Sources of the README's published runs: held out of every fit."""


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
"""Prefix of a source's name -> its family; the first match counts. Every other source is its own family."""


def source_family(source: str) -> str:
    """Return the family of a source: publications with nearly the same runs, which are held out together."""
    return next((family for start, family in _FAMILY_STARTS.items() if source.startswith(start)), source)


class Share(NamedTuple):
    """A fitted unexplained share, and the data behind it; `share` is none where it is the generation's."""

    share: float | None
    runs: int
    sources: int  # Number of families of sources
    spread: float  # Standard deviation over families of the median log factor; nan with one family. [-]


Shares = Mapping[tuple[str, str], Share]
"""By recipe and device kind. A kind is a generation; of ``any`` recipe also `gpu`, `other-stacks` (GPUs beyond CUDA), `other`."""


def fitted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of `Validation.judged` that have a time, with the columns that the fit needs."""
    runs = runs.dropna(subset=["time_error"])
    devices = {name: load_accelerator(name) for name in set(runs.accelerator)}
    fixed_s = runs.predicted_step_time_s - runs.predicted_unexplained_s - runs.predicted_shared_s
    factor = (runs.measured_step_time_s - fixed_s) / runs.predicted_shared_s
    return runs.assign(
        fixed_s=fixed_s,
        log_factor=np.log(np.maximum(factor.astype(float), 0.1)),
        family=runs.recipe.map(lambda name: FRAMEWORK_OF_RECIPE.get(name, name)),
        source_family=runs.source.map(source_family),
        is_gpu=runs.accelerator.map(lambda name: devices[name].is_gpu),
        own_stack=runs.accelerator.map(lambda name: devices[name].has_own_stack),
        generation=runs.accelerator.map(lambda name: devices[name].generation),
    )


def weighted_median(values: pd.Series[float], weights: pd.Series[float]) -> float:
    """Return the weighted median, interpolated."""
    order = np.argsort(values.to_numpy())
    sorted_values, sorted_weights = values.to_numpy()[order], weights.to_numpy()[order]
    middle = np.cumsum(sorted_weights) - 0.5 * sorted_weights
    return float(np.interp(0.5 * sorted_weights.sum(), middle, sorted_values))


def fit_shares(runs: pd.DataFrame) -> dict[tuple[str, str], Share]:
    """Return the shares of all kinds of devices, and of recipes on generations of them.

    For a kind of devices each source counts once per generation, as the next generation is like none of them. No share
    is negative: a step takes at least as long as its parts.
    """
    used = runs[~runs.source.isin(HELD_OUT_SOURCES)]
    of_family = used.groupby("source_family").log_factor.transform("size")
    weights = of_family ** (FAMILY_POWER - 1.0)
    found: dict[tuple[str, str], Share] = {}
    kinds = {
        "gpu": used[used.is_gpu & ~used.own_stack],
        "other": used[~used.is_gpu],
        "other-stacks": used[used.is_gpu & used.own_stack],
    }
    for kind, group in kinds.items():
        if len(group) >= MIN_RUNS:
            votes = group.groupby(["generation", "source_family"]).log_factor.median()
            found["any", kind] = _share(float(votes.median()), group)
    for generation, group in used.groupby("generation"):
        device = load_accelerator(group.accelerator.iloc[0])
        if len(group) >= MIN_RUNS:
            found["any", str(generation)] = _shrunk(group, weights, _first(found, share_keys("", device)))
        of_generation = _first(found, share_keys("", device))
        for family, part in group.groupby("family"):
            if len(part) >= MIN_RUNS:
                found[str(family), str(generation)] = _shrunk(part, weights, of_generation, LEAST_OFFSET)
    return found


def _first(shares: Shares, keys: Iterable[tuple[str, str]]) -> float:
    """Return the share of the first key that has one, 0 where none has."""
    found = (shares[key].share for key in keys if key in shares)
    return next((share for share in found if share is not None), 0.0)


def _shrunk(group: pd.DataFrame, weights: pd.Series[float], towards: float, least: float = 0.0) -> Share:
    """Return the share of runs, shrunk towards that of their parent; the parent's where they differ by less than `least`."""
    sources = group.source_family.nunique()
    shrinkage = sources / (sources + 0.5) if sources > 1 else 0.5
    middle = float(np.log1p(towards))
    offset = shrinkage * (weighted_median(group.log_factor, weights[group.index]) - middle)
    one = _share(middle + offset, group)
    return one._replace(share=None) if abs(offset) < least else one


def _share(logarithm: float, group: pd.DataFrame) -> Share:
    medians = group.groupby("source_family").log_factor.median()
    return Share(max(float(np.expm1(logarithm)), 0.0), len(group), len(medians), float(medians.std()))


def errors_of(runs: pd.DataFrame, shares: Shares) -> pd.Series[float]:
    """Return the relative error of every run if it is priced with these shares."""
    wanted = [
        share_keys(*of) for of in zip(runs.family, map(load_accelerator, runs.accelerator), strict=True)
    ]
    share = pd.Series([_first(shares, keys) for keys in wanted], index=runs.index, dtype=float)
    predicted = runs.fixed_s + (1.0 + share) * runs.predicted_shared_s
    errors: pd.Series[float] = (predicted / runs.measured_step_time_s).astype(float) - 1.0
    return errors


def left_out_errors(runs: pd.DataFrame, by: str = "source_family") -> pd.Series[float]:
    """Return the relative error of every run with shares fitted without its source, source_family or family (framework)."""
    parts = [
        errors_of(group, fit_shares(runs[runs[by] != name])) for name, group in runs.groupby(by, sort=False)
    ]
    errors: pd.Series[float] = pd.concat(parts) if parts else pd.Series(dtype=float)
    return errors.loc[runs.index]
