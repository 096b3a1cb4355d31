"""What NVIDIA-NeMo/Megatron-Bridge asserts: `ConfigContainer`, `CommOverlapConfig`, and Megatron-Core below it."""

from __future__ import annotations

from costmodel.interop.assertions.megatron import ATTENTION_RELEASE, ATTENTION_ROWS, CORE_ROWS
from costmodel.interop.assertions.megatron_arguments import arguments
from costmodel.interop.assertions.megatron_arguments import written as written_flags
from costmodel.interop.assertions.record import Arguments, Table, rows
from costmodel.interop.bridge_keys import KEYS, flags_of, read_overrides
from costmodel.interop.megatron_text import MEGATRON

_SAID = frozenset(MEGATRON.key(name).removeprefix("--").replace("-", "_") for name in KEYS)


def written(text: str) -> Arguments:
    """Return what overrides say of Megatron's arguments; the model's own are the recipe's."""
    overrides = read_overrides(text)
    words, _ = flags_of(overrides)
    # How many experts there are is the recipe's; that there are some shows in the keys.
    words += ["--num-experts", "2"] if "model.expert_model_parallel_size" in overrides else []
    found = written_flags(" ".join(words))
    return {name: value for name, value in found.items() if name in _SAID}


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
                f"{_CONFIG}:1470",
                "use_megatron_fsdp and use_tp_pp_dp_mapping",
                "Megatron-FSDP places stages outside replicas only",
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
        *rows("nemo", ATTENTION_RELEASE, *ATTENTION_ROWS),
    ),
    arguments,
    written,
)
"""Megatron-Bridge's own checks of what `costmodel.interop.nemo` writes."""
