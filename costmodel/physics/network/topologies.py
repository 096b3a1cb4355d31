r"""How the GPUs of one tier are wired, as far as prices depend on it: a row of ``topologies.csv`` a kind.

A tier's bandwidth is what a GPU sends in one direction over all of its ports together. What a group gets of
that depends on the wiring, and is text over the tier's terms: ``{tier}_members``, ``{tier}_domain`` (GPUs
of a domain), ``{tier}_parts`` (domains of the tier below in one of this), ``{below}`` (members of the
group in one domain below). Tori have formulas of their own (`torus`).

References
----------
.. [1] T. W. Tillson, "A Hamiltonian decomposition of K*_2m, 2m >= 8," J. Combin. Theory B 29(1), 1980,
   doi:10.1016/0095-8956(80)90044-1: k GPUs that are joined pairwise have k - 1 rings that share no link.
.. [2] J. Kim, W. J. Dally, S. Scott and D. Abts, "Technology-driven, highly-scalable dragonfly topology,"
   ISCA 2008, doi:10.1109/ISCA.2008.19: minimal routes of neighbouring groups share the few links between
   them; routing over a third group uses all global links, twice.
.. [3] NVIDIA, "Doubling all2all performance with NCCL 2.12," developer blog, 2022: messages first go over
   NVLink to the GPU on the target's rail (PXN).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_records
from costmodel.base.errors import CostModelError, choices_hint


class Topology(NamedTuple):
    """One kind of wiring."""

    name: str  # Word of a cluster's or link's file
    ring: str
    pairs: str
    send: str
    """Share of a GPU's bandwidth that neighbours on rings get, messages to all peers at once, and a
    single message; 1 where it is all."""
    forwards: bool  # Whether messages to a GPU of another index are handed on inside the domain below first
    shaped: bool  # Whether links run along dimensions, so that a domain has a shape
    innermost: bool  # Whether it can only be the innermost tier
    source: str
    note: str  # Where the shares come from, and why


TOPOLOGIES: Mapping[str, Topology] = read_records(Path(__file__).with_name("topologies.csv"), Topology)
"""Every kind of wiring, by name."""

SWITCH, TORUS = TOPOLOGIES["switch"], TOPOLOGIES["torus"]


def topology(name: str) -> Topology:
    """Return the record of a kind of wiring; a `CostModelError` if there is no such kind."""
    if name not in TOPOLOGIES:
        raise CostModelError(f"topology: unknown {name!r}; {choices_hint(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
