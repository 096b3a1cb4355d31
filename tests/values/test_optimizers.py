"""What each optimizer keeps, moves, multiplies and sends, by hand."""

import numpy as np
import pytest
from round_jobs import (
    LAYER_PARAMS,
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
)

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.bill.formula import inputs_of
from costmodel.describe.jobs.job import make_job
from costmodel.describe.optimizers import OPTIMIZERS
from costmodel.estimates.savings import memory_savings
from costmodel.interop.draft import optimizer_of
from costmodel.step.anatomy.operator_parts import Given
from costmodel.step.anatomy.operators import weight_matrices
from costmodel.step.anatomy.params import layer_param_blocks
from costmodel.step.optimizer import update_groups, whole_state_bytes
from costmodel.step.price import price as price_job

N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024
# A layer has 2 + 1 + 8 + 4 Mi of matrix elements and two norms of 1,024.
MATRICES, VECTORS = 60 * MIB, 4 * 2 * 1024
TABLES = 2 * TABLE_PARAMS + 1024  # and the last norm
# 1024 x 2048, 1024 x 1024, 1024 x 8192, 4096 x 1024.
SIDES = 4 * (3072 + 2048 + 9216 + 5120)
# The same sides in units of 1,024, squared.
SQUARES = 4 * ((1 + 4) + (1 + 1) + (1 + 64) + (16 + 1)) * MIB
TWO = {"gpus": 2, "global_batch": 2}


def held(est):
    """Bytes of what the optimizer keeps besides main weights, by name."""
    found = memory(est, "state.dense.optimizer.")
    found.pop("state.dense.optimizer.main_weights")
    return {name.rpartition(".")[2]: held for name, held in found.items()}


STATES = {
    "adamw": {"moments": 8 * N},
    "adamw-bf16": {"moments": 4 * N},
    "adamw-8bit": {"moments": (2 + 8 / 2048) * N},
    "paged-adamw-8bit": {},
    "lion": {"momentum": 4 * N},
    "sgd": {},
    "sgd-momentum": {"momentum": 4 * N},
    # Row and column sums of 64,001 x 1,024 for both tables (and the last norm) and of the layers' matrices.
    "adafactor": {"factors": 4 * (SIDES + 64_001 + 2 * 1024), "squares": 4 * VECTORS},
    "muon": {"momentum": 4 * MATRICES, "moments": 8 * (TABLES + VECTORS)},
    # Four square matrices in fp32, two of each side: statistics and bases, or roots.
    "soap": {"moments_and_bases": 8 * MATRICES + 8 * SQUARES, "moments": 8 * (TABLES + VECTORS)},
    "shampoo": {"moments_and_roots": 8 * MATRICES + 8 * SQUARES, "moments": 8 * (TABLES + VECTORS)},
}
"""What each optimizer keeps of the model, by line. [B]"""


def test_states():
    assert set(STATES) == set(OPTIMIZERS)
    for name, kept in STATES.items():
        assert held(price(optimizer=name)) == near(kept)
        assert memory(price(optimizer=name), "state.dense.optimizer.main_weights") == near(
            {"state.dense.optimizer.main_weights": 4 * N}
        )
        shared = price(optimizer=name, **TWO)
        assert held(shared) == near({key: size / 2 for key, size in kept.items()})
        assert held(price(optimizer=name, zero_stage=0, **TWO)) == near(kept)


def test_matrices_of_two_layers_of_multi_token_prediction():
    """Two layers more, each behind a projection of 2,048 x 1,024."""
    est = price({**SMALL, "mtp_layers": 2}, optimizer="muon")
    assert held(est)["momentum"] == near(4 * (6 * 15 + 2 * 2) * MIB)


