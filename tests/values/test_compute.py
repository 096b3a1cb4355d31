"""Compute: every operator of a layer, the embedding and the head, in seconds and bytes worked out by hand."""

import pytest
from round_jobs import (
    CLUSTER,
    HIDDEN,
    LATENT,
    MIB,
    QUIET,
    SMALL,
    TOKENS,
    attention_us,
    computed_us,
    counts,
    each_us,
    line,
    memory,
    model_file,
    moved_us,
    near,
    price,
    product_us,
    sent_bytes,
    total_us,
    weight_us,
)

import costmodel as cm

# One MiB of elements: 1,024 tokens of width 1,024.
ELEMENTS = TOKENS * HIDDEN
ATTENTION, MLP = "compute.attention.", "compute.mlp."


def test_every_line_of_a_dense_layer():
    est = price()
    assert each_us(est, ATTENTION, MLP) == near(
        {
            "compute.attention.norm.forward": computed_us(0.45 * ELEMENTS),  # slower than 4 B an element
            "compute.attention.norm.backward": computed_us(1.1 * ELEMENTS, 2),
            "compute.attention.qkv.forward": product_us(1024, 2048, 1024),
            "compute.attention.qkv.backward_input": product_us(1024, 1024, 2048),
            "compute.attention.qkv.backward_weight": weight_us(1024, 2048, 1024),
            "compute.attention.rope.forward": 7.291456,  # Q and K: 1.5 Mi elements, 4 B
            "compute.attention.rope.backward": 7.291456,
            "compute.attention.core.forward": attention_us(8, 4, 1024, 1024, 512, 128),
            "compute.attention.core.backward": attention_us(8, 4, 1024, 1024, 512, 128, backward=True),
            "compute.attention.out.forward": product_us(1024, 1024, 1024),
            "compute.attention.out.backward_input": product_us(1024, 1024, 1024),
            "compute.attention.out.backward_weight": weight_us(1024, 1024, 1024),
            "compute.attention.residual.forward": 7.291456,  # 6 B
            "compute.mlp.norm.forward": computed_us(0.45 * ELEMENTS),
            "compute.mlp.norm.backward": computed_us(1.1 * ELEMENTS, 2),
            "compute.mlp.fc1.forward": product_us(1024, 8192, 1024),
            "compute.mlp.fc1.backward_input": product_us(1024, 1024, 8192),
            "compute.mlp.fc1.backward_weight": weight_us(1024, 8192, 1024),
            "compute.mlp.activation.forward": 26.165824,  # 4 Mi elements, 6 B
            "compute.mlp.activation.backward": computed_us(1.2 * 4 * ELEMENTS),
            "compute.mlp.fc2.forward": product_us(1024, 1024, 4096),
            "compute.mlp.fc2.backward_input": product_us(1024, 4096, 1024),
            "compute.mlp.fc2.backward_weight": weight_us(1024, 1024, 4096),
            "compute.mlp.residual.forward": 7.291456,
        }
    )
    assert set(counts(est, ATTENTION, MLP).values()) == {4.0}


def test_the_sums_behind_a_product_and_an_attention_kernel():
    """2 m n k is 2^32: 85.9 us beside 10.5 us of memory; attention meets half of the keys."""
    assert product_us(1024, 2048, 1024) == near(2 + (85.89934592**3 + 10.48576**3) ** (1 / 3))
    assert weight_us(1024, 2048, 1024) == near(2 + (85.89934592**3 + (6.291456 + 16.777216) ** 3) ** (1 / 3))
    assert attention_us(8, 4, 1024, 1024, 512, 128) == near(4 + (42.94967296**3 + 6.291456**3) ** (1 / 3))


def test_every_line_of_embedding_and_head():
    est = price(gpus=2, global_batch=8)
    assert each_us(est, "compute.embedding.", "compute.head.") == near(
        {
            "compute.embedding.lookup.forward": moved_us(4 * ELEMENTS, 3),
            "compute.embedding.lookup.backward": moved_us(8 * ELEMENTS, 3),
            "compute.head.norm.forward": computed_us(0.45 * ELEMENTS),
            "compute.head.norm.backward": computed_us(1.1 * ELEMENTS, 2),
            "compute.head.logits.forward": product_us(1024, 32000, 1024),
            "compute.head.logits.backward_input": product_us(1024, 1024, 32000),
            "compute.head.logits.backward_weight": weight_us(1024, 32000, 1024),
            "compute.head.loss.forward": 10 + 34 * 32.768,  # 32.768 million logits, 10 kernels
            "compute.head.loss.backward": 4 + 10 * 32.768,
            "compute.head.gathered_logits.forward": 1.0,
        }
    )
    assert set(counts(est, "compute.").values()) == {4.0, 16.0}  # four micro-batches, four layers


