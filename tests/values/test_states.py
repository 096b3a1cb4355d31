"""What data parallelism stores: every state at its dtype and sharding, gathered layers, and the end of a step."""

from round_jobs import (
    LAYER_PARAMS,
    MIB,
    MOE,
    SMALL,
    TABLE_PARAMS,
    cluster_file,
    each_us,
    memory,
    near,
    price,
)

N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024
TWO = {"gpus": 2, "global_batch": 2}
FP8 = {"precision": "fp8-delayed"}


def states(est, part="dense"):
    """Bytes by state, without the common beginning of their names."""
    return {name.removeprefix(f"state.{part}."): held for name, held in memory(est, f"state.{part}.").items()}


def test_what_each_stage_of_zero_shards():
    for stage, shards in [(0, (1, 1, 1, 1)), (1, (1, 1, 2, 2)), (2, (1, 2, 2, 2)), (3, (2, 2, 2, 2))]:
        names = ("parameters", "gradients", "optimizer.main_weights", "optimizer.moments")
        held = {
            name: width * N / ranks for name, width, ranks in zip(names, (2, 4, 4, 8), shards, strict=True)
        }
        assert states(price(zero_stage=stage, **TWO)) == near(held)


def test_gradients_of_several_micro_batches():
    """ZeRO-2 adds them up whole, or reduces after every one."""
    for each, ranks in [(True, 2), (False, 1)]:
        est = price(gpus=2, global_batch=8, zero_stage=2, switches={"reduce_each_micro_batch": each})
        assert states(est)["gradients"] == near(4 * N / ranks)


def test_dtypes_of_a_recipe():
    switches = {
        "param_dtype": "fp32",
        "grad_accum_dtype": "bf16",
        "autograd_grad_bytes": 2,
        "master_weights_bytes": 0,
        "moments_bytes": 4,
    }
    assert states(price(zero_stage=3, switches=switches, **TWO)) == near(
        {
            "parameters": 4 * N / 2,
            "gradients": 2 * N / 2,
            "gradients.autograd": 2 * N,  # autograd makes it whole
            "optimizer.moments": 4 * N / 2,
        }
    )


def test_fp16_gradients_of_megatron():
    """Two bytes where bf16 has four, and an fp32 copy of what the step takes: 4 + 16 / d bytes a parameter in all."""
    est = price(precision="fp16", global_batch=2, gpus=2, seq_len=8)
    assert states(est) == near(
        {"parameters": 2 * N, "gradients": 2 * N, "optimizer.main_weights": 2 * N, "optimizer.moments": 4 * N}
    )
    (kept,) = memory(est, "state.optimizer.temporaries").values()
    activations = sum(line.bytes.max() for line in est.bill.memory_lines if line.category == "activation")
    assert kept + activations == near(4 * N / 2)
    reduced = "dp.dense.grad_reduce_scatter"
    assert each_us(est)[reduced] == near(each_us(price(**TWO))[reduced] - 2 * N / 2 / 1e5)
    wants_fp32 = [{"fp16_gradients": False}, {"grad_accum_dtype": "fp32"}, {"grad_reduce_dtype": "fp32"}]
    for changes in (*({"switches": one} for one in wants_fp32), {"precision": "bf16"}):
        assert states(price(**{"precision": "fp16", **TWO, **changes}))["gradients"] == near(4 * N)


def test_states_on_the_host():
    assert states(price(switches={"offload_optimizer": True}, **TWO)) == near(
        {"parameters": 2 * N, "gradients": 4 * N}
    )


def test_quantised_copies_of_weights():
    for kept, stage, expected in [
        ("none", 1, {"parameters": 2 * N}),
        ("cached", 2, {"parameters": 2 * N, "parameters.quantised": 2 * N}),  # both orientations, whole
        ("cached", 3, {"parameters": N, "parameters.quantised": N}),
        ("primary", 1, {"parameters": 2 * N}),
    ]:
        est = price(zero_stage=stage, switches={"quantised_weights": kept}, **TWO, **FP8)
        assert {name: held for name, held in states(est).items() if name.startswith("param")} == near(
            expected
        )
        # Primary weights are gathered in one byte.
        gather = "dp.layer.dense.param_all_gather.forward" if stage == 3 else "dp.dense.param_all_gather"
        size = (LAYER_PARAMS if stage == 3 else N) * (1 if kept == "primary" else 2)
        assert each_us(est)[gather] == near(6 + size / 2 / 1e5)


