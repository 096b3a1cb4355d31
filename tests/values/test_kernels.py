"""What a GPU really does, one constant at a time: tiles, waves, split depth, ramps, power, epilogues, long rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from round_jobs import MOE, SMALL, cluster_file, each_us, near, price, product_us

import costmodel as cm
from costmodel.base.errors import RecipeError
from costmodel.describe.hardware.cluster import SCALAR_PER_SM
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.hardware.kernels import AttentionPassBlock, MatmulBlock
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    MemoryConstants,
    ScalarRate,
    attention_time,
    matmul_time,
    memory_time,
)
from costmodel.step.anatomy.attention import SOFTMAX_DROPOUT
from costmodel.step.anatomy.operator_parts import NORM_COMPILED, NORM_FUSED, SWIGLU_FUSED

PUBLISHED = Path(__file__).parents[1] / "published"

PLAIN = {
    "basis": "estimated",
    "source": "round numbers",
    "fixed": "2 us",
    "peak_fraction": 0.5,
    "memory_fraction": 0.5,
}
PASS = {"basis": "estimated", "source": "round numbers", "fixed": "4 us", "memory_fraction": 0.5}
MEMORY = {"basis": "estimated", "source": "round numbers", "bandwidth_fraction": 0.5, "fixed": "1 us"}


def machine(product=None, attention=None, sms=100, eight_bits=None):
    """The round machine of a hundred SMs with other constants of products or of attention."""
    block = {**PLAIN, "tile": [1, 1], **(product or {})}
    one = {**PASS, "peak_fractions": {64: 0.5, 256: 0.5}, "tile_rows": 64, **(attention or {})}
    return cluster_file(
        gpu={
            "num_sms": sms,
            "kernels": {
                "num_sms": sms,
                "matmul": {"bf16": block},
                "grouped_matmul": {"bf16": block},
                "attention": {"cudnn": {"forward": one, "backward": one}, **(eight_bits or {})},
                "memory": MEMORY,
            },
        }
    )


def joined(math, hbm, fixed=2.0):
    return fixed + float(np.cbrt(math**3 + hbm**3))


TILES = {"tile": [128, 128]}
# Q, K and V of 1,000 tokens: 8 x 16 tiles, 1.28 waves of 100 SMs; its memory moves 10.3 MB.
HBM = (2 * (1000 + 2048) * 1024 + 2 * 1000 * 2048) / 1e6
QKV = "compute.attention.qkv.forward"


def qkv_us(tokens=1000, model=SMALL, **constants):
    return each_us(price(model, cluster=machine(constants), seq_len=tokens))


def math_us(waves, depth=1024, tile=128 * 128):
    """Microseconds of waves of a hundred whole tiles at 50 TFLOP/s."""
    return waves * 100 * tile * 2 * depth / 50e6


def test_what_a_file_leaves_out_is_what_a_formula_takes_without():
    product = MatmulBlock(**PLAIN).constants(100.0)
    assert product == MatmulConstants(100.0, product.fixed_s, 0.5, 0.5)
    of_pass = AttentionPassBlock(**PASS, peak_fractions={64: 0.5}).constants(100.0)
    given = {"num_sms": 100.0, "fixed_s": of_pass.fixed_s, "memory_fraction": 0.5}
    assert of_pass == AttentionPassConstants(head_dims=(64.0,), peak_fractions=(0.5,), **given)


def test_whole_tiles():
    assert qkv_us(**TILES)[QKV] == near(joined(math_us(1.28), HBM))
    # 1,024 rows fill the last tile.
    assert qkv_us(1024, **TILES)[QKV] == near(product_us(1024, 2048, 1024))


def test_lost_waves():
    """Half of the idle 0.72 of the second wave; of products twice as deep as the split a quarter."""
    times = qkv_us(**TILES, wave_fraction=0.5)
    assert times[QKV] == near(joined(math_us(1.28 + 0.36), HBM))
    split = qkv_us(**TILES, wave_fraction=0.5, split_k=2048)
    assert split[QKV] == near(times[QKV])
    down = (2 * (1000 + 1024) * 4096 + 2 * 1000 * 1024) / 1e6
    assert split["compute.mlp.fc2.forward"] == near(joined(math_us(0.64 + 0.36 / 4, 4096), down))


def test_small_tiles():
    """64 rows of 2,048 columns: 16 tiles of 128, or 32 of 64 at half of the rate; waves lost on either."""
    constants = {**TILES, "wave_fraction": 0.5, "small_tile_fraction": 0.5}
    small = math_us(0.32 + 0.34, tile=64 * 64) / 0.5
    assert small < math_us(0.16 + 0.42)
    hbm = (2 * (64 + 2048) * 1024 + 2 * 64 * 2048) / 1e6
    assert qkv_us(64, **constants)[QKV] == near(joined(small, hbm))
    # 1,000 rows: 16 x 32 of them take longer than the large ones.
    assert qkv_us(1000, **constants)[QKV] == near(joined(math_us(1.28 + 0.36), HBM))


def test_filling_and_draining_a_tile():
    assert qkv_us(ramp_k=64)[QKV] == near(joined(2 * 1000 * 2048 * (1024 + 64) / 50e6, HBM))


@pytest.mark.parametrize("half_lost", ["10 GFLOP", "10 TFLOP"])
def test_power_limit_of_a_step(half_lost):
    """A step lasts: a fifth of the peak is lost, whatever size of a benchmark's kernel loses half of that."""
    flops = 2 * 1000 * 2048 * 1024
    times = qkv_us(sustained_loss=0.2, sustained_flops=half_lost)
    assert times[QKV] == near(joined(flops / 50e6 / (1 - 0.2), HBM))


