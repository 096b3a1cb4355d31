"""Hardware profiles on disk: where they lie, how they are found, read and merged with their parent.

A profile is one YAML file of one kind: accelerator, link, cluster or storage. Names are looked up
first in the folders given by the caller, then in those of `COSTMODEL_PROFILE_PATH`, then among the
shipped ones, so that a user's file of the same name wins. A folder holds either the four folders
of `FOLDERS` or the files themselves.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from costmodel.base.errors import ProfileError, choices_hint, listed_names, shown
from costmodel.base.files import is_there
from costmodel.base.own_files import refuse_path
from costmodel.base.yaml_files import parse_mapping, read_mapping, top_level_lines
from costmodel.describe.hardware.profile_names import begins, holds, solid, without_profile

FOLDERS = {"accelerator": "accelerators", "link": "links", "cluster": "clusters", "storage": "storage"}
SCHEMA_VERSION = 1
SCHEMA_CHANGES = {
    1: "every number is written as {value: ..., source: ...} and names its dimension, e.g. 3.35 TB/s",
}
PRICE_KEYS = ("price_usd_per_gpu_hour", "price_date", "price_range_usd_per_gpu_hour")
"""What a cluster file says of its price."""
_LEAST_HALF = 3
"""Letters of a name that is not whole, below which it says nothing."""
_LONGEST_CHAIN = 10
"""Parents of a profile that a look-up follows."""
PATH_VARIABLE = "COSTMODEL_PROFILE_PATH"


@lru_cache(maxsize=1)
def shipped_folder() -> Path:
    """Return the folder of the shipped profiles, in a wheel or in a checkout."""
    package = Path(__file__).resolve().parents[2]
    packaged = package / "hardware_profiles"
    return packaged if packaged.is_dir() else package.parent / "hardware_profiles"


def search_folders(profile_path: str | Path | Iterable[str | Path] | None = None) -> tuple[Path, ...]:
    """Return the folders to look in, first hit wins.

    Parameters
    ----------
    profile_path : path or paths, optional
        Folders of the caller, searched before `COSTMODEL_PROFILE_PATH` and the shipped ones.

    Returns
    -------
    folders : tuple of Path
        Existing folders in order of precedence.

    Raises
    ------
    ProfileError
        If a folder that somebody named does not exist.
    """
    given = [profile_path] if isinstance(profile_path, (str, Path)) else list(profile_path or ())
    named = [(Path(folder), "profile folder") for folder in given]
    variable = os.environ.get(PATH_VARIABLE, "")
    named += [(Path(folder), PATH_VARIABLE) for folder in variable.split(os.pathsep) if folder]
    for folder, origin in named:
        if not folder.is_dir():
            raise ProfileError(f"{origin}: '{folder}' is not a folder")
    return (*dict.fromkeys(folder for folder, _ in named), shipped_folder())


def profile_files(kind: str, folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every profile of `kind`, in order of precedence."""
    seen: set[str] = set()
    for folder in folders:
        for place in (folder / FOLDERS[kind], folder):
            for path in sorted(filter(Path.is_file, place.glob("*.yaml"))):
                name = path.stem.lower()
                if name in seen or (place == folder and at_a_glance(path, "profile") != kind):
                    continue
                seen.add(name)
                yield name, path


