"""Hardware profiles read, composed and checked; the objects that come out are in `cluster`.

`load_cluster` and `load_accelerator` take a name, an alias or a file; `compose_cluster` the few
facts that a published run states; `check_file` says what is wrong with a profile.
"""

import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from costmodel.base.errors import ProfileError, choices_hint, shown
from costmodel.describe.hardware import profile_files as disk
from costmodel.describe.hardware.cluster import Accelerator, Cluster, Host, Storage, Tier
from costmodel.physics.network.topologies import TOPOLOGIES

if TYPE_CHECKING:
    from pydantic import BaseModel

    from costmodel.describe.hardware.profile_schema import AcceleratorFile, ClusterFile, HostFile, LinkFile

ProfilePath = str | Path | Iterable[str | Path] | None
Folders = tuple[Path, ...]

# Which kinds of link a published run's word for its network may mean.
NETWORKS: Mapping[str, tuple[str, ...]] = {
    **{kind: (kind,) for kind in ("ib", "roce", "efa", "omnipath", "slingshot")},
    "ethernet": ("tcp",),
    "none": (),
}


class ProfileNumber(NamedTuple):
    """One number of a profile as its file has it, for people to read."""

    key: str
    value: str
    source: str
    title: str


def load_accelerator(name_or_path: str | Path, *, profile_path: ProfilePath = None) -> Accelerator:
    """Return the accelerator of that name, alias or file; see `load_cluster` for the rest."""
    folders = _folders(name_or_path, profile_path)
    return _accelerator(disk.find_profile("accelerator", name_or_path, folders), folders)


def load_link(name_or_path: str | Path, *, size: int = 1, profile_path: ProfilePath = None) -> Tier:
    """Return the link of that name, alias or file as a tier of `size` GPUs."""
    folders = _folders(name_or_path, profile_path)
    return _tier(disk.find_profile("link", name_or_path, folders), folders, size=size)


def load_cluster(name_or_path: str | Path, *, profile_path: ProfilePath = None) -> Cluster:
    """Return the cluster of that name, alias or file.

    Parameters
    ----------
    name_or_path : str or Path
        Such as ``dgx-h100-ndr``, its alias ``h100-ndr``, or a path that ends in ``.yaml``.
    profile_path : path or paths, optional
        Folders with the caller's own profiles, searched first; then `COSTMODEL_PROFILE_PATH`,
        then the shipped ones. A file given by path also finds what lies beside it.

    Returns
    -------
    cluster : Cluster
        With its accelerator, links and storage resolved.

    Raises
    ------
    ProfileError
        If a file is missing or wrong; one line with file, key path, value and what is expected.
    """
    folders = _folders(name_or_path, profile_path)
    return _cluster(disk.find_profile("cluster", name_or_path, folders), folders)


def list_profiles(kind: str, *, profile_path: ProfilePath = None) -> list[str]:
    """Return the names of all profiles of `kind`: accelerator, link, cluster or storage."""
    _check_kind(kind)
    return sorted(name for name, _ in disk.profile_files(kind, disk.search_folders(profile_path)))


def check_file(path: str | Path, *, profile_path: ProfilePath = None) -> list[str]:
    """Return all that is wrong with a profile and those it refers to, ``file: key.path: expected …; got …`` a line."""
    path = Path(path)
    try:
        folders = _folders(path, profile_path)
        kind = profile_kind(path)
        content = disk.read_profile(path, kind, folders)
    except ProfileError as error:
        return [str(error)]
    from costmodel.describe.hardware.profile_schema import validate

    problems = [*validate(content, kind)[1], *_taken_aliases(content, path, kind, folders)]
    if not problems and content["name"] != path.stem:
        problems.append(f"name: expected {path.stem!r} as the file; got {content['name']!r}")
    if not problems:
        try:
            _READERS[kind](path, folders)
        except ProfileError as error:
            return [str(error)]
    return [f"{path.name}: {problem}" for problem in problems]


def profile_kind(path: str | Path) -> str:
    """Return which kind of profile a file says it is."""
    return disk.check_header(disk.read_yaml(Path(path)), Path(path))


