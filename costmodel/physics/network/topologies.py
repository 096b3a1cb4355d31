r"""How the GPUs of one tier are wired, as far as prices depend on it: a record a kind.

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
from dataclasses import dataclass

from costmodel.base.errors import CostModelError, choices_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One kind of wiring.

    Attributes
    ----------
    name : str
        Word of a cluster's or link's file.
    ring, pairs, send : str
        Share of a GPU's bandwidth that neighbours on rings get, messages to all peers at once, and a
        single message; 1 where it is all.
    forwards : bool
        Whether messages to a GPU of another index are handed on inside the domain below first.
    shaped : bool
        Whether links run along dimensions, so that a domain has a shape.
    innermost : bool
        Whether it can only be the innermost tier.
    source : str
        Where the shares come from.
    """

    name: str
    ring: str
    pairs: str
    send: str
    forwards: bool
    shaped: bool
    innermost: bool
    source: str


SWITCH = Topology(
    name="switch",
    ring="1",
    pairs="1",
    send="1",
    forwards=False,
    shaped=False,
    innermost=False,
    source="every port reaches every other at its rate",
)
FULL_MESH = Topology(
    name="full-mesh",
    # A pair has its own wire: a group uses those between its members.
    ring="(max({tier}_members - 1, 1) / ({tier}_domain - 1))",
    pairs="(max({tier}_members - 1, 1) / ({tier}_domain - 1))",
    send="(1 / ({tier}_domain - 1))",
    forwards=False,
    shaped=False,
    innermost=True,
    source="[1]: k - 1 rings without a common wire",
)
DRAGONFLY = Topology(
    name="dragonfly",
    # Over the direct links, or over all of them twice.
    ring="max(1 / max({tier}_parts - 1, 1), 0.5)",
    pairs="max(({tier}_members / {below} - 1) / max({tier}_parts - 1, 1), 0.5)",
    send="1",
    forwards=False,
    shaped=False,
    innermost=False,
    source="[2]: minimal or Valiant routing between groups, whichever gives more",
)
RAILS = Topology(
    name="rails",
    ring="1",
    pairs="1",
    send="1",
    forwards=True,
    shaped=False,
    innermost=False,
    source="[3]: one switch for the GPUs of an index",
)
PAIRED = Topology(
    name="paired",
    # The second core of a chip takes what rings bring from the memory that it shares with the first.
    ring="1",
    pairs="0.5",
    send="1",
    forwards=False,
    shaped=False,
    innermost=True,
    source="two cores share the ports of their chip and its memory: what both need crosses them once",
)
TORUS = Topology(
    name="torus",
    ring="1",
    pairs="1",
    send="1",
    forwards=False,
    shaped=True,
    innermost=True,
    source="formulas of costmodel.physics.network.torus",
)

TOPOLOGIES: Mapping[str, Topology] = {
    one.name: one for one in (SWITCH, FULL_MESH, DRAGONFLY, RAILS, PAIRED, TORUS)
}
"""Every kind of wiring, by name."""


def topology(name: str) -> Topology:
    """Return the record of a kind of wiring.

    Raises
    ------
    CostModelError
        If there is no such kind.
    """
    if name not in TOPOLOGIES:
        raise CostModelError(f"topology: unknown {name!r}; {choices_hint(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]