def test_ways_to_take_the_loss():
    for loss, tokens, forward_us, backward_us, held in [
        ("unfused", 2048, 10 + 34 * 65.536, 4 + 10 * 65.536, 10 * 65_536_000),
        ("fused", 2048, 3 + 6 * 65.536, 1 + 4 * 65.536, 4 * 65_536_000),
        ("chunked", 2048, 16 + 6 * 65.536, 4 * 65.536, 8 * 32_768_000),
    ]:
        est = price(seq_len=tokens, switches={"cross_entropy": loss})
        assert each_us(est, "compute.head.loss") == near(
            {"compute.head.loss.forward": forward_us, "compute.head.loss.backward": backward_us}
        )
        assert memory(est, "activation.head") == near({"activation.head": held + 2 * tokens * HIDDEN})


def test_a_tensor_rank_has_its_share_of_the_vocabulary():
    est = price(gpus=2, layout="tp2")
    assert each_us(est, "compute.head.l") == near(
        {
            "compute.head.logits.forward": product_us(1024, 16000, 1024),
            "compute.head.logits.backward_input": product_us(1024, 1024, 16000),
            "compute.head.logits.backward_weight": weight_us(1024, 16000, 1024),
            "compute.head.loss.forward": 10 + 34 * 16.384,
            "compute.head.loss.backward": 4 + 10 * 16.384,
        }
    )
    whole = price(
        gpus=2, layout="tp2", switches={"vocab_parallel_loss": False, "split_loss_bytes_per_logit": 4}
    )
    assert each_us(whole, "compute.head.l", "compute.head.g") == near(
        {
            "compute.head.logits.forward": product_us(1024, 16000, 1024),
            "compute.head.logits.backward_input": product_us(1024, 1024, 16000),
            "compute.head.logits.backward_weight": weight_us(1024, 16000, 1024),
            "compute.head.loss.forward": 10 + 34 * 32.768,
            "compute.head.loss.backward": 4 + 10 * 32.768,
            "compute.head.gathered_logits.forward": 1 + 4 * 16.384,  # the other half is copied in
        }
    )
    # Half of the norm's output, and 10 + 4 bytes of each logit.
    assert memory(whole, "activation.head") == near({"activation.head": MIB + 14 * 32_768_000})


def test_what_a_dense_layer_keeps():
    est = price()
    held = memory(est, "activation.", "buffer.")
    assert held == near(
        {
            # Output of the norm 2, Q, K and V 4, output of the core 2, residual stream 2, row sums of 8 heads.
            "activation.attention": 4 * (10 * MIB + 4 * TOKENS * 8),
            # Norm 2, gate and up 16, their product 8, residual stream 2.
            "activation.mlp": 4 * 28 * MIB,
            "activation.head": 2 * MIB + 10 * 32_768_000,
        }
    )


def test_stubs_of_weight_gradients():
    """One layer's matrices in 16 bits, and the output matrix beside the logits."""
    est = price(switches={"fused_wgrad": True})
    assert memory(est, "buffer.weight") == near(
        {"buffer.weight_gradient_stub.layers": 30 * MIB, "buffer.weight_gradient_stub.head": 65_536_000}
    )


def test_selective_recomputation():
    est = price(recompute="selective", switches={"selective_modules": ["core_attn", "mlp_act", "layernorm"]})
    again = {name: us for name, us in each_us(est).items() if name.endswith(".recompute")}
    assert again == near(
        {
            "compute.attention.norm.recompute": computed_us(0.45 * ELEMENTS),
            "compute.attention.core.recompute": attention_us(8, 4, 1024, 1024, 512, 128),
            "compute.mlp.norm.recompute": computed_us(0.45 * ELEMENTS),
            "compute.mlp.activation.recompute": 26.165824,
        }
    )
    held = memory(est, "activation.attention", "activation.mlp", "activation.checkpoint")
    assert held == near({"activation.attention": 4 * 6 * MIB, "activation.mlp": 4 * 18 * MIB})


