"""What rows of published runs say of memory: recomputation of JAX's policies, offloaded activations, dtypes of gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.describe.recipe import load_recipe
from costmodel.trust.published_runs import job_of_row
from costmodel.trust.validation import price_row

TPU = {
    "id": "x",
    "source": "x",
    "framework": "maxtext",
    "recipe": "maxtext-tpu",
    "year": "2025",
    "layers": "4",
    "hidden": "1024",
    "heads": "8",
    "kv_heads": "8",
    "ffn": "4096",
    "gated_mlp": "true",
    "vocab": "32000",
    "seq_len": "4096",
    "accelerator": "tpu-v5p",
    "gpus": "64",
    "gpus_per_node": "4",
    "nvlink_domain": "64",
    "network": "none",
    "precision": "bf16",
    "tp": "1",
    "pp": "1",
    "zero_stage": "3",
    "mbs": "1",
    "gbs": "64",
}
GPU = {
    **TPU,
    "recipe": "maxtext",
    "accelerator": "a100-sxm-80gb",
    "gpus": "8",
    "gpus_per_node": "8",
    "nvlink_domain": "8",
    "gbs": "8",
}


def test_gradients_of_half_precision():
    for recipe, precision, width in [
        ("paddlenlp", "fp16", 2.0),
        ("megatron-core", "bf16", 4.0),
        # Its script runs in fp16 whatever the table says; Megatron adds up in fp32 under bf16 alone.
        ("zero-bubble", "bf16", 2.0),
    ]:
        found = job_of_row({**GPU, "recipe": recipe, "precision": precision, "zero_stage": "1"})
        assert found.recipe.dtypes.grad_bytes() == width


@pytest.mark.parametrize("name", ["maxtext-tpu", "axlearn", "torch-xla"])
def test_xla_places_its_buffers_beforehand(name):
    """0.3 % lost between them, nothing for a CUDA context or communicators: `memory` of a TPU is what is left."""
    memory = load_recipe(name).memory
    assert (memory.allocator_slack, memory.context_bytes, memory.communicator_bytes) == (0.003, 0, 0)
    est = cm.estimate(
        model="llama3-8b",
        cluster="tpu-v6e",
        gpus=64,
        global_batch=64,
        seq_len=4096,
        zero_stage=3,
        recipe=name,
    )
    held = {line.name: float(np.max(line.bytes)) for line in est.bill.memory_lines}
    reserved = sum(size for name, size in held.items() if name.startswith("reserve."))
    allocated = sum(size for name, size in held.items() if not name.startswith("reserve."))
    assert reserved == pytest.approx(0.003 * allocated)
    assert "buffer.dp.gathered_tensors" in held
    assert "buffer.dp.gathered_layers" not in held


SIZES = st.sampled_from([1, 2, 4])


@settings(max_examples=12, deadline=None)
@given(
    micro=SIZES,
    tp=SIZES,
    recompute=st.sampled_from(["none", "full"]),
    recipe=st.sampled_from(["maxtext-tpu", "torchtitan", "megatron-core"]),
)
def test_memory_grows_with_tokens_and_by_tensor_holds_no_more_than_by_layer(micro, tp, recompute, recipe):
    def held(micro, **switches):
        est = cm.estimate(
            model="llama3-8b",
            cluster="dgx-h100-ndr",
            gpus=16,
            layout=f"tp{tp}",
            micro_batch=micro,
            global_batch=256,
            seq_len=4096,
            zero_stage=3,
            recompute=recompute,
            recipe=recipe,
            switches=switches,
        )
        return float(est.memory_bytes_per_gpu)

    assert held(2 * micro) > held(micro)
    assert held(micro, fsdp_by_tensor=True) <= held(micro, fsdp_by_tensor=False)


def test_memory_of_a_device_in_use_holds_its_context_too():
    """`nvidia-smi` shows all that has to fit; what the allocator holds is less."""
    kinds = ("max_allocated", "max_reserved", "stated", "", "nvidia-smi")
    runs = [price_row({**GPU, "memory_kind": kind}) for kind in kinds]
    allocated, reserved, stated, unsaid, device = (run["predicted_peak_memory_gib"] for run in runs)
    assert allocated < reserved == stated == unsaid < device == pytest.approx(runs[0]["predicted_need_gib"])
