"""Data parallelism: what every stage of ZeRO, FSDP, HSDP, DiLoCo and compression sends, hides, and steps."""

import pytest
from round_jobs import (
    LAYER_PARAMS,
    MOE,
    SMALL,
    TABLE_PARAMS,
    cluster_file,
    counts,
    each_us,
    exposed_us,
    hidden_us,
    line,
    memory,
    moved_us,
    near,
    price,
    ring_us,
    sent_bytes,
    step_us,
    total_us,
    two_nodes_us,
)

import costmodel as cm

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")

N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024  # 128,459,776
LAST_BUCKET = 40e6 / N
TWO = {"gpus": 2, "global_batch": 2}
EIGHT = {"gpus": 8, "global_batch": 8}  # two nodes, one micro-batch each
SCATTER, GATHER = "dp.dense.grad_reduce_scatter", "dp.dense.param_all_gather"


def test_parameters_of_the_small_model():
    assert N == 128_459_776
    assert LAYER_PARAMS == 15_730_688


def test_every_line_of_a_distributed_optimizer():
    """ZeRO-1: gradients in fp32 once a step, parameters in 16 bits; Adam on half of them."""
    est = price(gpus=2, global_batch=8)
    assert each_us(est, "dp.", "optimizer.") == near(
        {
            SCATTER: ring_us(4 * N),
            GATHER: ring_us(2 * N),
            # Gradient 4, main weight and two moments 12 read and 12 written, parameter 2.
            "optimizer.adam": moved_us(30 * N / 2),
            "optimizer.grad_norm": moved_us(12 * N / 2),
        }
    )
    assert set(counts(est, "dp.", "optimizer.").values()) == {1.0}
    assert sent_bytes(est, "dp.") == near({SCATTER: 2 * N, GATHER: N})
    assert sent_bytes(est, "optimizer.") == near({"optimizer.adam": 15 * N, "optimizer.grad_norm": 6 * N})


def test_reduction_behind_the_last_micro_batch_and_gather_behind_the_first():
    """Over a network of half the rate more than the last bucket is left over."""
    slow = cluster_file(outer={"bandwidth": "5 GB/s"})
    est = price(cluster=slow, **EIGHT)
    reduce, gather = (36 + 7 / 8 * width * N / 2e4 for width in (4, 2))
    backward, forward = step_us(est, "backward", "backward_weight", "recompute"), step_us(est, "forward")
    assert reduce * (1 - LAST_BUCKET) > backward > gather * (1 - LAST_BUCKET) > forward
    assert exposed_us(est, "dp.") == near(
        {SCATTER: hidden_us(reduce, backward), GATHER: hidden_us(gather, forward)}
    )
    usual = price(**EIGHT)
    assert exposed_us(usual, "dp.") == near(
        {
            SCATTER: hidden_us(two_nodes_us(4 * N), backward, LAST_BUCKET),
            GATHER: hidden_us(two_nodes_us(2 * N), forward, LAST_BUCKET),
        }
    )
    plenty = price(gpus=2, global_batch=2)
    assert exposed_us(plenty, "dp.") == near(
        {
            SCATTER: hidden_us(ring_us(4 * N), 1e9, LAST_BUCKET),
            GATHER: hidden_us(ring_us(2 * N), 1e9, LAST_BUCKET),
        }
    )
    nothing = price(switches={"dp_overlap": "none"}, **EIGHT)
    assert exposed_us(nothing, "dp.") == near({SCATTER: two_nodes_us(4 * N), GATHER: two_nodes_us(2 * N)})


def test_a_reduction_waits_for_the_port_of_other_axes():
    """Context ranks of two nodes pass K and V behind attention, and leave the gradients what they do not take."""
    slow = cluster_file(outer={"bandwidth": "5 GB/s"})
    model = {**SMALL, "num_layers": 16}
    est = price(model, cluster=slow, gpus=8, layout="tp4 cp2", seq_len=2048, sequence_parallel=False)
    backward = step_us(est, "backward", "backward_weight", "recompute")
    taken = 16 * each_us(est)["cp.attention.ring.backward"]
    held = 16 * (15 * 2**18 + 2048) + TABLE_PARAMS / 2 + 1024
    busy, last = 30 + 4 * held / 2 / 5e3, 40e6 / held
    assert each_us(est)[SCATTER] == near(busy)
    assert busy * (1 - last) > backward - taken > 1000
    assert exposed_us(est)[SCATTER] == near(hidden_us(busy, backward - taken, last))


def test_replicas_that_all_hold_everything():
    est = price(zero_stage=0, **TWO)
    assert each_us(est, "dp.", "optimizer.") == near(
        {
            "dp.dense.grad_all_reduce": ring_us(4 * N, passes=2),
            "optimizer.adam": moved_us(30 * N),
            "optimizer.grad_norm": moved_us(12 * N),
        }
    )
    half = price(zero_stage=0, switches={"grad_reduce_dtype": "bf16", "grad_accum_dtype": "bf16"}, **TWO)
    assert each_us(half, "dp.", "optimizer.") == near(
        {
            "dp.dense.grad_all_reduce": ring_us(2 * N, passes=2),
            "optimizer.adam": moved_us(28 * N),
            "optimizer.grad_norm": moved_us(6 * N),
        }
    )


