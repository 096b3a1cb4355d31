"""What every formula over a fabric shares: a tier, its fitted constants, and the cost that comes out."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

NCCL_ALGORITHMS = ("none", "ll", "ring", "tree", "nvls", "nvls-tree", "direct")
"""Names of the codes in `GroupCost.algorithm`."""


class Fabric(NamedTuple):
    """Constants of the collective library on one link; see `costmodel.describe.hardware.fabric`."""

    rate_factor: float = 1.0
    copy_bandwidth_bytes_per_s: float = 0.0
    pipeline_s: float = 0.0
    pipeline_step_s: float = 0.0
    simple_step_s: float = 0.0
    ll_bandwidth_bytes_per_s: float = 0.0
    tree_step_s: float = 0.0
    tree_pipeline_s: float = 0.0
    tree_rate_factor: float = 1.0
    nvls_latency_s: float = 20e-6
    nvls_pipeline_s: float = 0.0
    nvls_rate_factor: float = 1.0
    nvls_min_ranks: float = 5.0
    nvls_tree_rate_factor: float = 1.0
    nvls_tree_pipeline_s: float = 0.0
    all_to_all_latency_s: float = 0.0
    all_to_all_message_s: float = 0.0
    all_to_all_pipeline_s: float = 0.0
    send_latency_s: float = 0.0
    send_pipeline_s: float = 0.0
    send_rate_factor: float = 1.0
    dispatch_rate_factor: float = 0.85


class HasConstants(Protocol):
    """The fitted block of a link's profile."""

    @property
    def constants(self) -> Fabric:
        """The numbers alone."""


class TierLike(Protocol):
    """One level of a cluster, as `costmodel.describe.hardware.cluster.Tier` describes it."""

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


class GroupCost(NamedTuple):
    """Time of one collective, and what it sends.

    Attributes
    ----------
    latency_s, transfer_s : Array
        The part that does not depend on the size, and the rest. [s]
    wire_bytes : Array
        Bytes that each GPU sends by the ring's count (nccl-tests' bus bandwidth). [B]
    tier : Array
        Index of the outermost tier crossed, -1 in a group of one. [-]
    algorithm : Array
        Index into `NCCL_ALGORITHMS`. [-]
    """

    latency_s: Array
    transfer_s: Array
    wire_bytes: Array
    tier: Array
    algorithm: Array

    @property
    def time_s(self) -> Array:
        """Both parts together, in seconds."""
        return np.asarray(self.latency_s + self.transfer_s)


def constants_of(tier: TierLike) -> Fabric:
    """Return the fitted constants of a tier, or those of a link that nobody measured."""
    return _UNMEASURED if tier.fabric is None else tier.fabric.constants


_UNMEASURED = Fabric()
