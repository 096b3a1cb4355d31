# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The seed documents, example by example
#
# `costmodel` grew from five documents about distributed training: two blog posts (`000`, `001`), a long guide
# (`002`), a page about parallelism (`003`) and a transcript (`004`). Here each of their worked examples is
# recomputed. A row says what the seed prints, what `costmodel` gives, and whether the seed is right; where it
# is not, the reason stands beside it.

# %%
import numpy as np
import pandas as pd

import costmodel as cm

pd.set_option("display.max_colwidth", 90)
pd.set_option("display.width", 200)


def tour(rows):
    """Show rows of (where, what, unit, seed, ours, erratum), and check that only errata differ."""
    made = []
    for where, what, unit, seed, ours, erratum in rows:
        seed, ours = float(seed), float(ours)
        ratio = ours / seed
        assert (abs(ratio - 1) > 0.03) == bool(erratum), (what, seed, ours)
        texts = [f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}" for value in (seed, ours)]
        made.append((where, what, *texts, f"{ratio:.2f}", erratum or "right"))
    return pd.DataFrame(made, columns=["where", "what", "seed", "costmodel", "ratio", "verdict"])


# %% [markdown]
# ## Hardware: peaks, links, ridge points
#
# The guide's peaks are those with 2:4 sparsity and its NVLink adds both directions. In one ridge point the
# two factors of two cancel; in the others they do not.

# %%
h100, a100 = cm.load_accelerator("h100-sxm-80gb"), cm.load_accelerator("a100-sxm-80gb")
dgx = cm.load_cluster("dgx-h100-ndr")
nvlink, leaf = dgx.tiers[0].bandwidth_bytes_per_s, dgx.tiers[1].bandwidth_bytes_per_s
peak = h100.peak_flops_per_s["bf16"]
sparse = "with 2:4 sparsity; dense is half"
tour(
    [
        ("002 §1.5", "H100 FP16 peak", "TFLOP/s", 1979, peak / 1e12, sparse),
        ("002 §1.5", "H100 TF32 peak", "TFLOP/s", 989, h100.peak_flops_per_s["tf32"] / 1e12, sparse),
        ("002 §1.5", "A100 FP16 peak", "TFLOP/s", 624, a100.peak_flops_per_s["bf16"] / 1e12, sparse),
        ("002 §1.5", "A100 SMs", "", 108, a100.num_sms, ""),
        ("002 §6.3", "NVLink of an H100", "GB/s", 900, nvlink / 1e9, "both directions added"),
        ("002 §1.3", "InfiniBand NDR, a GPU", "GB/s", 50, leaf / 1e9, ""),
        ("000", "HBM of an H100", "TB/s", 3.35, h100.memory_bandwidth_bytes_per_s / 1e12, ""),
        ("002 §6.3", "ridge of H100 on NVLink", "FLOP/B", 2200, cm.formulas.ridge_point(peak, nvlink), ""),
        (
            "002 §6.3",
            "ridge of H100 on InfiniBand",
            "FLOP/B",
            40000,
            cm.formulas.ridge_point(peak, leaf),
            sparse,
        ),
        (
            "002 §6.3",
            "ridge of A100 on NVLink",
            "FLOP/B",
            520,
            cm.formulas.ridge_point(
                a100.peak_flops_per_s["bf16"], cm.load_cluster("dgx-a100-hdr").tiers[0].bandwidth_bytes_per_s
            ),
            "NVLink with both directions added",
        ),
    ]
)

# %% [markdown]
# ## The communication roofline of GPT-3
#
# Computation to communication of data-parallel training grows with the batch alone: six FLOPs a parameter and
# token, over two passes of fp16 gradients.

# %%
rows = [
    (
        "002 §6.2",
        f"FLOP per byte, {batch} sequences",
        "FLOP/B",
        printed,
        cm.formulas.data_parallel_intensity(6 * 175e9, batch * 2048, 175e9),
        "",
    )
    for batch, printed in [(1, 3072), (4, 12288), (16, 49152), (64, 196608), (256, 786432)]
]
assert (
    int(cm.formulas.regime(98_304, cm.formulas.ridge_point(peak, nvlink))) == 3
)  # 002 §6.6: compute-bound on NVLink
tour(rows)