def test_writing_the_result():
    """Half of the output's time hides behind nothing; a weight gradient reads and writes 4 bytes."""
    times = qkv_us(epilogue_fraction=0.5)
    math = 2 * 1000 * 2048 * 1024 / 50e6
    assert times[QKV] == near(joined(math, HBM) + 0.5 * 2 * 1000 * 2048 / 1e6)
    written = 8 * 1024 * 2048 / 1e6
    hbm = 2 * (1024 + 2048) * 1000 / 1e6 + written
    assert times["compute.attention.qkv.backward_weight"] == near(joined(math, hbm) + 0.5 * written)


def test_products_of_a_group():
    times = qkv_us(1024, MOE, fixed_per_group="3 us")
    assert times["compute.moe.experts.fc2.forward"] == near(product_us(256, 1024, 512, groups=8) + 8 * 3)


def test_groups_that_share_tiles():
    """A group of 256 rows touches, on average, 128 rows more of a tile of 128 that it shares; a lone product none."""
    times = qkv_us(1024, MOE, shared_rows=128)
    math = 8 * 2 * (256 + 128) * 1024 * 512 / 50e6
    hbm = 8 * 2 * (512 * (256 + 1024) + 256 * 1024) / 1e6
    assert times["compute.moe.experts.fc2.forward"] == near(joined(math, hbm))


CORE, BACK = "compute.attention.core.forward", "compute.attention.core.backward"


def core_us(tokens, **constants):
    return each_us(price(cluster=machine(attention=constants), seq_len=tokens))


def attention(tokens, tiles, waves, products=2, peak=50.0, ramp=1.0, keys=None):
    """Microseconds of 8 heads of 128 over `keys`, by default half, where an SM is busy for `waves` of `tiles`."""
    busiest = max(waves, 2.0)
    math = 2 * 8 * tokens * (keys or tokens / 2) * products * 128 / (peak * 1e6) * busiest / tiles * ramp
    hbm = (2 if products == 5 else 1) * 2 * 256 * tokens * (8 + 4) / 1e6
    return joined(math, hbm, 4.0)