def test_groups_that_shard():
    """Eight replicas in groups of two: sharded twice, not eight times."""
    est = price(gpus=8, global_batch=8, shard_group=2)
    assert states(est)["optimizer.moments"] == near(8 * N / 2)
    wide = price(gpus=8, global_batch=8)
    assert states(wide)["optimizer.moments"] == near(N)
    with_context = price(gpus=8, layout="cp4", global_batch=2, seq_len=4096)
    assert states(with_context)["optimizer.moments"] == near(N)


def test_a_tied_table_on_both_ends():
    tied = {**SMALL, "tied_embeddings": True}
    layers = 2 * LAYER_PARAMS + TABLE_PARAMS
    est = price(tied, gpus=2, layout="pp2", global_batch=2)
    assert states(est)["gradients"] == near([4 * layers, 4 * (layers + 1024)])
    assert states(price(tied))["gradients"] == near(4 * (N - TABLE_PARAMS))


def test_a_rank_of_dualpipe_holds_parameters_twice():
    est = price(gpus=8, layout="pp4", global_batch=16, schedule="dualpipe")
    once = price(gpus=8, layout="pp4", global_batch=16, schedule="1f1b")
    # Ends share what they hold: half of a table on ranks 0 and 3, for both copies of each.
    ends, middle = LAYER_PARAMS + (TABLE_PARAMS + TABLE_PARAMS + 1024) / 2, LAYER_PARAMS
    assert states(est) == near(
        {
            "parameters": [2 * 2 * part for part in (ends, middle, middle, ends)],
            "gradients": [2 * 4 * part for part in (ends, middle, middle, ends)],
            "optimizer.main_weights": [4 / 2 * part for part in (ends, middle, middle, ends)],
            "optimizer.moments": [8 / 2 * part for part in (ends, middle, middle, ends)],
        }
    )
    assert states(once)["parameters"][1] == near(2 * middle)


def test_experts():
    """Two of eight on each of four ranks, twice over eight GPUs; two ranks of each expert hold half of it."""
    each = 4 * 1536 * 1024
    est = price(MOE, gpus=8, layout="ep4", global_batch=8)
    assert states(est, "expert") == near(
        {
            "parameters": 2 * 2 * each,
            "gradients": 4 * 2 * each,
            "optimizer.main_weights": 4 * 2 * each / 2,
            "optimizer.moments": 8 * 2 * each / 2,
        }
    )
    dense = 4 * (3 * 2**20 + 8 * 1024 + 2 * 1024) + 2 * TABLE_PARAMS + 1024
    assert states(est)["optimizer.moments"] == near(8 * dense / 8)
    split = price(MOE, gpus=8, layout="ep4 etp2", global_batch=8)
    assert states(split, "expert")["parameters"] == near(2 * each)


def test_gathered_layers():
    """ZeRO-3: a layer and the next, the tables, and the largest gradient twice: in 16 bits and as it is reduced."""
    root = 2 * TABLE_PARAMS + 1024
    name = "buffer.dp.gathered_layers"
    asked = {"zero_stage": 3, **TWO}

    def held(**switches):
        return memory(price(switches=switches, **asked), name)

    assert held() == near({name: 2 * (2 * LAYER_PARAMS + root + root) + 4 * root})
    assert held(grad_reduce_dtype="bf16") == near({name: 2 * (2 * LAYER_PARAMS + root + root) + 2 * root})
    # BestLayouts after the forward pass, all is gathered, and one layer's gradient.
    assert held(fsdp_reshard_after_forward=False) == near({name: 2 * (N + LAYER_PARAMS) + 4 * LAYER_PARAMS})
    assert memory(price(zero_stage=3), name) == {}
    assert memory(price(zero_stage=2, **TWO), name) == {}


def test_gathered_layers_of_a_pipeline():
    """Stages of two layers and one table; kept over micro-batches, their gradients add up whole."""
    name = "buffer.dp.gathered_layers"
    ends = TABLE_PARAMS, TABLE_PARAMS + 1024
    asked = {"gpus": 4, "layout": "pp2", "global_batch": 8, "zero_stage": 3}
    assert memory(price(**asked), name) == near(
        {name: [2 * (2 * LAYER_PARAMS + 2 * end) + 4 * end for end in ends]}
    )
    stays = price(switches={"fsdp_pp_keeps_gathered": True}, **asked)
    whole = [2 * LAYER_PARAMS + end for end in ends]
    assert memory(stays, name) == near({name: [2 * (held + LAYER_PARAMS) + 4 * held for held in whole]})


