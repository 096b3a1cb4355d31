"""What every formula over a fabric shares: a tier, its fitted constants, and the cost that comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.quantity import Quantity

Array = NDArray[np.float64]

NCCL_ALGORITHMS = (
    *("none", "ll", "ring", "tree", "nvls", "nvls-tree", "direct"),
    *("sides-in-turn", "sides-at-once", "pat", "nvls-sharp", "collnet-chain"),
)
"""Names of the codes in `GroupCost.algorithm`."""


class Fabric(NamedTuple):
    """Constants of the collective library on one link.

    The file model of a link's ``fabric:`` block is made from these fields: their names say the unit
    (`costmodel.describe.hardware.profile_schema`). Defaults are those of a link that nobody has measured.
    """

    rate_factor: float = 1.0  # Asymptotic rate of a ring over the link's achieved bandwidth. [-]
    copy_bandwidth_bytes_per_s: float = 0.0  # Rate at which a rank copies its own shard, 0 = free
    pipeline_s: float = 0.0
    pipeline_step_s: float = 0.0
    """Fill time of the chunk pipeline: fixed, and per ring step. [s]"""
    simple_step_s: float = 0.0  # What a ring step takes longer under the bandwidth protocol, outermost link
    ll_bandwidth_bytes_per_s: float = 0.0
    """Rate cap of the low-latency protocol over this link, for all GPUs of a node together; 0 = no switch of protocol
    is seen. [B/s]"""
    tree_step_s: float = 0.0  # Latency of one level of a tree across this link, 0 = that of a ring step. [s]
    tree_pipeline_s: float = 0.0  # Fill time of a tree's chunk pipeline across this link. [s]
    tree_rate_factor: float = 1.0  # Asymptotic rate of a tree over that of the ring on this link. [-]
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
    send_rate_factor: float = 1.0  # Asymptotic rate of a single send over the link's achieved bandwidth. [-]
    dispatch_rate_factor: float = 0.85
    """Rate of token dispatch and combine kernels over the link's achieved bandwidth. [-]"""


UNMEASURED = Fabric()  # Of a link that nobody has measured


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One level of a cluster: the domains of `size` GPUs that a link joins."""

    name: str  # What the level is called: nvlink, leaf, pod, spine
    size: int  # GPUs inside one domain of this level. [-]
    ends: tuple[int, ...] = ()
    """GPUs of a job after which each of the fragments that it fills ends, empty where schedulers hand out equal parts. [-]"""
    bandwidth_bytes_per_s: float  # Line rate per GPU and direction. [B/s]
    efficiency: float = 1.0  # Share of it that large ring messages achieve. [-]
    latency_s: float = 0.0  # Start-up time of one ring step. [s]
    base_latency_s: float = 0.0  # Fixed cost of a collective. [s]
    oversubscription: float = 1.0  # Divides the bandwidth of traffic from below, 1 = none. [-]
    in_network_reduction: bool = False  # Whether the switch adds up (NVLS, SHARP)
    reduction_bandwidth_bytes_per_s: float = 0.0  # What one GPU sends into it, 0 if there is none
    through_host: bool = False
    """Whether messages are copied through the host's memory (TCP sockets) and so take its link to the GPU too."""
    spread: float = 0.0
    """Standard deviation of the times that the domains which it joins take for one step, over their mean:
    every step waits for the slowest of them. [-]"""
    topology: str = "switch"  # How the GPUs of a domain are wired: a name of `topologies`
    shape: tuple[int, ...] = ()
    """Chips along each dimension of a torus: of the largest slice in a profile, of the one in use in a job;
    empty where there are no dimensions. [-]"""
    wrap_multiple: int = 1  # Ends of a dimension are joined where its length is a multiple. [-]
    wraps_whole: bool = field(default=False, repr=False)
    """Whether ends are joined only where the lengths of all dimensions are such multiples (switches between
    cubes)."""
    kind: str = ""
    link: str = ""
    """Sort of wire (nvlink, xgmi, pcie, ib, roce, efa, omnipath, slingshot, tcp) and its profile."""
    fabric: Fabric = UNMEASURED  # Constants of the collective library on this link

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether the ends of each dimension of a torus are joined."""
        each = tuple(length % self.wrap_multiple == 0 for length in self.shape)
        return (all(each),) * len(each) if self.wraps_whole else each

    @property
    def achieved_bandwidth_bytes_per_s(self) -> float:
        """What a GPU's large messages get on this level when all GPUs send. [B/s]."""
        return self.bandwidth_bytes_per_s * self.efficiency / self.oversubscription


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Time of one collective, and what it sends."""

    made: Quantity
    """The time [s] with the formula that gave it; its steps ``latency_s`` and ``transfer_s`` are the part that does
    not depend on the size, and the rest."""
    wire_bytes: Array  # Bytes that each GPU sends by the ring's count (nccl-tests' bus bandwidth). [B]
    tier: Array  # Index of the outermost tier crossed, -1 in a group of one. [-]
    algorithm: Array  # Index into `NCCL_ALGORITHMS`. [-]

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
