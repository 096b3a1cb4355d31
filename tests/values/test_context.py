"""Context parallelism: K and V on their way round the group, by each method, and what attention hides."""

import numpy as np
import pytest
from round_jobs import (
    LATENT,
    MIB,
    SMALL,
    attention_us,
    counts,
    each_us,
    exposed_us,
    hidden_us,
    line,
    memory,
    moved_us,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
)

import costmodel as cm
from costmodel.base.errors import LayoutError
from costmodel.describe.switch_table import SWITCHES
from costmodel.interop.keys import key_table
from costmodel.step.context import METHODS

# 4,096 tokens over four ranks of a node: each holds 1,024, and K and V of four heads of 128, 2 MiB.
LONG = {"gpus": 4, "layout": "cp4", "seq_len": 4096}
HELD = 2 * MIB
MESSAGE = 5 + 1 + HELD / 1e5  # a send: 6 us and 100 GB/s


def cores(backward=False):
    """Four kernels, each of 1,024 queries against one slice of keys, half of which they meet."""
    return 4 * attention_us(8, 4, 1024, 1024, 512, 128, backward)


def test_every_line_of_a_ring():
    est = price(**LONG)
    assert each_us(est, "compute.attention.core") == near(
        {"compute.attention.core.forward": cores(), "compute.attention.core.backward": cores(True)}
    )
    assert each_us(est, "cp.") == near(
        {
            "cp.attention.ring.forward": 3 * MESSAGE,
            "cp.attention.ring.backward": 3 * (6 + 2 * HELD / 1e5),  # with their gradients
            # Four steps of two kernels: 2 B of each output, and 4 B of its sum read and written.
            "cp.attention.merge.forward": moved_us(4 * 10 * MIB, 8),
            # Gradients of Q, and of the slice's K and V: as many elements.
            "cp.attention.merge.backward": moved_us(4 * 10 * 2 * MIB, 8),
        }
    )
    assert sent_bytes(est, "cp.attention.ring") == near(
        {"cp.attention.ring.forward": 3 * HELD, "cp.attention.ring.backward": 6 * HELD}
    )
    assert set(counts(est, "cp.").values()) == {4.0}
    # Everything fits behind three quarters of attention.
    exposed = exposed_us(est, "cp.attention.ring")
    assert exposed["cp.attention.ring.forward"] == near(0.3 * MESSAGE)


@pytest.mark.parametrize("method", ["ring", "all-gather"])
def test_the_last_of_contiguous_slices_meets_nearly_all_keys(method):
    """Of four slices it meets three and half of its own: seven quarters of what each meets in zig-zag."""
    passes = {}
    for slices in ("zigzag", "striped", "contiguous"):
        est = price(**LONG, switches={"cp_method": method, "cp_slices": slices})
        core = each_us(est, "compute.attention.core")
        flops = {name: float(line(est, name).terms["keys_per_query"]) for name in core}
        passes[slices] = (core, flops, {k: v for k, v in sent_bytes(est, "cp.").items() if v})
    assert passes["striped"] == passes["zigzag"]
    for name, keys in passes["zigzag"][1].items():
        assert passes["contiguous"][1][name] == near(7 / 4 * keys)
        assert passes["contiguous"][0][name] > 1.5 * passes["zigzag"][0][name]
    assert passes["contiguous"][2] == passes["zigzag"][2]


def test_contiguous_slices_that_wait_for_nobody():
    """Heads of the whole sequence, a window, and a rank alone have the same work anywhere."""
    swapped = {"cp_method": "ulysses"}
    for job, more in (
        ({}, swapped),
        ({"model": {**SMALL, "sliding_window": 512}}, {}),
        ({"layout": "tp4"}, {}),
    ):
        one = {**LONG, **job}
        zigzag, piece = (
            each_us(price(**one, switches={**more, "cp_slices": slices}), "compute.attention.core")
            for slices in ("zigzag", "contiguous")
        )
        assert zigzag == piece


def test_no_framework_is_told_of_contiguous_slices():
    est = cm.estimate(
        model="llama3-8b",
        gpus=8,
        layout="cp2",
        global_batch=8,
        seq_len=8192,
        switches={"cp_slices": "contiguous"},
    )
    with pytest.raises(cm.CostModelError, match="zig-zag, not contiguous; leave out cp_slices"):
        cm.emit(est, "megatron")


