"""Tensor parallelism: every collective of a layer, the embedding and the head, its bytes and what hides it."""

import pytest
from round_jobs import (
    LATENT,
    MIB,
    SMALL,
    counts,
    each_us,
    exposed_us,
    hidden_us,
    memory,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
    weight_us,
)

FULL = 2 * MIB  # 1,024 tokens of width 1,024 in 16 bits
RING = ring_us(FULL)


def slow(**more):
    """Eight ranks over two nodes, where no exchange fits behind a product."""
    return price(gpus=8, layout="tp8", **more)


def test_a_gather_over_two_ranks():
    """5 us, one step of 1 us, and half of 2 MiB at 100 GB/s."""
    assert near(16.48576) == RING
    assert near(5 + 2 + 20.97152) == ring_us(FULL, passes=2)


def test_every_line_of_a_layer_with_sequence_parallelism():
    est = price(gpus=2, layout="tp2")
    assert each_us(est, "tp.attention.", "tp.mlp.") == near(
        {
            f"tp.{part}.{label}": RING
            for part in ("attention", "mlp")
            for label in (
                "all_gather.forward",
                "reduce_scatter.forward",
                "all_gather.backward",
                "all_gather_input.backward",
                "reduce_scatter.backward",
            )
        }
    )
    assert set(sent_bytes(est, "tp.attention.", "tp.mlp.").values()) == {MIB}
    assert set(counts(est, "tp.attention.", "tp.mlp.").values()) == {4.0}
    exposed = exposed_us(est, "tp.attention.", "tp.mlp.")
    for part in ("attention", "mlp"):
        assert exposed[f"tp.{part}.all_gather.forward"] == near(RING)
        assert exposed[f"tp.{part}.all_gather.backward"] == near(RING)
        # A tenth of what hides is paid all the same, by the kernels beside it.
        assert exposed[f"tp.{part}.all_gather_input.backward"] == near(RING / 10)
        assert exposed[f"tp.{part}.reduce_scatter.backward"] == near(RING / 10)


def test_what_does_not_fit_behind_the_gradients_is_paid():
    """82 us a message behind products of 384 and 1,024 columns."""
    est = slow()
    busy = each_us(est, "tp.attention.")["tp.attention.reduce_scatter.backward"]
    exposed = exposed_us(est, "tp.attention.", "tp.mlp.")
    for part, columns in (("attention", 384), ("mlp", 1024)):
        dgrad, wgrad = product_us(1024, 1024, columns), weight_us(1024, columns, 1024)
        assert busy > wgrad > dgrad
        assert exposed[f"tp.{part}.all_gather_input.backward"] == near(hidden_us(busy, dgrad))
        assert exposed[f"tp.{part}.reduce_scatter.backward"] == near(hidden_us(busy, wgrad))


def test_every_line_of_a_layer_without_sequence_parallelism():
    est = price(gpus=2, layout="tp2", sequence_parallel=False)
    both = ring_us(FULL, passes=2)
    assert each_us(est, "tp.attention.", "tp.mlp.") == near(
        {
            f"tp.{part}.all_reduce.{phase}": both
            for part in ("attention", "mlp")
            for phase in ("forward", "backward")
        }
    )
    assert set(sent_bytes(est, "tp.attention.", "tp.mlp.").values()) == {2 * MIB}
    exposed = exposed_us(est, "tp.attention.")
    assert exposed == near(
        {
            "tp.attention.all_reduce.forward": both,
            "tp.attention.all_reduce.backward": hidden_us(both, weight_us(1024, 1024, 1024)),
        }
    )
    nothing = price(gpus=2, layout="tp2", sequence_parallel=False, switches={"tp_overlap": "none"})
    assert exposed_us(nothing, "tp.attention.")["tp.attention.all_reduce.backward"] == near(both)


def test_gate_and_up_projection_sum_their_own_gradients():
    est = price(gpus=2, layout="tp2", sequence_parallel=False, switches={"separate_gate": True})
    both = ring_us(FULL, passes=2)
    times = each_us(est, "tp.")
    assert times["tp.mlp.all_reduce.backward"] == near(2 * both)
    assert times["tp.attention.all_reduce.backward"] == near(both)
    assert times["tp.mlp.all_reduce.forward"] == near(both)


OWN = {"separate_gate": True, "separate_qkv": True, "own_column_inputs": True}
"""Q, K, V, gate and up projection as layers of their own, each with an input of its own."""


