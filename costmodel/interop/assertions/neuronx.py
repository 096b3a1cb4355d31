"""What neuronx-distributed asserts: its ring attention and its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.interop.assertions.record import Arguments, Table, rows
from costmodel.physics.pipeline.schedules import schedule_code

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


def arguments(job: Job) -> Arguments:
    """Return what `neuronx_distributed` is given, under its own names."""
    layout, model = job.layout, job.model
    return {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "interleaved": layout.schedule == schedule_code("interleaved"),
        "num_microbatches": job.micro_batches,
        "seqlen": job.seq_len,
        "num_key_value_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
    }


NEURONX = Table(
    rows(
        "neuronx",
        "aws-neuron/neuronx-distributed 82a2bb3d88dd",
        (
            "kernels/ring_attention_kernel.py:nki_ring_attn_func, seqlen",
            "context_parallel_size > 1 and seqlen % (1024 * context_parallel_size) != 0",
            "ring attention takes multiples of 1,024 tokens a rank, which {context_parallel_size} does not leave of "
            "{seqlen}",
        ),
        (
            "pipeline/scheduler.py:get_step_schedule, num_microbatches",
            "interleaved and num_microbatches % pipeline_model_parallel_size != 0",
            "{num_microbatches} is no multiple of {pipeline_model_parallel_size}, as interleaving wants",
        ),
        (
            "modules/qkv_linear.py:_initialize_kv_group, kv_shared_group_size",
            "num_key_value_heads % tensor_model_parallel_size != 0 "
            "and tensor_model_parallel_size % num_key_value_heads != 0",
            "{tensor_model_parallel_size} neither divides {num_key_value_heads} nor repeats them evenly",
        ),
    ),
    arguments,
    lambda text: {},
)
"""Of the library that NxD Training, Optimum Neuron and its own examples run on."""
