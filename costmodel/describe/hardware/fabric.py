"""Constants of the collective library on one link: the ``fabric:`` block of a link's YAML file.

`costmodel.trust.calibration.ship_fabric` writes the block from published sweeps; `costmodel.physics.network.nccl` says
in its formulas what each constant does. Every constant has a default, so that a link that nobody
has measured is priced by its rate and latencies alone.
"""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from costmodel.base.units import BytesPerSecond, Seconds
from costmodel.physics.network.fabric import Fabric

Basis = Literal["measured", "similar-link", "estimated"]
Factor = Annotated[float, Field(gt=0)]


class FabricConstants(BaseModel):
    """Fitted constants of one link, and where they come from.

    Attributes
    ----------
    basis, source, points, residual : str, str, int, float
        Whether this very link was measured, by whom, how many points, mean relative error.
    rate_factor : float
        Asymptotic rate of a ring over the link's achieved bandwidth. [-]
    copy_bandwidth_bytes_per_s : float
        Rate at which a rank copies its own shard beside the wire, 0 = free. [B/s]
    pipeline_s, pipeline_step_s : float
        Fill time of the chunk pipeline: fixed, and per ring step. [s]
    simple_step_s : float
        What each ring step takes longer under the bandwidth protocol, when this link is the outermost. [s]
    ll_bandwidth_bytes_per_s : float
        Rate cap of the low-latency protocol over this link, for all GPUs of a node together;
        0 = no switch of protocol is seen. [B/s]
    tree_step_s : float
        Latency of one level of a tree across this link. [s]
    tree_pipeline_s : float
        Fill time of a tree's chunk pipeline across this link. [s]
    tree_rate_factor : float
        Asymptotic rate of a tree over that of the ring on this link. [-]
    nvls_latency_s, nvls_pipeline_s, nvls_rate_factor, nvls_min_ranks : float
        In-switch reduction: fixed time, fill time per rank, asymptotic rate over the link's reduction
        bandwidth, and the smallest group that the library uses it for.
    nvls_tree_rate_factor, nvls_tree_pipeline_s : float
        In-switch reduction in a tree across nodes: its rate over that in one node [-], and what
        this link adds to the fill time. [s]
    all_to_all_latency_s, all_to_all_message_s, all_to_all_pipeline_s : float
        Fixed time of an all-to-all, time per peer across this link, fill time. [s]
    send_latency_s, send_pipeline_s : float
        Fixed time and fill time of a single send. [s]
    send_rate_factor : float
        Asymptotic rate of a single send over the link's achieved bandwidth. [-]
    dispatch_rate_factor : float
        Rate of token dispatch and combine kernels over the link's achieved bandwidth. [-]
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    basis: Basis = "estimated"
    source: str = "assumed"
    points: int = Field(default=0, ge=0)
    residual: float | None = Field(default=None, ge=0)

    rate_factor: Factor = 1.0
    copy_bandwidth_bytes_per_s: BytesPerSecond = Field(default=0.0, alias="copy_bandwidth")
    pipeline_s: Seconds = Field(default=0.0, alias="pipeline")
    pipeline_step_s: Seconds = Field(default=0.0, alias="pipeline_step")
    simple_step_s: Seconds = Field(default=0.0, alias="simple_step")
    ll_bandwidth_bytes_per_s: BytesPerSecond = Field(default=0.0, alias="ll_bandwidth")
    tree_step_s: Seconds = Field(default=0.0, alias="tree_step")
    tree_pipeline_s: Seconds = Field(default=0.0, alias="tree_pipeline")
    tree_rate_factor: Factor = 1.0
    nvls_latency_s: Seconds = Field(default=20e-6, alias="nvls_latency")
    nvls_pipeline_s: Seconds = Field(default=0.0, alias="nvls_pipeline")
    nvls_rate_factor: Factor = 1.0
    nvls_min_ranks: int = Field(default=5, ge=2)
    nvls_tree_rate_factor: Factor = 1.0
    nvls_tree_pipeline_s: Seconds = Field(default=0.0, alias="nvls_tree_pipeline")
    all_to_all_latency_s: Seconds = Field(default=0.0, alias="all_to_all_latency")
    all_to_all_message_s: Seconds = Field(default=0.0, alias="all_to_all_message")
    all_to_all_pipeline_s: Seconds = Field(default=0.0, alias="all_to_all_pipeline")
    send_latency_s: Seconds = Field(default=0.0, alias="send_latency")
    send_pipeline_s: Seconds = Field(default=0.0, alias="send_pipeline")
    send_rate_factor: Factor = 1.0
    dispatch_rate_factor: Factor = 0.85

    @cached_property
    def constants(self) -> Fabric:
        """The numbers alone, as the formulas receive them."""
        return Fabric(**{name: float(getattr(self, name)) for name in Fabric._fields})