def test_queries_keys_and_values_sum_their_own_gradients():
    est = price(gpus=2, layout="tp2", sequence_parallel=False, switches={"separate_qkv": True})
    both = ring_us(FULL, passes=2)
    times = each_us(est, "tp.")
    assert times["tp.attention.all_reduce.backward"] == near(3 * both)
    assert times["tp.attention.all_reduce.forward"] == near(both)
    assert times["tp.mlp.all_reduce.backward"] == near(both)
    gathered = each_us(price(gpus=2, layout="tp2", switches={"separate_qkv": True}), "tp.")
    assert gathered["tp.attention.all_gather.forward"] == near(RING)
    assert gathered["tp.attention.reduce_scatter.backward"] == near(RING)


def test_layers_that_gather_their_input_for_themselves():
    times = each_us(price(gpus=2, layout="tp2", switches={**OWN, "sp_regathers": False}), "tp.")
    for part, layers in (("attention", 3), ("mlp", 2)):
        assert times[f"tp.{part}.all_gather.forward"] == near(layers * RING)
        assert times[f"tp.{part}.reduce_scatter.backward"] == near(layers * RING)
        assert times[f"tp.{part}.reduce_scatter.forward"] == near(RING)
        assert times[f"tp.{part}.all_gather.backward"] == near(RING)
    again = each_us(price(gpus=2, layout="tp2", recompute="full", switches=OWN), "tp.")
    assert again["tp.attention.all_gather.recompute"] == near(3 * RING)


@pytest.mark.parametrize(("tp", "copies"), [(1, 0), (2, 1)])
def test_layers_that_copy_their_input_for_themselves(tp, copies):
    """One kept input becomes three for attention and two for the MLP, of 2 MiB in each of four layers."""
    job = {"gpus": tp, "layout": f"tp{tp}", "sequence_parallel": False}
    apart = {**OWN, "own_column_inputs": False}
    own, shared = price(**job, switches=OWN), price(**job, switches=apart)
    for part, more in (("attention", 2), ("mlp", 1)):
        name = f"activation.{part}"
        assert memory(own, name)[name] - memory(shared, name)[name] == near(copies * more * 4 * FULL)
        copy = f"compute.{part}.input_copy.forward"
        assert each_us(own).get(copy, 0.0) == near(copies * (more + 1) * (1 + 2 * FULL / 1e6))
        assert copy not in each_us(shared)


def test_gathered_inputs_are_nobody_elses_and_not_copied():
    est = price(gpus=2, layout="tp2", switches={**OWN, "sp_regathers": False})
    plain = price(gpus=2, layout="tp2", switches={"sp_regathers": False})
    assert each_us(est).get("compute.attention.input_copy.forward", 0.0) == near(0.0)
    name = "activation.attention"
    assert memory(est, name)[name] - memory(plain, name)[name] == near(2 * 4 * FULL)


def test_exchanges_pipelined_with_products():
    """A piece of two has nothing to hide behind, however long the product."""
    est = price(gpus=2, layout="tp2", switches={"tp_overlap": "pipelined"})
    exposed = exposed_us(est, "tp.attention.", "tp.mlp.")
    assert list(exposed.values()) == near([RING / 2 + RING / 20] * 10)
    wide = slow(switches={"tp_overlap": "pipelined"})
    busy = each_us(wide, "tp.mlp.")["tp.mlp.all_gather.forward"]
    column, row = product_us(1024, 1024, 1024), product_us(1024, 1024, 512)
    assert exposed_us(wide, "tp.mlp.") == near(
        {
            "tp.mlp.all_gather.forward": hidden_us(busy, column, 1 / 8),
            "tp.mlp.reduce_scatter.forward": hidden_us(busy, row, 1 / 8),
            "tp.mlp.all_gather.backward": hidden_us(busy, product_us(1024, 512, 1024), 1 / 8),
            "tp.mlp.all_gather_input.backward": hidden_us(busy, product_us(1024, 1024, 1024), 1 / 8),
            "tp.mlp.reduce_scatter.backward": hidden_us(busy, weight_us(1024, 1024, 1024), 1 / 8),
        }
    )


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_recomputation_communicates_again(sequence_parallel):
    est = price(gpus=2, layout="tp2", recompute="full", sequence_parallel=sequence_parallel)
    again = {name for name in each_us(est, "tp.") if name.endswith(".recompute")}
    ways = ("all_gather", "reduce_scatter") if sequence_parallel else ("all_reduce",)
    assert again == {f"tp.{part}.{way}.recompute" for part in ("attention", "mlp") for way in ways}
    early = price(
        gpus=2,
        layout="tp2",
        recompute="full",
        sequence_parallel=sequence_parallel,
        switches={"recompute_early_stop": True},
    )
    stopped = {name for name in each_us(early, "tp.") if name.endswith(".recompute")}
    # It never gets to the sum of the MLP, but to that of attention.
    assert again - stopped == {f"tp.mlp.{ways[-1]}.recompute"}
    none = price(gpus=2, layout="tp2", recompute="selective", sequence_parallel=sequence_parallel)
    assert not {name for name in each_us(none, "tp.") if name.endswith(".recompute")}


