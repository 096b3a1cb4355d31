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
# # Four lessons: roofline, ZeRO, ring and tree, bubbles
#
# For a course: each lesson says a law, works it out by hand, asks the program for the same number, and leaves an
# exercise. Only public calls are used, so that every cell can be changed and run again. The answers stand at the end.

# %%
import numpy as np
import pandas as pd

import costmodel as cm

GIB = 2**30

# %% [markdown]
# ## 1. Roofline: math or memory?
#
# A kernel does $F$ FLOPs on $B$ bytes of HBM. It cannot end before $\max(F/\text{peak},\ B/\text{bandwidth})$. Where both
# are equal lies the *ridge*: peak over bandwidth, FLOPs a byte. Above it a kernel is bound by math, below by memory.

# %%
gpu = cm.load_accelerator("h100-sxm-80gb")
peak, bandwidth = gpu.peak_flops_per_s["bf16"], gpu.memory_bandwidth_bytes_per_s
ridge = peak / bandwidth
print(f"{peak / 1e12:.1f} TFLOP/s over {bandwidth / 1e12:.2f} TB/s: the ridge is at {ridge:.0f} FLOP/B")

# %% [markdown]
# A product of an $m \times k$ and a $k \times n$ matrix in bf16 does $2mkn$ FLOPs on $2(mk + kn + mn)$ bytes. With few
# rows it is a stream of weights: bound by memory. How many rows until math is the limit?

# %%
rows = np.array([1, 8, 64, 256, 512, 1024, 8192])
k = n = 4096
intensity = 2.0 * rows * k * n / (2.0 * (rows * k + k * n + rows * n))
pd.DataFrame(
    {"rows": rows, "FLOP/B": intensity.round(1), "bound by": np.where(intensity > ridge, "math", "memory")}
)

# %% [markdown]
# The same for every operator of a real job. Those of the layers are far to the right; norms, activations and the
# optimizer never get there, whatever the batch.

# %%
job = {"model": "llama3-8b", "gpus": 8, "layout": "tp2", "global_batch": 64, "seq_len": 8192}
est = cm.estimate(**job)
operators = pd.DataFrame(cm.roofline(est).to_dict()["operators"])
operators[["name", "intensity", "bound"]].iloc[[0, 3, 6, 20, -1]].round(1)

# %%
est.plot("compute-roofline")

# %% [markdown]
# **Exercise 1.** At how many rows does the product above reach the ridge? Solve $I(m) = \text{ridge}$ for $k = n = 4096$.

# %% [markdown]
# ## 2. ZeRO: what a parameter costs, and who keeps it
#
# Mixed precision with Adam keeps 2 bytes of weight, 2 of gradient, 4 of master weight and 8 of moments: 16 a parameter
# (18 where gradients are summed in fp32). Plain data parallelism keeps all of it on every rank. ZeRO-1 divides the
# optimizer's 12 by the ranks, ZeRO-2 the gradients too, ZeRO-3 the weights as well.

# %%
phi, ranks = 7e9, 64
by_hand = {0: 16.0, 1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks}
for stage, size in by_hand.items():
    print(f"ZeRO-{stage}: {size:6.3f} B a parameter, {phi * size / 1e9:6.2f} GB a rank for 7 billion")

# %% [markdown]
# The program's bill has a line for each state. Its recipe says the bytes; this one sums gradients in fp32.

# %%
stages = [0, 1, 2, 3]
many = cm.estimate(
    model="llama3-8b", gpus=64, zero_stage=np.array(stages), tp=1, global_batch=64, seq_len=8192
)
frame = many.to_frame("wide")
states = [f"memory_{kind}_bytes" for kind in ("parameters", "gradients", "optimizer")]
table = pd.DataFrame({"ZeRO": stages, "states [GiB]": (frame[states].sum(axis=1) / GIB).round(2)})
table["step [s]"] = np.asarray(many.step_time_s).round(3)
table

# %%
cm.estimate(model="llama3-8b", gpus=64, zero_stage=1, global_batch=64, seq_len=8192).plot("memory")

# %% [markdown]
# **Exercise 2.** How many bytes a step does a rank send in stages 1 and 3, if a ring all-gather or reduce-scatter of $n$
# bytes sends about $n$ and all tensors are of 2 bytes? Why does the step of stage 3 take hardly longer here?