# %% [markdown]
# ## Collectives: crossovers, algorithms, hierarchy

# %%
n_star = [
    ("002 §5.3 code", "n* of NVLink 4", "kB", 450, cm.formulas.crossover_size_bytes(1e-6, 450e9) / 1e3, ""),
    (
        "002 §5.3 figure",
        "n* of NVLink 4",
        "kB",
        5,
        cm.formulas.crossover_size_bytes(1e-6, 450e9) / 1e3,
        "the figure contradicts the code below it",
    ),
    (
        "002 §5.3",
        "n* of InfiniBand HDR",
        "kB",
        300,
        cm.formulas.crossover_size_bytes(1.5e-6, 25e9) / 1e3,
        "HDR is 200 Gbit/s = 25 GB/s a port; 200 GB/s is a node of eight",
    ),
    (
        "002 §5.3 code",
        "n* of 100GbE RoCE",
        "kB",
        62.5,
        cm.formulas.crossover_size_bytes(5e-6, 12.5e9) / 1e3,
        "",
    ),
    (
        "002 §5.3 figure",
        "n* of 100GbE",
        "kB",
        5000,
        cm.formulas.crossover_size_bytes(5e-6, 12.5e9) / 1e3,
        "the figure contradicts the code below it",
    ),
]
link = {"latency_s": 2e-6, "bandwidth_bytes_per_s": 50e9}
tree = cm.formulas.textbook_time("all_reduce", "tree", 1e8, 64, **link)
double = cm.formulas.textbook_time("all_reduce", "double-tree", 16e9, 64, **link)
gather = cm.formulas.textbook_time("all_gather", "ring", 8e6, 8, **link)
ring_steps = cm.formulas.textbook_time(
    "all_gather", "ring", 1.0, 64, latency_s=1e-6, bandwidth_bytes_per_s=50e9
)
fabric = {
    "intra_latency_s": 1e-6,
    "intra_bandwidth_bytes_per_s": 450e9,
    "inter_latency_s": 1.5e-6,
    "inter_bandwidth_bytes_per_s": 50e9,
}
tour(
    [
        *n_star,
        (
            "002 §5.1",
            "1 GB over NVLink",
            "ms",
            2.22,
            cm.formulas.textbook_time(
                "send_recv", "direct", 1e9, 2, latency_s=1e-6, bandwidth_bytes_per_s=450e9
            ).time_s
            * 1e3,
            "",
        ),
        (
            "002 §3.2 box",
            "tree all-reduce, 100 MB, 64 ranks",
            "ms",
            12 * 1e8 / 50e9 * 1e3,
            tree.transfer_s * 1e3,
            "",
        ),
        (
            "002 §3.2 figure",
            "tree: (P-1) n beta",
            "ms",
            63 * 1e8 / 50e9 * 1e3,
            tree.transfer_s * 1e3,
            "2 log P of them, not P - 1",
        ),
        (
            "002 §3.2",
            "tree, pipelined: 2 log P n beta",
            "s",
            12 * 16e9 / 50e9,
            double.time_s,
            "pipelined trees reach 2 n beta",
        ),
        (
            "002 §4.4",
            "all-gather of 1 MB a rank, 8 ranks",
            "us",
            7 * 1e6 / 50e9 * 1e6,
            gather.transfer_s * 1e6,
            "",
        ),
        (
            "002 §4.4",
            "start-ups of a ring all-gather, 64 ranks",
            "",
            6,
            ring_steps.latency_s / 1e-6,
            "log P is recursive doubling; a ring has P - 1",
        ),
        (
            "002 §3.6",
            "hierarchical all-reduce, 1 GB, 8 x 8 GPUs",
            "ms",
            cm.formulas.two_level_time("all_reduce", "node-leaders", 1e9, 8, 8, **fabric).time_s * 1e3,
            cm.formulas.two_level_time("all_reduce", "two-level", 1e9, 8, 8, **fabric).time_s * 1e3,
            "all eight NICs carry an eighth each",
        ),
    ]
)