def _taken_aliases(content: Mapping[str, Any], path: Path, kind: str, folders: Folders) -> Iterator[str]:
    """Yield the aliases that are a name or an alias of another profile."""
    given = content.get("aliases")
    others = [other for name, other in disk.profile_files(kind, folders) if name != path.stem.lower()]
    owners = {
        alias: other.stem for other in others for alias in (other.stem.lower(), *disk.aliases_of(other))
    }
    for index, alias in enumerate(given if isinstance(given, list) else ()):
        if owner := owners.get(str(alias).lower()):
            yield f"aliases.{index}: expected a name that no other {kind} has; {str(alias)!r} means {owner}"


def profile_numbers(
    kind: str, name_or_path: str | Path, *, profile_path: ProfilePath = None
) -> list[ProfileNumber]:
    """Return the numbers of a profile in the words of its file, each with its source."""
    _check_kind(kind)
    folders = _folders(name_or_path, profile_path)
    content = disk.read_profile(disk.find_profile(kind, name_or_path, folders), kind, folders)
    from costmodel.describe.hardware.profile_schema import FITTED_BLOCKS

    stated = {key: value for key, value in content.items() if key not in FITTED_BLOCKS}
    sources = content.get("sources")
    cited = sources.items() if isinstance(sources, dict) else ()
    titles = {key: str(source.get("title", "")) for key, source in cited if isinstance(source, dict)}
    found = [
        ProfileNumber(key, str(one["value"]), str(one["source"]), titles.get(str(one["source"]), ""))
        for key, one in disk.mappings(stated)
        if {"value", "source"} <= one.keys()
    ]
    for name in FITTED_BLOCKS:
        found += _fitted(content.get(name), (name,), ("as above", "the device's own number"))
    return found


_PROVENANCE = ("basis", "source", "points", "held_out_error", "residual")


def _fitted(node: object, path: tuple[str, ...], source: tuple[str, str]) -> Iterator[ProfileNumber]:
    """Yield every constant of a fitted block, with the provenance of the group that it stands in."""
    if isinstance(node, Mapping):
        is_group = "basis" in node
        if is_group:
            error = node.get("held_out_error", node.get("residual"))
            parts = [str(node.get("source", "")), f"{node['points']} points" if node.get("points") else ""]
            parts.append("" if error is None else f"error {float(error):.1%}")
            source = (str(node["basis"]), "; ".join(filter(None, parts)))
        for key, child in node.items():
            if not (key in _PROVENANCE and is_group):
                yield from _fitted(child, (*path, str(key)), source)
    elif node is not None:
        text = ", ".join(map(str, node)) if isinstance(node, list) else str(node)
        yield ProfileNumber(".".join(path), text, *source)