def test_every_second_product_is_kept():
    est = price(recompute="selective", switches={"selective_modules": ["every_second_matmul"]})
    again = {name: us for name, us in each_us(est).items() if name.endswith(".recompute")}
    assert again == near(
        {
            "compute.attention.norm.recompute": computed_us(0.45 * ELEMENTS),
            "compute.attention.qkv.recompute": product_us(1024, 2048, 1024) / 2,
            "compute.attention.rope.recompute": 7.291456,
            "compute.attention.out.recompute": product_us(1024, 1024, 1024) / 2,
            "compute.attention.residual.recompute": 7.291456,
            "compute.mlp.norm.recompute": computed_us(0.45 * ELEMENTS),
            "compute.mlp.fc1.recompute": product_us(1024, 8192, 1024) / 2,
            "compute.mlp.activation.recompute": 26.165824,
            "compute.mlp.fc2.recompute": product_us(1024, 1024, 4096) / 2,
            "compute.mlp.residual.recompute": 7.291456,
        }
    )
    assert memory(est, "activation.attention", "activation.mlp", "activation.checkpoint") == near(
        {
            # Half of Q, K, V (4) and of the output (2), the core with its row sums; half of fc1 (16) and fc2 (2).
            "activation.attention": 4 * (2 + 1 + 2 + 1 / 32) * MIB,
            "activation.mlp": 4 * (8 + 1) * MIB,
            "activation.checkpoint": 4 * 2 * MIB,
        }
    )


@pytest.mark.parametrize(
    ("module", "share_of_fc2", "share_of_core", "mlp_mib"),
    [("every_second_layer", 0.5, 0.5, 14), ("all_but_qkv", 1.0, 1.0, 0)],
)
def test_other_ways_to_recompute(module, share_of_fc2, share_of_core, mlp_mib):
    est = price(recompute="selective", switches={"selective_modules": [module]})
    again = each_us(est)
    assert again["compute.mlp.fc2.recompute"] == near(share_of_fc2 * product_us(1024, 1024, 4096))
    assert again["compute.attention.core.recompute"] == near(
        share_of_core * attention_us(8, 4, 1024, 1024, 512, 128)
    )
    assert memory(est, "activation.mlp").get("activation.mlp", 0.0) == near(4 * mlp_mib * MIB)
    assert ("compute.attention.qkv.recompute" in again) == (module == "every_second_layer")


def test_full_recomputation():
    est = price(recompute="full", gpus=2, layout="pp2", global_batch=4)
    times = each_us(est, ATTENTION, MLP)
    again = {name.removesuffix("recompute"): us for name, us in times.items() if name.endswith(".recompute")}
    forward = {name.removesuffix("forward"): us for name, us in times.items() if name.endswith(".forward")}
    assert again == forward
    assert memory(est, "activation.") == near(
        {
            "activation.checkpoint": [
                2 * 2 * 2 * MIB,
                2 * 2 * MIB,
            ],  # of two layers, for two micro-batches and one
            "activation.head": [0.0, 2 * MIB + 10 * 32_768_000],
            # One whole layer, and the gradients of the gate's product: 8,192 + 1,024 wide.
            "activation.backward_pass": [38 * MIB + 32_768 + 18 * MIB, 0.0],
        }
    )


def test_a_checkpoint_is_sharded_with_the_sequence():
    est = price(recompute="full", gpus=2, layout="tp2")
    assert memory(est, "activation.checkpoint") == near({"activation.checkpoint": 4 * MIB})


def test_recomputation_that_stops_early():
    est = price(recompute="full", switches={"recompute_early_stop": True})
    again = {name for name in each_us(est) if name.endswith(".recompute")}
    assert "compute.mlp.activation.recompute" in again
    assert not {"compute.mlp.fc2.recompute", "compute.mlp.residual.recompute"} & again


def test_the_head_works_on_one_micro_batch_at_a_time():
    """GPipe keeps the layers' activations of all eight, on both stages."""
    est = price(gpus=2, layout="pp2", global_batch=8, schedule="gpipe")
    held = memory(est, "activation.")
    assert held["activation.mlp"] == near(8 * 2 * 28 * MIB)
    assert held["activation.head"] == near([0.0, 2 * MIB + 10 * 32_768_000])


def test_gradients_beside_the_logits():
    """With a loss in one kernel the logits are smaller than a layer's recomputation."""
    est = price(recompute="full", seq_len=1024, switches={"cross_entropy": "chunked", "fused_wgrad": True})
    small = price(
        {**SMALL, "vocab_size": 1024},
        recompute="full",
        switches={"cross_entropy": "fused", "fused_wgrad": True},
    )
    assert memory(est, "activation.back") == {}
    # 56 MiB and row sums, less 4 MiB of logits and gradients, 2 MiB of the norm and 2 MiB of the stub.
    assert memory(small, "activation.back") == near({"activation.backward_pass": 48 * MIB + 32_768})