def test_too_few_rows_for_the_sms():
    """1,000 tokens: 128 blocks of 64 rows, 1.28 an SM; the longest row of the triangle is twice the average."""
    assert core_us(1000)[CORE] == near(attention(1000, 1.28, 1.28))
    # Sixteen times as long there are enough: 8 x 252 blocks, and half of the last wave is lost.
    assert core_us(16100)[CORE] == near(attention(16100, 20.16, 20.16))
    assert core_us(16100, wave_fraction=0.5)[CORE] == near(attention(16100, 20.16, 20.58))


def test_the_backward_pass_multiplies_five_times():
    assert core_us(16000)[BACK] == near(attention(16000, 20.0, 20.0, products=5))


def test_rate_of_attention():
    for constants, changes in [
        ({"causal_fraction": 0.9}, {"peak": 45.0}),
        ({"ramp_seq": 1000}, {"ramp": 1 + 1000 / 8000}),
        # Head dimensions of 128 lie half way between 64 and 256.
        ({"peak_fractions": {64: 0.4, 256: 0.8}}, {"peak": 60.0}),
    ]:
        assert core_us(16000, **constants)[CORE] == near(attention(16000, 20.0, 20.0, **changes))


def test_kernels_beside_attention():
    """Eight bytes an element of Q."""
    side = 8 * 128 * 8 * 16000 / 1e6
    times = core_us(16000, side_bytes_per_element=8)
    assert times[CORE] == near(attention(16000, 20.0, 20.0) + side)


def test_attention_in_eight_bits():
    """At twice the rate; its backward pass works on all keys of a window."""
    low = {**PASS, "peak_fractions": {128: 0.25}, "tile_rows": 64}
    eight_bits = {"cudnn-fp8": {"forward": low, "backward": low}}
    windowed = {**SMALL, "sliding_window": 2000}
    job = {"switches": {"fp8_attention": True}, "precision": "fp8-delayed", "seq_len": 16000}

    def priced(model, **more):
        return each_us(price(model, cluster=machine(eight_bits=eight_bits), **{**job, **more}))

    # A quarter of 200 TFLOP/s is half of 100: as in 16 bits. A tile of 64 queries meets 63 + 128 keys more.
    seen = 2000 * (1 - 2000 / 32000) + 64 + 128
    of_window = attention(16000, 20.0, 20.0, keys=seen)
    assert priced(windowed)[CORE] == near(of_window)
    assert priced(windowed)[BACK] == near(attention(16000, 20.0, 20.0, products=5))
    assert priced(windowed, precision="bf16")[CORE] == near(of_window)
    assert priced(windowed, precision="bf16")[BACK] == near(
        attention(16000, 20.0, 20.0, products=5, keys=seen)
    )
    with pytest.raises(RecipeError, match="fp8_attention: no kernel of 8-bit attention is known on"):
        price(windowed, cluster=machine(), **job)


@pytest.mark.parametrize(("per_element", "start"), [(3.0, 7.0), (3.0, 0.0), (0.0, 7.0)])
def test_kernels_that_quantise_the_first_operand(per_element, start):
    """Bytes an element of 10 by 30, four groups of them, at half of 100 B/s, and seconds to start."""
    constants = MatmulConstants(
        num_sms=1.0,
        fixed_s=0.0,
        peak_fraction=1.0,
        memory_fraction=0.5,
        tile_m=1.0,
        tile_n=1.0,
        cast_bytes_per_element=per_element,
        cast_fixed_s=start,
    )
    plain, casting = (
        matmul_time(
            10.0,
            20.0,
            30.0,
            groups=4.0,
            constants=constants,
            peak_flops_per_s=1e3,
            memory_bandwidth_bytes_per_s=100.0,
            cast=cast,
        ).value
        for cast in (False, True)
    )
    assert float(casting - plain) == near(start + per_element * 10 * 30 * 4 / 50)


