"""What NVIDIA-NeMo/Megatron-Bridge asserts: `ConfigContainer`, `CommOverlapConfig`, and Megatron-Core below it."""

from __future__ import annotations

from costmodel.interop.assertions.megatron import CORE_ROWS
from costmodel.interop.assertions.megatron_arguments import arguments
from costmodel.interop.assertions.record import Table, rows

_CONFIG = "megatron/bridge/training/config.py"
_OVERLAP = "megatron/bridge/training/comm_overlap.py"

BRIDGE = Table(
    (
        *rows(
            "nemo",
            "megatron-bridge 0.3.1",
            (
                f"{_CONFIG}:1546",
                "context_parallel_size > 1 and seq_length % (2 * context_parallel_size) != 0",
                "twice {context_parallel_size} does not divide {seq_length}",
            ),
            (
                "megatron/bridge/training/mixed_precision.py:94",
                "fp4 and fp8",
                "fp4 and fp8 at once",
            ),
            (
                f"{_OVERLAP}:468",
                "overlap_moe_expert_parallel_comm and expert_model_parallel_size <= 1",
                "overlapping the experts' exchange needs expert parallelism",
            ),
            (
                f"{_OVERLAP}:475",
                "overlap_moe_expert_parallel_comm"
                " and moe_token_dispatcher_type != alltoall and moe_token_dispatcher_type != flex",
                "overlapping the experts' exchange needs the alltoall or the flex dispatcher",
            ),
            (
                f"{_OVERLAP}:484",
                "overlap_moe_expert_parallel_comm and pipeline_model_parallel_size > 1"
                " and virtual_pipeline_model_parallel_size <= 1",
                "overlapping the experts' exchange in a pipeline needs virtual stages",
            ),
            (
                f"{_OVERLAP}:488",
                "overlap_moe_expert_parallel_comm and recompute_granularity == full",
                "overlapping the experts' exchange does not go with full recomputation",
            ),
        ),
        *rows("nemo", "megatron-core 0.16.1", *CORE_ROWS),
    ),
    arguments,
)
"""Megatron-Bridge's own checks of what `costmodel.interop.nemo` writes."""