def compose_cluster(
    accelerator_name: str | Path,
    gpus_per_node: int,
    nvlink_domain: int,
    nic_bytes_per_s: float,
    network_kind: str,
    num_gpus: int,
    *,
    profile_path: ProfilePath = None,
) -> Cluster:
    """Return the cluster that a published run describes in six words.

    The NVLink tier uses the accelerator's own link; GPUs of a node outside it (`nvlink_domain` 1 is PCIe only) meet over
    PCIe; nodes meet over the ports that come with the accelerator if they are of `network_kind` (one of `NETWORKS`),
    else over the link of that kind whose rate per GPU is nearest to the one given, at the rate given. There is no
    oversubscription, because such a description does not state any.
    """
    if network_kind not in NETWORKS:
        raise ProfileError(f"network: unknown kind {network_kind!r}: {choices_hint(network_kind, NETWORKS)}")
    counts = {"gpus_per_node": gpus_per_node, "nvlink_domain": nvlink_domain, "gpus": num_gpus}
    for key, count in counts.items():
        if count < 1 or count != int(count):
            raise ProfileError(f"{key}: expected a whole number of at least 1; got {count}")
    accelerator = load_accelerator(accelerator_name, profile_path=profile_path)
    tiers: list[Tier] = []

    def join(name: str, key: str, size: int, purpose: str) -> None:
        link = getattr(accelerator, key)
        if not link:
            raise ProfileError(
                f"{accelerator.name}: {key}: expected a link for {purpose}; the profile has none"
            )
        tiers.append(replace(load_link(link, size=size, profile_path=profile_path), name=name))

    if nvlink_domain > 1:
        join("nvlink", "scale_up_link", nvlink_domain, f"an NVLink domain of {nvlink_domain}")
    if gpus_per_node > nvlink_domain:
        join("pcie", "pcie_link", gpus_per_node, f"{gpus_per_node} GPUs a node without NVLink between all")
    inside = tiers[-1].size if tiers else 1
    if num_gpus > inside:
        if network_kind == "none" or not nic_bytes_per_s > 0:
            raise ProfileError(
                f"network: expected a kind and a rate per GPU for {num_gpus} GPUs, because only {inside} "
                f"are joined without one; got {network_kind!r} at {nic_bytes_per_s} B/s"
            )
        nic, rate = _nic(accelerator, network_kind, nic_bytes_per_s, profile_path), float(nic_bytes_per_s)
        whole_domains = -(-num_gpus // inside) * inside
        tiers.append(replace(nic, name="network", size=whole_domains, bandwidth_bytes_per_s=rate))
    if not tiers:
        # A single GPU talks to nobody; the tier only gives the mesh a level to stand on.
        tiers.append(Tier(name="gpu", size=1, bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s))
    each = _least_host(accelerator.name)
    return Cluster(
        name=f"{accelerator.name}-{network_kind}-composed",
        title=f"{num_gpus} x {accelerator.title}, composed from a run's description",
        accelerator=accelerator,
        gpus_per_node=gpus_per_node,
        host=Host(
            each.memory_bytes * gpus_per_node,
            each.memory_bandwidth_bytes_per_s * gpus_per_node,
            min(each.gpus_per_link, gpus_per_node),
        ),
        tiers=tuple(tiers),
    )


_HOST_OF_A_GPU = Host(memory_bytes=128e9, memory_bandwidth_bytes_per_s=51.2e9, gpus_per_link=1)
"""A share of a node per GPU where no shipped cluster has its like: 1 TB and sixteen DDR4 channels for eight. Assumed."""


@cache
def _least_host(accelerator: str) -> Host:
    """Return the share of one GPU in the host of shipped clusters that have it, in that with the least memory."""
    from costmodel.describe.hardware.profile_schema import HostFile

    shipped = disk.search_folders(None)[-1:]
    shares = []
    for _, path in disk.profile_files("cluster", shipped):
        if disk.at_a_glance(path, "accelerator") == accelerator:
            content = disk.read_profile(path, "cluster", shipped)
            gpus = float(content["gpus_per_node"]["value"])
            shares.append(_host(HostFile.model_validate(content["host"]), 1.0 / gpus))
    return min(shares, default=_HOST_OF_A_GPU)


def _host(file: "HostFile", share: float = 1.0) -> Host:
    """Return a share of a node's host."""
    memory, rate = file.memory.value * share, file.memory_bandwidth.value * share
    return Host(memory, rate, file.gpus_per_link.value)


def _nic(accelerator: Accelerator, network_kind: str, rate: float, profile_path: ProfilePath) -> Tier:
    """Return the device's own ports if they are of a network (``roce-gaudi`` is of ``roce``), else its nearest link by rate."""
    kinds = NETWORKS[network_kind]
    if accelerator.scale_out_link:
        own = load_link(accelerator.scale_out_link, profile_path=profile_path)
        if own.kind.startswith(kinds):
            return own
    folders = disk.search_folders(profile_path)
    links = [
        _tier(path, folders)
        for _, path in disk.profile_files("link", folders)
        if disk.at_a_glance(path, "kind") in kinds
    ]
    if not links:
        raise ProfileError(f"network: expected a link profile of kind {' or '.join(kinds)}; there is none")
    ratios = [link.bandwidth_bytes_per_s / rate for link in links]
    return min(zip(ratios, links, strict=True), key=lambda pair: max(pair[0], 1.0 / pair[0]))[1]


def _check_kind(kind: str) -> None:
    """Refuse a kind of profile that does not exist."""
    if kind not in disk.FOLDERS:
        raise ProfileError(f"unknown kind of profile {kind!r}: {choices_hint(kind, disk.FOLDERS)}")


def _folders(name_or_path: str | Path, profile_path: ProfilePath) -> Folders:
    """Return where to search; a profile given by path also sees the folder it lies in."""
    if not isinstance(name_or_path, str | Path):
        raise ProfileError(f"profile: expected a name or a path, got {shown(name_or_path)}")
    folders = disk.search_folders(profile_path)
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        return folders
    here = Path(os.path.realpath(path)).parent  # `resolve` raises on a loop of links
    beside = here.parent if here.name in disk.FOLDERS.values() else here
    return (*folders[:-1], beside, folders[-1])


def _referred(path: Path, key: str, kind: str, name: str, folders: Folders) -> Path:
    """Return the profile that `path` refers to under `key`; the error names both."""
    try:
        return disk.find_profile(kind, name, folders)
    except ProfileError as error:
        raise ProfileError(f"{path.name}: {key}: {error}") from None


def _validated(path: Path, kind: str, folders: Folders) -> Any:
    """Return the checked file, or raise with its first problem and the number of others."""
    file, found = _checked(pickle.dumps(disk.read_profile(path, kind, folders)), kind)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ProfileError(f"{path.name}: {found[0]}{more}")
    return file


@lru_cache(maxsize=256)
def _checked(content: bytes, kind: str) -> tuple[Any, list[str]]:
    """Check what a file and its parents hold; the same is not checked twice."""
    from costmodel.describe.hardware.profile_schema import validate

    return validate(pickle.loads(content), kind)


def _cluster(path: Path, folders: Folders) -> Cluster:
    """Read a cluster file and what it refers to."""
    file: ClusterFile = _validated(path, "cluster", folders)
    storage = None
    if file.storage is not None:
        storage = _storage(_referred(path, "storage", "storage", file.storage, folders), folders)
    tiers = []
    for index, entry in enumerate(file.tiers):
        link = _referred(path, f"tiers.{index}.link", "link", entry.link, folders)
        tier = _tier(link, folders, size=entry.gpus)
        wiring = entry.topology or tier.topology
        if index and TOPOLOGIES[wiring].innermost:
            raise ProfileError(
                f"{path.name}: tiers.{index}.link: {entry.link} is a {wiring}, which can only be the innermost tier"
            )
        own = _plain(entry, Tier) | {"topology": wiring, "size": entry.gpus, "link": tier.link}
        if wrap := entry.wrap_multiple or entry.wrap_cube:
            own |= {"wrap_multiple": wrap.value, "wraps_whole": entry.wrap_cube is not None}
        if entry.reduction_bandwidth is not None:
            own["in_network_reduction"] = True
        if entry.added_latency is not None:
            own["latency_s"] = tier.latency_s + entry.added_latency.value
        tiers.append(replace(tier, **own))
    chip = _referred(path, "accelerator", "accelerator", file.accelerator, folders)
    found = _plain(file, Cluster) | {"host": _host(file.host), "tiers": tuple(tiers), "storage": storage}
    found["price_date"] = file.price_date.isoformat() if file.price_date else ""
    return Cluster(**found | {"accelerator": _accelerator(chip, folders)})


def _accelerator(path: Path, folders: Folders) -> Accelerator:
    """Read an accelerator file."""
    file: AcceleratorFile = _validated(path, "accelerator", folders)
    found = _plain(file, Accelerator) | {"peak_flops_per_s": _bare(file.peak_dense)}
    found.setdefault("host_slowdown_bound", found.get("host_slowdown", 1.0))
    return Accelerator(**found, kernels_of=disk.kernels_generation(path, folders))


def _tier(path: Path, folders: Folders, *, size: int = 1) -> Tier:
    """Read a link file as a tier of `size` GPUs, not oversubscribed."""
    file: LinkFile = _validated(path, "link", folders)
    found = _plain(file, Tier) | {"size": size, "link": file.name}
    if file.fabric is not None:
        found["fabric"] = file.fabric.constants
    if not file.in_network_reduction.value:
        found.pop("reduction_bandwidth_bytes_per_s", None)
    return Tier(**found)


def _storage(path: Path, folders: Folders) -> Storage:
    """Read a storage file."""
    return Storage(**_plain(_validated(path, "storage", folders), Storage))


_READERS: dict[str, Callable[[Path, Folders], object]] = {
    "accelerator": _accelerator,
    "link": _tier,
    "cluster": _cluster,
    "storage": _storage,
}

_UNIT = re.compile(r"_(bytes_per_s|flops_per_s|bytes|s|w)$")


def _plain(file: "BaseModel", hardware: Any) -> dict[str, Any]:
    """Return what a checked file says of a sort of hardware, without sources: fields are its keys with their unit."""
    names = [field.name for field in dataclass_fields(hardware)]
    values = {name: getattr(file, _UNIT.sub("", name), None) for name in names}
    return {name: _bare(value) for name, value in values.items() if value is not None}


def _bare(value: Any) -> Any:
    """Return a number without its source."""
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    return getattr(value, "value", value)
