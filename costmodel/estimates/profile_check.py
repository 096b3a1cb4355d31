"""What is wrong with a hardware profile, to the last thing that an estimate on it would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import (
    ProfilePath,
    check_file,
    compose_cluster,
    load_cluster,
    profile_kind,
)
from costmodel.describe.recipe import list_recipes
from costmodel.estimates.estimate import estimate

_JOB: dict[str, Any] = {"model": "llama3-8b", "seq_len": 4096, "zero_stage": 3}
_SEQUENCES_PER_GPU = 8


def check_profile(path: str | Path, *, profile_path: ProfilePath = None) -> list[str]:
    """Return everything that is wrong with one profile, a line each; empty if it is fine.

    Beside what `check_file` says of the file itself, a small job is priced on an accelerator or a
    cluster with every shipped recipe, so that what is fine here can be estimated.

    Parameters
    ----------
    path : str or Path
        The file of an accelerator, a link, a cluster or a storage.
    profile_path : path or paths, optional
        As for `load_cluster`.
    """
    path = Path(path)
    found = check_file(path, profile_path=profile_path)
    if found:
        return found
    kind = profile_kind(path)
    if kind not in ("accelerator", "cluster"):
        return []
    try:
        if kind == "accelerator":
            cluster = compose_cluster(path, 1, 1, 0.0, "none", 1, profile_path=profile_path)
        else:
            cluster = load_cluster(path, profile_path=profile_path)
    except CostModelError as error:
        return [f"{path.name}: {error}"]
    return list(dict.fromkeys(f"{path.name}: {problem}" for problem in _refusals(cluster)))


def _refusals(cluster: Cluster) -> list[str]:
    """Return what an estimate says against a small job on one node, by recipe."""
    gpus = cluster.gpus_per_node
    job = {**_JOB, "cluster": cluster, "gpus": gpus, "global_batch": _SEQUENCES_PER_GPU * gpus}
    precision = "bf16" if "bf16" in cluster.accelerator.peak_flops_per_s else "fp16"
    found = []
    for recipe in list_recipes():
        try:
            estimate(recipe=recipe, precision=precision, **job)
        except CostModelError as error:
            found.append(str(error))
    return found