# %% [markdown]
# ## 3. Ring and tree: bandwidth or latency?
#
# A message of $n$ bytes takes $\alpha + n\beta$. A ring all-reduce over $P$ ranks takes $2(P-1)$ steps of $n/P$ bytes:
# $2(P-1)\alpha + 2\frac{P-1}{P} n\beta$. It sends next to nothing twice, but its latency grows with $P$. A tree needs only
# $2\log_2 P$ steps, each of all bytes.

# %%
alpha, rate, P = 5e-6, 50e9, 64
sizes = np.array([1e3, 1e5, 1e7, 1e9])
ring = 2 * (P - 1) * alpha + 2 * (P - 1) / P * sizes / rate
tree = 2 * np.log2(P) * (alpha + sizes / rate)
found = cm.collective("all-reduce", sizes, ranks=P, latency_s=alpha, bandwidth_bytes_per_s=rate)
priced = {price.algorithm: np.asarray(price.time_s) for price in found.prices}
assert np.allclose(priced["ring"], ring)
assert np.allclose(priced["tree"], tree)
pd.DataFrame({"bytes": sizes, "ring [us]": (ring * 1e6).round(1), "tree [us]": (tree * 1e6).round(1)})

# %% [markdown]
# A library chooses by size, and has ways between the two (recursive halving and doubling, pipelined double trees). On
# a real fabric, with the constants of NCCL:

# %%
real = cm.collective("all-reduce", ["8KB", "1MB", "64MB", "1GB"], ranks=P)
pd.DataFrame({"size": ["8 kB", "1 MB", "64 MB", "1 GB"], "time [us]": (real.time_s * 1e6).round(1)})

# %% [markdown]
# **Exercise 3.** At which size are ring and tree equally fast for $P = 64$? And for $P = 1024$?

# %% [markdown]
# ## 4. Bubbles: what a pipeline waits for
#
# With $p$ stages and $m$ micro-batches of time $t$ the first stage works for $mt$ and the step lasts $(m + p - 1)t$. The
# bubble, over the work, is $(p-1)/m$. With $v$ chunks a rank the pieces are $v$ times smaller: $(p-1)/(vm)$, for $v$ times
# the messages.

# %%
pipelined = {"model": "llama3-8b", "gpus": 8, "pp": 4, "tp": 2, "seq_len": 8192, "recompute": "full"}
rows = []
for micro_batches in (4, 8, 16, 64):
    for vp in (1, 2, 4):
        one = cm.estimate(**pipelined, vp=vp, global_batch=micro_batches)
        share = one.exposed_by("category")["bubble"] / one.step_time_s
        by_hand = (4 - 1) / (vp * micro_batches)
        rows.append((micro_batches, vp, f"{by_hand / (1 + by_hand):.1%}", f"{float(share):.1%}"))
pd.DataFrame(rows, columns=["micro-batches", "chunks a rank", "by hand", "of the bill's step"])

# %% [markdown]
# By hand all stages have the same to do. Here the last one has the head beside its layers, so that the others wait for
# it; the bill's bubble is what the *busiest* rank waits for, which is less. Its step has messages and an optimizer too.
# The shape of the law holds: half for twice the micro-batches, or for twice the chunks. Task by task:

# %%
cm.estimate(**pipelined, global_batch=8).plot("pipeline")

# %% [markdown]
# **Exercise 4.** How many micro-batches keep the bubble of 16 stages below 5 % without chunks? With 5 chunks?

# %% [markdown]
# ## Answers

# %%
m = ridge / (1 - 2 * ridge / 4096)
print(f"1: I(m) = m k / (2 m + k) for k = n; so m = ridge / (1 - 2 ridge / k) = {m:.0f} rows")
print("2: stage 1: 2 B to reduce-scatter and 2 B to gather, 4 B a parameter; stage 3 gathers once more: 6 B,")
print("   but the next layer's weights are fetched while this one computes, and little of that is waited for")
for P in (64, 1024):
    equal = (2 * (P - 1) - 2 * np.log2(P)) * alpha * rate / (2 * np.log2(P) - 2 * (P - 1) / P)
    print(f"3: {P:4d} ranks: {equal / 1e6:.2f} MB")
print(
    f"4: (p - 1) / m <= x / (1 - x): {int(np.ceil(15 * 0.95 / 0.05))} micro-batches; {int(np.ceil(3 * 0.95 / 0.05))} with 5 chunks"
)