def test_inputs_that_autograd_keeps_gathered():
    est = price(gpus=2, layout="tp2", switches={"sp_regathers": False})
    assert not [name for name in each_us(est, "tp.") if "all_gather_input" in name]
    # The output of each norm is kept whole, 2 MiB instead of 1, as is the head's.
    usual = price(gpus=2, layout="tp2")
    for part, more in (("attention", 4), ("mlp", 4), ("head", 1)):
        name = f"activation.{part}"
        assert memory(est, name)[name] - memory(usual, name)[name] == near(more * MIB)


def test_every_line_of_embedding_and_head():
    est = price(gpus=2, layout="tp2")
    times = {
        "tp.embedding.reduce_scatter.forward": RING,
        "tp.embedding.all_gather.backward": RING,
        "tp.head.loss.all_reduce.forward": 3
        * ring_us(4 * 1024, passes=2),  # maximum, sum, and the label's logit
        "tp.head.all_gather.forward": RING,
        "tp.head.reduce_scatter.backward": RING,
        "tp.head.all_gather_input.backward": RING,
    }
    assert each_us(est, "tp.embedding.", "tp.head.") == near(times)
    assert exposed_us(est, "tp.embedding.", "tp.head.") == near(times)
    assert sent_bytes(est, "tp.head.loss") == {"tp.head.loss.all_reduce.forward": 3 * 4096}


def test_embedding_and_head_without_sequence_parallelism():
    est = price(gpus=2, layout="tp2", sequence_parallel=False)
    both = ring_us(FULL, passes=2)
    assert each_us(est, "tp.embedding.", "tp.head.") == near(
        {
            "tp.embedding.all_reduce.forward": both,
            "tp.head.loss.all_reduce.forward": 3 * ring_us(4 * 1024, passes=2),
            "tp.head.all_reduce.backward": both,
        }
    )


def test_gathered_logits():
    est = price(gpus=2, layout="tp2", switches={"vocab_parallel_loss": False})
    assert each_us(est, "tp.head.logits") == near(
        {"tp.head.logits.all_gather.forward": ring_us(2 * 1024 * 32000)}
    )
    assert "tp.head.loss.all_reduce.forward" not in each_us(est)


def test_latent_attention_gathers_what_it_compressed():
    """Ranks of 256 and 128 and 32 rotary columns: 416 of 1,024."""
    est = price(LATENT, gpus=2, layout="tp2")
    times = each_us(est, "tp.attention.")
    assert times["tp.attention.all_gather.forward"] == near(ring_us(2 * 1024 * 416))
    assert times["tp.attention.reduce_scatter.forward"] == near(RING)
    whole = price({**LATENT, "q_lora_rank": 0}, gpus=2, layout="tp2")
    assert each_us(whole, "tp.")["tp.attention.all_gather.forward"] == near(ring_us(2 * 1024 * (1024 + 160)))


def test_quantised_inputs_are_gathered_in_eight_bits():
    times = each_us(price(gpus=2, layout="tp2", precision="fp8-delayed"), "tp.mlp.")
    assert times["tp.mlp.all_gather.forward"] == near(ring_us(FULL / 2))
    assert times["tp.mlp.reduce_scatter.forward"] == near(RING)


def test_shared_experts_are_split_like_a_dense_layer():
    model = {
        **SMALL,
        "ffn_size": 0,
        "num_experts": 8,
        "top_k": 2,
        "expert_ffn_size": 512,
        "shared_expert_ffn_size": 1024,
    }
    times = each_us(price(model, gpus=2, layout="tp2"), "tp.")
    assert times["tp.moe.shared.all_gather.forward"] == near(RING)
    assert "tp.mlp.all_gather.forward" not in times


def test_the_buffer_of_a_gather():
    assert memory(price(gpus=2, layout="tp2"), "buffer.tp") == {"buffer.tp.gathered_input": 2 * MIB}
    assert memory(price(gpus=2, layout="tp2", sequence_parallel=False), "buffer.tp") == {}
    assert memory(price(), "buffer.tp") == {}
    assert each_us(price(), "tp.") == {}


def test_a_group_that_leaves_the_node():
    """Two steps cross the network; of 2 MiB, seven eighths leave each GPU, an eighth of that over each port."""
    est = slow()
    steps = 8 / 1 - 8 / 4, 8 / 4 - 8 / 8
    inner = (1 - 1 / 4) / 1e5  # of four members in a node one sends outwards
    outer = 1 / (4 * 1e4)  # four ports share the crossing
    wire = FULL * 7 / 8
    busy = 20 + steps[0] * 1 + steps[1] * 10 + wire * max(inner, outer)
    assert each_us(est, "tp.attention.")["tp.attention.all_gather.forward"] == near(busy)