def test_kernels():
    for name, lines in [
        # Gradient 4 and states with the main weight read, states written, parameter 2 written.
        ("adamw", {"adam": 30 * N}),
        ("adamw-bf16", {"adam": 22 * N}),
        ("adamw-8bit", {"adam": (4 + 2 * (6 + 8 / 2048) + 2) * N}),
        ("lion", {"lion": 22 * N}),
        ("sgd", {"sgd": 14 * N}),
        ("sgd-momentum", {"momentum": 22 * N}),
        # The gradient twice, the update in fp32 written and read, factors and main weights to and fro, parameter.
        (
            "adafactor",
            {
                "adafactor": (8 + 8 + 8 + 2) * (MATRICES + TABLES) + 8 * (SIDES + 64_001 + 2048),
                "adafactor_vectors": (8 + 8 + 16 + 2) * VECTORS,
            },
        ),
        # Momentum and main weight to and fro, 16 bits for the iteration and of its result.
        ("muon", {"muon": (4 + 2 + 2 + 16 + 2) * MATRICES, "adam": 30 * (TABLES + VECTORS)}),
    ]:
        found = each_us(price(optimizer=name), *(f"optimizer.{kernel}" for kernel in lines))
        expected = {f"optimizer.{kernel}": moved_us(size) for kernel, size in lines.items()}
        assert {line: found[line] for line in expected} == near(expected)
        # Two ranks step half each.
        half = each_us(price(optimizer=name, **TWO), *(f"optimizer.{kernel}" for kernel in lines))
        assert {line: half[line] for line in expected} == near(
            {f"optimizer.{kernel}": moved_us(size / 2) for kernel, size in lines.items()}
        )


def test_pages_come_and_go_over_the_hosts_link():
    """2.004 bytes a parameter each way at 50 GB/s, four GPUs' worth in the host's memory."""
    est = price(optimizer="paged-adamw-8bit")
    width = 2 + 8 / 2048
    assert each_us(est, "optimizer.paging") == near(
        {f"optimizer.paging.{way}": width * N / 5e4 for way in ("in", "out")}
    )
    assert each_us(est, "optimizer.adam") == each_us(price(optimizer="adamw-8bit"), "optimizer.adam")
    four = price(optimizer="paged-adamw-8bit", gpus=4, global_batch=4)
    assert {line.name: float(line.bytes.max()) for line in four.bill.host_lines} == near(
        {"host.optimizer.moments": width * N}
    )


OUTER, SQUARE, APPLIED = "optimizer.outer.", "optimizer.square.", "optimizer.applied."
SHAPES = {
    "attention.qkv": (1024, 2048),
    "attention.out": (1024, 1024),
    "mlp.fc1": (1024, 8192),
    "mlp.fc2": (1024, 4096),
}


def iterated(share, shapes=SHAPES):
    """Microseconds of five steps of Newton-Schulz on a share of the matrices, by line."""
    found = {}
    for name, (short, long) in shapes.items():
        found[OUTER + name] = 5 * share * product_us(short, short, long)
        found[SQUARE + name] = 5 * share * product_us(short, short, short)
        found[APPLIED + name] = 5 * share * product_us(short, long, short)
    return found


PRODUCTS = (OUTER, SQUARE, APPLIED)


def test_newton_schulz_on_every_matrix():
    est = price(optimizer="muon")
    assert each_us(est, *PRODUCTS) == near(iterated(1.0))
    assert set(counts(est, *PRODUCTS).values()) == {4.0}
    assert each_us(est, "optimizer.gather", "optimizer.hand_back") == {}
    # Without sharding every replica does them all.
    assert each_us(price(optimizer="muon", zero_stage=0, **TWO), *PRODUCTS) == near(iterated(1.0))


def test_ranks_share_the_matrices_and_gather_them():
    """Of 16 matrices a rank of two touches eight and one that it shares."""
    est = price(optimizer="muon", **TWO)
    assert each_us(est, *PRODUCTS) == near(iterated(9 / 16))
    gathered = {"optimizer.gather.dense.grad": ring_us(2 * 9 / 16 * MATRICES)}
    assert each_us(est, "optimizer.gather", "optimizer.hand_back") == near(gathered)
    sharded = price(optimizer="muon", zero_stage=3, **TWO)
    assert each_us(sharded, *PRODUCTS) == near(iterated(9 / 16))
    back = each_us(sharded, "optimizer.gather", "optimizer.hand_back")
    assert back.keys() == {*gathered, "optimizer.hand_back.dense.grad"}
    assert back["optimizer.hand_back.dense.grad"] == near(ring_us(2 * 9 / 16 * MATRICES))


def test_no_rank_does_less_than_the_matrices_it_touches():
    """Of 16 matrices over eight ranks each touches two and one more; over 32 there are two on each."""
    eight = price(optimizer="muon", gpus=8, global_batch=8)
    assert each_us(eight, *PRODUCTS) == near(iterated(3 / 16))
    many = price(optimizer="muon", gpus=32, global_batch=32)
    assert each_us(many, *PRODUCTS) == near(iterated(2 / 16))