# Kernels of a layer: forward 11, backward 2 a norm, a product and attention, 1 for rotary and activation, 0 for sums.
def test_the_host_issues_kernels():
    """At 1 ms a launch the GPU waits: the excess over what it does, collectives included."""
    for job, switches, forward, backward in [
        ({}, {}, 11, 16),
        ({"gpus": 2, "layout": "tp2"}, {}, 11 + 4, 16 + 6),
        ({"recompute": "selective"}, {"selective_modules": ["core_attn"]}, 11, 16 + 1 + 20),
        ({"recompute": "full"}, {}, 11, 16 + 11 + 20),
        ({"recompute": "full"}, {"recompute_early_stop": True}, 11, 16 + 9 + 20),
        (
            {},
            {"fused_norm": False, "fused_rope": False, "fused_activation": False},
            11 + 12 + 7 + 1,
            16 + 28 + 7 + 3,
        ),
    ]:
        est = price(switches={"launch_s": 9e-4, **switches}, **job)
        parts = ("compute.attention.", "compute.mlp.", "tp.attention.", "tp.mlp.")
        gpu = {phase: total_us(est, phase, *parts) for phase in ("forward", "backward", "recompute")}
        gpu["backward"] += total_us(est, "backward_weight", *parts)
        gpu_back = gpu["backward"] + gpu["recompute"]
        # The excess of a backward pass stretches its kernels alike: weight gradients get their share of it.
        of_weights = total_us(est, "backward_weight", *parts) / gpu_back
        excess = backward * 900 - gpu_back
        assert each_us(est, "compute.layer.host") == near(
            {
                "compute.layer.host.forward": forward * 900 - gpu["forward"],
                "compute.layer.host.backward": (1 - of_weights) * excess,
                "compute.layer.host.backward_weight": of_weights * excess,
            }
        )


def test_a_recipe_without_a_launch_time_of_its_own_pays_twenty_microseconds_a_kernel():
    """At 64 tokens the GPU waits for the host at either launch time, so a layer takes as long as its launches."""
    quiet = {name: value for name, value in QUIET.items() if name != "launch_s"}

    def forward_us(**launch):
        est = cm.estimate(
            model=model_file(SMALL),
            cluster=str(CLUSTER),
            gpus=1,
            global_batch=1,
            seq_len=64,
            recipe="megatron-2022",
            switches={**quiet, **launch},
        )
        return total_us(est, "forward", "compute.attention.", "compute.mlp.", "compute.layer.host")

    assert forward_us() == near(20 / 900 * forward_us(launch_s=9e-4))


BACK = ("backward", "backward_weight")


def test_the_gpu_idles_between_kernels():
    """A gap before each of 11 and 16 kernels, where the host is not later; what is kept of random states is no kernel."""
    gaps = {"kernel_gap_s": 2e-6}

    def host_us(**job):
        found = each_us(price(**{"switches": gaps, **job}), "compute.layer.host")
        return found.pop("compute.layer.host.forward"), sum(found.values())

    assert host_us() == (near(22.0), near(32.0))
    assert host_us(recompute="full") == (near(22.0), near(2 * (16 + 11)))
    assert host_us(gpus=2, layout="tp2")[0] == near(2 * (11 + 4))
    slow = {**gaps, "launch_s": 9e-4}
    without = each_us(price(switches={"launch_s": 9e-4}), "compute.layer.host")
    assert each_us(price(switches=slow), "compute.layer.host") == near(without)
    assert each_us(price(switches={**gaps, "cuda_graphs": True}), "compute.layer.host") == {}


def test_host_and_gpu_take_turns_where_launches_block():
    est = price(switches={"launch_s": 1e-6, "launch_blocking": True})
    found = each_us(est, "compute.layer.host")
    back, of_weights = (total_us(est, phase, "compute.attention.", "compute.mlp.") for phase in BACK)
    assert found.pop("compute.layer.host.forward") == near(11.0)
    assert sum(found.values()) == near(16.0)
    assert found["compute.layer.host.backward_weight"] == near(16.0 * of_weights / (back + of_weights))
    assert each_us(price(switches={"launch_s": 1e-6}), "compute.layer.host") == {}
    assert each_us(price(switches={"launch_s": 1e-3 - 1e-9, "cuda_graphs": True}), "compute.layer.host") == {}


def test_sms_held_by_communication():
    est = price(switches={"reserved_sm_share": 0.2})
    assert each_us(est)["compute.attention.qkv.forward"] == near(product_us(1024, 2048, 1024, tflops=40))
    flops = 2 * 8 * 1024 * 512 * 256
    assert each_us(est)["compute.attention.core.forward"] == near(
        4 + ((flops / 40e6) ** 3 + 6.291456**3) ** (1 / 3)
    )


