"""Context parallelism: K and V on their way round the group, by each method, and what attention hides."""

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
    memory,
    moved_us,
    near,
    price,
    product_us,
    ring_us,
    sent_bytes,
)

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
    [("ring", 4, 2), ("ring", 2, 1), ("all-gather", 4, 3), ("all-gather", 2, 1), ("ulysses", 4, 3)],
)
def test_keys_and_values_of_others(method, ranks, chunks):
    est = price(gpus=ranks, layout=f"cp{ranks}", seq_len=1024 * ranks, switches={"cp_method": method})
    assert memory(est, "buffer.cp") == near({"buffer.cp.keys_values": chunks * HELD})


def test_tensor_ranks_split_heads_but_not_one():
    est = price(gpus=16, layout="tp8 cp2", seq_len=2048, sequence_parallel=False)
    # One head of keys and one of values, although there are four for eight ranks.
    assert sent_bytes(est, "cp.attention.ring.forward") == near({"cp.attention.ring.forward": 2 * 1024 * 256})


def test_values_narrower_than_keys():
    """Latent attention sends every head's keys of 96 and values of 64."""
    est = price(LATENT, gpus=2, layout="cp2", seq_len=2048)
    held = 2 * 1024 * 8 * (96 + 64)
    assert sent_bytes(est, "cp.attention.ring.forward") == near({"cp.attention.ring.forward": held})
    assert memory(est, "buffer.cp") == near({"buffer.cp.keys_values": held})
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