def test_whole_gradients_summed_before_a_sharded_step():
    est = price(switches={"zero_all_reduce": True}, **TWO)
    assert each_us(est, "dp.") == near(
        {"dp.dense.grad_all_reduce": ring_us(4 * N, passes=2), GATHER: ring_us(2 * N)}
    )


@pytest.mark.parametrize(("stage", "each"), [(1, False), (2, True)])
def test_gradients_reduced_after_every_micro_batch(stage, each):
    est = price(gpus=2, global_batch=8, zero_stage=stage, switches={"reduce_each_micro_batch": True})
    assert counts(est, "dp.") == {SCATTER: 4.0 if each else 1.0, GATHER: 1.0}
    assert each_us(est, "dp.")[SCATTER] == near(ring_us(4 * N))
    eight = price(gpus=8, global_batch=32, zero_stage=2, switches={"reduce_each_micro_batch": True})
    backward = step_us(eight, "backward", "backward_weight") / 4
    assert exposed_us(eight, "dp.")[SCATTER] == near(hidden_us(two_nodes_us(4 * N), backward, LAST_BUCKET))


def test_buckets():
    """32 million gradients a message: each pays its start, the last hides behind nothing."""
    est = price(zero_stage=0, switches={"bucket_elements": 32e6}, **TWO)
    name = "dp.dense.grad_all_reduce"
    assert counts(est, "dp.") == near({name: N / 32e6})
    assert each_us(est, "dp.") == near({name: ring_us(4 * 32e6, passes=2)})
    assert exposed_us(est, "dp.")[name] == near(hidden_us(ring_us(4 * 32e6, passes=2), 1e9, 32e6 / N))


def test_each_bucket_hides_behind_its_part_of_the_pass():
    slow = cluster_file(outer={"bandwidth": "5 GB/s"})
    est = price(cluster=slow, switches={"bucket_elements": 32e6}, **EIGHT)
    backward = step_us(est, "backward", "backward_weight", "recompute")
    busy = 36 + 7 / 8 * 4 * 32e6 / 2e4
    assert counts(est)[SCATTER] == near(N / 32e6)
    assert exposed_us(est)[SCATTER] == near(hidden_us(busy, backward * 32e6 / N, 32e6 / N))
    assert busy - backward * 32e6 / N > busy * 32e6 / N


def test_tensors_dealt_to_owners():
    """Two owners of half of them; five tensors of one layer have five owners, however many ranks there are."""
    est = price(switches={"zero_by_tensor": True}, **TWO)
    assert counts(est, "dp.") == {"dp.dense.grad_reduce": 2.0, "dp.dense.param_broadcast": 2.0}
    assert each_us(est, "dp.") == near(
        {"dp.dense.grad_reduce": 6 + 2 * N / 1e5, "dp.dense.param_broadcast": 6 + N / 1e5}
    )
    # Nothing hides the broadcast after the step.
    assert exposed_us(est, "dp.")["dp.dense.param_broadcast"] == near(hidden_us(6 + N / 1e5, 0.0))
    one = price({**SMALL, "num_layers": 1}, switches={"zero_by_tensor": True}, **EIGHT)
    assert set(counts(one, "dp.").values()) == {5.0}


def test_shard_groups_and_their_replicas():
    """HSDP: scattered inside a node, a quarter summed over two nodes behind what is left of the pass."""
    est = price(shard_group=4, **EIGHT)
    scatter, replica = ring_us(4 * N, 4), ring_us(N, passes=2, outer=True)
    backward = step_us(est, "backward", "backward_weight")
    assert backward > scatter
    assert replica > backward - scatter > 0
    assert each_us(est, "dp.") == near(
        {SCATTER: scatter, "dp.dense.grad_replica_all_reduce": replica, GATHER: ring_us(2 * N, 4)}
    )
    assert exposed_us(est, "dp.dense.grad") == near(
        {
            SCATTER: hidden_us(scatter, backward, LAST_BUCKET),
            "dp.dense.grad_replica_all_reduce": hidden_us(replica, backward - scatter, LAST_BUCKET),
        }
    )
    assert each_us(est, "optimizer.adam") == near({"optimizer.adam": moved_us(30 * N / 4)})


def test_both_ends_of_a_pipeline_that_runs_both_ways_sum_together():
    """DualPipe on two stages: each of four ranks of a node holds both, so that all four share the whole model."""
    est = price(gpus=4, layout="pp2", global_batch=8, schedule="dualpipe")
    assert each_us(est, "dp.") == near({SCATTER: ring_us(4 * N, 4), GATHER: ring_us(2 * N, 4)})


