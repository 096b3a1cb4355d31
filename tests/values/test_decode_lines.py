"""Lines of a decode step and of a prefill by hand, on the machine of round numbers, over kinds of attention and splits."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_jobs import CLUSTER, LATENT, MOE, SMALL

import costmodel as cm
from costmodel.describe.models.model import make_model
from costmodel.generation.decode import decode_step, prefill_step
from costmodel.generation.deployment import (
    Deployment,
    Engine,
    Speculation,
    Split,
    deployment,
    number_format,
    prediction_layer,
)
from costmodel.generation.memory import cache_bytes, cache_room, largest_batch, weights_bytes

MAMBA = {"kind": "mamba", "inner": 2048, "state": 16, "dt_rank": 64, "conv_kernel": 4}
MODELS = {
    "dense": SMALL,
    "window": {**SMALL, "sliding_window": 64},
    "latent": LATENT,
    "hybrid": {**SMALL, "attention_pattern": "xfxf", "mixers": {"x": MAMBA}},
    "experts": MOE,
}
FREE = Engine("any", "any", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, False, 0.0, "nothing")
MIB = 2.0**20
# Of the round machine: 50 TFLOP/s in 16 bits, twice that in 8, and 1 TB/s.
FLOPS, BYTES = 50e12, 1e12


@cache
def served(kind, precision="bf16", engine=FREE, cache_bytes=2.0):
    model = make_model({"name": "small", **MODELS[kind]})
    cluster = cm.load_cluster(str(CLUSTER))
    return Deployment(model, cluster, number_format(precision), engine, cache_bytes=cache_bytes)


def seconds(bill):
    return {line.name: float(line.exposed_seconds) for line in bill.time_lines}


def step_s(*given, **prompts):
    return decode_step(*given, **prompts).step_time_s()


def joined(math_s, memory_s):
    return pytest.approx((math_s**3 + memory_s**3) ** (1 / 3), rel=1e-9)


def test_products_read_their_weights_once_and_multiply_for_every_sequence():
    """4 layers of 3 MiB elements in attention and 12 in the MLP; a head of 31.25 MiB, which stays in 16 bits."""
    for precision, element, rate in (("bf16", 2, 1), ("fp8", 1, 2)):
        for tp in (1, 4):
            for batch in (1, 200):
                lines = seconds(decode_step(served("dense", precision), Split(tp=tp), batch, 100))
                for name, weights in (("attention", 12 * MIB), ("mlp", 48 * MIB)):
                    held = weights / tp
                    math_s = 2 * batch * held / (rate * FLOPS)
                    assert lines[f"decode.{name}"] == joined(math_s, element * held / BYTES)
                held = 32000 * 1024 / tp
                assert lines["decode.head"] == joined(2 * batch * held / FLOPS, 2 * held / BYTES)


def test_products_lose_what_the_power_limit_takes():
    """A fifth lost of the peak: 200 sequences take 1 / 0.8 of the time of their FLOPs."""
    here = served("dense")
    kernels = here.cluster.accelerator.kernels
    products = {name: one._replace(sustained_loss=0.2) for name, one in kernels.matmul.items()}
    slower = replace(here.cluster.accelerator, kernels=kernels.model_copy(update={"matmul": products}))
    limited = replace(here, cluster=replace(here.cluster, accelerator=slower))
    lines = seconds(decode_step(limited, Split(), 200, 100))
    assert lines["decode.mlp"] == joined(2 * 200 * 48 * MIB / (0.8 * FLOPS), 2 * 48 * MIB / BYTES)


def test_a_router_is_held_by_every_rank():
    """8 x 1,024 elements in each of 4 layers, which tensor parallelism does not cut."""
    for tp in (1, 4):
        lines = seconds(decode_step(served("experts"), Split(tp=tp), 16, 100))
        held = 4 * 8 * 1024
        assert lines["decode.mlp"] == joined(2 * 16 * held / FLOPS, 2 * held / BYTES)


def test_the_cache_is_read_by_heads_and_attended_to():
    for kind, elements, heads, seen, flops in [
        # 4 heads with keys and values of 128; 8 heads that meet them.
        ("dense", 4 * 1024, 4, 1000, 4 * 4096 * 1000),
        ("window", 4 * 1024, 4, 64, 4 * 4096 * 64),
        # The latent of 128 and a rotary key of 32, held by every rank; 8 heads meet the latent twice.
        ("latent", 4 * 160, 1, 1000, 4 * 2 * 8 * 288 * 1000),
    ]:
        for width in (1.0, 2.0):
            for tp in (1, 2, 4, 8):
                lines = seconds(decode_step(served(kind, cache_bytes=width), Split(tp=tp), 16, 1000))
                read = 16 * width * elements * seen / min(tp, heads)
                assert lines["decode.kv_cache"] == joined(16 * flops / (tp * FLOPS), read / BYTES)
                held = cache_bytes(served(kind, cache_bytes=width), Split(tp=tp, pp=2), 1000)
                assert float(held) == pytest.approx(width * elements * seen / min(tp, heads) / 2)


def test_states_of_other_mixers_are_read_and_written():
    """Two Mamba layers: 2,048 channels of 16 states and three tokens of the convolution; 9 FLOPs a state."""
    state = 2 * (2048 * 16 + 3 * 2048)
    lines = seconds(decode_step(served("hybrid"), Split(tp=2), 16, 1000))
    read = 16 * (2 * 2 * state + 2 * 2 * 1024 * 1000) / 2
    flops = 16 * (2 * 4096 * 1000 + 2 * 9 * 2048 * 16) / 2
    assert lines["decode.kv_cache"] == joined(flops / FLOPS, read / BYTES)
    assert float(cache_bytes(served("hybrid"), Split(tp=2), 1000)) == 2 * (state + 2 * 1024 * 1000) / 2


def test_of_the_experts_those_that_tokens_visit():
    """8 experts of 1.5 MiB elements in each of 4 layers, 2 a token; the busiest of 4 GPUs: 1.0294 deviations more."""
    weights = 4 * 8 * 1.5 * MIB
    for tp, ep, dp, deviations in (
        (1, 1, 1, 0.0),
        (4, 1, 1, 0.0),
        (1, 4, 4, 1.029375373),
        (2, 4, 2, 1.029375373),
    ):
        for batch in (4, 64):
            lines = seconds(decode_step(served("experts"), Split(tp=tp, ep=ep, dp=dp), batch, 100))
            touched = 1 - 0.75**batch
            most = min(touched + deviations * np.sqrt(touched * (1 - touched) * ep / 8), 1)
            busiest = 1 + deviations / np.sqrt(batch * 2 / ep)
            held = weights / (tp * dp)
            math_s = 2 * busiest * batch * 2 / 8 * held / FLOPS
            expected = (math_s**3 + (2 * most * held / BYTES) ** 3) ** (1 / 3)
            assert lines["decode.experts"] == pytest.approx(expected, rel=1e-6)


def test_what_moves_beside_weights_and_cache():
    """4 layers pass 1,024 elements through attention and MLP; inside, 8 heads of 128 and 4,096 or, of 2 experts a token, 512."""
    for kind, whole, inner in (
        ("dense", 4 * 2 * 1024, 4 * (1024 + 4096)),
        ("experts", 4 * (2 + 2) * 1024, 4 * (1024 + 2 * 512)),
    ):
        for tp in (1, 4):
            lines = seconds(decode_step(served(kind), Split(tp=tp), 50, 100))
            moved = 2 * 50 * (6 * whole + 6 * inner / tp)
            assert lines["decode.activations"] == pytest.approx(moved / BYTES)


def test_sums_over_tensor_ranks_and_their_size():
    """Attention and MLP of 4 layers: 8 sums of 2 KiB a sequence by 4 GPUs at 100 GB/s, after 3 us each."""
    engine = FREE._replace(all_reduce_s=3e-6)
    lines = seconds(decode_step(served("dense", engine=engine), Split(tp=4), 16, 100))
    assert lines["decode.tp.all_reduce"] == pytest.approx(8 * (3e-6 + 1.5 * 16 * 2048 / 100e9))
    # Where groups attend apart the experts' outputs come back by the exchange.
    apart = seconds(decode_step(served("experts", engine=engine), Split(tp=2, dp=2, ep=4), 16, 100))
    assert apart["decode.tp.all_reduce"] == pytest.approx(4 * (3e-6 + 8 * 2048 / 100e9))
    together = seconds(decode_step(served("experts", engine=engine), Split(tp=4, ep=4), 16, 100))
    assert together["decode.tp.all_reduce"] == pytest.approx(8 * (3e-6 + 1.5 * 16 * 2048 / 100e9))
    assert not [name for name in together if ".ep." in name]


def test_an_engines_own_all_reduce_ends_with_the_node_or_its_domain():
    """16 GPUs of an NVLink domain of nodes of four: vLLM's kernel is of one node, TensorRT-LLM's of the domain."""
    own = {}
    for tp in (4, 16):
        for gpus in (0, 72):
            here = deployment("llama3-70b", "gb200-nvl72-ndr", engine="vllm")
            here = replace(here, engine=here.engine._replace(all_reduce_gpus=gpus, all_reduce_s=1e-6))
            lines = seconds(decode_step(here, Split(tp=tp), 4, 100))
            own[tp, gpus] = lines["decode.tp.all_reduce"] / 160
    assert own[4, 0] == own[4, 72] == pytest.approx(1e-6 + 1.5 * 4 * 16384 / 740e9, rel=0.02)
    assert own[16, 72] < 3e-6 < 15e-6 < own[16, 0]


def test_a_pipeline_passes_micro_batches():
    """Two stages at 32 sequences are one at 16, and a message of them between."""
    one = seconds(decode_step(served("dense"), Split(), 16, 100))
    two = seconds(decode_step(served("dense"), Split(pp=2), 32, 100))
    sent = two.pop("decode.pp.send")
    assert two == pytest.approx(one)
    assert sent > 16 * 2048 / 100e9


def test_the_engine_adds_its_host_and_its_kernels():
    """Six kernels of attention and four of an MLP in 4 layers, and four more; 20 us a sequence and 1 ms a step."""
    engine = FREE._replace(step_s=1e-3, sequence_s=20e-6, kernel_s=2e-6)
    lines = seconds(decode_step(served("dense", engine=engine), Split(), 50, 100))
    assert lines["decode.kernels"] == pytest.approx(44 * 2e-6)
    for precision, kernels in (("fp8", 44 + 4 * 6), ("nvfp4", 44 + 4 * 2), ("int8", 44)):
        # Inputs of products are quantised by kernels of their own, where the machine has units for the format.
        quantised = seconds(decode_step(served("dense", precision, engine=engine), Split(), 50, 100))
        assert quantised["decode.kernels"] == pytest.approx(kernels * 2e-6)
    assert lines["decode.host.step"] == pytest.approx(1e-3)
    assert lines["decode.host.sequences"] == pytest.approx(1e-3)
    # A process serves all groups of a node; where it works beside the GPU, only what outlasts that is waited for.
    apart = seconds(decode_step(served("experts", engine=engine), Split(tp=2, dp=2, ep=4), 50, 100))
    assert apart["decode.host.sequences"] == pytest.approx(1e-3)
    node = served("experts").cluster.gpus_per_node
    two_nodes = Split(tp=2, dp=node, ep=2 * node)
    apart = seconds(decode_step(served("experts", engine=engine), two_nodes, 50, 100))
    assert apart["decode.host.sequences"] == pytest.approx(0.5e-3)
    beside = engine._replace(overlaps=True)
    hidden = seconds(decode_step(served("dense", engine=beside), Split(), 50, 100, prompt=400, response=10))
    gpu_s = sum(s for name, s in hidden.items() if "host" not in name)
    assert hidden["decode.prefill"] > 0 == hidden["decode.host.sequences"]
    slow = beside._replace(sequence_s=1.0)
    shown = seconds(decode_step(served("dense", engine=slow), Split(), 50, 100, prompt=400, response=10))
    assert shown["decode.host.sequences"] == pytest.approx(50 - gpu_s)


def speculating(kind, draft=None, own=False, tokens=3, length=2.5, **more):
    here = served(kind, **more)
    drafting = replace(here, model=draft or prediction_layer(here.model))
    return replace(here, speculation=Speculation(drafting, own, tokens, length))


def test_a_speculative_step_verifies_all_tokens_at_once_and_yields_the_accepted_ones():
    """4 layers of 48 MiB elements in MLPs: 64 sequences of 1 + 3 tokens; the draft is a layer, three times; 2.5 tokens a step."""
    engine = FREE._replace(step_s=1e-3, kernel_s=2e-6, all_reduce_s=3e-6)
    here = speculating("dense", engine=engine)
    lines = seconds(decode_step(here, Split(tp=4), 64, 1000))
    held, layer = 48 * MIB / 4, 12 * MIB / 4
    step_s = (2 * 256 * held / FLOPS) ** 3 + (2 * held / BYTES) ** 3
    assert lines["decode.mlp"] == pytest.approx(step_s ** (1 / 3) / 2.5)
    draft_s = (2 * 64 * layer / FLOPS) ** 3 + (2 * layer / BYTES) ** 3
    assert lines["draft.mlp"] == pytest.approx(3 * draft_s ** (1 / 3) / 2.5)
    # The cache is read once for the four queries of a sequence: 4 MiB tokens of 16 bits of a fourth of the heads.
    flops_s, read_s = 4 * 64 * 4 * 4096 * 1000 / 4 / FLOPS, 64 * 2 * 4 * 1024 * 1000 / 4 / BYTES
    assert lines["decode.kv_cache"] == pytest.approx((flops_s**3 + read_s**3) ** (1 / 3) / 2.5)
    assert lines["draft.kv_cache"] == pytest.approx(
        3 * ((flops_s / 16) ** 3 + (read_s / 4) ** 3) ** (1 / 3) / 2.5
    )
    sums = lines["decode.tp.all_reduce"], lines["draft.tp.all_reduce"]
    assert sums[0] == pytest.approx(8 * (3e-6 + 1.5 * 256 * 2048 / 100e9) / 2.5)
    assert sums[1] == pytest.approx(3 * 2 * (3e-6 + 1.5 * 64 * 2048 / 100e9) / 2.5)
    assert lines["decode.kernels"] == pytest.approx(44 * 2e-6 / 2.5)
    assert lines["draft.kernels"] == pytest.approx(3 * 14 * 2e-6 / 2.5)
    # One host step for the draft and its verification.
    assert lines["decode.host.step"] == pytest.approx(1e-3 / 2.5)
    assert "draft.host.step" not in lines
    # Prompts come with the answers' tokens, however many a step yields: 64 of 200 tokens end in 200 tokens' time.
    plain = seconds(
        decode_step(served("dense", engine=engine), Split(tp=4), 64, 1000, prompt=400, response=200)
    )
    found = seconds(decode_step(here, Split(tp=4), 64, 1000, prompt=400, response=200))
    assert found["decode.prefill"] == pytest.approx(plain["decode.prefill"])


def test_a_draft_is_held_beside_the_model():
    """One layer of 15 MiB elements, or a model of four with its tables; a token of one layer or four in the cache."""
    plain, layer = served("dense"), speculating("dense")
    more = float(weights_bytes(layer, Split(tp=4)) - weights_bytes(plain, Split(tp=4)))
    assert more == pytest.approx(2 * 15 * MIB / 4)
    whole = speculating("dense", draft=plain.model, own=True)
    assert float(weights_bytes(whole, Split(tp=4))) == pytest.approx(
        2 * float(weights_bytes(plain, Split(tp=4)))
    )
    caches = [float(cache_bytes(each, Split(), 100)) for each in (plain, layer, whole)]
    assert np.array(caches) / caches[0] == pytest.approx([1, 1.25, 2])
    # The last stage alone drafts, for each micro-batch in turn.
    one, two = (seconds(decode_step(layer, Split(pp=pp), 16 * pp, 100)) for pp in (1, 2))
    assert two["draft.mlp"] == pytest.approx(2 * one["draft.mlp"])


def test_a_prediction_layer_is_the_models_last():
    for kind in MODELS:
        model = served(kind).model
        layer = prediction_layer(model)
        assert layer.layer_kinds() == (model.layer_kinds()[model.kind_of_layer[-1]],)
        assert (layer.num_layers, layer.vocab_size) == (1, model.vocab_size)
    deepseek = prediction_layer(cm.load_model("deepseek-v3-671b"))
    assert deepseek.layer_kinds()[0].is_moe
    gemma = cm.load_model("gemma3-27b")
    assert (
        prediction_layer(gemma).layer_kinds()[0].window == gemma.layer_kinds()[gemma.kind_of_layer[-1]].window
    )


def test_without_graphs_the_host_launches_every_kernel():
    """6 kernels of attention and 4 of an MLP in 4 layers, 10 of experts, and four more, at 41 us less what the GPU does."""
    engine = FREE._replace(kernel_s=2e-6)
    for kind, kernels in (("dense", 4 * (6 + 4) + 4), ("experts", 4 * (6 + 10) + 4)):
        here = replace(served(kind, engine=engine), cuda_graphs=False)
        lines = seconds(decode_step(here, Split(), 1, 100))
        starts_s = lines.pop("decode.kernels")
        slowdown = here.cluster.accelerator.host_slowdown
        assert starts_s == pytest.approx(kernels * 41e-6 * slowdown - sum(lines.values()))
        # At many sequences the GPU takes longer than the host.
        many = seconds(decode_step(here, Split(), 4000, 4000))
        assert many["decode.kernels"] == pytest.approx(kernels * 2e-6)


def test_prefill_in_chunks_reads_weights_once_a_chunk():
    """8 prompts of 1,024 tokens are one chunk of 8,192, 12 or 16 are two; the head samples a token a prompt."""
    for prompts, chunks in ((1, 1), (8, 1), (12, 2), (16, 2)):
        lines = seconds(prefill_step(served("dense"), Split(tp=2), prompts, 1024))
        held = 48 * MIB / 2
        math_s = 2 * prompts * 1024 * held / FLOPS
        assert lines["prefill.mlp"] == joined(math_s, chunks * 2 * held / BYTES)
        head = 32000 * 1024 / 2
        assert lines["prefill.head"] == joined(2 * prompts * head / FLOPS, chunks * 2 * head / BYTES)
    slower = served("dense", engine=FREE._replace(prefill_factor=1.25))
    found = seconds(prefill_step(slower, Split(tp=2), 16, 1024))
    assert found.pop("prefill.other") == pytest.approx(0.25 * sum(found.values()))


def test_two_chunks_of_a_prefill_send_what_one_sends_twice():
    """16 prompts of 1,024 tokens against 8, which fill a chunk: sums, exchanges and hand-overs from stage to stage."""
    split = Split(tp=2, dp=2, ep=4, pp=2)
    one, two = (
        {
            name: took
            for name, took in seconds(prefill_step(served("experts"), split, prompts, 1024)).items()
            if name.startswith(("prefill.tp.", "prefill.ep.", "prefill.pp."))
        }
        for prompts in (8, 16)
    )
    assert set(one) == {
        "prefill.tp.all_reduce",
        "prefill.ep.dispatch",
        "prefill.ep.combine",
        "prefill.pp.send",
    }
    assert all(took > 0 for took in one.values())
    assert two == pytest.approx({name: 2 * took for name, took in one.items()}, rel=1e-12)


def test_experts_multiply_at_the_rate_of_their_format_or_half_of_16_bits_without_units():
    """At so many tokens products alone take the time: int8 has no units on this machine."""
    split = Split(tp=4, ep=4)
    took = {
        name: seconds(decode_step(served("experts", name), split, 1e8, 100))["decode.experts"]
        for name in ("bf16", "fp16", "fp8", "nvfp4", "int8")
    }
    ratios = [took[name] / took["bf16"] for name in ("fp16", "fp8", "nvfp4", "int8")]
    assert ratios == pytest.approx([1, 1 / 2, 1 / 4, 2], rel=1e-3)


def test_weights_of_a_gpu():
    """In NVFP4 a mixture keeps attention in 16 bits, a dense model does not; tables and the last norm are never quantised."""
    table, head = 2 * 32000 * 1024, 2 * (32000 * 1024 + 1024)
    tables = table + head
    dense = float(weights_bytes(served("dense", "nvfp4"), Split(tp=4)))
    assert dense == pytest.approx((0.5625 * 60 * MIB + tables) / 4)
    # Router: 8 x 1,024 a layer, held by every rank.
    experts = served("experts", "nvfp4")
    held = 2 * 12 * MIB / 2 + 0.5625 * (4 * 8 * 1024 + 48 * MIB / 8)
    assert float(weights_bytes(experts, Split(tp=2, dp=4, ep=8))) == pytest.approx(held + tables / 2)
    staged = float(weights_bytes(served("dense"), Split(pp=2)))
    assert staged == pytest.approx(2 * 60 * MIB / 2 + head)
    # One table for both ends: once on a GPU, and once on each of two stages.
    tied = replace(served("dense"), model=make_model({"name": "tied", **SMALL, "tied_embeddings": True}))
    for stages in (1, 2):
        whole = float(weights_bytes(tied, Split(pp=stages)))
        assert whole == pytest.approx(2 * 60 * MIB / stages + table, rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    batch=st.integers(1, 4096),
    context=st.integers(1, 100_000),
    scale=st.integers(2, 8),
)
def test_arrays_are_scalars_and_more_is_never_less(kind, batch, context, scale):
    """Over arrays of splits as over each alone; tokens a second grow with the batch, seconds with the context."""
    here = served(kind, engine=FREE._replace(step_s=1e-3, sequence_s=2e-5, kernel_s=3e-6, all_reduce_s=4e-6))
    grid = [(1, 1, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (4, 1, 1, 1)]
    if kind == "experts":
        grid += [(4, 1, 4, 1), (1, 1, 4, 4), (2, 2, 8, 4)]
    splits = Split(*(np.asarray(degrees, dtype=float) for degrees in zip(*grid, strict=True)))
    found = step_s(here, splits, batch, context, prompt=100, response=200)
    alone = [float(step_s(here, Split(*each), batch, context, prompt=100, response=200)) for each in grid]
    assert found == pytest.approx(alone, rel=1e-12)
    more = step_s(here, splits, scale * batch, context)
    few = step_s(here, splits, batch, context)
    assert np.all(scale * batch / more >= batch / few * (1 - 1e-9))
    assert np.all(step_s(here, splits, batch, scale * context) >= few)
    fits = largest_batch(here, splits, context)
    assert np.all(largest_batch(here, splits, scale * context) <= fits)
    room = np.maximum(cache_room(here, splits).value, 0.0)
    assert fits == pytest.approx(splits.dp * (room / cache_bytes(here, splits, context)))
    wider = Split(tp=np.asarray([1.0, 2.0, 4.0]))
    assert np.all(np.diff(cache_room(here, wider).value) > 0)
    assert np.all(np.diff(weights_bytes(here, wider)) < 0)
