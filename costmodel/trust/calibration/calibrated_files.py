"""Calibrated profiles as files: a cluster or an accelerator that inherits from its base, and the fitted links."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.base.errors import ProfileError
from costmodel.base.yaml_files import document_text
from costmodel.describe.hardware import profile_files as disk
from costmodel.describe.hardware.cluster import Accelerator, Cluster
from costmodel.describe.hardware.hardware import ProfilePath
from costmodel.trust.calibration.fabric_fit import Fitted, fabric_block, quantity_text
from costmodel.trust.calibration.kernel_fits import KernelResult

_YAML = (".yaml", ".yml")


def cluster_texts(
    path: Path,
    base: str,
    cluster: Cluster,
    tiers: Mapping[int, Fitted],
    sources: Mapping[int, Sequence[str]],
    *,
    profile_path: ProfilePath = None,
) -> dict[Path, str]:
    """Return the files of a new profile, links first, then the cluster at `path`, with the links beside it."""
    if path.suffix not in _YAML:
        raise ProfileError(f"{path}: expected a file that ends in .yaml")
    folders, inherit = disk.search_folders(profile_path), base
    if base.endswith(_YAML):
        here = Path(os.path.realpath(base)).parent
        if here != Path(os.path.realpath(path)).parent:
            raise ProfileError(f"{path}: expected a file beside {base}, whose links it needs")
        folders = (*folders[:-1], here.parent if here.name in disk.FOLDERS.values() else here, folders[-1])
        inherit = Path(base).stem
    if inherit == path.stem:
        raise ProfileError(f"{path}: expected another name than the cluster's it inherits from")
    content = disk.read_profile(disk.find_profile("cluster", base, folders), "cluster", folders)
    entries = [dict(entry) for entry in content["tiers"]]
    texts, new_links = {}, {}
    for index, fitted in tiers.items():
        name = f"{path.stem}-{cluster.tiers[index].name}"
        new_links[cluster.tiers[index].link] = name
        entries[index].pop("added_latency", None)
        entries[index].pop("efficiency", None)
        texts[path.with_name(f"{name}.yaml")] = _link_text(name, fitted, ", ".join(sources[index]))
    for entry, tier in zip(entries, cluster.tiers, strict=True):
        entry["link"] = new_links.get(tier.link, entry["link"])
    measured = ", ".join(dict.fromkeys(name for names in sources.values() for name in names))
    comments = {"tiers": "innermost first"}
    texts[path] = _text(
        "cluster", path.stem, cluster.title, inherit, f"nccl-tests: {measured}", comments, tiers=entries
    )
    return texts


def _link_text(name: str, fitted: Fitted, measured: str) -> str:
    """Return the file of a fitted link."""
    tier = fitted.tier
    determined = [
        f"{key} ±{one.spread:.0%}" for key, one in fitted.confidence.items() if one.variance_explained >= 0.5
    ]
    kept = [key for key, one in fitted.confidence.items() if one.variance_explained < 0.5]
    return _text(
        "link",
        name,
        tier.link,
        tier.link,
        f"nccl-tests: {measured}",
        {"fabric": "written by costmodel observed calibrate fabric"},
        notes=f"Determined by the sweeps: {', '.join(determined) or 'nothing'}. "
        f"Mostly as in {tier.link}: {', '.join(kept) or 'nothing'}.",
        latency={"value": quantity_text("_s", tier.latency_s), "source": "calibration"},
        base_latency={"value": quantity_text("_s", tier.base_latency_s), "source": "calibration"},
        fabric=fabric_block(
            fitted.fabric, basis="measured", source=measured, points=fitted.points, residual=fitted.residual
        ),
    )


def accelerator_text(
    path: Path,
    base: str,
    accelerator: Accelerator,
    results: Sequence[KernelResult],
    source: str,
    *,
    profile_path: ProfilePath = None,
) -> str:
    """Return the file of an accelerator that inherits all but the fitted kernels from `base`."""
    folders = disk.search_folders(profile_path)
    content = disk.read_profile(disk.find_profile("accelerator", base, folders), "accelerator", folders)
    block = content.get("kernels")
    if not isinstance(block, dict):
        raise ProfileError(
            f"{accelerator.name}: kernels: expected constants for what was not measured; none there"
        )
    block = {**block, **{key: dict(block.get(key, {})) for key in ("matmul", "grouped_matmul", "attention")}}
    for one in results:
        if one.section == "memory":
            block["memory"] = dict(one.block)
        else:
            block[one.section][one.name] = dict(one.block)
    comments = {"kernels": "written by costmodel observed calibrate kernels"}
    return _text("accelerator", path.stem, accelerator.title, base, source, comments, kernels=block)


def _text(
    kind: str, name: str, title: str, parent: str, measured: str, comments: Mapping[str, str], **content: Any
) -> str:
    """Return a profile that inherits all else from its parent."""
    head = {
        "schema_version": 1,
        "profile": kind,
        "name": name,
        "title": f"{title}, calibrated",
        "inherit": parent,
    }
    today = datetime.datetime.now(tz=datetime.UTC).date()
    sources = {"calibration": {"title": measured, "accessed": today}}
    return document_text({**head, **content, "sources": sources}, comments)