def test_contiguous_slices_of_rings_around_swaps():
    """Two ranks swap heads, two pairs pass keys round: the last pair meets three quarters, not a half."""
    switches = {"cp_method": "a2a+p2p", "cp_a2a_ranks": 2}
    keys = [
        float(
            line(
                price(**LONG, switches={**switches, "cp_slices": slices}), "compute.attention.core.forward"
            ).terms["keys_per_query"]
        )
        for slices in ("zigzag", "contiguous")
    ]
    assert keys[1] == near(3 / 2 * keys[0])


def test_a_ring_across_nodes_waits():
    """Sixteen ranks in four nodes; 256 tokens each leave little to hide behind."""
    est = price(gpus=16, layout="cp16", seq_len=4096)
    sent = 30 + HELD / 4 / 1e4
    forward = 16 * attention_us(8, 4, 256, 256, 128, 128)
    backward = 16 * attention_us(8, 4, 256, 256, 128, 128, backward=True)
    assert exposed_us(est, "cp.attention.ring") == near(
        {
            "cp.attention.ring.forward": hidden_us(15 * sent, forward * 15 / 16),
            "cp.attention.ring.backward": hidden_us(15 * (30 + HELD / 2 / 1e4), backward * 15 / 16),
        }
    )


def test_a_ring_of_recomputed_layers():
    est = price(recompute="full", **LONG)
    times = each_us(est, "cp.")
    assert times["cp.attention.ring.recompute"] == near(3 * MESSAGE)
    assert times["cp.attention.merge.recompute"] == near(moved_us(4 * 10 * MIB, 8))
    assert not [name for name in each_us(price(**LONG), "cp.") if name.endswith("recompute")]


def test_every_line_of_a_gather():
    """Four slices of 2 MiB; nothing hides, and queries of a rank see all keys in one kernel."""
    est = price(switches={"cp_method": "all-gather"}, **LONG)
    gathered = ring_us(4 * HELD, 4)
    times = {
        "cp.attention.all_gather.forward": gathered,
        "cp.attention.all_gather.backward": gathered,
        "cp.attention.reduce_scatter.backward": gathered,
    }
    assert each_us(est, "cp.") == near(times)
    assert exposed_us(est, "cp.") == near(times)
    assert each_us(est, "compute.attention.core.forward") == near(
        {"compute.attention.core.forward": attention_us(8, 4, 1024, 4096, 2048, 128)}
    )
    again = price(switches={"cp_method": "all-gather"}, recompute="full", **LONG)
    assert each_us(again, "cp.")["cp.attention.all_gather.recompute"] == near(gathered)


# Eight heads of K and V, as many as of queries, where PyTorch exchanges them.
REPEATED = 2 * HELD
GRADIENTS = 2 * REPEATED  # in fp32


def test_every_line_of_a_gather_by_torch():
    est = price(switches={"cp_method": "all-gather", "cp_by_torch": True}, **LONG)
    gather = ring_us(4 * REPEATED, 4)
    assert each_us(est, "compute.attention.core.forward") == near(
        {"compute.attention.core.forward": 4 * attention_us(8, 8, 1024, 1024, 512, 128)}
    )
    assert each_us(est, "cp.") == near(
        {
            "cp.attention.all_gather.forward": gather,
            "cp.attention.all_gather.backward": gather,
            "cp.attention.gradients.backward": 3 * (6 + GRADIENTS / 1e5),
            "cp.attention.gradients_home.backward": 6 + GRADIENTS / 1e5,
            # Outputs of 1 Mi elements: four casts, three sums of 32 B, one cast back; K and V of 2 Mi thrice by 4 B.
            "cp.attention.merge.forward": moved_us((4 * 6 + 3 * 32 + 6 + 2 * 3 * 4) * MIB, 32),
            # Queries: cleared, four sums of 10 B, cast. K and V: the same, one sum of 10 B, three of 5 + 8 B, four
            # copies to send of 8 B and three of 4 B.
            "cp.attention.merge.backward": moved_us(
                (4 + 40 + 6 + 2 * (4 + 6 + 10 + 3 * 13 + 4 * 8 + 3 * 4)) * MIB, 32
            ),
        }
    )
    # The gather runs behind the first of four slices; the last message has nothing beside it.
    first = attention_us(8, 8, 1024, 1024, 512, 128)
    assert exposed_us(est, "cp.attention.all_gather.forward") == near(
        {"cp.attention.all_gather.forward": hidden_us(gather, first)}
    )
    assert exposed_us(est, "cp.attention.gradients_home") == near(
        {"cp.attention.gradients_home.backward": 6 + GRADIENTS / 1e5}
    )