@pytest.mark.parametrize(("held", "waves"), [(0.0, 1.0), (0.2, 2 * 0.8), (0.5, 2 * 0.5), (0.6, 3 * 0.4)])
def test_norms_wait_for_a_second_wave_beside_held_sms(held, waves):
    """A grid of so many blocks for each SM: what does not fit those that are left takes a wave more."""
    times = each_us(price(switches={"reserved_sm_share": held}))
    assert times["compute.attention.norm.forward"] == near(1 + waves * (computed_us(0.45 * ELEMENTS) - 1))
    assert times["compute.mlp.norm.backward"] == near(2 + waves * (computed_us(1.1 * ELEMENTS, 2) - 2))
    assert times["compute.mlp.activation.forward"] == near(26.165824)


def test_a_norm_that_adds_the_residual():
    """Two streams in and two out, gradients of both in and one out; none is added elsewhere but kept all the same."""
    est = price(switches={"norm_adds_residual": True})
    times = each_us(est, ATTENTION, MLP)
    for part in ("attention", "mlp"):
        assert times[f"compute.{part}.norm.forward"] == near(moved_us(8 * ELEMENTS))
        assert times[f"compute.{part}.norm.backward"] == near(moved_us(8 * ELEMENTS, 2))
        assert f"compute.{part}.residual.forward" not in times
    assert each_us(est, "compute.head.norm") == each_us(price(), "compute.head.norm")
    assert memory(est, "activation") == memory(price(), "activation")


def test_rotation_element_by_element():
    """64 columns of 8 queries and a key, 2.07e9 elements a second on the one SM; wider heads fill vectors."""
    wide = {**LATENT, "qk_rope_head_dim": 64}
    switches = {"rope_by_element": True}
    one_by_one = each_us(price(wide, switches=switches))
    assert one_by_one["compute.attention.rope.forward"] == near(1 + 1024 * 64 * 9 / 2.07e3)
    assert one_by_one["compute.attention.rope.backward"] == near(1 + 1024 * 64 * 9 / 2.07e3)
    name = "compute.attention.rope.forward"
    assert each_us(price(switches=switches))[name] == near(each_us(price())[name])


def test_gradients_added_by_a_kernel_of_their_own():
    """Written in 16 bits, then 2 B of it and 4 B of the sum are read, and 4 B written."""
    est = price(switches={"fused_grad_accumulation": False})
    assert each_us(est)["compute.attention.qkv.backward_weight"] == near(
        product_us(1024, 2048, 1024) + moved_us(10 * 1024 * 2048)
    )
    half = price(switches={"grad_accum_dtype": "bf16"})
    assert each_us(half)["compute.attention.qkv.backward_weight"] == near(
        product_us(1024, 2048, 1024, output=4)
    )


def test_attention_through_the_score_matrix():
    """Batched products over 8 heads of 130: rows of 260 bytes run on the CUDA cores at half of 10 TFLOP/s."""
    model = {**SMALL, "num_kv_heads": 8, "head_dim": 130}
    est = price(model, switches={"attention_kernel": "unfused", "dropout": True})
    times = each_us(est, "compute.attention.s", "compute.attention.d", "compute.attention.c")
    scores = 8 * ELEMENTS
    batch = {"groups": 8, "tflops": 5}
    assert times == near(
        {
            "compute.attention.scores.forward": product_us(1024, 1024, 130, **batch),
            "compute.attention.scores.backward_input": product_us(1024, 130, 1024, **batch),
            "compute.attention.scores.backward_weight": product_us(130, 1024, 1024, **batch),
            "compute.attention.softmax.forward": moved_us(29 * scores, 5),
            "compute.attention.softmax.backward": moved_us(33 * scores, 5),
            # One SM draws 2.07e9 / 0.78 numbers a second, more slowly than memory moves 5 B of each.
            "compute.attention.dropout.forward": computed_us(0.78 * scores),
            "compute.attention.dropout.backward": moved_us(5 * scores),
            "compute.attention.context.forward": product_us(1024, 130, 1024, **batch),
            "compute.attention.context.backward_input": product_us(1024, 1024, 130, **batch),
            "compute.attention.context.backward_weight": product_us(1024, 130, 1024, **batch),
        }
    )
    aligned = price({**SMALL, "num_kv_heads": 8}, switches={"attention_kernel": "fused-softmax"})
    assert each_us(aligned)["compute.attention.scores.forward"] == near(product_us(1024, 1024, 128, groups=8))
    times = each_us(aligned)
    # Under the diagonal both gradient and output are read, half of each, and all is written.
    assert times["compute.attention.softmax.forward"] == near(moved_us(3 * scores))
    assert times["compute.attention.softmax.backward"] == near(moved_us(4 * scores))