def test_parts_of_tensor_parallelism_are_gathered_whole():
    est = price(optimizer="muon", gpus=2, tp=2)
    assert each_us(est, *PRODUCTS) == near(iterated(1.0))
    assert each_us(est, "optimizer.gather") == near({"optimizer.gather.dense.tp": ring_us(2 * MATRICES)})
    both = price(optimizer="muon", gpus=4, tp=2, global_batch=2)
    # Data parallelism gathers a rank's part of each, tensor parallelism the whole.
    assert each_us(both, "optimizer.gather.dense.grad") == near(
        {"optimizer.gather.dense.grad": ring_us(2 * 9 / 16 * MATRICES / 2)}
    )
    assert each_us(both, "optimizer.gather.dense.tp") == near(
        {"optimizer.gather.dense.tp": ring_us(2 * 9 / 16 * MATRICES)}
    )


def test_a_pipeline_stage_iterates_on_its_own():
    """Four layers on two stages: eight matrices each."""
    est = price(optimizer="muon", gpus=2, pp=2, global_batch=4)
    assert set(counts(est, *PRODUCTS).values()) == {2.0}


def test_experts_are_matrices_of_their_own():
    """Eight experts of 1024 x 1024 and 512 x 1024 on two ranks; the router on every rank."""
    est = price(MOE, optimizer="muon", gpus=2, ep=2, global_batch=2)
    experts = {"moe.experts.fc1": (1024, 1024), "moe.experts.fc2": (512, 1024)}
    found = each_us(est, *(start + name for start in PRODUCTS for name in experts))
    assert found == near(iterated(1.0, experts))
    assert set(counts(est, *(OUTER + name for name in experts)).values()) == {16.0}
    # Twelve dense matrices over two ranks: six and one.
    dense = {"attention.qkv": (1024, 2048), "attention.out": (1024, 1024), "moe.router": (8, 1024)}
    assert each_us(est, *(start + name for start in PRODUCTS for name in dense)) == near(
        iterated(7 / 12, dense)
    )
    assert "optimizer.gather.expert.edp" not in each_us(est, "optimizer.gather")
    # Experts in two halves on ranks that hold the rest whole: 8 · 1.5 Mi of elements a layer, gathered over etp alone.
    halves = price(MOE, optimizer="muon", gpus=2, etp=2, global_batch=2)
    assert each_us(halves, "optimizer.gather.expert") == near(
        {"optimizer.gather.expert.etp": ring_us(2 * 4 * 8 * 1.5 * MIB)}
    )
    # Of 64 matrices a rank of two replicas touches 33, of which it has a half each.
    replicas = price(MOE, optimizer="muon", gpus=4, etp=2, global_batch=4)
    size = 2 * 33 / 64 * 4 * 8 * 1.5 * MIB
    assert each_us(replicas, "optimizer.gather.expert") == near(
        {"optimizer.gather.expert.edp": ring_us(size / 2), "optimizer.gather.expert.etp": ring_us(size)}
    )


def test_the_host_issues_the_products():
    """Three products of sixteen matrices, five times at 0.9 ms each, beside what they take."""
    est = price(optimizer="muon", switches={"launch_s": 0.9e-3})
    step_us = sum(iterated(1.0).values()) / 5 * 4
    issued_us = 3 * 16 * 900 * est.job.cluster.accelerator.host_slowdown
    assert issued_us > step_us
    assert each_us(est, "optimizer.host") == near({"optimizer.host.dense": 5 * (issued_us - step_us)})
    assert "optimizer.host.dense" not in each_us(price(optimizer="muon"), "optimizer.host")


def test_operands_where_no_activations_are_left_beside_them():
    """16 bits of the largest matrix (1024 x 8192), of its outer product, and of their successors."""
    est = price({**SMALL, "vocab_size": 128}, optimizer="muon", seq_len=8)
    activations = sum(memory(est, "activation.").values())
    assert memory(est, "state.optimizer.iteration") == near(
        {"state.optimizer.iteration": 2 * (2 * 8 * MIB + 2 * MIB) - activations}
    )
    assert memory(price(optimizer="muon"), "state.optimizer.iteration") == {}