@pytest.mark.parametrize(("method", "slices"), [("all-gather", 4 + 7), ("ring", 9)])
def test_what_torch_holds_of_others(method, slices):
    switches = {"cp_method": method, "cp_by_torch": True}
    est = price({**SMALL, "vocab_size": 128}, switches=switches, **LONG)
    assert memory(est, "buffer.cp") == near({"buffer.cp.keys_values": slices * REPEATED})


@pytest.mark.parametrize("method", ["ulysses", "a2a+p2p"])
def test_what_torch_does_not_have_stays_as_it_is(method):
    job = {**BOTH, "recompute": "full"}
    one, other = (price(switches={"cp_method": method, "cp_by_torch": on}, **job) for on in (True, False))
    assert each_us(one, "cp.") == near(each_us(other, "cp."))
    assert each_us(one, "compute.attention") == near(each_us(other, "compute.attention"))
    assert memory(one, "buffer.cp") == near(memory(other, "buffer.cp"))


def test_a_ring_by_torch():
    """K and V with gradients of twice their bytes, which then go one rank further; two kernels of slices alone else."""
    est = price(switches={"cp_by_torch": True}, recompute="full", **LONG)
    assert each_us(est, "cp.attention.ring") | each_us(est, "cp.attention.gradients") == near(
        {
            "cp.attention.ring.forward": 3 * (6 + REPEATED / 1e5),
            "cp.attention.ring.recompute": 3 * (6 + REPEATED / 1e5),
            "cp.attention.ring.backward": 3 * (6 + (REPEATED + GRADIENTS) / 1e5),
            "cp.attention.gradients_home.backward": 6 + GRADIENTS / 1e5,
        }
    )
    assert not each_us(price(switches={"cp_by_torch": True}), "cp.")


def test_every_line_of_an_exchange_of_heads():
    """Ulysses: Q, K and V go out (2 + 2 MiB), the output comes back (2 MiB); a rank keeps a quarter of each."""
    est = price(switches={"cp_method": "ulysses"}, **LONG)
    into, out = (6 + 3 / 4 * size / 1e5 for size in (HELD + 2 * MIB, 2 * MIB))
    assert each_us(est, "cp.") == near(
        {
            "cp.attention.all_to_all_qkv.forward": into,
            "cp.attention.all_to_all_out.forward": out,
            "cp.attention.all_to_all_qkv.backward": into,
            "cp.attention.all_to_all_out.backward": out,
        }
    )
    assert exposed_us(est, "cp.") == each_us(est, "cp.")


@pytest.mark.parametrize(
    ("method", "ranks", "chunks"),
    # Two slices in flight; all K and V and the gradients of all.
    [("ring", 4, 2), ("ring", 2, 1), ("all-gather", 4, 8), ("all-gather", 2, 4), ("ulysses", 4, 3)],
)
def test_keys_and_values_of_others(method, ranks, chunks):
    job = {"gpus": ranks, "layout": f"cp{ranks}", "seq_len": 1024 * ranks, "switches": {"cp_method": method}}
    small_head = {**SMALL, "vocab_size": 128}
    assert memory(price(small_head, **job), "buffer.cp") == near({"buffer.cp.keys_values": chunks * HELD})
    # Beside 32,000 logits a token they are not alive.
    assert not memory(price(**job), "buffer.cp")


