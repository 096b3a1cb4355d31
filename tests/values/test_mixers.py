"""Layers with another mixer than attention, by hand: hidden 1,024, one sequence of 1,024 tokens, round machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_jobs import (
    CLUSTER,
    MIB,
    QUIET,
    SMALL,
    TABLE_PARAMS,
    cluster_file,
    computed_us,
    counts,
    each_us,
    exposed_us,
    memory,
    moved_us,
    near,
    price,
    product_us,
    sent_bytes,
)

import costmodel as cm
from costmodel.base.errors import CostModelError, ModelConfigError
from costmodel.describe.models.model import make_model
from costmodel.step.anatomy.mixers import mixer_flops, mixer_state
from costmodel.step.anatomy.params import layer_param_blocks, model_flops_per_token

T = 1024
DELTA = {
    "kind": "gated-delta",
    "key_heads": 4,
    "value_heads": 8,
    "key_head_dim": 128,
    "value_head_dim": 128,
    "conv_kernel": 4,
}
KIMI = {"kind": "kimi-delta", "heads": 8, "head_dim": 128, "conv_kernel": 4}
LIGHTNING = {"kind": "lightning", "heads": 8, "head_dim": 128}
MAMBA = {"kind": "mamba", "inner": 2048, "state": 16, "dt_rank": 64, "conv_kernel": 4}
MAMBA2 = {
    "kind": "mamba-2",
    "heads": 32,
    "head_dim": 64,
    "groups": 4,
    "state": 128,
    "conv_kernel": 4,
    "chunk": 128,
}
CONVOLUTION = {"kind": "short-convolution", "channels": 1024, "conv_kernel": 3}
ALL = (DELTA, KIMI, LIGHTNING, MAMBA, MAMBA2, CONVOLUTION)
BY_KIND = {one["kind"]: one for one in ALL}


def of(sizes, pattern="x" * 4, **more):
    """Return the small model with a mixer in the layers that a pattern says."""
    return make_model(
        {"name": "small", **SMALL, "attention_pattern": pattern, "mixers": {"x": sizes}, **more}
    )


def priced(sizes, pattern="x" * 4, *, more=None, **job):
    """Price a step of it."""
    asked = {
        "cluster": str(CLUSTER),
        "gpus": 1,
        "global_batch": 1,
        "seq_len": T,
        "recipe": "megatron-core",
        "switches": QUIET,
    }
    return cm.estimate(model=of(sizes, pattern, **(more or {})), **{**asked, **job})


def scan_us(moved, flops, kernels, share):
    """Microseconds of kernels that move bytes and multiply at a share of the sheet's 2 TB/s and 100 TFLOP/s."""
    return kernels + (moved / 2e6 + flops / 100e6) / share


# Parameters of one layer's mixer, matrices and the rest.
PARAMS = {
    # In: 2 x 512 keys, 2 x 1,024 values and gates, 2 x 8 decays and strengths; convolution of 2,048 channels.
    "gated-delta": (1024 * (1024 + 2048 + 16) + 2**20, 2048 * 4 + 16 + 128),
    # In: 3 x 1,024 and 8 strengths; two gates through 128; convolution of 3,072.
    "kimi-delta": (1024 * (3072 + 8) + 4 * 128 * 1024 + 2**20, 3072 * 4 + 1024 + 8 + 128),
    "lightning": (4 * 2**20 + 2**20, 1024),
    # In: 2 x 2,048; 64 + 2 x 16 from x; 64 to 2,048; out. Convolution with bias, state and skip, bias of steps.
    "mamba": (
        4096 * 1024 + 2048 * 96 + 64 * 2048 + 2048 * 1024,
        2048 * 5 + 2048 * 17 + 2048,
    ),
    # In: gate 2,048, x 2,048, B and C 4 x 128 each, 32 steps; out.
    "mamba-2": (1024 * (2048 + 2048 + 1024 + 32) + 2048 * 1024, 3072 * 5 + 3 * 32 + 2048),
    # Two gates and what they gate; a convolution of three tokens.
    "short-convolution": (3 * 2**20 + 2**20, 3 * 1024),
}


@pytest.mark.parametrize("kind", PARAMS)
def test_parameters(kind):
    model = of(BY_KIND[kind])
    blocks = [b for b in layer_param_blocks(model, model.layer_kinds()[0]) if b.name.startswith("mixer")]
    matrices, rest = PARAMS[kind]
    assert sum(b.count for b in blocks if b.is_matrix) == matrices
    assert sum(b.count for b in blocks if not b.is_matrix) == rest