def test_replicas_averaged_every_tenth_step():
    """DiLoCo: the sum over replicas, hidden by nothing, and three copies read, two written."""
    for job, rare, params, copies in [
        ({"zero_stage": 0}, "dp.dense.grad_all_reduce", N, 5),
        ({"zero_stage": 0, "switches": {"outer_momentum": False}}, "dp.dense.grad_all_reduce", N, 3),
        ({"shard_group": 4}, "dp.dense.grad_replica_all_reduce", N / 4, 5),
        ({"zero_stage": 3, "shard_group": 4}, "dp.layer.dense.grad_replica_all_reduce", N / 4, 5),
    ]:
        switches = {"sync_every": 10, **job.get("switches", {})}
        est = price(gpus=8, global_batch=32, **{**job, "switches": switches})
        layers = 4 if "layer" in rare else 1
        assert counts(est)[rare] == near(layers / 10)
        assert exposed_us(est)[rare] >= each_us(est)[rare] * (1 - 1e-9)
        others = {name: count for name, count in counts(est, "dp.dense").items() if name != rare}
        assert set(others.values()) <= {1.0}
        assert each_us(est, "optimizer.outer") == near({"optimizer.outer": moved_us(4 * copies * params)})
        assert counts(est, "optimizer.outer") == near({"optimizer.outer": 0.1})


@pytest.mark.parametrize(
    ("job", "rare", "held"),
    [
        ({"shard_group": 4}, "dp.dense.grad_replica_all_reduce", N / 4),
        ({"shard_group": 2}, "dp.dense.grad_replica_all_reduce", N / 2),
        ({"zero_stage": 3, "shard_group": 4}, "dp.layer.dense.grad_replica_all_reduce", LAYER_PARAMS / 4),
    ],
)
def test_rare_averages_in_eight_bits(job, rare, held):
    """A byte and a scale in 4 bytes a 256 elements round the ring; inner reductions send what they did."""
    averaged = {"gpus": 8, "global_batch": 32, **job}
    plain = price(**averaged, switches={"sync_every": 10})
    est = price(**averaged, switches={"sync_every": 10, "outer_compression": "int8"})
    wire, ranks = 1 + 4 / 256, 8 / job["shard_group"]
    assert sent_bytes(plain, rare)[rare] == near(2 * (ranks - 1) / ranks * 4 * held)
    assert sent_bytes(est, rare)[rare] == near(2 * (ranks - 1) / ranks * wire * held)
    # Quantise all, read the pieces, sum and quantise the sum, restore all: of bytes of 4 and of the wire.
    each = (4 + wire) + wire + (4 + wire) / ranks + (wire + 4)
    (kernels,) = [name for name in each_us(est, "dp.layer", "dp.dense") if name.endswith("outer.compress")]
    assert each_us(est, kernels)[kernels] == near(moved_us(each * held))
    assert counts(est, kernels)[kernels] == near(counts(est, rare)[rare])
    inner = {
        name: us for name, us in each_us(est).items() if "all_reduce" not in name and "compress" not in name
    }
    assert inner.items() <= each_us(plain).items()


def test_a_whole_sum_of_a_shard_group_is_of_every_step():
    """Owners of parts of the states step by the sum of their group, of four in a node; only the two groups average rarely."""
    switches = {"sync_every": 10, "zero_all_reduce": True, "outer_compression": "int8"}
    est = price(gpus=8, global_batch=32, shard_group=4, switches=switches)
    whole, rare = "dp.dense.grad_all_reduce", "dp.dense.grad_replica_all_reduce"
    assert {name: counts(est, "dp.")[name] for name in (whole, rare, GATHER)} == near(
        {whole: 1, rare: 0.1, GATHER: 1}
    )
    assert each_us(est, whole)[whole] == near(ring_us(4 * N, 4, passes=2))
    assert exposed_us(est, whole)[whole] < each_us(est, whole)[whole]
    assert sent_bytes(est, rare)[rare] == near((1 + 4 / 256) * N / 4)
    assert counts(est, "dp.dense.outer.compress") == near({"dp.dense.outer.compress": 0.1})
    # Without averages that are rare it is one sum over all.
    often = price(gpus=8, global_batch=32, shard_group=4, switches={"zero_all_reduce": True})
    assert counts(often, "dp.") == {whole: 1.0, GATHER: 1.0}
    assert sent_bytes(often, whole)[whole] == near(2 * 7 / 8 * 4 * N)


LAYER = "dp.layer.dense."
FSDP = {"dp_overlap": "every-layer"}


