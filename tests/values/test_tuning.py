"""Adapters on a frozen base, and frozen parts, by hand: hidden 1,024, one sequence of 1,024 tokens, round machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_jobs import (
    MIB,
    MOE,
    SMALL,
    TABLE_PARAMS,
    counts,
    each_us,
    memory,
    moved_us,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
    weight_us,
)

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.tuning import BASE_BYTES, make_tuning
from costmodel.describe.models.model_files import load_model
from costmodel.describe.precision import precision
from costmodel.describe.recipe import load_recipe
from costmodel.step.anatomy.adapters import num_trained_params

T = 1024
# Adapters of rank 16 of a layer: q 1,024 + 1,024, k and v 1,024 + 512, o, gate and up 1,024 + 4,096, down the same.
SEPARATE = 16 * (2048 + 2 * 1536 + 2048 + 3 * 5120)
# Of fused layers: q, k and v together 1,024 + 2,048, gate and up 1,024 + 8,192.
FUSED = 16 * (3072 + 2048 + 9216 + 5120)
MATRICES = 15 * 2**20


def states(est):
    """Bytes by state, without the common beginning of their names."""
    return {name.removeprefix("state.dense."): held for name, held in memory(est, "state.dense.").items()}


def test_states_of_adapters_alone():
    """Matrices of layers in 2 bytes, tables and norms too; only adapters have gradients, weights and moments in fp32."""
    for targets, adapters in [("all", SEPARATE), ("qkv,o,fc1,down", FUSED), ("v", 16 * 1536)]:
        est = price(lora_rank=16, lora_targets=targets)
        assert states(est) == near(
            {
                "parameters.base": 2 * 4 * MATRICES,
                "parameters.frozen": 2 * (4 * 2048 + 2 * TABLE_PARAMS + 1024),
                "parameters": 2 * 4 * adapters,
                "gradients": 4 * 4 * adapters,
                "optimizer.main_weights": 4 * 4 * adapters,
                "optimizer.moments": 8 * 4 * adapters,
            }
        )


def test_an_adapter_of_queries_is_as_wide_as_queries_and_their_gate():
    est = price({**SMALL, "attention_gate": True}, lora_rank=16, lora_targets="q")
    assert states(est)["parameters"] == near(2 * 4 * 16 * (1024 + 2048))


def test_dora_learns_a_length_of_each_output():
    """One more parameter an output: q 1,024, k and v 512, o 1,024, gate and up 4,096, down 1,024."""
    outputs = 1024 + 2 * 512 + 1024 + 2 * 4096 + 1024
    est = price(lora_rank=16, lora_targets="all,magnitude")
    assert states(est)["gradients"] == near(4 * 4 * (SEPARATE + outputs))
    assert make_tuning(16, "magnitude").lora_targets == make_tuning(16, "all,dora").lora_targets
    assert not make_tuning(16, "all").magnitudes


def test_what_dora_computes_beside_an_adapter():
    """Down, 1,024 x 4,096: its change made whole, added and measured; then both results times the lengths."""
    each, plain = (
        each_us(price(lora_rank=16, lora_targets=targets), "compute.mlp.lora_down")
        for targets in ("down,magnitude", "down")
    )
    new = {name.removeprefix("compute.mlp.lora_down_"): us for name, us in each.items() if name not in plain}
    moved, flops = 4096 * 1024 * 14 + 4 * 4096**2, 2 * 16 * 4096 * (4096 + 1024)
    assert new == near(
        {
            # Eight kernels of 1 us at 0.7 of 2 TB/s and 100 TFLOP/s; nothing backward.
            "lengths.forward": 8 + (moved / 2e6 + flops / 100e6) / 0.7,
            "magnitude.forward": moved_us(10 * MIB, 2),
            "magnitude.backward": moved_us(12 * MIB, 5),
        }
    )
    assert {name: each[name] for name in plain} == near(plain)


def test_dora_on_a_quantised_base_reads_it_once_more():
    each = each_us(
        price(lora_rank=16, lora_targets="down,magnitude", base_dtype="nf4"), "compute.mlp.lora_down"
    )
    moved = 4096 * 1024 * (14 + 2 + BASE_BYTES["nf4"]) + 4 * 4096**2
    flops = 2 * 16 * 4096 * (4096 + 1024)
    assert each["compute.mlp.lora_down_lengths.forward"] == near(8 + (moved / 2e6 + flops / 100e6) / 0.7)


def test_tensor_ranks_sum_the_lengths_of_a_sliced_input():
    """1,024 squares in fp32 beside down; none beside q, whose outputs are dealt out."""
    est = price(lora_rank=16, lora_targets="q,down,magnitude", gpus=2, tp=2)
    sent = sent_bytes(est, "tp.mlp.lora_down_lengths")
    assert sent["tp.mlp.lora_down_lengths.all_reduce.forward"] == near(4 * 1024)
    assert sent_bytes(est, "tp.attention.lora_q_lengths") == {}


def test_a_base_in_nf4():
    """4 bits and 0.127 of constants a weight; the largest is in 16 bits for a product: gate and up, 8 MiB."""
    est = price(lora_rank=16, base_dtype="nf4")
    assert states(est)["parameters.base"] == near((4 + 0.127) / 8 * 4 * MATRICES)
    assert memory(est, "buffer.dequantised") == near({"buffer.dequantised_weight": 2 * 8 * MIB})
    each = each_us(est, "compute.mlp.fc1_dequantise")
    moved = moved_us(8 * MIB * (2 + BASE_BYTES["nf4"]), 2)
    assert each == near(
        {"compute.mlp.fc1_dequantise.forward": moved, "compute.mlp.fc1_dequantise.backward": moved}
    )
    # Recomputed layers make their weights once more.
    again = each_us(price(lora_rank=16, base_dtype="nf4", recompute="full"), "compute.mlp.fc1_dequantise")
    assert again["compute.mlp.fc1_dequantise.recompute"] == near(moved)


def test_products_of_a_frozen_layer_and_its_adapters():
    """No weight gradient of the base; down to 16 and up to 4,096, scaled and added."""
    est = price(lora_rank=16, lora_targets="down")
    each = each_us(est, "compute.mlp.")
    assert "compute.mlp.fc1.backward_weight" not in each
    assert "compute.mlp.fc2.backward_weight" not in each
    assert each["compute.mlp.fc1.backward"] == near(product_us(T, 1024, 8192))
    assert {name: us for name, us in each.items() if "lora" in name} == near(
        {
            "compute.mlp.lora_down_a.forward": product_us(T, 16, 4096),
            "compute.mlp.lora_down_a.backward_input": product_us(T, 4096, 16),
            "compute.mlp.lora_down_a.backward_weight": weight_us(T, 16, 4096),
            "compute.mlp.lora_down_b.forward": product_us(T, 1024, 16),
            "compute.mlp.lora_down_b.backward_input": product_us(T, 16, 1024),
            "compute.mlp.lora_down_b.backward_weight": weight_us(T, 1024, 16),
            "compute.mlp.lora_down_add.forward": moved_us(10 * MIB, 2),
            "compute.mlp.lora_down_add.backward": moved_us(4 * MIB + 6 * 4 * MIB, 2),
        }
    )


def test_what_is_kept_follows_what_reads_it():
    """An input that only a weight gradient would read is not kept: of a layer without an adapter."""
    full, down, q = (
        memory(price(**more), "activation.")
        for more in (
            {},
            {"lora_rank": 16, "lora_targets": "down"},
            {"lora_rank": 16, "lora_targets": "q"},
        )
    )
    # Small results of rank 16 stay; norms hand on 2 MiB in bf16, the activation 8.
    small = 2 * T * 16
    assert down["activation.mlp"] == near(full["activation.mlp"] + 4 * (small - 2 * MIB))
    assert down["activation.attention"] == near(full["activation.attention"] - 4 * 2 * MIB)
    assert q["activation.attention"] == near(full["activation.attention"] + 4 * small)
    assert q["activation.mlp"] == near(full["activation.mlp"] - 4 * (2 + 8) * MIB)


def test_adapters_over_tensor_ranks():
    """Beside columns the first matrix is whole and the second split; beside rows the other way, and sums travel."""
    est = price(gpus=2, layout="tp2", lora_rank=16, lora_targets="up,down")
    each = each_us(est, "compute.mlp.lora")
    assert each["compute.mlp.lora_up_a.forward"] == near(product_us(T, 16, 1024))
    assert each["compute.mlp.lora_up_b.forward"] == near(product_us(T, 2048, 16))
    assert each["compute.mlp.lora_down_a.forward"] == near(product_us(T, 16, 2048))
    # Behind the sum each rank has half of the tokens.
    assert each["compute.mlp.lora_down_b.forward"] == near(product_us(T / 2, 1024, 16))
    sums = each_us(est, "tp.mlp.lora")
    assert sums == near(
        {
            f"tp.mlp.lora_down_a.all_reduce.{way}": ring_us(2 * T * 16, passes=2)
            for way in ("forward", "backward")
        }
    )
    held = states(est)["gradients"]
    assert held == near(4 * 4 * 16 * (1024 + 2048 + 2048 + 1024))


def test_gradients_of_adapters_alone_travel():
    est = price(gpus=2, global_batch=2, zero_stage=0, lora_rank=16)
    sent = sent_bytes(est, "dp.")
    assert sent == near({"dp.dense.grad_all_reduce": 4 * 4 * SEPARATE})


def test_sharded_bases_are_gathered_as_they_lie():
    """ZeRO-3 gathers a layer in its own dtype, each way, and reduces the gradients of adapters alone."""
    est = price(gpus=2, global_batch=2, zero_stage=3, lora_rank=16, base_dtype="nf4")
    sent = sent_bytes(est, "dp.layer.")
    layer = BASE_BYTES["nf4"] * MATRICES + 2 * 2048 + 2 * SEPARATE
    assert sent["dp.layer.dense.param_all_gather.forward"] == near(layer / 2)
    assert sent["dp.layer.dense.grad_reduce_scatter"] == near(4 * SEPARATE / 2)
    assert not any(
        name.startswith(("dp.head.dense.grad", "dp.embedding.dense.grad")) for name in each_us(est, "dp.")
    )
    assert states(est)["parameters.base"] == near(BASE_BYTES["nf4"] * 4 * MATRICES / 2)


def test_adapters_of_experts():
    """Each of eight experts has its own: gate and up of 1,024 to 512, down back."""
    est = price(MOE, lora_rank=4, lora_targets="gate,up,down,experts")
    held = memory(est, "state.expert.gradients")
    assert held == near({"state.expert.gradients": 4 * 4 * 8 * 4 * 3 * (1024 + 512)})
    each = each_us(est, "compute.moe.experts.lora")
    assert each["compute.moe.experts.lora_gate_a.forward"] == near(
        product_us(T * 2 / 8, 4, 1024, groups=8, fixed=3)
    )
    assert not each_us(price(MOE, lora_rank=4), "compute.moe.experts.lora")


def test_frozen_parts():
    """A frozen MLP has no gradients, a frozen table is read and never written to."""
    est = price(frozen="mlp,embedding")
    mlp, attention = 12 * 2**20, 3 * 2**20
    assert states(est) == near(
        {
            "parameters.base": 2 * 4 * mlp,
            "parameters.frozen": 2 * TABLE_PARAMS,
            "parameters": 2 * (4 * (attention + 2048) + TABLE_PARAMS + 1024),
            "gradients": 4 * (4 * (attention + 2048) + TABLE_PARAMS + 1024),
            "optimizer.main_weights": 4 * (4 * (attention + 2048) + TABLE_PARAMS + 1024),
            "optimizer.moments": 8 * (4 * (attention + 2048) + TABLE_PARAMS + 1024),
        }
    )
    each = each_us(est, "compute.")
    assert "compute.attention.qkv.backward_weight" in each
    assert "compute.mlp.fc1.backward_weight" not in each
    assert "compute.embedding.lookup.backward" not in each
    assert counts(est, "compute.head.logits.backward_weight") == {"compute.head.logits.backward_weight": 1}


def test_quantising_in_one_orientation():
    """Without weight gradients nothing is quantised a second time around, and adapters keep their input in 16 bits."""
    plain, lora = (
        price(precision="fp8-delayed", **more) for more in ({}, {"lora_rank": 16, "lora_targets": "q"})
    )
    # Two gradients, 8,192 and 1,024 wide, at 3 bytes an element instead of 4, and no transposes; casts move an
    # element as slowly as measured: 6 bytes' worth for 2 + 1.
    name = "compute.mlp.quantise.backward"
    assert each_us(lora, name)[name] == near(moved_us(3 * T * 9216 * 2, 2))
    assert each_us(plain, name)[name] > each_us(lora, name)[name]
    one, other = (memory(est, "activation.attention")["activation.attention"] for est in (plain, lora))
    assert other - one == near(4 * (MIB + 2 * T * 16))


def trained(name, rank, targets):
    """Trained parameters of a shipped model."""
    tuning = make_tuning(rank, targets)
    return num_trained_params(load_model(name), tuning, load_recipe("megatron-core"), precision("bf16"))


def test_published_numbers_of_trained_parameters():
    for name, rank, targets, count in [
        # huggingface/peft prints them: all linear layers of Llama 3 8B, and q and v of Llama 2 7B.
        ("llama3-8b", 16, "all", 41_943_040),
        ("llama2-7b", 8, "q_proj,v_proj", 4_194_304),
        # NVIDIA's MLPerf Training benchmark of Llama 2 70B LoRA: one adapter of q, k and v, one of the output.
        ("llama2-70b", 16, "attention_qkv,attention_dense", 44_564_480),
    ]:
        assert trained(name, rank, targets) == count


def test_model_flops():
    """Four a frozen weight and token, six an adapter's."""
    est, full = price(lora_rank=16), price()
    matrices = 4 * MATRICES + TABLE_PARAMS
    assert float(full.model_flops() - est.model_flops()) / T == near(2 * matrices - 6 * 4 * SEPARATE)