@pytest.mark.parametrize("kind", PARAMS)
def test_products_are_the_matrices(kind):
    """What is multiplied in the forward pass is what is stored: n k of every product of a layer."""
    est = priced(BY_KIND[kind])
    products = sum(
        float(one.terms["n"] * one.terms["k"] * one.terms["groups"])
        for one in est.bill.time_lines
        if one.phase == "forward" and "n" in one.terms and one.name.startswith("compute.mixer")
    )
    assert products == near(PARAMS[kind][0])


# Bytes, FLOPs and kernels of the recurrence of 1,024 tokens, forward and backward, each number counted once more.
KV = 128 * 128
SCANS = {
    "gated-delta": (
        (T * 8 * (14 * 128 + 12 * 128 + 12 * 64 + 4 * KV / 64), 2 * T * 8 * (5 * 64 * 128 + 3 * KV), 6),
        (T * 8 * (70 * 128 + 8 * 64 + 8 * KV / 64), 2 * T * 8 * (12 * 64 * 128 + 8 * KV), 10),
    ),
    "kimi-delta": (
        (T * 8 * (54 * 128 + 12 * 64 + 4 * KV / 64), 2 * T * 8 * (6 * 64 * 128 + 3 * KV), 7),
        (T * 8 * (106 * 128 + 8 * 64 + 8 * KV / 64), 2 * T * 8 * (12 * 64 * 128 + 8 * KV), 12),
    ),
    "lightning": (
        (T * 8 * (12 * 128 + 4 * KV / 64), 2 * T * 8 * (2 * 64 * 128 + 2 * KV), 2),
        (T * 8 * (28 * 128 + 10 * KV / 64), 2 * T * 8 * (5 * 64 * 128 + 5 * KV), 4),
    ),
    # Eight heads share B and C; a head's state is 64 x 128.
    "mamba-2": (
        (T * 32 * (384 + 8 * 256 / 8 + 16 * 8192 / 128), 2 * T * 32 * (128 * 16 + 64 * 64 + 2 * 8192), 5),
        (
            T * 32 * (1280 + (28 + 16) * 128 / 8 + 36 * 8192 / 128),
            2 * T * 32 * (3 * 128 * 16 + 2.5 * 128 * 64 + 5 * 8192),
            10,
        ),
    ),
}


@pytest.mark.parametrize("kind", SCANS)
def test_time_of_the_recurrence(kind):
    est = priced(BY_KIND[kind])
    forward, backward = SCANS[kind]
    assert each_us(est, "compute.mixer.scan") == near(
        {
            "compute.mixer.scan.forward": scan_us(*forward, 0.7),
            "compute.mixer.scan.backward": scan_us(*backward, 0.36),
        }
    )


@pytest.mark.parametrize(("sheet", "tflops"), [({"fp32": 10}, 10), ({}, 100 / 16)])
def test_a_selective_scan_runs_on_vector_units(sheet, tflops):
    """Nine operations a state and step, at the fp32 of the sheet, or a sixteenth of the 100 TFLOP/s in bf16."""
    peaks = {
        name: {"value": f"{value} TFLOP/s", "source": "assumed"}
        for name, value in {"bf16": 100, **sheet}.items()
    }
    est = priced(MAMBA, cluster=cluster_file(gpu={"peak_dense": peaks}))
    rate = tflops * 1e6
    forward = 1 + (T * (10 * 2048 + 64) / 2e6 + 9 * T * 2048 * 16 / rate) / 0.7
    backward = 1 + (T * (20 * 2048 + 256) / 2e6 + 25 * T * 2048 * 16 / rate) / 0.36
    assert each_us(est, "compute.mixer.scan") == near(
        {"compute.mixer.scan.forward": forward, "compute.mixer.scan.backward": backward}
    )