def test_every_parameter_is_stepped_once():
    for model in ["llama3-8b", "deepseek-v3", "gemma2-9b"]:
        for name in OPTIMIZERS:
            layout = {"gpus": 64, "layout": "tp2 pp4", "global_batch": 64, "seq_len": 4096}
            if model == "deepseek-v3":
                layout["layout"] = "tp2 pp4 ep8"
            step = price_job(make_job(model=model, optimizer=name, cluster="dgx-h100-ndr", **layout)).step
            found = update_groups(step)
            for part in ("dense", "expert"):
                total = sum(np.asarray(getattr(one.params, part)) for one in found)
                assert total == pytest.approx(np.asarray(getattr(step.params, part)), rel=1e-9)
            assert all(np.all(np.asarray(one.params.dense) >= 0) for one in found)


def test_matrices_have_the_parameters_of_the_model():
    for model in cm.list_models():
        job = make_job(model=model, gpus=8, global_batch=8, seq_len=1024, check=False)
        for kind in job.model.layer_kinds():
            matrices = weight_matrices(Given.whole(job.model, job.recipe, job.precision), kind)
            blocks = [one for one in layer_param_blocks(job.model, kind) if one.is_matrix]
            assert sum(one.copies * one.elements for one in matrices) == pytest.approx(
                sum(one.count for one in blocks), rel=1e-12
            )
            assert sum(one.copies * one.elements for one in matrices if one.is_expert) == pytest.approx(
                sum(one.count for one in blocks if one.sharding == "expert"), rel=1e-12
            )
            assert sum(one.copies * one.elements for one in matrices if one.is_split) == pytest.approx(
                sum(one.count for one in blocks if one.sharding != "replicated"), rel=1e-12
            )


def fp32_us(m, n, k, blocks=1.0):
    """Microseconds of a product in fp32, at half of 10 TFLOP/s and four bytes an element."""
    return blocks * product_us(m, n, k, inputs=4, output=4, tflops=5)


def test_soap_rotates_into_bases_of_both_sides():
    """Of queries, keys and values, 1,024 x 2,048: two statistics, three rotations from each side, QR every ten steps."""
    each = each_us(price(optimizer="soap"), "optimizer.")
    found = {
        name.removeprefix("optimizer.").removesuffix(".attention.qkv"): us
        for name, us in each.items()
        if name.endswith(".attention.qkv")
    }
    qr = (1 + 4 * 4 / 3) / 10
    assert found == near(
        {
            "left_statistics": fp32_us(1024, 1024, 2048),
            "right_statistics": fp32_us(2048, 2048, 1024),
            "left_rotation": fp32_us(1024, 2048, 1024, 3),
            "right_rotation": fp32_us(1024, 2048, 2048, 3),
            "left_basis": fp32_us(1024, 1024, 1024, qr),
            "right_basis": fp32_us(2048, 2048, 2048, qr),
        }
    )
    # Gradient 4; moments, four square matrices and main weight to and fro; parameter 2.
    moved = (4 + 2 * 12 + 2) * MATRICES + 2 * 8 * SQUARES
    assert each["optimizer.soap"] == near(moved_us(moved))
    assert each["optimizer.adam"] == near(moved_us(30 * (TABLES + VECTORS)))


def test_soap_has_no_basis_of_a_side_beyond_ten_thousand():
    """An MLP of 16,384: way in 1,024 x 32,768, way out 1,024 x 16,384 keep only the statistics of their 1,024."""
    wide = {**SMALL, "ffn_size": 16384}
    est = price(wide, optimizer="soap")
    squares = 4 * ((1 + 4) + (1 + 1) + 1 + 1) * MIB
    matrices = 4 * (2 + 1 + 32 + 16) * MIB
    assert held(est)["moments_and_bases"] == near(8 * matrices + 8 * squares)
    products = {name.split(".")[1] for name in each_us(est, "optimizer.") if name.endswith("fc1")}
    assert products == {"left_statistics", "left_rotation", "left_basis"}


def test_shampoo_cuts_matrices_into_blocks():
    """1,024 x 32,768 is four blocks of 1,024 x 8,192, each with square matrices of 1 and of 64 Mi elements."""
    wide = {**SMALL, "ffn_size": 16384}
    est = price(wide, optimizer="shampoo")
    squares = 4 * ((1 + 4) + (1 + 1) + 4 * (1 + 64) + 2 * (64 + 1)) * MIB
    matrices = 4 * (2 + 1 + 32 + 16) * MIB
    assert held(est)["moments_and_roots"] == near(8 * matrices + 8 * squares)
    each = each_us(est, "optimizer.")
    assert each["optimizer.left_statistics.mlp.fc1"] == near(fp32_us(1024, 1024, 8192, 4))
    assert each["optimizer.right_root.mlp.fc1"] == near(fp32_us(1024, 8192, 8192, 4))
    # Eigenvalues and vectors every hundred steps, as long as ninety products.
    assert each["optimizer.right_eigen.mlp.fc1"] == near(fp32_us(8192, 8192, 8192, 4 * 0.9))