def test_the_fused_softmax_takes_four_rows_a_block():
    """Heads times sequences that are no multiple of four are left to PyTorch; a compiler has no such block."""
    for heads, micro_batch, switches, forward, backward, kernels in [
        (8, 1, {}, 3, 4, 1),
        (6, 2, {}, 3, 4, 1),
        (6, 1, {}, 29, 33, 5),
        (2, 1, {}, 29, 33, 5),
        (6, 1, {"compiled": True}, 4, 6, 1),
    ]:
        model = {**SMALL, "num_heads": heads, "num_kv_heads": heads, "head_dim": 128}
        est = price(
            model,
            global_batch=4,
            micro_batch=micro_batch,
            switches={"attention_kernel": "fused-softmax", **switches},
        )
        times, scores = each_us(est), micro_batch * heads * 1024 * 1024
        assert times["compute.attention.softmax.forward"] == near(moved_us(forward * scores, kernels))
        assert times["compute.attention.softmax.backward"] == near(moved_us(backward * scores, kernels))


def test_a_window_has_a_mask_of_its_own():
    windows = {**SMALL, "num_kv_heads": 8, "sliding_window": 256}
    times = each_us(price(windows, switches={"attention_kernel": "fused-softmax"}))
    assert times["compute.attention.softmax.forward"] == near(moved_us(4 * 8 * 1024 * 1024))
    assert times["compute.attention.softmax.backward"] == near(moved_us(6 * 8 * 1024 * 1024))


def test_a_window_and_its_diagonal():
    """A query of a window of 256 sees 256 keys, the first ones fewer: 224 on average of 1,024.

    Its tile of 64 queries meets 63 keys more, in tiles of 128: 192 more, up to the half that causality leaves.
    """
    est = price({**SMALL, "sliding_window": 256, "full_attention_every": 2})
    times = each_us(est)
    assert times["compute.dense-window.attention.core.forward"] == near(
        attention_us(8, 4, 1024, 1024, 224 + 192, 128)
    )
    assert times["compute.dense-window.attention.core.backward"] == near(
        attention_us(8, 4, 1024, 1024, 224 + 192, 128, backward=True)
    )
    nearly = each_us(price({**SMALL, "sliding_window": 768}))
    assert nearly["compute.attention.core.forward"] == near(attention_us(8, 4, 1024, 1024, 512, 128))
    assert times["compute.dense.attention.core.forward"] == near(attention_us(8, 4, 1024, 1024, 512, 128))
    assert counts(est)["compute.dense.attention.core.forward"] == 2
    wide = price({**SMALL, "sliding_window": 4096})
    assert each_us(wide)["compute.attention.core.forward"] == near(attention_us(8, 4, 1024, 1024, 512, 128))


def test_clamped_activations_and_scaled_rotation():
    """Clamps move 8 and 15 bytes an element of both halves, rotation with a factor is a chain of its own.

    Of the clamps 4 and 9.5 bytes go element by element, at 2.07e9 of them a second on the one SM.
    """
    est = price({**SMALL, "activation_clamp": True, "rope_concentration": True})
    times = each_us(est)
    assert times["compute.mlp.clamp.forward"] == near(moved_us(4 * 8 * ELEMENTS, 3) + 8 * ELEMENTS / 2.07e3)
    assert times["compute.mlp.clamp.backward"] == near(
        moved_us(5.5 * 8 * ELEMENTS, 7) + 2.5 * 8 * ELEMENTS / 2.07e3
    )
    assert times["compute.attention.rope.backward"] == near(moved_us(22 * 1.5 * ELEMENTS, 8))
    more = (
        memory(est, "activation.mlp")["activation.mlp"] - memory(price(), "activation.mlp")["activation.mlp"]
    )
    assert more == near(4 * 2 * 8 * MIB)
    compiled = each_us(price({**SMALL, "activation_clamp": True}, switches={"compiled": True}))
    assert "compute.mlp.clamp.forward" not in compiled