def test_qlora_of_70b_fits_one_gpu_and_full_fine_tuning_does_not():
    job = {"model": "llama2-70b", "cluster": "dgx-h100-ndr", "gpus": 1, "global_batch": 4, "seq_len": 2048}
    job |= {"recompute": "full", "recipe": "deepspeed", "zero_stage": 0}
    qlora = cm.estimate(**job, lora_rank=64, base_dtype="nf4")
    assert bool(qlora.fits)
    assert not bool(cm.estimate(**job, lora_rank=64).fits)
    assert not bool(cm.estimate(**job).fits)
    # 34 GB of base, as QLoRA's paper has it for 65B: half a byte and 0.127 bits of constants, doubly quantised, for
    # all 68,976,648,192 but two tables of 32,000 tokens and the 161 norms.
    base = next(line for line in qlora.bill.memory_lines if line.name == "state.dense.parameters.base")
    matrices = 68_976_648_192 - 2 * 32_000 * 8192 - 161 * 8192
    assert float(base.bytes.max()) == near(matrices * (0.5 + 0.127 / 8))


# Tokens a second and GPU of LoRA that were published; not in any fit.
PUBLISHED = [
    # NVIDIA NeMo 24.12 performance summary: DGX H100, fp8, packed to 4,096, 32 sequences; adapters of linear_qkv.
    ("llama2-7b", "nemo", {"precision": "fp8-delayed"}, 24_824),
    ("llama2-13b", "nemo", {"precision": "fp8-delayed"}, 14_629),
    ("llama2-70b", "nemo", {"precision": "fp8-delayed", "layout": "tp2 pp4 vp20"}, 2_621),
]


