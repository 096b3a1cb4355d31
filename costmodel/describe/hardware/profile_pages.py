"""Hardware profiles one by one: lists of them, and one with its numbers and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.base.answer import Answer, Listing
from costmodel.base.errors import ProfileError, choices_hint
from costmodel.base.words import DEVICE
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import (
    ProfileNumber,
    ProfilePath,
    load_cluster,
    profile_kind,
    profile_numbers,
)
from costmodel.describe.hardware.profile_files import (
    FOLDERS,
    aliases_of,
    at_a_glance,
    find_profile,
    profile_files,
    search_folders,
)


@dataclass(frozen=True, repr=False)
class ProfilePage(Answer):
    """One profile with every number that its file has, and the fabric of a cluster."""

    kind: str
    name: str
    numbers: tuple[ProfileNumber, ...]
    cluster: Cluster | None

    @property
    def device_word(self) -> str:
        """What a device of the cluster is called."""
        return DEVICE if self.cluster is None else self.cluster.accelerator.called

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        numbers = [number._asdict() for number in self.numbers]
        return {"schema_version": 1, "kind": self.kind, "name": self.name, "numbers": numbers}

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a number, with its source."""
        return {key: [getattr(number, key) for number in self.numbers] for key in ProfileNumber._fields}


def profiles_table(kind: str | None = None, *, profile_path: ProfilePath = None) -> Listing:
    """List the hardware profiles of one kind, or of all: shipped ones, and yours.

    Raises
    ------
    ProfileError
        If there is no such kind.
    """
    if kind is not None and kind not in FOLDERS:
        raise ProfileError(f"kind: {kind!r} is unknown; {choices_hint(kind, FOLDERS)}")
    folders = search_folders(profile_path)
    rows = [
        (each, path.stem, " ".join(aliases_of(path)), at_a_glance(path, "title"))
        for each in (FOLDERS if kind is None else (kind,))
        for _, path in sorted(profile_files(each, folders))
    ]
    columns = list(zip(*rows, strict=True)) or [()] * 4
    return Listing("profiles", dict(zip(("kind", "name", "aliases", "title"), columns, strict=True)))


def hardware_profile(name: str, kind: str | None = None, *, profile_path: ProfilePath = None) -> ProfilePage:
    """Return one profile; without a kind the first of accelerators, links, clusters and storage.

    Raises
    ------
    ProfileError
        If there is none of that name; the message has the nearest of any kind.
    """
    kind = kind or _kind_of(name, profile_path)
    numbers = profile_numbers(kind, name, profile_path=profile_path)
    cluster = load_cluster(name, profile_path=profile_path) if kind == "cluster" else None
    return ProfilePage(kind, name, tuple(numbers), cluster)


def _kind_of(name: str, profile_path: ProfilePath) -> str:
    """Return the kind of profile that goes by this name, alias or path."""
    folders = search_folders(profile_path)
    if Path(name).suffix in (".yaml", ".yml"):
        return profile_kind(find_profile("profile", name, folders))
    for kind in FOLDERS:
        try:
            find_profile(kind, name, folders)
        except ProfileError:
            continue
        return kind
    known = [each for kind in FOLDERS for each, _ in profile_files(kind, folders)]
    raise ProfileError(f"unknown profile {name!r}: {choices_hint(name, known)}")