def test_unfused_kernels():
    est = price(
        switches={"fused_norm": False, "fused_rope": False, "fused_activation": False, "dropout": True}
    )
    times = each_us(est)
    assert times["compute.attention.norm.forward"] == near(moved_us(36 * ELEMENTS, 7))
    assert times["compute.attention.norm.backward"] == near(moved_us(92 * ELEMENTS, 16))
    assert times["compute.attention.rope.forward"] == near(moved_us(22 * 1.5 * ELEMENTS, 8))
    assert times["compute.mlp.activation.forward"] == near(moved_us(10 * 4 * ELEMENTS, 2))
    assert times["compute.mlp.activation.backward"] == near(moved_us(18 * 4 * ELEMENTS, 4))
    assert times["compute.attention.residual.forward"] == near(computed_us(0.78 * ELEMENTS))
    assert times["compute.attention.residual.backward"] == near(moved_us(5 * ELEMENTS))
    # Of a chain the dropout draws, and moves 5 of its 15 B.
    chain = each_us(price(switches={"dropout": True, "fused_dropout_add": False}))
    drawn = computed_us(0.78 * ELEMENTS, 3) + 10 * ELEMENTS / 1e6
    assert chain["compute.attention.residual.forward"] == near(drawn)
    assert chain["compute.attention.residual.backward"] == near(moved_us(9 * ELEMENTS, 2))
    held = memory(est, "activation.attention", "activation.mlp", "activation.embedding")
    # Norms keep 2 + 6 bytes, sums 2 + 1, the activation its product and the activated gate.
    assert held == near(
        {
            "activation.attention": 4 * (8 + 4 + 2 + 1 / 32 + 3) * MIB,
            "activation.mlp": 4 * (8 + 16 + 16 + 3) * MIB,
            "activation.embedding": MIB,
        }
    )


def test_a_plain_mlp_with_biases():
    model = {
        **SMALL,
        "gated_mlp": False,
        "norm": "layernorm",
        "linear_bias": True,
        "qkv_bias": True,
        "position": "none",
    }
    times = each_us(price(model), ATTENTION, MLP)
    assert times["compute.attention.bias_gradient.backward"] == near(moved_us(2 * 3 * ELEMENTS, 2))
    assert times["compute.mlp.bias_gradient.backward"] == near(moved_us(2 * 5 * ELEMENTS, 2))
    assert times["compute.mlp.fc1.forward"] == near(product_us(1024, 4096, 1024))
    assert times["compute.mlp.activation.forward"] == near(moved_us(4 * 4 * ELEMENTS))
    assert times["compute.mlp.activation.backward"] == near(moved_us(6 * 4 * ELEMENTS))
    assert "compute.attention.rope.forward" not in times


def test_gate_and_up_projection_apart():
    est = price(switches={"separate_gate": True})
    assert each_us(est)["compute.mlp.input_gradient_sum.backward"] == near(6 * ELEMENTS / 1e6 + 1)


def test_queries_keys_and_values_apart():
    """Two sums of two gradients: 6 B an element and a kernel each."""
    est = price(switches={"separate_qkv": True})
    assert each_us(est)["compute.attention.input_gradient_sum.backward"] == near(2 * (6 * ELEMENTS / 1e6 + 1))
    assert "compute.attention.input_gradient_sum.backward" not in each_us(
        price(LATENT, switches={"separate_qkv": True})
    )


def test_latent_attention():
    est = price(LATENT)
    times = each_us(est, ATTENTION)
    queries, values = 8 * 96, 8 * 64
    heads_128 = 8 * (64 + 64)
    math = {
        backward: 2.0 * 8 * 1024 * 512 * (3 * 96 + 2 * 64 if backward else 96 + 64) / 50e6
        for backward in (0, 1)
    }
    hbm = 2 * (96 + 64) * 2 * 8 * 1024 / 1e6
    assert times == near(
        {
            "compute.attention.norm.forward": computed_us(0.45 * ELEMENTS),
            "compute.attention.norm.backward": computed_us(1.1 * ELEMENTS, 2),
            "compute.attention.q_down.forward": product_us(1024, 256, 1024),
            "compute.attention.q_down.backward_input": product_us(1024, 1024, 256),
            "compute.attention.q_down.backward_weight": weight_us(1024, 256, 1024),
            "compute.attention.q_norm.forward": computed_us(0.45 * 1024 * 256),
            "compute.attention.q_norm.backward": computed_us(1.1 * 1024 * 256, 2),
            "compute.attention.kv_down.forward": product_us(1024, 160, 1024),
            "compute.attention.kv_down.backward_input": product_us(1024, 1024, 160),
            "compute.attention.kv_down.backward_weight": weight_us(1024, 160, 1024),
            "compute.attention.kv_norm.forward": computed_us(0.45 * 1024 * 128),
            "compute.attention.kv_norm.backward": computed_us(1.1 * 1024 * 128, 2),
            "compute.attention.q_up.forward": product_us(1024, queries, 256),
            "compute.attention.q_up.backward_input": product_us(1024, 256, queries),
            "compute.attention.q_up.backward_weight": weight_us(1024, queries, 256),
            "compute.attention.kv_up.forward": product_us(1024, heads_128, 128),
            "compute.attention.kv_up.backward_input": product_us(1024, 128, heads_128),
            "compute.attention.kv_up.backward_weight": weight_us(1024, heads_128, 128),
            "compute.attention.kv_concat.forward": moved_us(4 * 1024 * (queries + values), 2),
            "compute.attention.kv_concat.backward": moved_us(4 * 1024 * (queries + values), 2),
            # The rotary part of every query, and the one key that all heads share.
            "compute.attention.rope.forward": moved_us(4 * 1024 * 32 * 9),
            "compute.attention.rope.backward": moved_us(4 * 1024 * 32 * 9),
            "compute.attention.core.forward": 4 + (math[0] ** 3 + hbm**3) ** (1 / 3),
            "compute.attention.core.backward": 4 + (math[1] ** 3 + (2 * hbm) ** 3) ** (1 / 3),
            "compute.attention.out.forward": product_us(1024, 1024, values),
            "compute.attention.out.backward_input": product_us(1024, values, 1024),
            "compute.attention.out.backward_weight": weight_us(1024, 1024, values),
            "compute.attention.residual.forward": 7.291456,
        }
    )
    # Norm 2, ranks with their norms 1 + 0.5 and 0.3125 + 0.25, Q 1.5, K and V 2.5, output 1, stream 2, row sums.
    parts = 2 + (0.5 + 0.5) + (160 / 512 + 0.25) + 1.5 + 2.5 + 1 + 2 + 1 / 32
    assert memory(est, "activation.attention") == near({"activation.attention": 4 * parts * MIB})