def test_gathered_tensors():
    """ZeRO-3 by tensor: the widest matrix (gate or up: 4 Mi), the next and a gradient; or a table and its own."""
    name = "buffer.dp.gathered_tensors"
    asked = {"zero_stage": 3, **TWO}
    matrix = 4 * 2**20

    def held(model=SMALL, asked=asked, **switches):
        return memory(price(model, switches={"fsdp_by_tensor": True, **switches}, **asked), name)

    assert held() == near({name: 2 * 2 * TABLE_PARAMS})
    narrow = {**SMALL, "vocab_size": 1024}
    assert held(narrow) == near({name: 2 * 3 * matrix})
    # Without a gate the first matrix is not two; 32 bits a gathered parameter.
    plain = {**narrow, "gated_mlp": False, "ffn_size": 8192}
    assert held(plain, gather_dtype="fp32") == near({name: 4 * 3 * 2 * matrix})
    # In a pipeline only the ends have tables; tensor parallelism splits both.
    four = {"gpus": 8, "layout": "tp2 pp2", "global_batch": 4, "zero_stage": 3}
    assert held(asked=four) == near({name: 2 * 2 * TABLE_PARAMS / 2})
    stages = {**four, "layout": "pp4", "global_batch": 8}
    assert held({**SMALL, "num_layers": 8}, asked=stages) == near(
        {name: [2 * 2 * TABLE_PARAMS, 2 * 3 * matrix, 2 * 3 * matrix, 2 * 2 * TABLE_PARAMS]}
    )
    assert held(asked={"zero_stage": 2, **TWO}) == {}
    # What stays gathered is whole however it was gathered.
    everything = held(fsdp_reshard_after_forward=False)
    assert everything == {}
    kept = price(switches={"fsdp_by_tensor": True, "fsdp_reshard_after_forward": False}, **asked)
    by_layer = price(switches={"fsdp_reshard_after_forward": False}, **asked)
    whole = "buffer.dp.gathered_layers"
    assert memory(kept, whole) == memory(by_layer, whole) != {}


def test_gathered_tensors_of_experts():
    """All experts of a rank are one tensor: 4 x 2 x 512 x 1,024, half of it the gate; a group of one has none."""
    name, narrow = "buffer.dp.gathered_tensors", {**MOE, "vocab_size": 1024}
    asked = {"gpus": 8, "global_batch": 8, "zero_stage": 3, "switches": {"fsdp_by_tensor": True}}
    assert memory(price(narrow, layout="ep2", **asked), name) == near({name: 2 * 3 * 4 * 512 * 1024})
    # Of attention, Q, K and V in one: 2 Mi.
    assert memory(price(narrow, layout="ep8", **asked), name) == near({name: 2 * 3 * 2 * 2**20})


def test_gathered_experts():
    """Experts whose group is one rank are there already."""
    name = "buffer.dp.gathered_layers"
    dense = 3 * 2**20 + 8 * 1024 + 2 * 1024
    root = 2 * TABLE_PARAMS + 1024
    alone = price(MOE, gpus=8, layout="ep8", global_batch=8, zero_stage=3)
    assert memory(alone, name) == near({name: 2 * (2 * dense + 2 * root) + 4 * root})
    twice = price(MOE, gpus=8, layout="ep4", global_batch=8, zero_stage=3)
    assert memory(twice, name) == near({name: 2 * (2 * (dense + 2 * 1536 * 1024) + 2 * root) + 4 * root})


def test_the_last_average():
    for momentum, width in [(True, 8), (False, 4)]:
        switches = {"sync_every": 10, "outer_momentum": momentum}
        est = price(zero_stage=0, switches=switches, **TWO)
        assert memory(est, "state.optimizer.outer") == near({"state.optimizer.outer": width * N})
        sharded = price(gpus=8, global_batch=8, shard_group=4, switches=switches)
        assert memory(sharded, "state.optimizer.outer") == near({"state.optimizer.outer": width * N / 4})


def test_residuals_of_compression():
    each = 4 * 2 * 1536 * 1024
    dense = 4 * (3 * 2**20 + 8 * 1024 + 2 * 1024) + 2 * TABLE_PARAMS + 1024
    est = price(
        MOE, gpus=4, layout="ep4", global_batch=4, zero_stage=0, switches={"gradient_compression": "top-k"}
    )
    name = "state.gradients.residual"
    assert memory(est, name) == near({name: 4 * (dense + each)})
    assert memory(price(zero_stage=0, switches={"gradient_compression": "fp16"}, **TWO), name) == {}


def test_the_bucket_of_a_reduction():
    for elements, dtype, expected in [(5e8, "fp32", 4 * N), (5e8, "bf16", 6 * N), (1e8, "fp32", 4e8)]:
        switches = {"reduce_bucket_elements": elements, "grad_reduce_dtype": dtype}
        assert memory(price(switches=switches, **TWO), "reserve.reduce") == near(
            {"reserve.reduce_bucket": expected}
        )
        assert memory(price(switches=switches), "reserve.reduce") == {}