def test_every_line_of_sharded_parameters():
    """ZeRO-3: gathered before each pass, scattered after the last, behind the layer's own passes."""
    est = price(gpus=8, global_batch=16, seq_len=512, zero_stage=3, switches=FSDP)
    gather, scatter = two_nodes_us(2 * LAYER_PARAMS), two_nodes_us(4 * LAYER_PARAMS)
    table, last = two_nodes_us(2 * TABLE_PARAMS), two_nodes_us(2 * (TABLE_PARAMS + 1024))
    parts = ("compute.attention.", "compute.mlp.")
    forward = sum(us for name, us in exposed_us(est, *parts).items() if name.endswith(".forward"))
    backward = sum(exposed_us(est, *parts).values()) - forward
    paid = {
        f"{LAYER}param_all_gather.forward": hidden_us(gather, forward),
        f"{LAYER}param_all_gather.backward": hidden_us(gather, backward),
        # Hidden in whole, the gather slows the pass by a tenth of its time, which the port has as well.
        f"{LAYER}grad_reduce_scatter": hidden_us(scatter, backward + 0.1 * gather - gather),
    }
    assert gather > forward
    assert scatter > backward + 0.1 * gather - gather > 0
    # Nothing runs yet before the first gather of each micro-batch, nothing is left after its last scatter.
    hidden = gather + scatter - paid[f"{LAYER}param_all_gather.forward"] - paid[f"{LAYER}grad_reduce_scatter"]
    assert each_us(est, "dp.") == near(
        {
            f"{LAYER}param_all_gather.forward": gather,
            f"{LAYER}param_all_gather.backward": gather,
            f"{LAYER}grad_reduce_scatter": scatter,
            f"{LAYER}first_and_last": hidden,
            "dp.embedding.dense.param_all_gather.forward": table,
            "dp.embedding.dense.param_all_gather.backward": table,
            "dp.embedding.dense.grad_reduce_scatter": two_nodes_us(4 * TABLE_PARAMS),
            "dp.head.dense.param_all_gather.forward": last,
            "dp.head.dense.param_all_gather.backward": last,
            "dp.head.dense.grad_reduce_scatter": two_nodes_us(4 * (TABLE_PARAMS + 1024)),
        }
    )
    assert exposed_us(est, LAYER) == near({**paid, f"{LAYER}first_and_last": hidden})
    layers = {f"{LAYER}{label}": 8.0 for label in ("param_all_gather.forward", "param_all_gather.backward")}
    assert counts(est, LAYER) == near(
        {**layers, f"{LAYER}grad_reduce_scatter": 8, f"{LAYER}first_and_last": 2}
    )
    assert counts(est, "dp.head.", "dp.embedding.") == near(
        dict.fromkeys(counts(est, "dp.head.", "dp.embedding."), 2)
    )
    assert each_us(est, "optimizer.adam") == near({"optimizer.adam": moved_us(30 * N / 8)})


def test_messages_of_a_scanned_layer_stay_in_their_turn():
    """Queries, keys and values, 2 of 15 Mi parameters, are gathered before anything runs, and summed after all has."""
    whole = price(gpus=2, global_batch=2, seq_len=4096, zero_stage=3, switches=FSDP)
    turns = price(
        gpus=2, global_batch=2, seq_len=4096, zero_stage=3, switches={**FSDP, "fsdp_across_layers": False}
    )
    share = 2 * 2**20 / LAYER_PARAMS
    for label in ("param_all_gather.forward", "param_all_gather.backward", "grad_reduce_scatter"):
        each = each_us(turns, LAYER)[LAYER + label]
        assert exposed_us(whole, LAYER)[LAYER + label] == near(0.1 * each)
        assert exposed_us(turns, LAYER)[LAYER + label] == near((share + 0.1 * (1 - share)) * each)


def test_experts_of_a_scanned_layer_hide_behind_what_else_it_computes():
    job = {"gpus": 8, "global_batch": 8, "zero_stage": 3}
    turns = price(MOE, **job, switches={**FSDP, "fsdp_across_layers": False})
    name = "dp.layer.expert.param_all_gather.forward"
    forward = {
        one: us
        for one, us in exposed_us(turns, "compute.attention.", "compute.moe.", "compute.mlp.").items()
        if one.endswith(".forward")
    }
    rest = sum(us for one, us in forward.items() if ".experts." not in one)
    first = each_us(turns, "dp.layer.dense.param_all_gather.forward")
    (before,) = first.values()
    gather = each_us(turns, name)[name]
    assert gather + before > rest > before
    # The port is busy with what attention waits for, and then with what of it hides.
    waited = exposed_us(turns, "dp.layer.dense.param_all_gather.forward")[
        "dp.layer.dense.param_all_gather.forward"
    ]
    assert exposed_us(turns, name)[name] == near(hidden_us(gather, rest + waited - before))
    all_of_it = exposed_us(price(MOE, **job, switches=FSDP), name)[name]
    assert exposed_us(turns, name)[name] > all_of_it


def test_parameters_gathered_after_the_backward_pass_before():
    est = price(gpus=8, global_batch=8, zero_stage=3, switches={**FSDP, "fsdp_backward_prefetch": False})
    gather, scatter = two_nodes_us(2 * LAYER_PARAMS), two_nodes_us(4 * LAYER_PARAMS)
    parts = ("compute.attention.", "compute.mlp.")
    backward = sum(us for name, us in exposed_us(est, *parts).items() if not name.endswith(".forward"))
    assert exposed_us(est, LAYER)[f"{LAYER}param_all_gather.backward"] == near(gather)
    assert exposed_us(est, LAYER)[f"{LAYER}grad_reduce_scatter"] == near(hidden_us(scatter, backward))


