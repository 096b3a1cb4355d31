"""Hardware profiles on disk: where they lie, how they are found, read and merged with their parent.

A profile is one YAML file of one kind: accelerator, link, cluster or storage. Names are looked up
first in the folders given by the caller, then in those of `COSTMODEL_PROFILE_PATH`, then among the
shipped ones, so that a user's file of the same name wins. A folder holds either the four folders
of `FOLDERS` or the files themselves.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import ProfileError, choices_hint, listed_names, shown
from costmodel.base.files import is_there, refuse_path
from costmodel.base.yaml_files import parse_mapping, read_mapping, top_level_lines

FOLDERS = {"accelerator": "accelerators", "link": "links", "cluster": "clusters", "storage": "storage"}
SCHEMA_VERSION = 1
_SCHEMA_CHANGES = (
    "version 1: every number is written as {value: ..., source: ...} and names its dimension, e.g. 3.35 TB/s"
)
PATH_VARIABLE = "COSTMODEL_PROFILE_PATH"
_OF_A_PRICE = ("price_usd_per_gpu_hour", "price_date", "price_range_usd_per_gpu_hour")
"""What a cluster file says of its price."""
_KERNELS_ARE_OF = frozenset(("peak_dense", "num_sms", "memory_bandwidth"))
"""What a child may not change and still have its parent's measurements."""
_LEAST_HALF = 3
"""Letters of a name that is not whole, below which it says nothing."""
_LONGEST_CHAIN = 10
"""Parents of a profile that a look-up follows."""

Folders = tuple[Path, ...]


@lru_cache(maxsize=1)
def shipped_folder() -> Path:
    """Return the folder of the shipped profiles, in a wheel or in a checkout."""
    package = Path(__file__).resolve().parents[2]
    packaged = package / "hardware_profiles"
    return packaged if packaged.is_dir() else package.parent / "hardware_profiles"


def search_folders(profile_path: str | Path | Iterable[str | Path] | None = None) -> Folders:
    """Return the folders to look in, first hit wins: the caller's, those of `COSTMODEL_PROFILE_PATH`, the shipped one."""
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


_SHORT = re.compile(r"\D*[^-]*")
"""Of an accelerator's name, what ends with its first number: h100, tpu-v5p."""