def test_published_rates_of_nemo():
    for model, recipe, more, published in PUBLISHED:
        job = {"cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 32, "seq_len": 4096, "lora_rank": 32}
        est = cm.estimate(model=model, recipe=recipe, lora_targets="qkv", **job, **more)
        assert 1 / 1.21 < float(est.tokens_per_s_per_gpu) / published < 1.2


def test_published_steps_of_qwen():
    for layers, hidden, heads, ffn, vocab, seq_len, seconds in [
        # QwenLM/Qwen README, profiling of LoRA on one A100 of 80 GB: 8 micro-batches of one sequence, seconds a step.
        (32, 4096, 32, 11008, 151936, 2048, 5.2),
        (32, 4096, 32, 11008, 151936, 8192, 21.3),
        (40, 5120, 40, 13696, 152064, 4096, 17.0),
    ]:
        from costmodel.describe.models.model import make_model

        values = {
            "name": "qwen",
            "num_layers": layers,
            "hidden_size": hidden,
            "num_heads": heads,
            "ffn_size": ffn,
        }
        est = cm.estimate(
            model=make_model({**values, "vocab_size": vocab, "gated_mlp": True, "qkv_bias": True}),
            cluster="dgx-a100-hdr",
            gpus=1,
            global_batch=8,
            seq_len=seq_len,
            zero_stage=0,
            recompute="full",
            recipe="deepspeed",
            lora_rank=64,
            lora_targets="qkv,o,gate,up,down",
        )
        assert float(est.step_time_s) == pytest.approx(seconds, rel=0.2)


def test_what_is_wrong_is_one_line():
    for fields, said in [
        ({"lora_targets": "q"}, "lora_targets: needs lora_rank"),
        ({"lora_rank": 8, "frozen": "mlp"}, "frozen: with lora_rank all of the base is frozen"),
        ({"base_dtype": "nf4"}, "base_dtype: 'nf4' is for frozen weights"),
        ({"base_dtype": "int3", "lora_rank": 8}, "base_dtype: 'int3' is unknown"),
        (
            {"lora_rank": 8, "lora_targets": "q_prj"},
            "lora_targets: 'q_prj' is unknown; did you mean 'q_proj'",
        ),
        ({"lora_rank": 8, "lora_targets": "qkv,q"}, "lora_targets: 'qkv' and 'q' both name its input"),
        ({"frozen": "atention"}, "frozen: 'atention' is unknown; did you mean 'attention'"),
        ({"lora_rank": -1}, "lora_rank"),
        ({"lora_rank": 8, "optimizer": "muon"}, "optimizer: muon"),
        (
            {"lora_rank": 8, "zero_stage": 0, "switches": {"gradient_compression": "powersgd"}},
            "gradient_compression: powersgd is for training of every parameter",
        ),
    ]:
        with pytest.raises(CostModelError) as error:
            price(**fields)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


@settings(max_examples=15, deadline=None)
@given(
    rank=st.integers(1, 256),
    base=st.sampled_from(["bf16", "fp8", "nf4"]),
    layout=st.sampled_from(["tp1", "tp2", "pp2", "tp2 pp2", "cp2"]),
    zero=st.sampled_from([0, 1, 3]),
)
def test_training_less_holds_and_computes_less(rank, base, layout, zero):
    """Adapters never hold more than all of the model trained, and their bill adds up."""
    job = {"gpus": 4, "global_batch": 8, "layout": layout, "zero_stage": zero}
    est, full = price(lora_rank=rank, base_dtype=base, **job), price(**job)
    assert float(est.model_flops()) < float(full.model_flops())
    held, whole = (
        sum(float(line.bytes.max()) for line in one.bill.memory_lines if line.name.startswith("state."))
        for one in (est, full)
    )
    assert held < whole
    total = sum(float(line.exposed_seconds) for line in est.bill.time_lines)
    assert total == pytest.approx(float(est.step_time_s), rel=1e-9)