# Kernels that only move bytes, and their kernels: bytes of all of an operator's elements, forward and backward.
NORMED = ((6 * MIB, 1), (12 * MIB, 2))
MOVED = {
    # A convolution of 2,048 channels; decay and strength of 8 heads; a gated norm of 1,024.
    "gated-delta": {
        "conv": ((8 * MIB, 1), (12 * MIB, 1)),
        "gates": ((12 * T * 16, 1), (16 * T * 16, 1)),
        "gated_norm": NORMED,
    },
    "kimi-delta": {
        "conv": ((12 * MIB, 1), (18 * MIB, 1)),
        "gates": ((6 * MIB, 1), (10 * MIB, 1)),
        "gated_norm": NORMED,
    },
    "lightning": {"activation": ((12 * MIB, 1), (18 * MIB, 1)), "gated_norm": NORMED},
    "mamba": {"conv": ((8 * MIB, 1), (12 * MIB, 1))},
    "mamba-2": {"conv": ((12 * MIB, 1), (18 * MIB, 1)), "gated_norm": ((12 * MIB, 1), (24 * MIB, 2))},
    "short-convolution": {
        "gate_in": ((6 * MIB, 1), (10 * MIB, 1)),
        "conv": ((4 * MIB, 1), (6 * MIB, 1)),
        "gate_out": ((6 * MIB, 1), (10 * MIB, 1)),
    },
    # With a gate alone; with three norms of time steps, B and C: 96 wide.
    "mamba-2 without a norm": {
        "conv": ((12 * MIB, 1), (18 * MIB, 1)),
        "gate": ((12 * MIB, 1), (20 * MIB, 1)),
    },
    "mamba with inner norms": {
        "conv": ((8 * MIB, 1), (12 * MIB, 1)),
        "inner_norms": ((4 * T * 96, 3), (12 * T * 96, 1)),
    },
}
# What is kept of a token beside its input and the residual, 2 x 1,024 in bf16 each.
KEPT = {
    # Columns, convolution, normed output; the scan's own, and in fp32 decay and strength.
    "gated-delta": 2 * (3088 + 2048 + 1024) + 8 * (2 * 128 + 2 * 64 + 8),
    # Two gates go through 128; two matrices a chunk, and the gates' running sum in fp32.
    "kimi-delta": 2 * (3080 + 2 * (128 + 1024) + 3072 + 1024) + 8 * (2 * 128 + 4 * 64 + 4 * 128 + 4),
    "lightning": 2 * (4096 + 3072 + 1024 + 1024),
    "mamba": 2 * (4096 + 2048 + 96 + 2048 + 2048),
    # Steps of 32 heads and their sum in fp32.
    "mamba-2": 2 * (5152 + 3072 + 2048 + 2048) + 8 * 32,
    "short-convolution": 2 * (3072 + 3 * 1024),
    "mamba-2 without a norm": 2 * (5152 + 3072 + 2048 + 2048) + 8 * 32,
    "mamba with inner norms": 2 * (4096 + 2048 + 96 + 2048 + 2048),
}
CASES = {
    **BY_KIND,
    "mamba-2 without a norm": {**MAMBA2, "norm": False},
    "mamba with inner norms": {**MAMBA, "inner_norms": True},
}


@pytest.mark.parametrize("kind", MOVED)
def test_what_moves_bytes_and_what_is_kept(kind):
    est = priced(CASES[kind])
    around = {"residual": ((6 * MIB, 1), (0, 0))}
    products = (".in", ".out", "_down", "_up")
    moved = {
        name: us
        for name, us in each_us(est, "compute.mixer").items()
        if not name.rpartition(".")[0].endswith(products) and ".scan." not in name and "backward_" not in name
    }
    assert moved == near(
        {
            f"compute.mixer.{name}.{way}": moved_us(*each)
            for name, ways in {**around, **MOVED[kind]}.items()
            for way, each in zip(("forward", "backward"), ways, strict=True)
            if each[1]
        }
        | {
            "compute.mixer.norm.forward": computed_us(0.45 * MIB),
            "compute.mixer.norm.backward": computed_us(1.1 * MIB, 2),
        }
    )
    assert memory(est, "activation.mixer") == near({"activation.mixer": 4 * (4 * MIB + T * KEPT[kind])})


def test_tensor_ranks_share_heads():
    """Half the columns, half the heads; a gather before them and a scatter behind, as for attention."""
    est = priced(DELTA, gpus=2, layout="tp2")
    each = each_us(est, "compute.mixer")
    forward, backward = SCANS["gated-delta"]
    assert each["compute.mixer.in.forward"] == near(product_us(T, 1544, 1024))
    assert each["compute.mixer.scan.forward"] == near(scan_us(forward[0] / 2, forward[1] / 2, 6, 0.7))
    assert each["compute.mixer.scan.backward"] == near(scan_us(backward[0] / 2, backward[1] / 2, 10, 0.36))
    sent = sent_bytes(est, "tp.mixer")
    assert sent["tp.mixer.all_gather.forward"] == near(MIB)
    assert set(sent) == {
        "tp.mixer.all_gather.forward",
        "tp.mixer.reduce_scatter.forward",
        "tp.mixer.all_gather.backward",
        "tp.mixer.all_gather_input.backward",
        "tp.mixer.reduce_scatter.backward",
    }