EIGHT_BITS = {"inputs": 1, "tflops": 100}


@pytest.mark.parametrize(
    ("precision", "layout", "bytes_moved"),
    [
        # The norm writes its output cast; what is left is cast and transposed in one kernel (4 B), gathered later (2 B).
        ("fp8-delayed", "tp1", {"attention": (4, 4 * 3 + 2), "mlp": (16, 4 * 9 + 2)}),
        ("fp8-delayed", "tp2", {"attention": (2, 4 * 1.5 + 2 + 1), "mlp": (8, 4 * 4.5 + 2 + 1)}),
        ("fp8-current", "tp1", {"attention": (12, 6 * 3), "mlp": (30, 6 * 9)}),
        ("fp8-current", "tp2", {"attention": (6, 6 * 1.5 + 1 + 1), "mlp": (15, 6 * 4.5 + 1 + 1)}),
    ],
)
def test_eight_bits(precision, layout, bytes_moved):
    """Casts reach half of what other kernels do here: 6 bytes' worth an element that reads 2 and writes 1."""
    gpus = int(layout[-1])
    est = price(gpus=gpus, layout=layout, precision=precision)
    times, moved = each_us(est), sent_bytes(est, "compute.")
    for part, (forward, backward) in bytes_moved.items():
        name = f"compute.{part}.quantise"
        assert moved[f"{name}.forward"] == near(forward * MIB)
        assert moved[f"{name}.backward"] == near(backward * MIB)
        assert times[f"{name}.forward"] == near(2 + 2 * forward * MIB / 1e6)
        assert times[f"{name}.backward"] == near(4 + 2 * backward * MIB / 1e6)
    assert times["compute.attention.qkv.forward"] == near(product_us(1024, 2048 / gpus, 1024, **EIGHT_BITS))
    assert times["compute.attention.qkv.backward_weight"] == near(
        product_us(1024, 2048 / gpus, 1024, inputs=1, tflops=100, output=8)
    )
    assert times["compute.head.logits.forward"] == near(product_us(1024, 32000 / gpus, 1024))
    held = memory(est, "activation.attention", "activation.mlp")
    # Inputs of products are kept in one byte: the norms' output, and the activation's.
    assert held["activation.attention"] == near(4 * (1 + 4 + 2 + 1 / 32 + 2) * MIB / gpus)
    assert held["activation.mlp"] == near(4 * (1 + 16 + 4 + 2) * MIB / gpus)


def test_a_tensor_rank_keeps_one_key_head_at_least():
    """Four key heads over eight ranks: each rank has one head of queries and one of keys and values."""
    est = price(gpus=8, layout="tp8", precision="bf16")
    assert each_us(est)["compute.attention.qkv.forward"] == near(product_us(1024, 3 * 128, 1024))
    assert each_us(est)["compute.attention.core.forward"] == near(attention_us(1, 1, 1024, 1024, 512, 128))


def test_lines_are_of_compute_and_named_by_what_they_wait_for():
    est = price(gpus=2, layout="tp2")
    categories = {one.name: (one.axis, one.category, one.phase) for one in est.bill.time_lines}
    assert categories["compute.attention.qkv.backward_weight"] == ("compute", "math", "backward_weight")
    assert categories["compute.mlp.activation.forward"] == ("compute", "hbm", "forward")
    assert float(line(est, "compute.mlp.fc1.forward").tier) == -1
