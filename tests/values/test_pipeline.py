"""Pipelines: the bubble of every schedule, messages that are paid, and what stages hold, on four stages."""

import pytest
import round_jobs
from round_jobs import MIB, SMALL, each_us, exposed_us, hidden_us, line, memory, near, ring_us

import costmodel as cm
from costmodel.estimates.priced_job import PricedJob
from costmodel.step.price import price as price_by_closed_forms

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")


def price(*model, **job):
    """Price a job of the small model by the closed forms of its schedule, as a search does."""
    est = round_jobs.price(*model, **job)
    return PricedJob(est.job, price_by_closed_forms(est.job, every_stage=True))


EIGHT_LAYERS = {**SMALL, "num_layers": 8}
MESSAGE = 5 + 1 + 2 * MIB / 1e5  # 2 MiB to the next GPU of a node
# Between nodes four ranks of a stage send a quarter each.
FAR = 20 + 10 + 2 * MIB / 4 / 1e4


PASSES = {"forward": "forward", "backward": "input", "recompute": "input", "backward_weight": "weight"}


def times(est, *starts):
    """Forward, backward towards inputs and backward towards weights, of what begins with these names. [us]"""
    found = {"forward": 0.0, "input": 0.0, "weight": 0.0}
    for one in est.bill.time_lines:
        if one.name.startswith(starts) and one.phase in PASSES:
            found[PASSES[one.phase]] += 1e6 * float(one.exposed_each_s)
    return found["forward"], found["input"], found["weight"]


LAYER = ("compute.attention.", "compute.mlp.", "tp.attention.", "tp.mlp.")
HEAD, EMBEDDING = ("compute.head.", "tp.head."), ("compute.embedding.", "tp.embedding.")


def bubble_us(schedule, m, **job):
    """Bubble of a job of one layer a stage, with F, B and W of the last stage and the sum of the other three."""
    est = price(gpus=4, layout="pp4", schedule=schedule, global_batch=m, **job)
    layer, head, embedding = (times(est, *part) for part in (LAYER, HEAD, EMBEDDING))
    f, b, w = (one + more for one, more in zip(layer, head, strict=True))
    return each_us(est, "pp.bubble").get("pp.bubble", 0.0), (f, b, w), 3 * sum(layer) + sum(embedding)


@pytest.mark.parametrize(
    ("schedule", "m", "times_others"), [("1f1b", 8, 1), ("gpipe", 8, 1), ("naive", 8, 8), ("naive", 4, 4)]
)
def test_bubbles_of_the_other_stages(schedule, m, times_others):
    """The last stage, with the head, is the slowest; it waits for three layers and the embedding."""
    bubble, _, others = bubble_us(schedule, m)
    assert bubble == near(times_others * others)


@pytest.mark.parametrize("m", [8, 2])
def test_bubble_that_weight_gradients_fill(m):
    """ZB-H1: the others' W is not waited for, and three are put there, where there are micro-batches for it."""
    job = {"switches": {"cross_entropy": "chunked"}}
    est = price(
        {**SMALL, "vocab_size": 2048 if m < 4 else 64},
        gpus=4,
        layout="pp4",
        schedule="zb-h1",
        global_batch=m,
        **job,
    )
    layer, head, embedding = (times(est, *part) for part in (LAYER, HEAD, EMBEDDING))
    others = 3 * (layer[0] + layer[1]) + embedding[0] + embedding[1]
    w = layer[2] + head[2]
    assert w < layer[0] + head[0]
    assert each_us(est, "pp.bubble") == near({"pp.bubble": others - min(3, m - 1) * w})


@pytest.mark.parametrize(("kernel", "kept"), [("cudnn", 32 / 34), ("unfused", 32 / (34 + 5 * 8))])
def test_bubble_filled_as_far_as_memory_allows(kernel, kept):
    """ZB-2p, where two times 1F1B's memory holds 6 / kappa weight gradients; over a slow network, to be seen."""
    model = {**SMALL, "num_kv_heads": 8, "vocab_size": 64}
    est = price(
        model,
        gpus=32,
        layout="tp8 pp4",
        schedule="zb-2p",
        global_batch=32,
        recompute="full",
        switches={"attention_kernel": kernel},
    )
    layer, head, embedding = (times(est, *part) for part in (LAYER, HEAD, EMBEDDING))
    w = layer[2] + head[2]
    others = 3 * (layer[0] + layer[1]) + embedding[0] + embedding[1]
    assert w < layer[0] + head[0]
    expected = others - 6 / kept * w
    assert expected > 0
    assert each_us(est, "pp.bubble") == near({"pp.bubble": expected})