# %% [markdown]
# ## Memory: what a parameter costs
#
# 16 bytes a parameter with bf16 gradients; 18 where gradients accumulate in fp32. Neither is a constant of
# nature: it follows from the recipe.


# %%
def state_bytes(model, gpus=1, *parts, **job):
    """Bytes of model state on a GPU, of the named parts or all."""
    asked = {"cluster": "dgx-a100-hdr", "global_batch": gpus, "seq_len": 2048, "zero_stage": 0, "tp": 1}
    switches = {"grad_accum_dtype": "bf16"} | job.pop("switches", {})
    est = cm.estimate(model=model, gpus=gpus, switches=switches, **{**asked, **job})
    return sum(
        float(np.max(line.bytes))
        for line in est.bill.memory_lines
        if line.name.startswith("state.") and (not parts or line.name.split(".")[-1] in parts)
    )


llama = cm.model_facts(cm.load_model("llama-7b")).num_params
seven = 7e9 / llama  # the seeds' round 7B
optimizer = ("main_weights", "moments")
rows = [
    (
        "002 §1.2",
        f"state of {name}",
        "GB",
        printed,
        state_bytes(name) / cm.model_facts(cm.load_model(name)).num_params * round_n / 1e9,
        "",
    )
    for name, round_n, printed in [
        ("llama-7b", 7e9, 112),
        ("llama-13b", 13e9, 208),
        ("llama-65b", 65e9, 1040),
        ("gpt3-175b", 175e9, 2800),
    ]
]
rows += [
    (
        "002 §8.2",
        "bytes a parameter, 4 + 2 + 12",
        "B",
        18,
        state_bytes("llama-7b") / llama,
        "2 + 2 + 12 = 16 with bf16 gradients",
    ),
    (
        "002 §7.4",
        "bytes a parameter, fp32 accumulation",
        "B",
        18,
        state_bytes("llama-7b", switches={"grad_accum_dtype": "fp32"}) / llama,
        "",
    ),
    (
        "002 §8.2",
        "ZeRO-1 optimizer, 7B on 8",
        "GB",
        14,
        seven * state_bytes("llama-7b", 8, *optimizer, zero_stage=1) / 1e9,
        "12 bytes a parameter, not 16",
    ),
    (
        "002 §8.2",
        "ZeRO-2 gradients, 7B on 8",
        "GB",
        1.75,
        seven * state_bytes("llama-7b", 8, "gradients", zero_stage=2) / 1e9,
        "",
    ),
    (
        "002 §8.2",
        "ZeRO-3, 7B on 8",
        "GB",
        18,
        seven * state_bytes("llama-7b", 8, zero_stage=3) / 1e9,
        "16 N / P, not 18 N / P",
    ),
    ("000", "70B with Adam", "TB", 1.1, state_bytes("llama2-70b") / 1e12, ""),
    ("004", "100B on each of 64 GPUs", "TB", 1.6, state_bytes("dense-100b", 64) / 1e12, ""),
    ("004", "100B shared by 64 GPUs", "GB", 25, state_bytes("dense-100b", 64, zero_stage=3) / 1e9, ""),
]
tour(rows)

# %% [markdown]
# ## Activations: quadratic only without FlashAttention


# %%
def activation_bytes(model, **job):
    """Bytes that the layers keep for one micro-batch."""
    asked = {
        "cluster": "dgx-a100-hdr",
        "gpus": 1,
        "global_batch": 1,
        "seq_len": 2048,
        "zero_stage": 0,
        "tp": 1,
    }
    est = cm.estimate(model=model, **{**asked, **job})
    return sum(
        float(line.bytes.max())
        for line in est.bill.memory_lines
        if line.name in ("activation.attention", "activation.mlp")
    )