def test_a_second_copy_of_parameters_inside_a_node():
    """ZeRO++ hpZ: the forward gather crosses nodes, the backward one stays among four neighbours, or two of them."""
    job = {"gpus": 8, "global_batch": 8, "zero_stage": 3}
    for ranks, gather in [
        (0, two_nodes_us(2 * LAYER_PARAMS)),
        (4, ring_us(2 * LAYER_PARAMS, 4)),
        (2, ring_us(2 * LAYER_PARAMS)),
    ]:
        est = price(**job, switches={**FSDP, "hpz_ranks": ranks})
        sent = each_us(est, f"{LAYER}param_all_gather")
        assert sent == near(
            {
                f"{LAYER}param_all_gather.forward": two_nodes_us(2 * LAYER_PARAMS),
                f"{LAYER}param_all_gather.backward": gather,
            }
        )
        held = {"state.dense.parameters.secondary": 2 * N / ranks} if ranks else {}
        assert memory(est, "state.dense.parameters.secondary") == near(held)
    # No more neighbours than shards; experts share theirs among their own ranks; nothing where nothing is gathered again.
    wide = price(**job, switches={**FSDP, "hpz_ranks": 64})
    assert memory(wide, "state.dense.parameters.secondary") == near(
        {"state.dense.parameters.secondary": 2 * N / 8}
    )
    experts = price(MOE, **job, layout="ep2", switches={**FSDP, "hpz_ranks": 2})
    held = 4 * 8 * 3 * 512 * 1024
    assert memory(experts, "state.expert.parameters.secondary") == near(
        {"state.expert.parameters.secondary": 2 * held / 2 / 2}
    )
    for switches in ({"fsdp_reshard_after_forward": False}, {"fsdp_pp_keeps_gathered": True}):
        kept = price(**job, layout="pp2", switches={**FSDP, "hpz_ranks": 2, **switches})
        assert not memory(kept, "state.dense.parameters.secondary")


def test_sharded_parameters_that_hide_behind_nothing():
    est = price(gpus=8, global_batch=8, zero_stage=3, switches={"dp_overlap": "none"})
    assert exposed_us(est, "dp.") == near(each_us(est, "dp."))
    assert f"{LAYER}first_and_last" not in each_us(est)


def test_parameters_kept_after_the_forward_pass():
    est = price(gpus=8, global_batch=8, zero_stage=3, switches={**FSDP, "fsdp_reshard_after_forward": False})
    assert f"{LAYER}param_all_gather.backward" not in each_us(est)


@pytest.mark.parametrize(("stays", "times"), [(True, 2), (False, 8)])
def test_parameters_kept_over_a_pipeline(stays, times):
    """Two layers a stage; gathered once a step, or before each pass of each of four micro-batches."""
    switches = {**FSDP, "fsdp_pp_keeps_gathered": stays}
    est = price(gpus=4, layout="pp2", global_batch=8, zero_stage=3, switches=switches)
    assert counts(est)[f"{LAYER}param_all_gather.forward"] == times
    assert counts(est)[f"{LAYER}grad_reduce_scatter"] == times
    assert (f"{LAYER}param_all_gather.backward" in counts(est)) == (not stays)
    # And on one stage nothing stays.
    flat = price(gpus=2, global_batch=8, zero_stage=3, switches=switches)
    assert counts(flat)[f"{LAYER}param_all_gather.backward"] == 16


def test_sharded_parameters_in_groups():
    """Four micro-batches scatter inside the node; replicas add up a quarter of a layer once."""
    est = price(gpus=8, global_batch=32, zero_stage=3, shard_group=4, switches=FSDP)
    assert each_us(est)[f"{LAYER}param_all_gather.forward"] == near(ring_us(2 * LAYER_PARAMS, 4))
    name = f"{LAYER}grad_replica_all_reduce"
    assert each_us(est)[name] == near(ring_us(LAYER_PARAMS, passes=2, outer=True))
    assert counts(est)[name] == 4
    # Behind the backward pass of a layer, on another port than what the group sends inside the node.
    layer = ("compute.attention.", "compute.mlp.", "compute.layer.")
    behind = sum(total_us(est, phase, *layer) for phase in ("backward", "backward_weight"))
    # For what the pass waits inside the node the sum between nodes need not wait again.
    inside = (f"{LAYER}param_all_gather.backward", f"{LAYER}grad_reduce_scatter")
    waited = sum(exposed_us(est)[one] for one in inside)
    assert waited == near(sum(hidden_us(each_us(est)[one], behind) for one in inside))
    assert exposed_us(est)[name] == near(hidden_us(each_us(est)[name], behind + waited))
    assert hidden_us(each_us(est)[name], behind) > exposed_us(est)[name] > hidden_us(each_us(est)[name], 1e9)
    alone = price(
        gpus=8, global_batch=32, zero_stage=3, shard_group=4, switches={**FSDP, "hsdp_overlap": False}
    )
    assert exposed_us(alone)[name] == each_us(alone)[name]