def test_bubble_of_chunks():
    est = price(EIGHT_LAYERS, gpus=4, layout="pp4 vp2", global_batch=8)
    layer, embedding = times(est, *LAYER), times(est, *EMBEDDING)
    assert each_us(est, "pp.bubble") == near({"pp.bubble": 3 * sum(layer) + sum(embedding)})


def test_bubbles_that_run_both_ways():
    """DualPipe: a rank holds a stage of either end, one layer in all for each half; V-shaped: a chunk of each."""
    est = price({**SMALL, "vocab_size": 64}, gpus=4, layout="pp4", schedule="dualpipe", global_batch=8)
    layer, head, embedding = (times(est, *part) for part in (LAYER, HEAD, EMBEDDING))
    f, b, w = (one + half / 2 + more / 2 for one, half, more in zip(layer, head, embedding, strict=True))
    # An end rank holds the embedding and the head for half of the micro-batches each; the others fill and drain
    # with one layer, and wait for what it takes longer but four times.
    forward, back, weight = layer
    slower = f + b + w - sum(layer)
    idle = max(2 * forward + max(back - weight, 0), 2 * back - weight)
    assert slower > 0
    assert each_us(est, "pp.bubble") == near({"pp.bubble": max(back - weight, idle - 4 * slower)})


def test_gpipe_is_paced_by_the_slowest_of_each_pass():
    """All forwards at the pace of the slowest stage, the last one with the head, then all backwards."""
    est = price(EIGHT_LAYERS, gpus=4, layout="pp4", schedule="gpipe", global_batch=8)
    layer, head, embedding = (times(est, *part) for part in (LAYER, HEAD, EMBEDDING))
    whole = 8 * sum(layer) + sum(head) + sum(embedding)
    slowest = 2 * sum(layer) + sum(head)
    assert each_us(est, "pp.bubble") == near({"pp.bubble": whole + 7 * slowest - 8 * slowest})


# Of a rank that stands still while it sends every message of its own is paid, and those of the others once, where
# it waits for their passes: the last of four sends its gradients, the others five messages a micro-batch.
@pytest.mark.parametrize(
    ("schedule", "pp", "vp", "paid", "waited"),
    [("1f1b", 4, 1, 8, 5), ("1f1b", 2, 1, 8, 1), ("interleaved", 4, 2, 24, 5)],
)
def test_messages_that_stop_a_rank(schedule, pp, vp, paid, waited):
    layout = f"pp{pp}" + (f" vp{vp}" if vp > 1 else "")
    job = {"gpus": pp, "layout": layout, "schedule": schedule, "global_batch": 8}
    stops, goes_on = (
        price(EIGHT_LAYERS, **job, switches={"pp_overlap": overlap}) for overlap in (False, True)
    )
    own = line(stops, "pp.send_recv")
    assert float(own.count) == 16 * vp
    assert float(own.exposed_seconds) * 1e6 == near(paid * MESSAGE)
    assert each_us(stops, "pp.bubble")["pp.bubble"] == near(
        each_us(goes_on, "pp.bubble")["pp.bubble"] + waited * MESSAGE
    )


# Messages a micro-batch and chunk: one each way.
@pytest.mark.parametrize(
    ("schedule", "pp", "vp", "m", "messages", "paid"),
    [
        ("1f1b", 4, 1, 16, 32, 6),
        ("1f1b", 2, 1, 16, 32, 2),
        ("gpipe", 4, 1, 8, 16, 6),
        ("naive", 4, 1, 8, 16, 48),
        ("interleaved", 4, 2, 8, 32, 6),
        # Its last rank has the head and as much more to do: of 12 half are hidden.
        ("zb-h1", 4, 1, 8, 16, 6),
        # Its first rank has the head, and so much more to do that no message is waited for.
        ("zb-v", 4, 2, 8, 32, 0),
        # The rank with the head hides the 0.75 of each of 8 - 4 micro-batches of 9, and the 1.5 of each of 8 - 6 of 19.5.
        ("dualpipe", 4, 1, 8, 16, 6),
        ("dualpipe-v", 4, 2, 8, 32, 16.5),
        # The first rank, with the head, hides those of micro-batches that are not in flight: of 2 * 8 + 12 and of
        # 4.5 * 8 + 6 messages 2 of five, and 4.5 of six.
        ("v-half", 4, 2, 8, 32, 18),
        ("v-min", 4, 2, 8, 32, 15),
    ],
)
def test_messages(schedule, pp, vp, m, messages, paid):
    layout = f"pp{pp}" + (f" vp{vp}" if vp > 1 else "")
    est = price(
        EIGHT_LAYERS, gpus=pp, layout=layout, schedule=schedule, global_batch=m, switches={"pp_overlap": True}
    )
    own, others = line(est, "pp.send_recv"), line(est, "pp.send_recv_of_others")
    assert float(own.count) == messages
    assert float(own.exposed_seconds + others.exposed_seconds) * 1e6 == near(paid * MESSAGE)
    assert float(others.count) == near(max(paid - messages, 0))
    assert float(own.each_s) * 1e6 == near(MESSAGE)
    assert float(own.bytes_each) == 2 * MIB