def test_a_selective_scan_sums_its_small_projection_over_tensor_ranks():
    """1,024 tokens x 96 in bf16, once each way."""
    sent = sent_bytes(priced(MAMBA, gpus=2, layout="tp2"), "tp.mixer.x_down")
    assert sent == near(
        {
            "tp.mixer.x_down.all_reduce.forward": 2 * T * 96,
            "tp.mixer.x_down.all_reduce.backward": 2 * T * 96,
        }
    )


def test_what_context_parallelism_sends():
    for kind, sent in [
        # bf16 of 512 tokens, half of which goes to the other rank: 2,048 channels + gates of 1,024 + 16; 1,024 back.
        ("gated-delta", {"heads": 512 * 3088, "sequence": 512 * 1024}),
        ("kimi-delta", {"heads": 512 * (5 * 1024 + 8), "sequence": 512 * 1024}),
        ("mamba-2", {"heads": 512 * 5152, "sequence": 512 * 2048}),
        ("mamba", {"heads": 512 * 4096, "sequence": 512 * 2048}),
        # The states of all ranks in fp32: 8 heads of 128 x 128, of which one rank's is there already.
        ("lightning", {"states": 4 * 8 * KV}),
    ]:
        est = priced(BY_KIND[kind], gpus=2, layout="cp2")
        assert sent_bytes(est, "cp.") == near(
            {
                f"cp.mixer.scan.{label}.{way}": size
                for label, size in sent.items()
                for way in ("forward", "backward")
            }
        )
        # There are no keys and values of other ranks to hold.
        assert "buffer.cp.keys_values" not in memory(est, "buffer.cp")


def test_a_stage_is_the_sum_of_its_kinds():
    """Two delta rules and an attention and a delta rule: stages of another make-up, each counted by kind."""
    est = priced(DELTA, "xxfx", gpus=2, layout="pp2", global_batch=4)
    held = {
        line.name: float(line.count) for line in est.bill.time_lines if line.name.endswith("scan.forward")
    }
    params = memory(est, "state.dense.parameters")["state.dense.parameters"]
    mixer, rest = sum(PARAMS["gated-delta"]), 12 * 2**20 + 2 * 1024
    attention = 3 * 2**20
    assert params == near(
        [
            2 * (2 * (mixer + rest) + TABLE_PARAMS),
            2 * (mixer + attention + 2 * rest + TABLE_PARAMS + 1024),
        ]
    )
    # The head makes the last stage the slower one; it has one delta rule.
    assert held == {"compute.dense-gated-delta.mixer.scan.forward": 4}


def test_blocks_that_are_half_a_layer():
    """Mixer, MLP, attention, MLP, each with one norm: Nemotron-H's way to write two layers."""
    model = of(MAMBA2, "xnfn", mlp_pattern="ndnd")
    assert [kind.name for kind in model.layer_kinds()] == ["mamba-2", "mlp", "attention"]
    mixer, attention, mlp = sum(PARAMS["mamba-2"]), 3 * 2**20, 12 * 2**20
    est = priced(MAMBA2, "xnfn", more={"mlp_pattern": "ndnd"})
    held = 2 * (mixer + attention + 2 * mlp + 4 * 1024 + 2 * TABLE_PARAMS + 1024)
    assert memory(est, "state.dense.parameters") == near({"state.dense.parameters": held})
    names = {line.name.split(".")[1] for line in est.bill.time_lines if line.name.startswith("compute.")}
    assert names == {"mamba-2", "mlp", "attention", "embedding", "head"}


def test_a_mixer_in_eight_bits():
    """6 bytes' worth an element: forward input and 1,024 values; backward gradients of 3,088 columns and of the output."""
    moved = sent_bytes(priced(DELTA, precision="fp8-current"), "compute.mixer.quantise")
    columns = 2 * 512 + 2 * 1024 + 2 * 8
    assert moved == near(
        {
            "compute.mixer.quantise.forward": 6 * T * (1024 + 1024),
            "compute.mixer.quantise.backward": 6 * T * (columns + 1024),
        }
    )


def test_attention_and_state_space_side_by_side():
    est = priced({**MAMBA2, "beside_attention": True})
    each = each_us(est, "compute.")
    assert "compute.mixer.scan.forward" in each
    assert "compute.attention.core.forward" in each
    plain = each_us(price(), "compute.")
    assert each["compute.attention.core.forward"] == near(plain["compute.attention.core.forward"])


def test_a_gate_on_attention():
    """1,024 more columns, and a product of 1,024 elements a token: 6 bytes forward, 10 backward."""
    gated, plain = (
        each_us(price({**SMALL, "attention_gate": on}), "compute.attention") for on in (True, False)
    )
    assert gated["compute.attention.qkv.forward"] == near(product_us(T, 3072, 1024))
    assert plain["compute.attention.qkv.forward"] == near(product_us(T, 2048, 1024))
    assert gated["compute.attention.gate.forward"] == near(moved_us(6 * MIB))
    assert gated["compute.attention.gate.backward"] == near(computed_us(1.2 * MIB))