# Bytes a parameter: copied out of the gathered buffer, twice a micro-batch; into the one to be reduced, once.
def test_copies_around_communication():
    for kind, reduce_dtype, after_gather, before_reduce in [
        ("flat", "fp32", 0, 4 + 6 + 8),  # concatenated, cast to fp32, scaled
        ("flat", "bf16", 0, 4 + 4),
        ("per-parameter", "fp32", 4, 6),
        ("per-parameter", "bf16", 4, 4),
    ]:
        switches = {**FSDP, "fsdp_buffers": kind, "grad_reduce_dtype": reduce_dtype}
        copies = {
            name: us
            for name, us in each_us(price(zero_stage=3, switches=switches, **TWO), LAYER).items()
            if "copy" in name
        }
        expected = {f"{LAYER}reduce_copy": moved_us(before_reduce * LAYER_PARAMS)}
        if after_gather:
            expected[f"{LAYER}gather_copy"] = moved_us(2 * after_gather * LAYER_PARAMS, 2)
        assert copies == near(expected)
        kept = price(zero_stage=3, switches={**switches, "fsdp_reshard_after_forward": False}, **TWO)
        if after_gather:
            assert each_us(kept)[f"{LAYER}gather_copy"] == near(moved_us(after_gather * LAYER_PARAMS))


def test_adam_on_the_host():
    """Four GPUs share a host that steps 10 billion parameters in 2.57 s; 2 bytes each come back at 50 GB/s."""
    est = price(switches={"offload_optimizer": True}, **EIGHT)
    step = N / 8 * (4 * 2.57e-4 + 2 / 5e4)
    assert each_us(est, "optimizer.adam") == near({"optimizer.adam": step})
    pair = price(switches={"offload_optimizer": True}, **TWO)
    assert each_us(pair, "optimizer.adam") == near({"optimizer.adam": N / 2 * (2 * 2.57e-4 + 2 / 5e4)})
    # From NVMe of 10 GB/s: 12 bytes read and 12 written a parameter, which takes longer than the step.
    nvme = price(switches={"offload_optimizer": True, "nvme_bytes_per_s": 1e10}, **EIGHT)
    assert each_us(nvme, "optimizer.adam") == near({"optimizer.adam": N / 8 * (4 * 24 / 1e4 + 2 / 5e4)})


def test_experts_have_a_group_of_their_own():
    """Four ranks hold two experts each, twice: their gradients meet across the nodes, those of the rest everywhere."""
    est = price(MOE, gpus=8, layout="ep4", global_batch=8)
    experts = 4 * 2 * 1536 * 1024  # of two experts in each of four layers
    dense = 4 * (3 * 2**20 + 8 * 1024 + 2 * 1024) + 2 * TABLE_PARAMS + 1024
    assert each_us(est, "dp.expert.") == near(
        {
            "dp.expert.grad_reduce_scatter": ring_us(4 * experts, outer=True),
            "dp.expert.param_all_gather": ring_us(2 * experts, outer=True),
        }
    )
    assert each_us(est, "dp.dense.")[SCATTER] == near(two_nodes_us(4 * dense))
    backward = step_us(est, "backward", "backward_weight")
    left = max(backward - two_nodes_us(4 * dense), 0.0)
    assert exposed_us(est, "dp.expert.")["dp.expert.grad_reduce_scatter"] == near(
        hidden_us(ring_us(4 * experts, outer=True), left, 1.0)
    )
    assert each_us(est, "optimizer.adam") == near(
        {"optimizer.adam": moved_us(30 * (dense / 8 + experts / 2))}
    )
    sharded = price(MOE, gpus=8, layout="ep4", global_batch=8, zero_stage=3, switches=FSDP)
    assert each_us(sharded)["dp.layer.expert.param_all_gather.forward"] == near(
        ring_us(2 * experts / 4, outer=True)
    )


def test_gradients_in_sixteen_bits_on_the_wire():
    est = price(zero_stage=0, switches={"gradient_compression": "fp16"}, **TWO)
    assert each_us(est, "dp.") == near(
        {
            "dp.dense.grad_all_reduce": ring_us(2 * N, passes=2),
            "dp.dense.compress": moved_us(2 * 6 * N),  # cast there and back
        }
    )
    # What is in 16 bits already gains nothing.
    narrow, same = ({"grad_reduce_dtype": "bf16", **more} for more in ({}, {"gradient_compression": "fp16"}))
    assert each_us(price(zero_stage=0, switches=same, **TWO)) == each_us(
        price(zero_stage=0, switches=narrow, **TWO)
    )