def test_the_host_of_a_message():
    """Three launches of 10 us; CUDA graphs have none."""
    job = {"gpus": 2, "layout": "pp2", "global_batch": 8}
    assert each_us(price(switches={"launch_s": 1e-5}, **job), "pp.send") == near(
        {"pp.send_recv": MESSAGE + 30}
    )
    graphs = {"launch_s": 1e-5, "cuda_graphs": True}
    assert each_us(price(switches=graphs, **job), "pp.send") == near({"pp.send_recv": MESSAGE})


@pytest.mark.parametrize(
    ("sequence_parallel", "scatter_gather", "share"),
    [(True, True, 4), (True, False, 4), (False, True, 4), (False, False, 1)],
)
def test_tensor_ranks_share_a_message(sequence_parallel, scatter_gather, share):
    est = price(
        gpus=8,
        layout="tp4 pp2",
        global_batch=8,
        sequence_parallel=sequence_parallel,
        switches={"pp_scatter_gather": scatter_gather},
    )
    size = 2 * MIB / share
    assert each_us(est, "pp.send_recv") == near({"pp.send_recv": 30 + size / 1e4})
    assert memory(est, "buffer.pp") == near({"buffer.pp.send_recv": 4 * size})
    assert float(line(est, "pp.send_recv").tier) == 1


def test_the_two_ends_sum_a_tied_table():
    model = {**SMALL, "tied_embeddings": True}
    size = 4 * 32000 * 1024
    near_ends = price(model, gpus=4, layout="pp4", global_batch=8)
    name = "pp.tied_embedding_grad.all_reduce"
    assert each_us(near_ends, "pp.tied") == near({name: ring_us(size, passes=2)})
    assert exposed_us(near_ends, "pp.tied") == each_us(near_ends, "pp.tied")
    split = price(model, gpus=16, layout="tp4 pp4", global_batch=8)
    assert each_us(split, "pp.tied") == near({name: ring_us(size / 4, passes=2, outer=True)})
    assert each_us(price(gpus=4, layout="pp4", global_batch=8), "pp.tied") == {}


ONE = 28 * MIB  # what the MLP of one layer keeps of a micro-batch


@pytest.mark.parametrize(
    ("schedule", "vp", "m", "held"),
    [
        ("naive", 1, 8, [1, 1, 1, 1]),
        ("gpipe", 1, 8, [8, 8, 8, 8]),
        ("1f1b", 1, 8, [4, 3, 2, 1]),
        ("1f1b", 1, 2, [2, 2, 2, 1]),
        ("interleaved", 2, 8, [5.5, 4.5, 3.5, 2.5]),
        ("zb-h1", 1, 8, [4, 4, 4, 4]),
        ("zb-2p", 1, 8, [7, 7, 7, 7]),
        ("zb-v", 2, 8, [4, 4, 4, 4]),
        ("dualpipe", 1, 8, [5, 5, 5, 5]),
        ("dualpipe-v", 2, 8, [4.5, 4.5, 4.5, 4.5]),
        ("v-half", 2, 8, [3, 3, 3, 3]),
        ("v-min", 2, 8, [2, 2, 2, 2]),
    ],
)
def test_micro_batches_in_flight(schedule, vp, m, held):
    layout = "pp4" + (f" vp{vp}" if vp > 1 else "")
    est = price(EIGHT_LAYERS, gpus=4, layout=layout, schedule=schedule, global_batch=m)
    kept = next(one.bytes for one in est.bill.memory_lines if one.name == "activation.mlp")
    assert (kept / (2 * ONE) * [1, 1, 1, 1]).tolist() == near([float(count) for count in held])


