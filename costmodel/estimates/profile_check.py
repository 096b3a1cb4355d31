"""What is wrong with a hardware profile, to the last thing that an estimate on it would refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, ProfileError
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import (
    ProfilePath,
    check_file,
    compose_cluster,
    load_accelerator,
    load_cluster,
    load_link,
    profile_kind,
)
from costmodel.describe.hardware.profile_files import FOLDERS
from costmodel.describe.recipe import list_recipes
from costmodel.estimates.estimate import estimate

_JOB: dict[str, Any] = {"model": "llama3-8b", "seq_len": 4096, "zero_stage": 3}
_SEQUENCES_PER_GPU = 8


def check_profile(path: str | Path, *, profile_path: ProfilePath = None) -> list[str]:
    """Return everything that is wrong with one profile, a line each; empty if it is fine.

    Beside what `check_file` says of the file itself, a small job is priced on an accelerator or a
    cluster with the recipe that it takes by itself and with every shipped one, and the links that an accelerator
    names are looked up, so that what is fine here can be estimated.

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
            _find_links(path, profile_path)
            cluster = compose_cluster(path, 1, 1, 0.0, "none", 1, profile_path=profile_path)
        else:
            cluster = load_cluster(path, profile_path=profile_path)
    except CostModelError as error:
        return [f"{path.name}: {error}"]
    return list(dict.fromkeys(f"{path.name}: {problem}" for problem in _refusals(cluster)))


def _find_links(path: Path, profile_path: ProfilePath) -> None:
    """Look up the links that an accelerator names, which a job on one device does not need."""
    accelerator = load_accelerator(path, profile_path=profile_path)
    here = Path(os.path.realpath(path)).parent
    siblings = here.parent if here.name in FOLDERS.values() else here
    folders = [profile_path] if isinstance(profile_path, (str, Path)) else list(profile_path or ())
    for key in ("scale_up_link", "pcie_link", "scale_out_link"):
        if named := getattr(accelerator, key):
            try:
                load_link(named, profile_path=[*folders, siblings])
            except CostModelError as error:
                raise ProfileError(f"{key}: {error}") from None


def _refusals(cluster: Cluster) -> list[str]:
    """Return what an estimate says against a small job on one node, by recipe."""
    gpus = cluster.gpus_per_node
    job = {**_JOB, "cluster": cluster, "gpus": gpus, "global_batch": _SEQUENCES_PER_GPU * gpus}
    precision = "bf16" if "bf16" in cluster.accelerator.peak_flops_per_s else "fp16"
    found = []
    for recipe in (None, *list_recipes()):
        try:
            estimate(recipe=recipe, precision=precision, **job)
        except CostModelError as error:
            found.append(str(error))
    return found