def test_tensor_ranks_split_heads_but_not_one():
    est = price(gpus=16, layout="tp8 cp2", seq_len=2048, sequence_parallel=False)
    # One head of keys and one of values, although there are four for eight ranks.
    assert sent_bytes(est, "cp.attention.ring.forward") == near({"cp.attention.ring.forward": 2 * 1024 * 256})


def test_values_narrower_than_keys():
    """Latent attention sends every head's keys of 96 and values of 64."""
    est = price(LATENT, gpus=2, layout="cp2", seq_len=2048)
    held = 2 * 1024 * 8 * (96 + 64)
    assert sent_bytes(est, "cp.attention.ring.forward") == near({"cp.attention.ring.forward": held})
    small_head = price({**LATENT, "vocab_size": 128}, gpus=2, layout="cp2", seq_len=2048)
    assert memory(small_head, "buffer.cp") == near({"buffer.cp.keys_values": held})
    swapped = price(LATENT, gpus=2, layout="cp2", seq_len=2048, switches={"cp_method": "ulysses"})
    assert sent_bytes(swapped, "cp.") == near(
        {
            f"cp.attention.all_to_all_{what}.{phase}": size / 2
            for phase in ("forward", "backward")
            for what, size in (("qkv", held + 2 * 1024 * 8 * 96), ("out", 2 * 1024 * 8 * 64))
        }
    )


def test_only_attention_meets_other_slices():
    est = price(**LONG)
    assert each_us(est, "compute.mlp.fc1.forward") == near(
        {"compute.mlp.fc1.forward": product_us(1024, 8192, 1024)}
    )
    assert each_us(price(), "cp.") == {}
    assert memory(price(), "buffer.cp") == {}
    unfused = price({**SMALL, "num_kv_heads": 8}, switches={"attention_kernel": "fused-softmax"}, **LONG)
    batch = {"groups": 8}
    parts = each_us(unfused, "compute.attention.s", "compute.attention.c")
    assert parts["compute.attention.scores.forward"] == near(product_us(1024, 4096, 128, **batch))
    window = 3 / 4 * sum(us for name, us in parts.items() if name.endswith(".forward"))
    busy = 3 * (6 + 2 * HELD / 1e5)
    assert exposed_us(unfused, "cp.attention.ring.forward") == near(
        {"cp.attention.ring.forward": hidden_us(busy, window)}
    )


# Eight ranks in two nodes of four; four heads of keys.
BOTH = {"gpus": 8, "layout": "cp8", "seq_len": 8192}


@pytest.mark.parametrize("ranks", [0, 4])
def test_every_line_of_swaps_inside_and_a_ring_across(ranks):
    """Four ranks of a node swap heads; two nodes rotate K and V, as many bytes of fewer heads and more tokens."""
    est = price(switches={"cp_method": "a2a+p2p", "cp_a2a_ranks": ranks}, **BOTH)
    # 8,192 tokens in two slices of 4,096, two of eight query heads and one of keys a rank.
    forward, backward = (2 * attention_us(2, 1, 4096, 4096, 2048, 128, each) for each in (False, True))
    assert each_us(est, "compute.attention.core") == near(
        {"compute.attention.core.forward": forward, "compute.attention.core.backward": backward}
    )
    into, out = (6 + 3 / 4 * size / 1e5 for size in (HELD + 2 * MIB, 2 * MIB))
    sent, both = 30 + HELD / 1e4, 30 + 2 * HELD / 1e4
    assert each_us(est, "cp.") == near(
        {
            "cp.attention.all_to_all_qkv.forward": into,
            "cp.attention.all_to_all_out.forward": out,
            "cp.attention.all_to_all_qkv.backward": into,
            "cp.attention.all_to_all_out.backward": out,
            "cp.attention.ring.forward": sent,
            "cp.attention.ring.backward": both,
            "cp.attention.merge.forward": moved_us(2 * 10 * MIB, 4),
            "cp.attention.merge.backward": moved_us(2 * 10 * 2 * MIB, 4),
        }
    )
    exposed = exposed_us(est, "cp.attention.")
    assert exposed["cp.attention.ring.forward"] == near(hidden_us(sent, forward / 2))
    assert exposed["cp.attention.ring.backward"] == near(hidden_us(both, backward / 2))
    assert exposed["cp.attention.all_to_all_out.forward"] == near(out)
    # One slice of the other node, and Q, K and V with their heads swapped.
    est = price(
        {**SMALL, "vocab_size": 128}, switches={"cp_method": "a2a+p2p", "cp_a2a_ranks": ranks}, **BOTH
    )
    assert memory(est, "buffer.cp") == near(
        {"buffer.cp.keys_values": HELD, "buffer.cp.swapped": HELD + 2 * MIB}
    )