@pytest.mark.parametrize(("recompute", "kept"), [("full", True), ("selective", False), ("none", False)])
def test_outputs_that_an_engine_keeps(recompute, kept):
    """DeepSpeed's pipe buffers: an output for each micro-batch in flight."""
    est = price(
        gpus=2, layout="pp2", global_batch=4, recompute=recompute, switches={"pp_keeps_outputs": True}
    )
    assert memory(est, "buffer.pp.outputs") == near({"buffer.pp.outputs": [4 * MIB, 2 * MIB]} if kept else {})
    assert memory(price(gpus=2, layout="pp2", global_batch=4, recompute="full"), "buffer.pp.outputs") == {}


@pytest.mark.parametrize(
    ("layers", "switches", "dealt"),
    [
        (6, {}, [2, 1, 2, 1]),  # the later of each pair is shorter
        (5, {}, [2, 1, 1, 1]),
        (7, {"embedding_as_layer": True}, [1, 2, 2, 2]),
        (7, {"head_as_layer": 1}, [2, 2, 2, 1]),
        (6, {"embedding_as_layer": True, "head_as_layer": 1}, [1, 2, 2, 1]),
        # The head's 32,000 columns are the work of 1.953 layers of 4 x 1,024 + 3 x 4,096: cuts at 2.5, 5 and 7.5.
        (8, {"head_by_work": True}, [3, 2, 3, 0]),
    ],
)
def test_layers_are_dealt_to_stages(layers, switches, dealt):
    est = price(
        {**SMALL, "num_layers": layers},
        gpus=4,
        layout="pp4",
        global_batch=8,
        schedule="gpipe",
        switches=switches,
    )
    kept = next(one.bytes for one in est.bill.memory_lines if one.name == "activation.mlp")
    assert (kept / (8 * ONE)).tolist() == near([float(count) for count in dealt])


def test_a_rank_of_dualpipe_holds_two_stages_for_half_of_the_batch():
    """Five layers: stages of 2, 1, 1, 1; ranks 0 and 3 hold 2 and 1, each for four of eight micro-batches."""
    est = price({**SMALL, "num_layers": 5}, gpus=4, layout="pp4", schedule="dualpipe", global_batch=8)
    kept = next(one.bytes for one in est.bill.memory_lines if one.name == "activation.mlp")
    assert (kept / (5 * ONE)).tolist() == near([1.5, 1.0, 1.0, 1.5])


def test_one_stage_has_no_pipeline():
    est = price(global_batch=8)
    assert each_us(est, "pp.") == {}
    assert memory(est, "buffer.pp") == {}
    assert hidden_us(MESSAGE, 0.0) == MESSAGE


@pytest.mark.parametrize("vocab_size", [64, 4096])
def test_what_messages_take_beyond_the_wait_for_the_slowest_stage(vocab_size):
    """Of 15 micro-batches after the first, 11 wait for two messages, less what the head's stage takes longer."""
    model = {**SMALL, "num_kv_heads": 8, "vocab_size": vocab_size}
    est = price(
        model, gpus=32, layout="tp8 pp4", schedule="1f1b", global_batch=16, switches={"pp_overlap": True}
    )
    head, table = (sum(times(est, *of)) for of in (HEAD, EMBEDDING))
    assert head > table
    longer = head - table / 3
    waits = max(2 * FAR - longer, 0)

    assert 1e6 * float(line(est, "pp.send_recv.late").exposed_seconds) == near(11 * waits)
    assert float(line(est, "pp.send_recv.late").each_s) == 0


def test_chunks_do_not_win_on_a_slow_network():
    """Twice the messages of half the chunk: on 100 Gbit/s Ethernet plain 1F1B is faster, on InfiniBand it is not."""
    job = {"model": "llama3-8b", "gpus": 64, "global_batch": 128, "seq_len": 8192, "tp": 1, "pp": 8}
    for cluster, wins in (("dgx-h100-ndr", 4), ("cloud-h100-100gbe", 1)):
        step_s = {vp: float(cm.estimate(**job, vp=vp, cluster=cluster).step_time_s) for vp in (1, 4)}
        assert min(step_s, key=step_s.__getitem__) == wins
