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
# # A first estimate, checked at every step
#
# What does one training step of Llama 3 405B on 16,384 H100 take? `costmodel` answers with a bill: named
# lines of seconds and bytes that add up to the step time and to the memory of a GPU. Each number below is
# set beside a second formula or a published measurement, and the ratio is printed.

# %%
import dataclasses

import numpy as np

import costmodel as cm


def compare(what, ours, other, where):
    """Print two numbers and their ratio."""
    print(f"{what:44s} {ours:12.6g} {other:12.6g}   ratio {ours / other:.4f}   ({where})")
    return ours / other


# %% [markdown]
# ## Parameters: counted, not approximated

# %%
model = cm.load_model("llama3-405b")
facts = cm.model_facts(model)
total = facts.num_params
for name, count in facts.params_by_component.items():
    print(f"{name:20s} {count:20,.0f} {count / total:8.2%}")
print(f"{'total':20s} {total:20,.0f}")

# %%
ratio = compare("parameters", total, 405_853_388_800, "HuggingFace meta-llama/Llama-3.1-405B")
assert ratio == 1.0
rule = 12 * model.num_layers * model.hidden_size**2
ratio = compare("parameters", total, rule, "12 L h^2, which knows no SwiGLU, no GQA, no vocabulary")

# %% [markdown]
# ## FLOPs of a token
#
# The PaLM paper (arXiv:2204.02311, appendix B) counts `6 N + 12 L h s`: six per weight, and the full
# attention matrix. Ours leaves out the input table, which multiplies nothing.

# %%
seq_len = 8192
ours = cm.model_facts(model, seq_len=seq_len).flops_per_token()
palm = 6 * total + 12 * model.num_layers * model.num_heads * model.head_dim * seq_len
ratio = compare("FLOPs a token", ours, palm, "PaLM appendix B")
table = 6 * model.vocab_size * model.hidden_size
ratio = compare("FLOPs a token", ours, palm - table, "the same without the input table")
assert abs(ratio - 1) < 1e-3

# %% [markdown]
# ## One step
#
# The layout of the paper's second row of table 4 (arXiv:2407.21783): TP 8, CP 1, PP 16, DP 128, 16 M tokens
# a step.

# %%
job = {
    "model": "llama3-405b",
    "cluster": "llama3-roce",
    "gpus": 16384,
    "layout": "tp8 cp1 pp16 vp4",
    "zero_stage": 2,
    "global_batch": 2048,
    "seq_len": seq_len,
    "recipe": "llama3",
    "axis_order": "tp cp pp dp",
    "tokens": 15.6e12,
}
est = cm.estimate(**job)
est

# %% [markdown]
# The step time is the sum of the exposed seconds, by whatever they are grouped.

# %%
step = float(est.step_time_s)
lines = est.to_frame()
time = lines[lines.bill == "time"]
assert np.isclose(compare("sum of exposed seconds", time.exposed_seconds.sum(), step, "the headline"), 1.0)
by_category = time.groupby("category").exposed_seconds.sum().sort_values(ascending=False)
for category, seconds in by_category.items():
    print(f"{category:16s} {seconds / step:6.1%}")

# %% [markdown]
# Against the paper: 400 TFLOP/s a GPU, 41 % MFU. The authors count causal attention half, so the convention
# is part of the comparison; no constant has been fitted to this run.

# %%
peak = est.peak_flops_per_s
achieved = float(est.mfu_causal) * peak / 1e12
ratio = compare("model TFLOP/s a GPU, causal", achieved, 400.0, "Llama 3, table 4, row 2: measured")
assert 0.75 < ratio < 1.25
ratio = compare("the other convention", float(est.model_tflops_per_gpu), achieved, "full matrix")
days, by_hand = float(est.days(15.6e12)), 15.6e12 / (2048 * 8192) * step / 86400
ratio = compare("days for 15.6 T tokens, no failures", days, by_hand, "steps x step time")

# %% [markdown]
# ## Where the lines come from: three checks by hand
#
# **The gradient.** Each of the 128 data-parallel ranks reduce-scatters its part of the gradient in fp32:
# 4 bytes for each of `N / (tp pp)` parameters, of which `127/128` go over the wire.

# %%
record = est.to_dict()
bill = {line["name"]: line for line in record["lines"]}
wire = bill["dp.dense.grad_reduce_scatter"]["bytes"]
by_hand = 4 * total / (8 * 16) * 127 / 128
ratio = compare("bytes a GPU sends to reduce gradients", wire, by_hand, "4 N / (tp pp) x (P-1)/P")
assert 0.9 < ratio < 1.3  # the busiest stage holds more than the mean

