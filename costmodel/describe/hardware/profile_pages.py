"""Hardware profiles one by one: lists of them, and one with its numbers and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.answer import Answer, Listing
from costmodel.base.errors import ProfileError, choices_hint
from costmodel.base.words import DEVICE
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import ProfileNumber, ProfilePath, load_cluster, profile_numbers
from costmodel.describe.hardware.profile_files import (
    FOLDERS,
    aliases_of,
    at_a_glance,
    check_header,
    find_profile,
    profile_files,
    read_yaml,
    search_folders,
)


class ProfileEntry(NamedTuple):
    """A profile in a list."""

    kind: str
    name: str
    aliases: str
    """Other names that it goes by, with spaces between them."""
    title: str


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
        return {
            "schema_version": 1,
            "kind": self.kind,
            "name": self.name,
            "numbers": [number._asdict() for number in self.numbers],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a number, with its source."""
        return {key: [getattr(number, key) for number in self.numbers] for key in ProfileNumber._fields}


def list_entries(kind: str | None = None, *, profile_path: ProfilePath = None) -> list[ProfileEntry]:
    """Return the profiles of one kind, or of all.

    Raises
    ------
    ProfileError
        If there is no such kind.
    """
    if kind is not None and kind not in FOLDERS:
        raise ProfileError(f"kind: {kind!r} is unknown; {choices_hint(kind, FOLDERS)}")
    folders = search_folders(profile_path)
    return [
        ProfileEntry(each, path.stem, " ".join(aliases_of(path)), at_a_glance(path, "title"))
        for each in (FOLDERS if kind is None else (kind,))
        for _, path in sorted(profile_files(each, folders))
    ]


def hardware_profile(name: str, kind: str | None = None, *, profile_path: ProfilePath = None) -> ProfilePage:
    """Return one profile; without a kind the first of accelerators, links, clusters and storage.

    Raises
    ------
    ProfileError
        If there is none of that name; the message has the nearest of any kind.
    """
    if kind is None:
        kind = _kind_of(name, profile_path)
    numbers = profile_numbers(kind, name, profile_path=profile_path)
    cluster = load_cluster(name, profile_path=profile_path) if kind == "cluster" else None
    return ProfilePage(kind, name, tuple(numbers), cluster)


def _kind_of(name: str, profile_path: ProfilePath) -> str:
    """Return the kind of profile that goes by this name, alias or path."""
    folders = search_folders(profile_path)
    if Path(name).suffix in (".yaml", ".yml"):
        path = find_profile("profile", name, folders)
        return check_header(read_yaml(path), path)
    for kind in FOLDERS:
        try:
            find_profile(kind, name, folders)
        except ProfileError:
            continue
        return kind
    known = [entry.name for entry in list_entries(profile_path=profile_path)]
    raise ProfileError(f"unknown profile {name!r}: {choices_hint(name, known)}")


def profiles_table(kind: str | None = None, *, profile_path: ProfilePath = None) -> Listing:
    """List the hardware profiles of one kind, or of all: shipped ones, and yours.

    Raises
    ------
    ProfileError
        If there is no such kind.
    """
    entries = list_entries(kind, profile_path=profile_path)
    table = {key: [getattr(entry, key) for entry in entries] for key in ProfileEntry._fields}
    return Listing("profiles", table)