def test_swaps_of_recomputed_layers():
    est = price(switches={"cp_method": "a2a+p2p"}, recompute="full", **BOTH)
    again = {name for name in each_us(est, "cp.") if name.endswith("recompute")}
    assert again == {
        "cp.attention.all_to_all_qkv.recompute",
        "cp.attention.all_to_all_out.recompute",
        "cp.attention.ring.recompute",
        "cp.attention.merge.recompute",
    }


def test_how_many_ranks_swap():
    for model, layout, gpus, swaps in [
        ({}, "cp2", 2, 2),
        ({}, "cp16", 16, 4),  # as many as a node holds
        ({"num_kv_heads": 2}, "cp8", 8, 2),  # as many as there are heads of keys
        ({"num_kv_heads": 1}, "cp8", 8, 1),
        ({}, "tp2 cp8", 16, 2),  # two of a node are of one context group, with two heads of keys each
        ({**LATENT}, "cp8", 8, 4),  # every query head has keys of its own
    ]:
        est = price(
            {**SMALL, **model}, gpus=gpus, layout=layout, seq_len=16384, switches={"cp_method": "a2a+p2p"}
        )
        assert float(est.priced.placed.shard.swaps) == swaps


def test_its_ends_are_the_ring_and_ulysses():
    """Of one rank nothing is swapped, of all nothing goes round: the same messages as by the method itself."""
    for ranks, like in [(1, "ring"), (4, "ulysses")]:
        job = {"gpus": 4, "layout": "cp4", "seq_len": 4096}
        both = price(switches={"cp_method": "a2a+p2p", "cp_a2a_ranks": ranks}, **job)
        one = price(switches={"cp_method": like}, **job)
        assert each_us(both, "cp.") == near(each_us(one, "cp."))
        assert exposed_us(both, "cp.") == near(exposed_us(one, "cp."))


@pytest.mark.parametrize(("layout", "gpus", "ranks"), [("cp8", 8, 3), ("cp8", 8, 8), ("tp2 cp8", 16, 4)])
def test_ranks_that_do_not_divide_are_refused(layout, gpus, ranks):
    with pytest.raises(LayoutError, match=f"cp_a2a_ranks = {ranks}"):
        price(
            gpus=gpus, layout=layout, seq_len=16384, switches={"cp_method": "a2a+p2p", "cp_a2a_ranks": ranks}
        )


def test_two_groups_have_communicators():
    switches = {"cp_method": "a2a+p2p", "communicator_bytes": 1e6}
    held = memory(price(switches=switches, **BOTH), "reserve.communicators")["reserve.communicators"]
    ring = {**switches, "cp_method": "ring"}
    assert (
        held == memory(price(switches=ring, **BOTH), "reserve.communicators")["reserve.communicators"] + 1e6
    )


def test_every_method_is_a_record():
    assert (
        tuple(METHODS)
        == SWITCHES["cp_method"].choices
        == tuple(dict.fromkeys(key_table("megatron").fields["cp_type"].kind.values()))
    )


def test_layouts_side_by_side_are_those_one_by_one():
    degrees = np.asarray([1.0, 2.0, 4.0, 8.0, 16.0])
    switches = {"cp_method": "a2a+p2p"}
    many = price(gpus=16, cp=degrees, global_batch=16, seq_len=16384, switches=switches)
    for index, cp in enumerate(degrees):
        one = price(gpus=16, cp=float(cp), global_batch=16, seq_len=16384, switches=switches)
        assert float(many.step_time_s[index]) == near(float(one.step_time_s))
        assert float(np.broadcast_to(many.memory_bytes_per_gpu, degrees.shape)[index]) == near(
            float(one.memory_bytes_per_gpu)
        )
