"""What every formula over a fabric shares: a tier, its fitted constants, and the cost that comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.quantity import Quantity

Array = NDArray[np.float64]

NCCL_ALGORITHMS = (
    "none",
    "ll",
    "ring",
    "tree",
    "nvls",
    "nvls-tree",
    "direct",
    "sides-in-turn",
    "sides-at-once",
    "pat",
    "nvls-sharp",
    "collnet-chain",
)
"""Names of the codes in `GroupCost.algorithm`."""


class Fabric(NamedTuple):
    """Constants of the collective library on one link.

    The file model of a link's ``fabric:`` block is made from these fields: their names say the unit
    (`costmodel.describe.hardware.fabric`). Defaults are those of a link that nobody has measured.
    """

    rate_factor: float = 1.0
    """Asymptotic rate of a ring over the link's achieved bandwidth. [-]"""
    copy_bandwidth_bytes_per_s: float = 0.0
    """Rate at which a rank copies its own shard beside the wire, 0 = free. [B/s]"""
    pipeline_s: float = 0.0
    pipeline_step_s: float = 0.0
    """Fill time of the chunk pipeline: fixed, and per ring step. [s]"""
    simple_step_s: float = 0.0
    """What each ring step takes longer under the bandwidth protocol, when this link is the outermost. [s]"""
    ll_bandwidth_bytes_per_s: float = 0.0
    """Rate cap of the low-latency protocol over this link, for all GPUs of a node together; 0 = no switch of protocol
    is seen. [B/s]"""
    tree_step_s: float = 0.0
    """Latency of one level of a tree across this link, 0 = that of a ring step. [s]"""
    tree_pipeline_s: float = 0.0
    """Fill time of a tree's chunk pipeline across this link. [s]"""
    tree_rate_factor: float = 1.0
    """Asymptotic rate of a tree over that of the ring on this link. [-]"""
    nvls_latency_s: float = 20e-6
    nvls_pipeline_s: float = 0.0
    nvls_rate_factor: float = 1.0
    nvls_min_ranks: float = 5.0
    """In-switch reduction: fixed time, fill time per rank, asymptotic rate over the link's reduction bandwidth, and
    the smallest group that the library uses it for."""
    nvls_tree_rate_factor: float = 1.0
    nvls_tree_pipeline_s: float = 0.0
    """In-switch reduction in a tree across nodes: its rate over that in one node [-], and what this link adds to the
    fill time. [s]"""
    all_to_all_latency_s: float = 0.0
    all_to_all_message_s: float = 0.0
    all_to_all_pipeline_s: float = 0.0
    """Fixed time of an all-to-all (0 = of a ring step), time per peer across this link, fill time. [s]"""
    send_latency_s: float = 0.0
    send_pipeline_s: float = 0.0
    """Fixed time (0 = of a ring step) and fill time of a single send. [s]"""
    send_rate_factor: float = 1.0
    """Asymptotic rate of a single send over the link's achieved bandwidth. [-]"""
    dispatch_rate_factor: float = 0.85
    """Rate of token dispatch and combine kernels over the link's achieved bandwidth. [-]"""


class HasConstants(Protocol):
    """The fitted block of a link's profile."""

    @property
    def constants(self) -> Fabric:
        """The numbers alone."""


class TierLike(Protocol):
    """One level of a cluster, as `costmodel.describe.hardware.cluster.Tier` describes it."""

    @property
    def name(self) -> str:
        """What the level is called; the formulas' terms are called after it."""

    @property
    def size(self) -> int:
        """GPUs of one domain."""

    @property
    def topology(self) -> str:
        """How they are wired, a name of `costmodel.physics.network.topologies`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension of a torus; empty otherwise."""

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether the ends of each dimension are joined."""

    @property
    def achieved_bandwidth_bytes_per_s(self) -> float:
        """What large messages of a GPU get, per direction."""

    @property
    def latency_s(self) -> float:
        """Start-up of one ring step."""

    @property
    def base_latency_s(self) -> float:
        """Fixed cost of a collective."""

    @property
    def reduction_bandwidth_bytes_per_s(self) -> float:
        """What a GPU can send into an in-switch reduction, 0 if there is none."""

    @property
    def fabric(self) -> HasConstants | None:
        """Fitted constants, if any."""


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Time of one collective, and what it sends."""

    made: Quantity
    """The time [s] with the formula that gave it; its steps ``latency_s`` and ``transfer_s`` are the part that does
    not depend on the size, and the rest."""
    wire_bytes: Array
    """Bytes that each GPU sends by the ring's count (nccl-tests' bus bandwidth). [B]"""
    tier: Array
    """Index of the outermost tier crossed, -1 in a group of one. [-]"""
    algorithm: Array
    """Index into `NCCL_ALGORITHMS`. [-]"""

    @property
    def latency_s(self) -> Array:
        """The part that does not depend on the size. [s]"""
        return self.made.step("latency_s")

    @property
    def transfer_s(self) -> Array:
        """The part with bytes. [s]"""
        return self.made.step("transfer_s")

    @property
    def time_s(self) -> Array:
        """Both parts together, in seconds."""
        return self.made.value


def constants_of(tier: TierLike) -> Fabric:
    """Return the fitted constants of a tier, or those of a link that nobody measured."""
    return _UNMEASURED if tier.fabric is None else tier.fabric.constants


_UNMEASURED = Fabric()