def one_attention(**changes):
    """Seconds of one head on one SM at 1 FLOP/s and endless memory, unless told otherwise."""
    given = {
        "num_sms": 1.0,
        "fixed_s": 0.0,
        "memory_fraction": 1.0,
        "head_dims": (64.0, 256.0),
        "peak_fractions": (0.25, 1.0),
        "tile_rows": 8.0,
    }
    constants = AttentionPassConstants(**{**given, **changes.pop("constants", {})})
    asked = {"seq_q": 8.0, "seq_kv": 32.0, "qk_head_dim": 64.0, "v_head_dim": 64.0, **changes}
    return attention_time(
        1.0,
        asked.pop("seq_q"),
        asked.pop("seq_kv"),
        1.0,
        kv_heads=1.0,
        causal=False,
        backward=False,
        constants=AttentionConstants(constants, constants),
        peak_flops_per_s=1.0,
        **{"memory_bandwidth_bytes_per_s": 1e30, **asked},
    )


def test_rows_beside_attention_are_those_of_queries():
    """Four bytes an element of eight queries of 64, at a byte a second; keys are four times as many."""
    slow = {"memory_bandwidth_bytes_per_s": 1.0}
    plain = float(one_attention(**slow).value)
    beside = float(one_attention(constants={"side_bytes_per_element": 4.0}, **slow).value)
    assert beside - plain == pytest.approx(4 * 64 * 8, rel=1e-9)


def test_the_rate_is_that_of_the_mean_head():
    """Heads of 192 for queries and 64 for values reach what heads of 128 do: half-way in the logarithm."""
    flops = 2 * (192 + 64) * 8 * 32
    assert float(one_attention(qk_head_dim=192.0).value) == pytest.approx(flops / 0.625, rel=1e-9)


def test_memory_bound_kernels_name_what_slows_them():
    constants = MemoryConstants(bandwidth_fraction=0.5, fixed_s=1e-6)
    machine = {"constants": constants, "memory_bandwidth_bytes_per_s": 1e12}
    always = {"kernels", "fixed_s", "memory_fraction", "hbm_bytes_per_s", "moved_bytes"}
    plain = memory_time(1e9, kernels=3, **machine)
    assert (set(plain.terms), float(plain.value)) == (always, near(3e-6 + 2e-3))
    slow = memory_time(1e9, cast_slowdown=1.5, **machine)
    assert (set(slow.terms), float(slow.value)) == (always | {"cast_slowdown"}, near(1e-6 + 3e-3))
    waves = memory_time(1e9, waves=1.25, **machine)
    assert (set(waves.terms), float(waves.value)) == (always | {"waves"}, near(1e-6 + 2.5e-3))
    # Of 1 GB, 0.4 GB of 1e9 elements at 5e11 a second: 2 ms rather than 0.8.
    scalar = ScalarRate(scalar_bytes=4e8, scalar_elements=1e9, scalar_elements_per_s=5e11)
    by_element = memory_time(1e9, scalar=scalar, **machine)
    assert set(by_element.terms) == always | set(scalar._fields)
    assert float(by_element.value) == near(1e-6 + 1.2e-3 + 2e-3)
    fast = memory_time(1e9, scalar=scalar._replace(scalar_elements_per_s=1e13), **machine)
    assert float(fast.value) == near(1e-6 + 2e-3)


CONSTANTS = MemoryConstants(bandwidth_fraction=0.5, fixed_s=2e-6)


def time_us(scalar=None):
    made = memory_time(20e6, constants=CONSTANTS, memory_bandwidth_bytes_per_s=2e12, kernels=3, scalar=scalar)
    return float(made.value) * 1e6


def test_the_rate_of_elements_holds_where_the_memory_is_faster():
    """6 us of fixed times, 12 MB at 1 TB/s, and 4 M elements at 0.25 of 1e12 a second, which 8 MB are faster than."""
    assert time_us(ScalarRate(8e6, 4e6, 0.25e12)) == pytest.approx(6 + 12 + 16)


def test_the_memory_holds_where_elements_are_faster():
    assert time_us(ScalarRate(8e6, 4e6, 1e12)) == pytest.approx(6 + 20)
    assert time_us() == pytest.approx(6 + 20)