def test_quantised_gradients():
    """One byte and a scale of 4 in 256; pieces go to their owner in the node, sums of four across, and back."""
    wire = 1 + 4 / 256
    est = price(zero_stage=0, switches={"gradient_compression": "int8"}, **EIGHT)
    assert each_us(est, "dp.") == near(
        {
            "dp.dense.grad_all_to_all.inside": 6 + 3 / 4 * wire * N / 1e5,
            "dp.dense.grad_all_to_all.across": 30 + 1 / 2 * wire * N / 4 / 1e4,
            "dp.dense.grad_all_gather": two_nodes_us(wire * N),
            "dp.dense.compress": moved_us(N * ((4 + wire) + (wire + (4 + wire) / 8) + (4 + wire))),
        }
    )
    # What each message leaves of the pass is the next one's.
    backward = step_us(est, "backward", "backward_weight")
    times, paid = each_us(est, "dp."), exposed_us(est, "dp.")
    for label in ("grad_all_to_all.inside", "grad_all_to_all.across", "grad_all_gather"):
        assert paid[f"dp.dense.{label}"] == near(hidden_us(times[f"dp.dense.{label}"], backward, LAST_BUCKET))
        backward = max(backward - times[f"dp.dense.{label}"], 0.0)
    sharded = each_us(price(switches={"gradient_compression": "int4"}, **EIGHT), "dp.")
    assert sharded["dp.dense.grad_all_to_all.across"] == near(30 + 1 / 2 * (0.5 + 4 / 256) * N / 4 / 1e4)
    layers = each_us(price(zero_stage=3, switches={"gradient_compression": "int8"}, **EIGHT), LAYER)
    assert layers[f"{LAYER}grad_all_to_all.inside"] == near(6 + 3 / 4 * wire * LAYER_PARAMS / 1e5)


def test_largest_gradients():
    """1 % of them, a position and a value each, from both ranks."""
    est = price(zero_stage=0, switches={"gradient_compression": "top-k"}, **TWO)
    assert each_us(est, "dp.") == near(
        {
            "dp.dense.grad_all_gather": ring_us(8 * 0.01 * N * 2),
            "dp.dense.compress": moved_us(9 * 4 * N + (8 + 8) * 0.01 * N * 2),
        }
    )


def test_random_gradients():
    """1 % of them at the same places of both ranks: an all-reduce of 4 bytes each."""
    est = price(zero_stage=0, switches={"gradient_compression": "random-k"}, **TWO)
    assert each_us(est, "dp.") == near(
        {
            "dp.dense.grad_all_reduce": ring_us(4 * 0.01 * N, passes=2),
            "dp.dense.compress": moved_us(4 * 4 * N + 5 * 4 * 0.01 * N),
        }
    )


def test_gradients_above_a_threshold():
    """Two percent of them, here: how many first, then positions and values."""
    switches = {"gradient_compression": "threshold", "compression_density": 0.02}
    assert each_us(price(zero_stage=0, switches=switches, **TWO), "dp.") == near(
        {
            "dp.dense.grad_counts_all_gather": ring_us(8 * 2),
            "dp.dense.grad_all_gather": ring_us(8 * 0.02 * N * 2),
            "dp.dense.compress": moved_us(5 * 4 * N + (8 + 8) * 0.02 * N * 2),
        }
    )


def test_low_rank_gradients():
    """Rank 4: Q, K and V 1,024 x 2,048, output 1,024, gate and up 8,192, down 4,096, two tables of 32,000."""
    est = price(zero_stage=0, switches={"gradient_compression": "powersgd"}, **TWO)
    layer = 4 * (4 * 1024 + 2048 + 1024 + 8192 + 4096) + 2 * 1024
    sent = 4 * layer + 2 * 4 * (1024 + 32000) + 1024
    assert each_us(est, "dp.") == near(
        {
            "dp.dense.grad_all_reduce": ring_us(4 * sent, passes=2),
            "dp.dense.compress": moved_us(8 * 4 * N, 10 * (4 * 4 + 2)),
        }
    )


@pytest.mark.parametrize(("layers", "most", "norm"), [(4, 2, 1024), (3, 2, 0), (2, 1, 1024)])
def test_low_rank_gradients_of_the_stage_that_has_most(layers, most, norm):
    """Of two stages the first has a table and half of the layers, or one more; the last a table and a norm."""
    model = {**SMALL, "num_layers": layers}
    job = {"gpus": 4, "global_batch": 4, "layout": "pp2", "zero_stage": 0}
    est = price(model, switches={"gradient_compression": "powersgd"}, **job)
    layer = 4 * (4 * 1024 + 2048 + 1024 + 8192 + 4096) + 2 * 1024
    sent = most * layer + 4 * (1024 + 32000) + norm
    assert each_us(est, "dp.")["dp.dense.grad_all_reduce"] == near(ring_us(4 * sent, passes=2))


def test_tiers_of_gradient_messages():
    assert float(line(price(**TWO), SCATTER).tier) == 0
    assert float(line(price(**EIGHT), SCATTER).tier) == 1
    assert each_us(price(global_batch=4), "dp.") == {}


def test_two_ports_are_waited_for_at_once():
    """Gathers in the node and sums between nodes, both longer than the pass: the longer one sets its time."""
    slow = cluster_file(inner={"bandwidth": "5 GB/s"}, outer={"bandwidth": "1 GB/s"})
    switches = {**FSDP, "overlap_contention": 0.0}
    est = price(cluster=slow, gpus=8, global_batch=8, zero_stage=3, shard_group=4, switches=switches)
    busy, paid = each_us(est), exposed_us(est)
    inside = (f"{LAYER}param_all_gather.backward", f"{LAYER}grad_reduce_scatter")
    layer = ("compute.attention.", "compute.mlp.", "compute.layer.")
    behind = sum(total_us(est, phase, *layer) for phase in ("backward", "backward_weight"))
    between = f"{LAYER}grad_replica_all_reduce"
    assert busy[between] > sum(busy[one] for one in inside) > behind > 0
    assert sum(paid[one] for one in (*inside, between)) == near(busy[between] - behind)


