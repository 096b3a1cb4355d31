"""What a job decides beside its layout, whatever framework runs it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Compression = Literal["none", "fp16", "int8", "int4", "top-k", "powersgd"]


class Policy(BaseModel):
    """How a job averages its replicas, what it sends compressed, what it moves to the host."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gradient_compression: Compression = "none"
    """Compression of the data-parallel gradient. fp16, int8 and int4 also work where the optimizer or the
    parameters are sharded; top-k and PowerSGD, which keep a residual, only where every replica holds all."""
    compression_density: float = Field(default=0.01, gt=0, le=1)
    """Share of the gradient that top-k sends."""
    compression_rank: int = Field(default=4, ge=1, le=1024)
    """Rank of PowerSGD's factors."""
    sync_every: int = Field(default=1, ge=1, le=100_000)
    """Steps between two averages over replicas (local SGD, DiLoCo, arXiv:2311.08105: 500). Replicas are the whole
    data-parallel group where nothing is sharded, otherwise the groups that `shard_group` makes."""
    outer_momentum: bool = True
    """Where replicas are averaged rarely, an outer optimizer with momentum does it (DiLoCo); otherwise the mean."""
    offload_activations: float = Field(default=0.0, ge=0, le=1)
    """Share of the saved activations that goes to the host's memory and back, beside the passes."""