def test_preconditioned_gradients_are_gathered_in_fp32():
    """Twice the bytes of Muon's for the same matrices."""
    soap, muon = (sent_bytes(price(optimizer=name, **TWO), "optimizer.gather") for name in ("soap", "muon"))
    assert soap == near({name: 2 * size for name, size in muon.items()})


def test_records():
    for record in OPTIMIZERS.values():
        assert record.source
        assert (record.iterations > 0) == bool(record.products) == (record.gathered_bytes > 0)
        for update in record.updates:
            assert set(inputs_of(update.state_bytes)) <= {"moments_bytes", "sides", "squares"}
            assert set(inputs_of(update.moved_bytes)) <= {"grad_bytes", "state_bytes", "weight_bytes"}
        assert len({update.kernel for update in record.updates}) == len(record.updates)
        assert len({update.holds for update in record.updates}) == len(record.updates)


def test_what_no_host_steps_is_not_offloaded():
    with pytest.raises(
        CostModelError, match="offload_optimizer: no host steps muon; it needs optimizer adamw, lion"
    ):
        price(optimizer="muon", switches={"offload_optimizer": True})
    with pytest.raises(CostModelError, match="no host steps adafactor"):
        price(optimizer="adafactor").job.switched({"offload_optimizer": True})
    assert price(optimizer="lion", switches={"offload_optimizer": True}).fits
    savings = {one.change.name for one in memory_savings(price(optimizer="muon").job)}
    assert savings
    assert "offload_optimizer" not in savings
    assert "offload_optimizer" in {one.change.name for one in memory_savings(price(optimizer="lion").job)}


def test_a_plan_takes_several():
    found = cm.plan(
        model="llama3-8b",
        gpus=8,
        global_batch=64,
        seq_len=4096,
        optimizer=["adamw", "adamw-8bit", "muon"],
        tp=[1, 2],
        pp=1,
    )
    frame = found.to_frame()
    assert set(frame.optimizer) == {"adamw", "adamw-8bit", "muon"}
    assert found.best.job.optimizer.name == "adamw-8bit"


def test_megatron_says_and_reads_it():
    for name in ["adamw", "adamw-bf16", "sgd-momentum", "muon"]:
        from costmodel.interop.keys import Flags
        from costmodel.interop.megatron_job import read_flags

        est = cm.estimate(
            model="llama3-8b", gpus=8, layout="tp2", global_batch=8, seq_len=4096, optimizer=name
        )
        back = read_flags(Flags(cm.emit(est, "megatron")), {})
        assert back.job.get("optimizer", "adamw") == name
        assert not [text for text in back.warnings if "optimizer" in text]


def test_what_a_framework_does_not_have_is_not_written():
    est = cm.estimate(model="llama3-8b", gpus=8, layout="tp2", global_batch=8, seq_len=4096, optimizer="lion")
    with pytest.raises(CostModelError, match="Megatron-LM has no optimizer lion; plan with adamw"):
        cm.emit(est, "megatron")
    assert '"type": "Lion"' in cm.emit(est, "deepspeed")


def test_names_that_other_programs_have():
    for theirs, ours in [
        ("paged_adamw_8bit", "paged-adamw-8bit"),
        ("paged_adamw_32bit", "adamw"),
        ("adamw_bnb_8bit", "adamw-8bit"),
        ("FusedAdam", "adamw"),
        ("DeepSpeedCPUAdam", "adamw"),
        ("OneBitAdam", None),
        ("sgd", "sgd"),
    ]:
        assert optimizer_of(theirs, sgd="sgd") == ours


def test_a_checkpoint_holds_what_one_gpu_of_the_whole_model_does():
    """Experts, tables and matrices alike; the main weights are counted beside it."""
    for model in (SMALL, MOE, {**MOE, "tied_embeddings": True}):
        for name in ("adamw", "adafactor", "muon", "shampoo", "soap"):
            est = price(model, optimizer=name, zero_stage=0)
            held = memory(est, "state.dense.optimizer", "state.expert.optimizer")
            kept = sum(held[line] for line in held if not line.endswith(("main_weights", "temporaries")))
            assert whole_state_bytes(est.job) == near(kept), (model, name)