growth = {
    kernel: activation_bytes("llama-7b", seq_len=16384, switches={"attention_kernel": kernel})
    / activation_bytes("llama-7b", seq_len=8192, switches={"attention_kernel": kernel})
    for kernel in ("fused-softmax", "flash2")
}
gpt3 = activation_bytes("gpt3-175b", recipe="megatron-2021", precision="fp16")
tour(
    [
        ("002 §1.2", "activations of one GPT-3 sample", "GB", 275, gpt3 / 1e9, ""),
        (
            "000, 001",
            "growth with twice the sequence, FlashAttention",
            "x",
            4,
            growth["flash2"],
            "linear: scores are never stored",
        ),
        (
            "000, 001",
            "the same with scores stored",
            "x",
            4,
            growth["fused-softmax"],
            "most, but not all, is scores",
        ),
    ]
)

# %% [markdown]
# ## What each axis sends


# %%
def sent(prefixes, **job):
    """Wire bytes of a GPU in a step, over the lines that begin so."""
    est = cm.estimate(**{"cluster": "dgx-a100-hdr", "seq_len": 2048, **job})
    return sum(float(line.bytes) for line in est.bill.time_lines if line.name.startswith(prefixes))


bf16 = {"grad_reduce_dtype": "bf16", "gather_dtype": "bf16"}
megatron = {"recipe": "megatron-2021", "precision": "fp16", "sequence_parallel": 0}
layers = sent(
    ("tp.attention.", "tp.mlp."), model="gpt3-175b", gpus=8, layout="tp8", global_batch=1, **megatron
)
whole = 2 * cm.model_facts(cm.load_model("llama-7b")).num_params
ddp = sent("dp.", model="llama-7b", gpus=64, tp=1, global_batch=64, zero_stage=0, switches=bf16)
fsdp = [
    sent("dp.", model="llama-7b", gpus=8, tp=1, global_batch=8 * m, zero_stage=3, switches=bf16)
    / (whole * 7 / 8)
    for m in (1, 4)
]
inner = sent("pp.send_recv", model="llama3-70b", gpus=8, layout="pp8", global_batch=512, micro_batch=16)
syncs = []
for batches in (1, 4):
    job = cm.estimate(
        model="llama2-70b",
        cluster="dgx-a100-hdr",
        gpus=8,
        layout="tp8",
        global_batch=batches,
        seq_len=2048,
        sequence_parallel=0,
    )
    syncs.append(
        sum(
            float(line.count)
            for line in job.bill.time_lines
            if line.name.startswith(("tp.attention.", "tp.mlp.")) and line.seconds > 0
        )
    )
grads = sent(
    "dp.dense.grad_all_reduce",
    model="gpt3-175b",
    gpus=256,
    layout="tp8 pp8",
    global_batch=64,
    zero_stage=0,
    switches=bf16,
)
experts = sent(
    "ep.",
    model="mixtral-8x7b",
    gpus=8,
    layout="ep8 etp1",
    global_batch=8,
    switches={"moe_dispatcher": "all-to-all"},
)
one_expert = 32 * 4 * 2048 * 4096 * 7 / 8 * 2
tour(
    [
        ("002 §7.4", "all-reduce of Llama-7B, bf16, 64 ranks", "GB", 28 * 63 / 64, ddp * seven / 1e9, ""),
        ("000, 001", "DP: ~2P bytes a rank", "x P", 2, ddp / whole * 2, "2P elements: 4P bytes in bf16"),
        ("003", "FSDP over DDP, one micro-batch", "x", 1.5, fsdp[0] / 2, ""),
        (
            "003",
            "FSDP over DDP, four micro-batches",
            "x",
            1.5,
            fsdp[1] / 2,
            "gathers again in every micro-batch",
        ),
        ("002 §9.5", "TP of a GPT-3 layer", "MB", 175, layers / 96 / 1e6, "its own formula gives 352 MB"),
        ("002 §9.5", "TP of GPT-3, a step", "GB", 16.8, layers / 1e9, "the same"),
        ("000, 001", "synchronisations of TP, 80 layers", "", 320, syncs[0], ""),
        (
            "000, 001",
            "the same, four micro-batches a step",
            "",
            320,
            syncs[1],
            "per micro-batch, not per step",
        ),
        ("002 §10.6", "pipeline of eight stages", "GB", 240, 7 * inner / 1e9, ""),
        (
            "002 §11.3",
            "gradients of GPT-3, TP8 PP8 DP4",
            "GB",
            2 * 3 / 4 * 175 / 8 * 2,
            grads / 1e9,
            "TP divides them too",
        ),
        (
            "002 §11.5",
            "Mixtral's exchange, one expert a token",
            "GB",
            one_expert / 1e9,
            experts / 1e9,
            "times top-k, here two",
        ),
    ]
)