def find_profile(kind: str, name: str | Path, folders: Iterable[Path]) -> Path:
    """Return the file of the profile called `name`, an alias of it, or the path given as `name`."""
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
    called = _called(known)
    if wanted in called:
        return known[called[wanted]]
    same = {stem for name, stem in called.items() if solid(name) == solid(wanted)}
    if len(same) == 1:
        return known[same.pop()]
    if kind == "cluster":
        if (meant := _cluster_of_accelerator(wanted, known, folders)) is not None:
            return meant
        begun = {stem for name, stem in called.items() if begins(name, wanted)}
        if len(begun) == 1:
            return known[begun.pop()]
    names = {*called}
    if kind == "cluster":  # an accelerator means its reference machine
        names |= {_SHORT.findall(name)[0] for name, _ in profile_files("accelerator", folders)}
    near = get_close_matches("-".join(parts(wanted))[:100], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    raise ProfileError(f"unknown {kind} {shown(text)}: {hint}(known: {listed_names(sorted(known))})")


def _called(known: Mapping[str, Path]) -> dict[str, str]:
    """Return the names and aliases of some profiles, each with the name of its profile; the first one has it."""
    aliases = {alias: name for name, path in reversed(list(known.items())) for alias in aliases_of(path)}
    return aliases | {name: name for name in known}


def _cluster_of_accelerator(wanted: str, known: Mapping[str, Path], folders: Folders) -> Path | None:
    """Return the cluster that an accelerator of that name, or that begins so, means; none where it is no such name."""
    accelerators = dict(profile_files("accelerator", folders))
    called = _called(accelerators)
    # "h100x8" is eight of them: how many is another field's.
    if not any(solid(name) == solid(wanted) for name in called):
        wanted = re.sub(r"(?<=[0-9a-z])x[0-9]{1,5}$", "", wanted)
    meant = {wanted} & accelerators.keys()
    meant = meant or {stem for name, stem in called.items() if solid(name) == solid(wanted)}.union(
        name for name in accelerators if begins(name, wanted)
    )
    meant = meant or {name for name in accelerators if holds(name, wanted)}
    # Half a word is too little to choose by, but enough to name what it may be the half of.
    is_half = not meant
    if is_half and len(solid(wanted)) >= _LEAST_HALF:
        meant = {stem for name, stem in called.items() if solid(name).startswith(solid(wanted))}
    if not meant:
        return None
    clusters = {name: path for name, path in known.items() if accelerator_of(path, folders) in meant}
    reference = [path for path in clusters.values() if at_a_glance(path, "reference") == "True"]
    for only in (reference, list(clusters.values())):
        if len(only) == 1 and not is_half:
            return only[0]
    what = f"{wanted!r} is an accelerator, no cluster"
    if wanted not in accelerators:
        what = f"{wanted!r} is no cluster, but accelerators {_listed(meant)} begin so"
    if not clusters:
        raise ProfileError(f"cluster: {what}, and no cluster has it; write one (CONTRIBUTING.md, A cluster)")
    raise ProfileError(f"cluster: {what}; clusters of it: {_listed(clusters)}; name one of them")


def _listed(names: Iterable[str]) -> str:
    """Join names for a sentence."""
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last


def accelerator_of(path: Path, folders: Folders) -> str:
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


def read_profile(path: Path, kind: str, folders: Folders) -> dict[str, Any]:
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
        content["sources"] = {key: stated for key, stated in _common_sources().items() if key in cited} | own
    return content


def _merged(path: Path, kind: str, folders: Folders) -> dict[str, Any]:
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
        sources = {**_mapping(parent.get("sources")), **_mapping(content.get("sources"))}
        dropped = ["aliases", "reference"]
        other_chip = content.get("accelerator") not in (None, parent.get("accelerator"))
        if "price_usd_per_gpu_hour" in content or other_chip:
            # A price is that of one accelerator on one day: a child with another of either takes none of it.
            dropped += _OF_A_PRICE
        if kind == "accelerator" and content.keys() & _KERNELS_ARE_OF:
            # Another chip draws another power; what it draws is not known from its parent.
            dropped.append("tdp")
            if "kernels" not in content and "like" not in _mapping(parent.get("kernels")):
                because = "inherited, with other peaks, units or memory"
                parent |= {"kernels": {"like": parent_path.stem, "because": because}}
        lent = {key: value for key, value in parent.items() if key not in dropped}
        content = {**lent, **content, "sources": sources}
        if "inherit" not in parent:
            break
        content["inherit"] = parent["inherit"]
    return content


@cache
def _common_sources() -> dict[str, dict[str, str]]:
    """Return the sources that several shipped profiles cite, by the key that stands for them in every profile."""
    rows = read_rows(Path(__file__).parents[1] / "data" / "sources.csv")
    return {row.pop("key"): {key: stated for key, stated in row.items() if stated} for row in rows}


def mappings(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield every mapping in `node`, outer ones first, with its dotted path."""
    items: Iterable[tuple[object, object]] = enumerate(node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield ".".join(path), node
        items = node.items()
    for key, child in items:
        yield from mappings(child, (*path, str(key)))


def citations(node: object) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of every ``source:`` below `node`."""
    for path, mapping in mappings(node):
        if isinstance(mapping.get("source"), str):
            yield f"{path}.source".removeprefix("."), mapping["source"]


def kernels_generation(path: Path, folders: Folders) -> str:
    """Return the generation of the accelerator that another inherits its kernels from, empty where they are its own."""
    at = path
    # Most profiles inherit nothing: a glance spares reading them again.
    while (parent := at_a_glance(at, "inherit")) and "kernels" not in read_yaml(at):
        at = find_profile("accelerator", parent, folders)
    return "" if at == path else str(read_profile(at, "accelerator", folders)["generation"])


def _kernels(content: dict[str, Any], path: Path, folders: Folders) -> dict[str, Any]:
    """Return the ``kernels:`` block of an accelerator with constants in place of rules."""
    from costmodel.describe.hardware.kernel_rules import GROUPS, LENT, written_out

    @cache
    def block(name: str) -> dict[str, Any]:
        device = content
        if name != path.stem:
            device = _merged(find_profile("accelerator", name, folders), "accelerator", folders)
        stated = _mapping(device.get("kernels"))
        if not stated.keys() & LENT:
            return stated
        if not all(isinstance(stated.get(key), str) for key in LENT) or not stated.keys() <= {*LENT, *GROUPS}:
            raise ProfileError(
                f"expected {{like: an accelerator, because: a reason}}, beside them at most what differs "
                f"({', '.join(GROUPS)}); got {shown(stated)}"
            )
        return {**stated, "num_sms": _mapping(device.get("num_sms")).get("value")}

    try:
        return written_out(path.stem, block)
    except ProfileError as error:
        raise ProfileError(f"{path.name}: kernels: {error}") from None
    except ValueError as error:
        raise ProfileError(f"{path.name}: kernels.{error}") from None


def _software(path: Path, generation: str) -> dict[str, Any]:
    """Return what the shipped accelerators of a generation say of its software."""
    known: dict[str, dict[str, Any]] = {}
    for _, shipped in profile_files("accelerator", (shipped_folder(),)):
        if stated := _mapping(_glance(shipped, shipped.stat().st_mtime_ns, "software")):
            known.setdefault(at_a_glance(shipped, "generation"), stated)
    if generation not in known:
        raise ProfileError(
            f"{path.name}: software: expected what the software of the new generation {generation!r} takes, such as "
            "{attention: flash2, torch_attention: flash2, fp8: fp8-delayed, fp8_layouts: both}; or a generation that "
            f"shipped profiles have: {choices_hint(generation, known)}"
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
    version, found = content.get("schema_version"), content.get("profile")
    if version != SCHEMA_VERSION:
        raise ProfileError(
            f"{path.name}: schema_version: expected {SCHEMA_VERSION}, got {version!r} ({_SCHEMA_CHANGES})"
        )
    if not isinstance(found, str) or found not in FOLDERS:
        raise ProfileError(f"{path.name}: profile: expected one of {', '.join(FOLDERS)}, got {found!r}")
    if kind is not None and found != kind:
        is_chip = (kind, found) == ("cluster", "accelerator")
        hint = "; a cluster names it under accelerator:" if is_chip else ""
        raise ProfileError(f"{path.name}: profile: expected {kind!r}, got {found!r}{hint}")
    return found


def _mapping(value: object) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty one (the schema check reports it)."""
    return value if isinstance(value, dict) else {}


def at_a_glance(path: Path, key: str) -> str:
    """Return the text of a top-level key, empty if there is none."""
    return str(_glance(path, path.stat().st_mtime_ns, key) or "")


def aliases_of(path: Path) -> list[str]:
    """Return a file's aliases."""
    aliases = _glance(path, path.stat().st_mtime_ns, "aliases")
    return [str(alias).lower() for alias in aliases] if isinstance(aliases, list) else []


@lru_cache(maxsize=4096)
def _glance(path: Path, _mtime_ns: int, key: str) -> Any:
    """Return the value of a top-level key without parsing the rest, because a look-up must not load every profile."""
    lines = top_level_lines(path.read_text(encoding="utf-8", errors="replace"), (key,))
    try:
        return parse_mapping(lines, path.name, example="", error=ProfileError).get(key) if lines else None
    except ProfileError:  # what is no YAML is for `read_yaml` to say
        return None


_MAKERS = frozenset(
    ("nvidia", "amd", "intel", "google", "cloud", "aws", "amazon", "huawei", "habana", "instinct", "geforce")
)
"""Words that say who makes or sells a device, not which one it is."""


def parts(name: str) -> tuple[str, ...]:
    """Return the words of a name: lower case, without makers and the size of an instance."""
    text = re.sub(r"\.[0-9]*xlarge$", "", name.strip().lower())
    words = [word for word in re.split(r"[\s_-]+", text) if word]
    return tuple(word for word in words if word not in _MAKERS) or tuple(words)


def solid(name: str) -> str:
    """Return a name without what people leave out or put in: spaces, dashes, makers."""
    return "".join(parts(name))


def begins(name: str, wanted: str) -> bool:
    """Return whether the first words of `name` are those of `wanted`."""
    words = parts(wanted)
    return bool(words) and parts(name)[: len(words)] == words


def holds(name: str, wanted: str) -> bool:
    """Return whether the words of `wanted` stand in `name`, one behind the other."""
    words, among = parts(wanted), parts(name)
    return bool(words) and any(
        among[start : start + len(words)] == words for start in range(len(among) - len(words) + 1)
    )
