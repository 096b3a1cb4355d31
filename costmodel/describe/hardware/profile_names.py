"""Names of accelerators and clusters as people write them, and what is known of those that have no profile."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from costmodel.base.errors import shown
from costmodel.base.yaml_files import read_mapping

_MAKERS = frozenset(
    ("nvidia", "amd", "intel", "google", "cloud", "aws", "amazon", "huawei", "habana", "instinct", "geforce")
)
"""Words that say who makes or sells a device, not which one it is."""


def parts(name: str) -> tuple[str, ...]:
    """Return the words of a name: lower case, without makers and the size of an instance.

    >>> parts("AMD Instinct MI300X"), parts("rtx_4090"), parts("p5.48xlarge"), parts("Google Cloud")
    (('mi300x',), ('rtx', '4090'), ('p5',), ('google', 'cloud'))
    """
    text = re.sub(r"\.[0-9]*xlarge$", "", name.strip().lower())
    words = [word for word in re.split(r"[\s_-]+", text) if word]
    return tuple(word for word in words if word not in _MAKERS) or tuple(words)


def solid(name: str) -> str:
    """Return a name without what people leave out or put in: spaces, dashes, makers.

    >>> solid("Gaudi 3"), solid("gaudi-3"), solid("Intel Gaudi3")
    ('gaudi3', 'gaudi3', 'gaudi3')
    """
    return "".join(parts(name))


def begins(name: str, wanted: str) -> bool:
    """Return whether the first words of `name` are those of `wanted`.

    >>> begins("h100-sxm-80gb", "H100 SXM"), begins("h100-sxm-80gb", "h10"), begins("a", "")
    (True, False, False)
    """
    words = parts(wanted)
    return bool(words) and parts(name)[: len(words)] == words


def holds(name: str, wanted: str) -> bool:
    """Return whether the words of `wanted` stand in `name`, one behind the other.

    >>> holds("workstation-rtx-4090", "4090"), holds("tpu-v5p", "tpu v5"), holds("a", "")
    (True, False, False)
    """
    words, among = parts(wanted), parts(name)
    return bool(words) and any(
        among[start : start + len(words)] == words for start in range(len(among) - len(words) + 1)
    )


def without_profile(wanted: str) -> str:
    """Return why a device that people ask for has no profile, and what is nearest; empty where it is not known.

    >>> without_profile("NVIDIA Rubin CPX").partition(":")[0], without_profile("h100")
    ("'NVIDIA Rubin CPX' has no profile", '')
    """
    for record in _without_profile():
        if any(holds(wanted, name) for name in record["names"]):
            near = record.get("near", ())
            nearest = f"; nearest: {', '.join(near)}" if near else ""
            return f"{shown(wanted)} has no profile: {record['why']}{nearest}"
    return ""


@cache
def _without_profile() -> tuple[Mapping[str, Any], ...]:
    """Return the records of known devices without a profile."""
    path = files("costmodel") / "describe" / "data" / "without_profile.yaml"
    return tuple(read_mapping(path, example="devices: []")["devices"])