# Model FLOPs of a token in the forward pass, and the elements of a state.
COUNTS = {
    "gated-delta": (2 * (4 * 2048 + 4 * 8 * KV), 8 * KV + 3 * 2048),
    "kimi-delta": (2 * (3 * 4 * 1024 + 4 * 8 * KV), 8 * KV + 3 * 3 * 1024),
    "lightning": (4 * 8 * KV, 8 * KV),
    "mamba": (9 * 2048 * 16, 2048 * 16 + 3 * 2048),
    "mamba-2": (7 * 2048 * 128, 2048 * 128 + 3 * 3072),
    "short-convolution": (2 * 3 * 1024, 2 * 1024),
}


@pytest.mark.parametrize("kind", COUNTS)
def test_model_flops_and_state(kind):
    sizes = of(BY_KIND[kind]).mixers["x"]
    assert (mixer_flops(sizes, 64.0), mixer_state(sizes, 64.0)) == COUNTS[kind]
    model = of(BY_KIND[kind])
    weights = 4 * (PARAMS[kind][0] + 12 * 2**20) + TABLE_PARAMS
    assert float(model_flops_per_token(model, T)) == near(3 * (2 * weights + 4 * COUNTS[kind][0]))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_short_convolution_waits_for_its_neighbours_tokens(recompute):
    """Context ranks send two tokens in bf16, in every pass of every micro-batch; nothing hides it."""
    est = priced(CONVOLUTION, gpus=2, layout="cp2", global_batch=3, recompute=recompute)
    ways = ("forward", "recompute", "backward") if recompute == "full" else ("forward", "backward")
    sent = {f"cp.mixer.conv.neighbour.{way}": 2 * 2 * 1024 for way in ways}
    assert sent_bytes(est, "cp.") == near(sent)
    assert counts(est, "cp.") == near(dict.fromkeys(sent, 3 * 4))
    assert exposed_us(est, "cp.") == each_us(est, "cp.")
    assert sent_bytes(priced(CONVOLUTION, gpus=2, layout="tp2"), "cp.") == {}


@pytest.mark.parametrize("sizes", ALL, ids=lambda sizes: sizes["kind"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_cost_is_linear_in_the_sequence(sizes, data):
    """Twice the tokens are twice what every operator of the mixer moves and multiplies, whatever they are."""
    seq = data.draw(st.sampled_from([256, 512, 2048, 4096]))
    one, two = (priced(sizes, seq_len=length) for length in (seq, 2 * seq))

    def seconds(est):
        return {
            line.name: float(line.each_s) - float(line.terms["kernels"]) * 1e-6
            for line in est.bill.time_lines
            if line.name.startswith("compute.mixer.scan")
        }

    assert seconds(two) == {name: pytest.approx(2 * value, rel=1e-9) for name, value in seconds(one).items()}
    kept = [memory(est, "activation.mixer")["activation.mixer"] for est in (one, two)]
    assert kept[1] == near(2 * kept[0])


def test_what_is_wrong_is_one_line():
    for changes, said in [
        ({"attention_pattern": "xxyx"}, "attention_pattern: 'y' is no letter of mixers (x), f, w or n"),
        ({"attention_pattern": "ffff"}, "mixers: 'x' stands nowhere in attention_pattern"),
        ({"mixers": {"f": DELTA}, "attention_pattern": "ffff"}, "mixers: 'f' is no letter of its own"),
        ({"attention_pattern": "xnxx", "mlp_pattern": "dndd"}, "layer 2 has neither a mixer nor an MLP"),
        ({"mixers": {"x": {**DELTA, "kind": "gated"}}}, "gated"),
        ({"mixers": {"x": {**DELTA, "key_heads": 0}}}, "key_heads"),
        ({"mixers": {"x": {**DELTA, "heads": 1}}}, "heads"),
    ]:
        values = {"name": "small", **SMALL, "attention_pattern": "xxxx", "mixers": {"x": DELTA}, **changes}
        with pytest.raises(ModelConfigError) as error:
            make_model(values)
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_tensor_ranks_that_heads_do_not_divide_into():
    with pytest.raises(
        CostModelError, match="tp = 8 does not divide the model's 4 key heads of the delta rule"
    ):
        priced(DELTA, gpus=8, layout="tp8")
    # Without attention its heads are nobody's concern.
    priced({**MAMBA2, "groups": 16}, gpus=16, layout="tp16")
