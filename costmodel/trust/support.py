"""`costmodel.support`: what was measured, what is estimated and what is not modelled, by model family, machine and framework."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel.base.answer import Listing
from costmodel.base.errors import CostModelError, ProfileError
from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_cluster
from costmodel.describe.hardware.kernels import FALLBACK_DTYPES
from costmodel.describe.jobs.job import precision_on
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.precision import PRECISIONS
from costmodel.trust.published_runs import Row, read_rows, shipped_runs

FAMILIES = ("dense", "MoE", "latent attention", "other mixers")
"""Kinds of models that are priced by different formulas."""


def _family(experts: float, is_latent: bool, has_mixers: bool = False) -> str:
    if has_mixers or is_latent:
        return "other mixers" if has_mixers else "latent attention"
    return "MoE" if experts else "dense"


def support(model: str | Model = "", machine: str = "") -> Listing:
    """Return how far prices of a model on a machine can be believed, a row a precision and framework.

    Parameters
    ----------
    model : str or Model, optional
        A preset, a file or a model, whose family is taken; all families without it.
    machine : str, optional
        A cluster or an accelerator; all accelerators without it.

    Returns
    -------
    support : Listing
        ``status`` is ``measured`` where published runs of that family, accelerator, precision and framework ship with the
        package, ``estimated`` where there are none, and ``not modelled`` where the accelerator has no such matrix units.
        ``kernels`` says whether matrix products of that precision were timed on the accelerator.

    Raises
    ------
    CostModelError
        If model or machine is unknown, or the model cannot be priced.

    Examples
    --------
    >>> import costmodel as cm
    >>> table = cm.support("llama3-8b", "h100").to_frame()
    >>> table[table.status == "measured"].precision.unique().tolist()
    ['bf16', 'fp8-delayed', 'fp8-current']
    """
    families: tuple[str, ...] = FAMILIES
    if model:
        found = load_model(model) if isinstance(model, str) else model
        families = (_family(found.num_experts, found.kv_lora_rank > 0, bool(found.mixers)),)
    chips = (
        [_accelerator(machine)]
        if machine
        else [load_accelerator(name) for name in list_profiles("accelerator")]
    )
    runs = read_rows(shipped_runs())
    rows = [row for chip in chips for family in families for row in _rows(family, chip, runs)]
    return Listing("support", {name: [row[name] for row in rows] for name in rows[0]})


def _accelerator(machine: str) -> Accelerator:
    try:
        return load_cluster(machine).accelerator
    except ProfileError:
        return load_accelerator(machine)


def _rows(family: str, chip: Accelerator, runs: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Return, precision by precision, the frameworks that were measured, then what holds for any other."""
    measured: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        own = _family(float(run["num_experts"] or 0), run["attention"] == "mla")
        if run["accelerator"] == chip.name and own == family:
            measured[run["precision"]][run["recipe"]].append(run["source"])
    for name, precision in PRECISIONS.items():
        row: dict[str, Any] = {"family": family, "accelerator": chip.name, "precision": name}
        row |= {"framework": "any other", "status": "estimated", "runs": 0, "sources": 0}
        row["kernels"] = _kernels(chip, precision.matmul_dtype)
        try:
            precision_on(name, chip)
        except CostModelError:
            yield row | {"framework": "any", "status": "not modelled", "kernels": ""}
            continue
        for recipe, sources in sorted(measured[name].items(), key=lambda item: -len(item[1])):
            counts = {"runs": len(sources), "sources": len(set(sources))}
            yield row | {"framework": recipe, "status": "measured", **counts}
        yield row


def _kernels(chip: Accelerator, dtype: str) -> str:
    """Say from what the constants of matrix products in a dtype are known on an accelerator."""
    if chip.kernels is None:
        return "estimated"
    blocks = chip.kernels.blocks.matmul
    used = next((each for each in (dtype, *FALLBACK_DTYPES.get(dtype, ())) if each in blocks), None)
    if used is None:
        return "estimated"
    return blocks[used].basis if used == dtype else f"{blocks[used].basis} in {used}"