def test_the_copy_for_the_norm():
    """Of the largest tensor, a table of 32.8 million, but never more than a rank has."""
    for job, elements in [({"zero_stage": 0}, TABLE_PARAMS), ({"gpus": 8, "global_batch": 8}, N / 8)]:
        est = price(switches={"norm_copy_bytes": 4}, **job)
        assert memory(est, "reserve.gradient") == near({"reserve.gradient_norm": 4 * elements})
    # Beside a small table it is the matrix of gate and up projection, of which tensor parallelism leaves a rank half.
    est = price({**SMALL, "vocab_size": 1024}, switches={"norm_copy_bytes": 4}, gpus=2, layout="tp2")
    assert memory(est, "reserve.gradient") == near({"reserve.gradient_norm": 4 * 4 * MIB})


def test_temporaries_of_adam_take_the_place_of_activations():
    est = price(switches={"adam_temporary_bytes": 16})
    activations = 4 * (10 * MIB + 32768) + 4 * 28 * MIB + 2 * MIB + 10 * 32_768_000
    assert memory(est, "state.optimizer") == near({"state.optimizer.temporaries": 16 * N - activations})
    small = price(switches={"adam_temporary_bytes": 2})
    assert memory(small, "state.optimizer") == {}
    halves = price(switches={"adam_temporary_bytes": 16}, **TWO)
    assert memory(halves, "state.optimizer") == near({"state.optimizer.temporaries": 8 * N - activations})


def test_gradients_that_are_whole_a_chunk_at_a_time():
    """Of two ranks that share them, a chunk is whole and the rest sharded (Llama 3's ZeRO-2)."""
    for more, whole in [
        # Four stages of two chunks run four micro-batches through a chunk, and are done with it.
        ({}, 1 / 2),
        # Eight micro-batches come back to it; other schedules and stages of ZeRO have no chunk at a time.
        ({"global_batch": 16}, 1),
        ({"vp": 1, "schedule": "1f1b"}, 1),
        ({"zero_stage": 1}, 1),
    ]:
        job = {
            "gpus": 8,
            "pp": 4,
            "vp": 2,
            "schedule": "interleaved",
            "zero_stage": 2,
            "global_batch": 8,
            **more,
        }
        model = {**SMALL, "num_layers": 8}
        held = states(price(model, switches={"reduce_each_chunk": True}, **job))
        params = [size / 2 for size in held["parameters"]]
        assert held["gradients"] == near([4 * size * (whole + (1 - whole) / 2) for size in params])


FLAT = {
    "gpus": 8,
    "layout": "tp1",
    "global_batch": 8,
    "seq_len": 64,
    "zero_stage": 2,
    "switches": {"flattens_parameters": True},
}


def flat(**changes):
    """Return the estimate, and what flat buffers left empty."""
    job = {"dp": 8, **FLAT, **changes, "switches": {**FLAT["switches"], **changes.get("switches", {})}}
    est = price(**job)
    return est, memory(est, "reserve.left").get("reserve.left_by_flattening", 0.0)


def test_what_parameters_leave_behind():
    """Gradients and activations come to lie there."""
    est, left = flat()
    assert left == near(2 * N - 4 * N / 8 - sum(memory(est, "activation.").values()))
    assert left > 5e7


def test_only_zero_2_copies_parameters_into_buffers_of_ranks():
    assert [flat(zero_stage=stage)[1] > 0 for stage in range(4)] == [False, False, True, False]
    assert flat(seq_len=1024)[1] == 0  # activations take more than there was
    assert flat(switches={"flattens_parameters": False})[1] == 0


def test_empty_chunks_are_given_back_before_memory_runs_out():
    est, left = flat(switches={"allocator_slack": 0.1, "context_bytes": 2e7})
    held = float(est.memory_bytes_per_gpu) - left
    tight, rest = flat(
        switches={"allocator_slack": 0.1, "context_bytes": 2e7},
        cluster=cluster_file(gpu=dict.fromkeys(("memory", "memory_vendor"), f"{held + 3e7} B")),
    )
    assert rest == near(3e7)
    assert tight.fits
    short, none = flat(
        switches={"allocator_slack": 0.1, "context_bytes": 2e7},
        cluster=cluster_file(gpu=dict.fromkeys(("memory", "memory_vendor"), f"{held - 1e6} B")),
    )
    assert none == 0
    assert not short.fits