# %% [markdown]
# **The pipeline bubble.** With interleaved stages a rank idles `(p-1)/v` times the forward and backward pass
# of one micro-batch (Narayanan et al., arXiv:2104.04473, section 2.2). The bill's bubble uses the unequal
# stages of this model.

# %%
micro_batches, p, v = 2048 / 128, 16, 4
passes = time[time.axis.isin(["compute", "tp"])].exposed_seconds.sum() / micro_batches
bubble = bill["pp.bubble"]["exposed_seconds"]
ratio = compare("seconds of bubble", bubble, (p - 1) / v * passes, "(p-1)/v micro-batches")
assert 0.7 < ratio < 1.3

# %% [markdown]
# **Memory.** Parameters, gradients and Adam's states of mixed-precision training: 2 + 4 + 4 + 8 bytes a
# parameter here (gradients accumulate in fp32). ZeRO-2 leaves parameters whole, and of the gradients those of one
# of four chunks: all 16 micro-batches pass a chunk one after the other before it is reduced. The rest is divided
# by 128.

# %%
memory = {line["name"]: line["bytes"] for line in record["memory_lines"]}
states = sum(size for name, size in memory.items() if name.startswith("state.dense"))
by_hand = total / (8 * 16) * (2 + 4 * (1 / 4 + 3 / 4 / 128) + (4 + 8) / 128)
ratio = compare("bytes of model states", states, by_hand, "ZeRO, arXiv:1910.02054, at these dtypes")
assert 0.8 < ratio < 1.3
for name, size in sorted(memory.items(), key=lambda item: -item[1])[:5]:
    print(f"{name:32s} {size / 2**30:8.2f} GiB")

# %% [markdown]
# ## Activations against the literature
#
# Korthikanti et al. (arXiv:2205.05198) count `34 s b h / t` bytes a layer with sequence parallelism and
# selective recomputation (table 2), and measured the step of the same 22B model at 1.10 s (table 5).

# %%
small = cm.load_model("megatron-22b")
est22 = cm.estimate(
    model="megatron-22b",
    cluster="dgx-a100-hdr",
    gpus=8,
    layout="tp8",
    micro_batch=4,
    global_batch=4,
    seq_len=2048,
    precision="fp16",
    recipe="megatron-2022",
    recompute="selective",
    zero_stage=0,
)
held = {line["name"]: line["bytes"] for line in est22.to_dict()["memory_lines"]}
activations = held["activation.attention"] + held["activation.mlp"]
by_hand = 34 * 2048 * 4 * small.hidden_size / 8 * small.num_layers
ratio = compare("bytes of activations in 48 layers", activations, by_hand, "34 s b h L / t")
assert 0.9 < ratio < 1.1
ratio = compare("seconds a step", float(est22.step_time_s), 1.10, "Korthikanti et al., table 5: measured")
assert 0.75 < ratio < 1.25

# %% [markdown]
# ## Many layouts at once
#
# Arrays among the arguments price many layouts with the same formulas: two knobs, each with
# its own dimension.

# %%
many = cm.estimate(
    model="llama3-70b",
    cluster="dgx-h100-ndr",
    gpus=512,
    pp=4,
    global_batch=1024,
    seq_len=8192,
    tp=np.array([1, 2, 4, 8])[:, None],
    recompute=np.array(["none", "selective", "full"]),
)
table = many.to_frame("wide")
table[["tp", "recompute", "step_time_s", "mfu", "memory_bytes_per_gpu", "fits"]].sort_values("step_time_s")

# %%
row = table[(table.tp == 4) & (table.recompute == "full")].iloc[0]
one = cm.estimate(
    model="llama3-70b",
    cluster="dgx-h100-ndr",
    gpus=512,
    pp=4,
    tp=4,
    recompute="full",
    global_batch=1024,
    seq_len=8192,
)
ratio = compare("seconds a step, in the array and alone", row.step_time_s, float(one.step_time_s), "same job")
assert abs(ratio - 1) < 0.01  # alone every pipeline stage is looked at, in an array the different ones

# %% [markdown]
# ## What if the network were twice as fast?
#
# A cluster is a value: change it and price the job again.

# %%
cluster = cm.load_cluster("llama3-roce")
inside, *outside = cluster.tiers
faster = [dataclasses.replace(tier, bandwidth_bytes_per_s=2 * tier.bandwidth_bytes_per_s) for tier in outside]
twice = cm.estimate(**{**job, "cluster": dataclasses.replace(cluster, tiers=(inside, *faster))})
ratio = compare("seconds a step, network x 2", float(twice.step_time_s), step, "as built")
assert ratio <= 1.0
