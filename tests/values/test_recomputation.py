"""What is run again and what is kept instead, policy by policy: none, selective, full."""

import numpy as np
import pytest
from round_jobs import LATENT, MOE, SMALL, each_us, price

from costmodel.step.anatomy.operator_parts import Operator
from costmodel.step.recomputation import Recomputation

POLICIES = np.asarray([0.0, 1.0, 2.0])


def of(*modules, stops_early=False):
    return Recomputation(POLICIES, modules, stops_early)


def operator(kind="matmul", modules=("mlp",), part="mlp", role="column"):
    size = np.asarray(8.0)
    return Operator(
        part,
        "fc1",
        role,
        kind,
        frozenset(modules),
        m=size,
        n=size,
        k=size,
        saved_bytes=np.asarray(100.0),
    )


def test_share_of_an_operator_run_again_and_bytes_kept():
    for modules, what, again, kept in [
        (["core_attn"], operator(), [0, 0, 1], [100, 100, 0]),
        (["mlp"], operator(), [0, 1, 1], [100, 0, 0]),
        # half of the products keep their output of 8 x 8 in 16 bits
        (["every_second_matmul"], operator(), [0, 0.5, 1], [100, 64, 0]),
        (["every_second_matmul"], operator("memory", ("norm",), role="norm"), [0, 1, 1], [100, 0, 0]),
        (
            ["every_second_matmul"],
            operator("attention", ("core_attn",), "attention", "core"),
            [0, 0, 1],
            [100, 100, 0],
        ),
        (["all_but_qkv"], operator(), [0, 1, 1], [100, 0, 0]),
        (["all_but_qkv"], operator(modules=("qkv",), part="attention"), [0, 0, 1], [100, 100, 0]),
        (["every_second_layer"], operator(), [0, 0.5, 1], [100, 50, 0]),
        # the product after attention and the sum: not those of the MLP, nor attention itself
        *(
            (["attention_output"], operator(part="attention", role=role), [0, 1, 1], [100, 0, 0])
            for role in ("row", "residual")
        ),
        (["attention_output"], operator(role="row"), [0, 0, 1], [100, 100, 0]),
        (["attention_output"], operator(part="attention", role="core"), [0, 0, 1], [100, 100, 0]),
    ]:
        share, held = of(*modules).of_operator(what)
        assert share.tolist() == again
        assert held.tolist() == kept


@pytest.mark.parametrize(
    ("part", "role", "last"),
    [("mlp", "row", True), ("mlp", "residual", True), ("mlp", "column", False), ("attention", "row", False)],
)
def test_a_layer_that_stops_early_leaves_out_what_only_its_output_needs(part, role, last):
    share, kept = of("mlp", stops_early=True).of_operator(operator(part=part, role=role))
    assert share.tolist() == ([0, 0, 0] if last else [0, 1, 1])
    assert kept.tolist() == [100, 0, 0]


def test_a_layer_that_stops_early_leaves_out_its_last_sum():
    assert of(stops_early=True).of_sum_after("mlp").tolist() == [0, 0, 0]
    assert of(stops_early=True).of_sum_after("attention").tolist() == [0, 0, 1]
    assert of().of_sum_after("mlp").tolist() == [0, 0, 1]


def test_collectives_of_a_module_and_inputs_held():
    assert of("moe").of_module("moe").tolist() == [0, 1, 1]
    assert of("mlp").of_module("moe").tolist() == [0, 0, 1]
    assert of("mlp").holds_inputs.tolist() == [0, 0, 1]
    assert of("every_second_matmul").holds_inputs.tolist() == [0, 1, 1]
    assert of().anything.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("modules", "again"), [(["moe"], True), (["mlp"], False)])
def test_recomputed_experts_that_are_split_gather_their_copies_again(modules, again):
    est = price(
        MOE,
        gpus=4,
        layout="ep2 etp2",
        global_batch=4,
        recompute="selective",
        switches={"selective_modules": modules},
    )
    found = [name for name in each_us(est, "ep.expert_tensor.") if name.endswith(".recompute")]
    both = ["ep.expert_tensor.all_gather.recompute", "ep.expert_tensor.reduce_scatter.recompute"]
    assert found == (both if again else [])


@pytest.mark.parametrize(("model", "again"), [(LATENT, True), (SMALL, False)])
def test_latent_up_projections_are_recomputed_with_the_rotation_after_them(model, again):
    """Megatron-Core's mla_up_proj checkpoints both; heads without latents have no such module."""
    est = price(model, recompute="selective", switches={"selective_modules": ["mla_up_proj"]})
    times = each_us(est, "compute.attention.rope.")
    assert ("compute.attention.rope.recompute" in times) == again
    if again:
        assert times["compute.attention.rope.recompute"] == times["compute.attention.rope.forward"]


def test_every_second_product_of_each_expert_is_kept():
    """Half of 8 x 8 elements in bf16 for each of three experts."""
    of_experts = operator("grouped_matmul", ("moe",), "moe")._replace(groups=np.asarray(3.0))
    share, kept = of("every_second_matmul").of_operator(of_experts)
    assert share.tolist() == [0, 0.5, 1]
    assert kept.tolist() == [100, 3 * 64, 0]