# %% [markdown]
# ## Bubbles, stragglers, models, and a month


# %%
def bubble(schedule, p, m, v=1):
    """Share of a step that ranks idle, forward a third of a micro-batch."""
    idle = float(
        cm.formulas.bubble_time_s(
            cm.formulas.schedule_code(schedule),
            stages=p,
            micro_batches=m,
            virtual_stages=v,
            forward_s=1.0,
            backward_input_s=1.0,
            backward_weight_s=1.0,
        )
    )
    return idle / (idle + 3.0 * m)


mixtral, deepseek = cm.load_model("mixtral-8x7b"), cm.load_model("deepseek-v2-236b")
cards = {
    name: cm.estimate(
        model=name,
        cluster="dgx-a100-hdr",
        gpus=2048,
        global_batch=2048,
        seq_len=2048,
        recipe="deepspeed",
        zero_stage=3,
    )
    for name in ("llama-7b", "llama-65b")
}
tour(
    [
        ("002 §10.1", "bubble of naive, 4 stages, 1 micro-batch", "", 0.75, bubble("naive", 4, 1), ""),
        ("002 §10.2", "bubble of GPipe, 4 stages, 4 micro-batches", "", 0.43, bubble("gpipe", 4, 4), ""),
        ("002 §10.3", "bubble of 1F1B, 4 stages, 8 micro-batches", "", 3 / 11, bubble("1f1b", 4, 8), ""),
        ("002 §10.4", "interleaved, 2 chunks", "", 3 / 19, bubble("interleaved", 4, 8, 2), ""),
        ("002 §10.6", "efficiency of 8 stages, 32 micro-batches", "", 0.82, 1 - bubble("1f1b", 8, 32), ""),
        (
            "000",
            "slowest of 16,000 ranks at 5 % spread",
            "%",
            22,
            5 * float(cm.formulas.expected_maximum_normal(16000)),
            "sigma sqrt(2 ln N) is an upper bound; the exact expected maximum",
        ),
        ("002 §12.3", "Mixtral parameters", "B", 46.7, cm.model_facts(mixtral).num_params / 1e9, ""),
        ("002 §12.3", "of them active", "B", 12.9, cm.model_facts(mixtral).num_active_params / 1e9, ""),
        ("002 §12.4", "DeepSeek-V2 parameters", "B", 236, cm.model_facts(deepseek).num_params / 1e9, ""),
        (
            "002 §12.2",
            "days of LLaMA-7B on 1,000 A100",
            "d",
            21,
            float(cards["llama-7b"].gpu_hours(1e12)) / 1000 / 24,
            "its paper: 82,432 GPU-hours, 3.4 days",
        ),
    ]
)

# %% [markdown]
# The 65B row of that table is right in the paper (2,048 GPUs, 21 days); the model, which is fitted to no
# LLaMA run, says:

# %%
days = float(cards["llama-65b"].days(1.4e12))
print(f"LLaMA-65B on 2,048 A100: {days:.1f} days, published 21, ratio {days / 21:.2f}")
assert 0.6 < days / 21 < 1.4

# %% [markdown]
# ## Two figures of the guide, drawn from a bill
#
# The staircase of §6.4: tensor parallelism lives under NVLink because its few FLOPs per byte are below every
# other link's ridge point. And the comb of §10: the pipeline, task by task.

# %%
est = cm.estimate(
    model="gpt3-175b", cluster="dgx-h100-ndr", gpus=512, layout="tp8 pp8", global_batch=256, seq_len=2048
)
est.plot.communication_roofline()

# %%
small = cm.estimate(
    model="gpt3-175b",
    cluster="dgx-h100-ndr",
    gpus=32,
    layout="tp8 pp4",
    global_batch=8,
    seq_len=2048,
    zero_stage=0,
)
small.plot.pipeline()