@pytest.fixture(scope="module")
def bill():
    """gpt-oss 20B on eight B200: 4 sequences of 4,096 tokens, four experts a token, widths 2,880."""
    return cm.estimate(
        model="gpt-oss-20b",
        cluster="hgx-b200-ndr",
        gpus=8,
        layout="ep8",
        micro_batch=4,
        global_batch=32,
        seq_len=4096,
        recipe="megatron-bridge",
        switches={"moe_balance": "balanced"},
    ).bill


HALVES = 4 * 4096 * 4 * 2 * 2880
"""Elements of both halves of the activation's input."""


def test_clamps_and_biases_of_experts_go_element_by_element(bill):
    """On 148 SMs at 2.61e9 elements a second each."""
    for name, touched, moved in [
        ("compute.moe.moe.experts.clamp.forward", 1 * HALVES, 4 * HALVES),
        ("compute.moe.moe.experts.clamp.backward", 2.5 * HALVES, 9.5 * HALVES),
        ("compute.moe.moe.experts.bias.forward", 2 * HALVES / 2, 14 * HALVES / 2),
        ("compute.moe.moe.experts.bias.backward", 3 * HALVES / 2, 22 * HALVES / 2),
    ]:
        (found,) = (one for one in bill.time_lines if one.name == name)
        assert found.terms["scalar_elements"] == pytest.approx(touched)
        assert found.terms["scalar_bytes"] == pytest.approx(moved)
        assert found.terms["scalar_elements_per_s"] == pytest.approx(148 * 2.61e9)
        rest = found.terms["moved_bytes"] - moved
        bandwidth = found.terms["memory_fraction"] * found.terms["hbm_bytes_per_s"]
        fixed = found.terms["kernels"] * found.terms["fixed_s"]
        assert found.each_s == pytest.approx(fixed + rest / bandwidth + touched / (148 * 2.61e9))


def test_other_kernels_of_the_layer_go_by_their_bytes(bill):
    (found,) = (one for one in bill.time_lines if one.name == "compute.moe.moe.experts.activation.forward")
    assert "scalar_bytes" not in found.terms


def test_norms_and_gated_activations_take_what_was_timed():
    """Each published and measured call within 25 %, all of them within 5 % in the mean."""
    by_kernel = {
        "norm": NORM_FUSED,
        "compiled_norm": NORM_COMPILED,
        "swiglu": SWIGLU_FUSED,
        "dropout": SOFTMAX_DROPOUT,
    }
    rows = pd.read_csv(PUBLISHED / "memory_kernels.csv", comment="#")
    ratios = []
    for row in rows.itertuples():
        device, traffic = load_accelerator(row.accelerator), by_kernel[row.kernel]._asdict()
        touched, moved = traffic[f"scalar_{row.direction}"]
        rate = device.num_sms * SCALAR_PER_SM[device.generation]
        made = memory_time(
            traffic[row.direction] * row.elements,
            constants=device.kernels.memory,
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
            kernels=traffic[f"kernels_{row.direction}"],
            scalar=ScalarRate(moved * row.elements, touched * row.elements, rate),
        )
        ratios.append(1e6 * float(made.value) / row.time_us)
    assert ratios == pytest.approx([1.0] * len(rows), abs=0.25)
    assert float(np.exp(np.log(ratios).mean())) == pytest.approx(1.0, abs=0.05)


def test_sms_that_communication_holds_lengthen_what_goes_element_by_element():
    """A norm's blocks go in two waves of 0.9 of the SMs: 16 and 12 us become 1.8 times as long, fixed times do not."""
    slow = memory_time(
        20e6,
        constants=CONSTANTS,
        memory_bandwidth_bytes_per_s=2e12,
        kernels=3,
        waves=1.8,
        scalar=ScalarRate(8e6, 4e6, 0.25e12),
    )
    assert 1e6 * float(slow.value) == pytest.approx(6 + 1.8 * (12 + 16))
