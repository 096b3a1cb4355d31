"""What a job decides beside its layout, whatever framework runs it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Compression = Literal["none", "fp16", "int8", "int4", "top-k", "random-k", "threshold", "powersgd"]


class Policy(BaseModel):
    """How a job averages its replicas, what it sends compressed, what it moves to the host."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    gradient_compression: Compression = "none"
    """Compression of the data-parallel gradient. fp16, int8 and int4 also work where the optimizer or the
    parameters are sharded; top-k, random-k, threshold and PowerSGD, which keep a residual, only where every replica
    holds all."""
    compression_density: float = Field(default=0.01, gt=0, le=1)
    """Share of the gradient that top-k and random-k send, or that lies above a threshold."""
    compression_steps: float = Field(default=0.0, ge=0, le=10)
    """Steps to the same loss with compressed gradients over those without; 0 is what is known of the method (1.075
    for a few elements of the gradient, else 1)."""
    compression_rank: int = Field(default=4, ge=1, le=1024)
    """Rank of PowerSGD's factors."""
    sync_every: int = Field(default=1, ge=1, le=100_000)
    """Steps between two averages over replicas (local SGD, DiLoCo, arXiv:2311.08105: 500). Replicas are the whole
    data-parallel group where nothing is sharded, otherwise the groups that `shard_group` makes."""
    outer_momentum: bool = True
    """Where replicas are averaged rarely, an outer optimizer with momentum does it (DiLoCo); otherwise the mean."""
    offload_activations: float = Field(default=0.0, ge=0, le=1)
    """Share of the saved activations that goes to the host's memory and back, beside the passes."""