def test_small_buckets_of_ddp_lose_to_one_message_and_the_warning_says_so():
    """64 H100: 25 MiB in fp32 lies below what a ring over eight nodes needs; 200 MB and one message are better."""
    job = {
        "model": "llama2-7b",
        "cluster": "dgx-h100-ndr",
        "gpus": 64,
        "recipe": "pytorch-ddp",
        "global_batch": 64,
    }
    job |= {"seq_len": 2048, "recompute": "full", "tp": 1}

    def step_s(**switches):
        return float(cm.estimate(**job, switches=switches).step_time_s)

    usual, large = step_s(), step_s(bucket_elements=50e6)
    late = step_s(dp_overlap="none", bucket_elements=1e10)
    # All of them late beat the usual ones that overlap; of 200 MB they overlap and pay no latency.
    assert large < 0.95 * late < late < 0.8 * usual
    found = cm.estimate(**job)
    assert float(found.job.layout.zero_stage) == 0
    said = [warning for warning in found.warnings if warning.startswith("buckets of 25.0 MiB")]
    assert len(said) == 1
    assert "--set bucket_elements=" in said[0]
    # Megatron's recipe has no such bucket, and nothing to say.
    assert not [
        w for w in cm.estimate(**{**job, "recipe": "megatron-core"}).warnings if w.startswith("buckets")
    ]


def test_two_sites_that_average_rarely_pay_the_line_once_in_that_many_steps():
    """Each GPU of 512 in a site adds up its part of the gradients with its peer at the other site, every 100 steps."""
    job = {
        "model": "llama3-8b",
        "cluster": "two-sites-h100",
        "gpus": 8192,
        "global_batch": 8192,
        "seq_len": 8192,
    }
    job |= {"zero_stage": 1, "shard_group": 4096}

    def across(every):
        lines = cm.estimate(**job, switches={"sync_every": every}).bill.time_lines
        return sum(float(line.seconds) for line in lines if "grad_replica_all_reduce" in line.name)

    assert across(100) == pytest.approx(across(1) / 100, rel=1e-9)
    # 4 B of 8.03e9 gradients in 4,096 parts to one peer at 0.9 of 12.5 Gbit/s, and at least two trips of 5 ms.
    sent_s = 8.03e9 * 4 / 4096 / (0.9 * 12.5e9 / 8)
    assert 0.010 < across(1) - sent_s < 0.060


def test_streamed_averages_show_what_outlasts_the_steps_beside_them():
    """Streaming DiLoCo: each part once in 100 steps, of all 4 B of 8.03e9 gradients, beside so many steps."""
    job = {
        "model": "llama3-8b",
        "cluster": "two-sites-h100",
        "gpus": 8192,
        "global_batch": 8192,
        "seq_len": 8192,
        "tp": 1,
    }
    for sharding in ({"zero_stage": 1, "shard_group": 4096}, {"zero_stage": 3, "shard_group": 4096}):
        for slower, parts, steps in (
            (1, 4, 0),
            (1, 4, 1),
            (3000, 4, 1),
            (3000, 4, 3),
            (1000, 50, 1),
            (30000, 50, 20),
        ):
            switches = {"sync_every": 100, "sync_fragments": parts, "sync_overlap_steps": steps}
            found = cm.estimate(**job, **sharding, hw={"wan": f"{1.5 / slower} GB/s"}, switches=switches)
            lines = [one for one in found.bill.time_lines if "grad_replica_all_reduce" in one.name]
            seconds = sum(float(one.seconds) for one in lines)
            shown = sum(float(one.exposed_seconds) for one in lines)
            # Blocks of the critical path compute so long beside each part.
            passes = ("forward", "backward", "backward_weight", "recompute")
            beside = [one for one in found.bill.time_lines if one.phase in passes and one.axis != "dp"]
            step_s = sum(float(one.exposed_seconds) for one in beside)
            assert sum(float(one.bytes) for one in lines) == pytest.approx(4 * 8.03e9 / 4096 / 100, rel=0.02)
            # Messages beside compute slow it by 15 % of their time.
            # No more than the 100 steps there are: 50 parts beside 20 steps each overlap.
            window_s = min(parts * steps, 100) * step_s / 100
            by_hand = max(seconds - window_s, 0) + 0.15 * min(seconds, window_s)
            assert shown == pytest.approx(by_hand, rel=0.03), (sharding, slower, parts, steps)
            # 4 B of the parts on their way.
            flying = [one for one in found.bill.memory_lines if one.name.endswith("outer_in_flight")]
            count = -(-steps * parts // 100)
            of_rank = 4 * 8.03e9 / 4096 * count / parts
            assert sum(float(one.bytes.max()) for one in flying) == pytest.approx(of_rank, rel=0.02)