def find_profile(kind: str, name: str | Path, folders: Iterable[Path]) -> Path:
    """Return the file of the profile called `name`, an alias of it, or the path given as `name`.

    Raises
    ------
    ProfileError
        If there is none; the message has the nearest names.
    """
    text = str(name)
    if text.endswith((".yaml", ".yml")) or os.sep in text or "/" in text:
        refuse_path(text, kind, ProfileError)
        path = Path(text)
        if not is_there(path):
            raise ProfileError(f"{kind}: there is no file {shown(text)}")
        return path
    folders, wanted = tuple(folders), text.lower()
    for folder in folders:
        for place in (folder / FOLDERS[kind], folder):
            path = place / f"{wanted}.yaml"
            if is_there(path) and (place != folder or at_a_glance(path, "profile") == kind):
                return path
    known = dict(profile_files(kind, folders))
    if wanted in known:
        return known[wanted]
    for path in known.values():
        if wanted in aliases_of(path, wanted):
            return path
    if (same := _only(known, lambda name: solid(name) == solid(wanted))) is not None:
        return same
    if missing := without_profile(text):
        raise ProfileError(f"{kind}: {missing}")
    holder = _cluster_of_accelerator(wanted, known, folders) if kind == "cluster" else None
    if holder is None and kind == "cluster":
        holder = _only(known, lambda name: begins(name, wanted))
    if holder is not None:
        return holder
    aliases = [alias for path in known.values() for alias in aliases_of(path)]
    near = get_close_matches(wanted[:100], [*known, *aliases], n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    raise ProfileError(f"unknown {kind} {shown(text)}: {meant}(known: {listed_names(sorted(known))})")


def _called(known: Mapping[str, Path], met: Callable[[str], bool]) -> set[str]:
    """Return the profiles of which the name, or an alias, is one that is looked for."""
    return {name for name, path in known.items() if any(map(met, (name, *aliases_of(path))))}


def _only(known: Mapping[str, Path], met: Callable[[str], bool]) -> Path | None:
    """Return the one profile that is called so, None where there are several or none."""
    found = _called(known, met)
    return known[found.pop()] if len(found) == 1 else None


def _cluster_of_accelerator(wanted: str, known: dict[str, Path], folders: tuple[Path, ...]) -> Path | None:
    """Return the cluster that an accelerator of that name, or that begins so, means; none where it is no such name.

    That is the one that has it, or of several the vendor's reference machine.

    Raises
    ------
    ProfileError
        If several clusters have it, or none: which, for the user to choose.
    """
    accelerators = dict(profile_files("accelerator", folders))
    # "h100x8" is eight of them: how many is another field's.
    if not _called(accelerators, partial(_same, wanted)):
        wanted = re.sub(r"(?<=[0-9a-z])x[0-9]{1,5}$", "", wanted)
    begun = {name for name in accelerators if begins(name, wanted)}
    meant = {wanted} if wanted in accelerators else begun | _called(accelerators, partial(_same, wanted))
    meant = meant or {name for name in accelerators if holds(name, wanted)}
    # Half a word is too little to choose by, but enough to name what it may be the half of.
    halves = not meant
    meant = meant or _called(accelerators, partial(_halved, wanted))
    if not meant:
        return None
    holders = {name: path for name, path in known.items() if accelerator_of(path, folders) in meant}
    meaning = [path for path in holders.values() if at_a_glance(path, "reference") == "True"]
    for only in (meaning, list(holders.values())):
        if len(only) == 1 and not halves:
            return only[0]
    what = (
        f"{wanted!r} is an accelerator, no cluster"
        if wanted in accelerators
        else f"{wanted!r} is no cluster, but accelerators {_listed(meant)} begin so"
    )
    raise ProfileError(
        f"cluster: {what}; clusters of it: {_listed(holders)}; name one of them"
        if holders
        else f"cluster: {what}, and no cluster has it; write one (CONTRIBUTING.md, A cluster)"
    )


def _same(wanted: str, name: str) -> bool:
    return solid(name) == solid(wanted)


def _halved(wanted: str, name: str) -> bool:
    return len(solid(wanted)) >= _LEAST_HALF and solid(name).startswith(solid(wanted))


def _listed(names: Iterable[str]) -> str:
    """Join names for a sentence."""
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last


def accelerator_of(path: Path, folders: tuple[Path, ...]) -> str:
    """Return the name of a cluster's accelerator, its own or its parent's; empty where it says none."""
    for _ in range(_LONGEST_CHAIN):
        named = at_a_glance(path, "accelerator")
        parent = at_a_glance(path, "inherit")
        if named or not parent:
            return named.lower()
        try:
            path = find_profile("cluster", parent, folders)
        except ProfileError:
            return ""
    return ""


def read_profile(path: Path, kind: str, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return the raw content of a profile with its `inherit` chain merged in.

    The child's top-level keys replace the parent's; `sources` of both are kept. Kernels that an accelerator inherits
    become estimates where its peaks, units or memory are its own, and it has to say its own power then. Kernels that
    are written as rules are written out.
    """
    content = _merged(path, kind, folders)
    if kind == "accelerator" and "software" not in content and isinstance(content.get("generation"), str):
        content["software"] = _software(path, str(content["generation"]))
    if isinstance(content.get("kernels"), dict):
        content["kernels"] = _kernels(content, path, folders)
    if isinstance(own := content.get("sources", {}), dict):
        cited = {key for _, key in citations(content)}
        content["sources"] = {key: said for key, said in common_sources().items() if key in cited} | own
    return content


def _merged(path: Path, kind: str, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return what a profile and its parents say."""
    content, chain = dict(read_yaml(path)), [path]
    check_header(content, path, kind)
    while "inherit" in content:
        parent_path = find_profile(kind, str(content.pop("inherit")), folders)
        if parent_path in chain:
            raise ProfileError(f"{path.name}: inherit: expected a chain with an end, got a circle")
        chain.append(parent_path)
        parent = dict(read_yaml(parent_path))
        check_header(parent, parent_path, kind)
        merged_sources = {**_mapping(parent.get("sources")), **_mapping(content.get("sources"))}
        parent = {key: value for key, value in parent.items() if key not in ("aliases", "reference")}
        if "price_usd_per_gpu_hour" in content or content.get("accelerator") not in (
            None,
            parent.get("accelerator"),
        ):
            # A price is that of one accelerator on one day: a child with another of either takes none of it.
            parent = {key: value for key, value in parent.items() if key not in PRICE_KEYS}
        if kind == "accelerator" and content.keys() & _KERNELS_ARE_OF:
            # Another chip draws another power; what it draws is not known from its parent.
            parent.pop("tdp", None)
        if kind == "accelerator" and "kernels" not in content and content.keys() & _KERNELS_ARE_OF:
            because = "inherited, with other peaks, units or memory"
            if "like" not in _mapping(parent.get("kernels")):
                parent |= {"kernels": {"like": parent_path.stem, "because": because}}
        content = {**parent, **content, "sources": merged_sources}
        if "inherit" not in parent:
            break
        content["inherit"] = parent["inherit"]
    return content


@cache
def common_sources() -> dict[str, Any]:
    """Return the sources that several shipped profiles cite, by the key that stands for them in every profile."""
    path = files("costmodel") / "describe" / "data" / "sources.yaml"
    return read_mapping(path, example="sheet: {title: ...}", error=ProfileError)


def citations(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of every ``source:`` below `node`."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(node, dict):
        items = node.items()
    elif isinstance(node, list):
        items = enumerate(node)
    for key, child in items:
        if key == "source" and isinstance(child, str):
            yield ".".join((*path, "source")), child
        else:
            yield from citations(child, (*path, str(key)))


def kernels_generation(path: Path, folders: tuple[Path, ...]) -> str:
    """Return the generation of the accelerator that another inherits its kernels from, empty where they are its own.

    Raises
    ------
    ProfileError
        If a parent is not there.
    """
    at, content = path, {}
    # Most profiles inherit nothing: a glance spares reading them again.
    while parent := at_a_glance(at, "inherit"):
        content = read_yaml(at)
        if "kernels" in content:
            break
        at = find_profile("accelerator", parent, folders)
    return "" if at == path else str(read_profile(at, "accelerator", folders)["generation"])


_KERNELS_ARE_OF = frozenset(("peak_dense", "num_sms", "memory_bandwidth"))
"""What a child may not change and still have its parent's measurements."""


def _kernels(content: dict[str, Any], path: Path, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return the ``kernels:`` block of an accelerator with constants in place of rules."""
    from costmodel.describe.hardware.kernel_rules import GROUPS, LENT, written_out

    @cache
    def block(name: str) -> dict[str, Any]:
        own = name == path.stem
        device = (
            content if own else _merged(find_profile("accelerator", name, folders), "accelerator", folders)
        )
        said = _mapping(device.get("kernels"))
        if not said.keys() & LENT:
            return said
        if not all(isinstance(said.get(key), str) for key in LENT) or not said.keys() <= {*LENT, *GROUPS}:
            raise ProfileError(
                f"expected {{like: an accelerator, because: a reason}}, beside them at most what differs "
                f"({', '.join(GROUPS)}); got {shown(said)}"
            )
        return {**said, "num_sms": _mapping(device.get("num_sms")).get("value")}

    try:
        return written_out(path.stem, block)
    except ProfileError as error:
        raise ProfileError(f"{path.name}: kernels: {error}") from None
    except ValueError as error:
        raise ProfileError(f"{path.name}: kernels.{error}") from None


_FOR_EXAMPLE = "{attention: flash2, torch_attention: flash2, fp8: fp8-delayed, fp8_layouts: both}"


def _software(path: Path, generation: str) -> dict[str, Any]:
    """Return what the shipped accelerators of a generation say of its software."""
    known: dict[str, dict[str, Any]] = {}
    for _, shipped in profile_files("accelerator", (shipped_folder(),)):
        held = _glance(shipped, "generation") | _glance(shipped, "software")
        if said := _mapping(held.get("software")):
            known.setdefault(str(held.get("generation")), said)
    if generation not in known:
        raise ProfileError(
            f"{path.name}: software: expected what the software of the new generation {generation!r} takes, "
            f"such as {_FOR_EXAMPLE}; or a generation that shipped profiles have: {choices_hint(generation, known)}"
        )
    return known[generation]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds, or raise `ProfileError` with file and line."""
    try:
        return _read_yaml(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from None


@lru_cache(maxsize=256)
def _read_yaml(path: Path, _mtime_ns: int) -> dict[str, Any]:
    """Read and cache; the modification time is in the key so that an edited file is read again."""
    return read_mapping(path, example="profile: cluster", error=ProfileError, name=path.name)


def check_header(content: dict[str, Any], path: Path, kind: str | None = None) -> str:
    """Check `profile` and `schema_version`, and return the kind of profile this is."""
    if content.get("schema_version") != SCHEMA_VERSION:
        changes = "; ".join(f"version {number}: {change}" for number, change in SCHEMA_CHANGES.items())
        raise ProfileError(
            f"{path.name}: schema_version: expected {SCHEMA_VERSION}, "
            f"got {content.get('schema_version')!r} ({changes})"
        )
    found = content.get("profile")
    if not isinstance(found, str) or found not in FOLDERS:
        raise ProfileError(f"{path.name}: profile: expected one of {', '.join(FOLDERS)}, got {found!r}")
    if kind is not None and found != kind:
        beside = (
            "; a cluster names it under accelerator:" if (kind, found) == ("cluster", "accelerator") else ""
        )
        raise ProfileError(f"{path.name}: profile: expected {kind!r}, got {found!r}{beside}")
    return found


def _mapping(value: object) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty one (the schema check reports it)."""
    return value if isinstance(value, dict) else {}


def at_a_glance(path: Path, key: str) -> str:
    """Return the text of a top-level key without parsing the rest of the file, empty if there is none."""
    found = _glance(path, key).get(key, "")
    return str(found)


def aliases_of(path: Path, wanted: str = "") -> list[str]:
    """Return a file's aliases without parsing the rest, because a look-up must not load every profile."""
    aliases = _glance(path, "aliases", wanted).get("aliases")
    return [str(alias).lower() for alias in aliases] if isinstance(aliases, list) else []


def _glance(path: Path, key: str, wanted: str = "") -> dict[str, Any]:
    """Return one key of a file if its lines hold `wanted`; what is no YAML is for `read_yaml` to say."""
    lines = top_level_lines(path.read_text(encoding="utf-8", errors="replace"), (key,))
    if not lines or wanted not in lines.lower():
        return {}
    try:
        return parse_mapping(lines, path.name, example="", error=ProfileError)
    except ProfileError:
        return {}
