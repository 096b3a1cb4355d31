"""A fitted cluster as profile files: a cluster that inherits from its base, and the fitted links."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.base.errors import ProfileError
from costmodel.base.yaml_files import document_text
from costmodel.describe.hardware import profile_files as disk
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import ProfilePath
from costmodel.trust.calibration.fabric_fit import Fitted, fabric_block, quantity_text


def profile_texts(
    path: Path,
    base: str,
    cluster: Cluster,
    tiers: Mapping[int, Fitted],
    sources: Mapping[int, Sequence[str]],
    *,
    profile_path: ProfilePath = None,
) -> dict[Path, str]:
    """Return the files of a new profile, links first, then the cluster at `path`.

    Parameters
    ----------
    path : Path
        Of the cluster; its stem is the profile's name, and the links lie beside it.
    base : str
        Name or file of the cluster to inherit from, as `cluster` was loaded by.
    tiers : dict of Fitted
        By index into the cluster's tiers; every outer tier of the same link takes the fitted one.
    sources : dict of sequence of str
        What was measured of each tier, for people.

    Raises
    ------
    ProfileError
        If the name cannot be one of a profile, or the base's own links would not be found.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ProfileError(f"{path}: expected a file that ends in .yaml")
    everything = ", ".join(dict.fromkeys(name for names in sources.values() for name in names))
    entries = _tier_entries(base, profile_path)
    texts, new_links = {}, {}
    for index, fitted in tiers.items():
        name = f"{path.stem}-{cluster.tiers[index].name}"
        new_links[cluster.tiers[index].link] = name
        entries[index].pop("added_latency", None)
        entries[index].pop("efficiency", None)
        texts[path.with_name(f"{name}.yaml")] = _link_text(name, fitted, ", ".join(sources[index]))
    for index, entry in enumerate(entries):
        entry["link"] = new_links.get(cluster.tiers[index].link, entry["link"])
    inherit = base
    if base.endswith((".yaml", ".yml")):
        if Path(os.path.realpath(base)).parent != Path(os.path.realpath(path)).parent:
            raise ProfileError(f"{path}: expected a file beside {base}, whose links it needs")
        inherit = Path(base).stem
    if inherit == path.stem:
        raise ProfileError(f"{path}: expected another name than the cluster's it inherits from")
    texts[path] = document_text(
        _head("cluster", path.stem, cluster.title, inherit) | {"tiers": entries} | _sources(everything),
        {"tiers": "innermost first"},
    )
    return texts


def _tier_entries(base: str, profile_path: ProfilePath) -> list[dict[str, Any]]:
    """Return the tiers of the base as its file has them."""
    folders = disk.search_folders(profile_path)
    if base.endswith((".yaml", ".yml")):
        here = Path(os.path.realpath(base)).parent
        folders = (*folders[:-1], here.parent if here.name in disk.FOLDERS.values() else here, folders[-1])
    content = disk.read_profile(disk.find_profile("cluster", base, folders), "cluster", folders)
    return [dict(entry) for entry in content["tiers"]]


def _link_text(name: str, fitted: Fitted, measured: str) -> str:
    """Return the file of a fitted link."""
    tier = fitted.tier
    told = [f"{key} ±{one.spread:.0%}" for key, one in fitted.confidence.items() if one.told >= 0.5]
    kept = [key for key, one in fitted.confidence.items() if one.told < 0.5]
    content = _head("link", name, tier.link, tier.link) | {
        "notes": f"Told by the sweeps: {', '.join(told) or 'nothing'}. "
        f"Mostly as in {tier.link}: {', '.join(kept) or 'nothing'}.",
        "latency": {"value": quantity_text("_s", tier.latency_s), "source": "calibration"},
        "base_latency": {"value": quantity_text("_s", tier.base_latency_s), "source": "calibration"},
        "fabric": fabric_block(
            fitted.fabric, basis="measured", source=measured, points=fitted.points, residual=fitted.residual
        ),
    }
    return document_text(content | _sources(measured), {"fabric": "written by costmodel calibrate fabric"})


def _head(kind: str, name: str, title: str, parent: str) -> dict[str, Any]:
    """Return the first keys of a profile that inherits."""
    return {
        "schema_version": 1,
        "profile": kind,
        "name": name,
        "title": f"{title}, calibrated",
        "inherit": parent,
    }


def _sources(measured: str) -> dict[str, Any]:
    """Return the list of sources of a calibrated file."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return {"sources": {"calibration": {"title": f"nccl-tests: {measured}", "accessed": today}}}
