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
# # H100 nodes or a rack of 72 for a 671B mixture of experts
#
# Nodes of eight H100 share a fast domain of eight GPUs; a GB200 NVL72 rack is one domain of 72. What does the
# larger domain buy, beside the faster GPU? The exchange of tokens between experts, and long sequences.

# %%
import dataclasses

import pandas as pd

import costmodel as cm

pd.set_option("display.width", 200)
model = cm.load_model("deepseek-v3-671b")
facts = cm.model_facts(model)
print(
    f"{facts.num_params / 1e9:.1f}B parameters, {facts.num_active_params / 1e9:.1f}B active; published 671B and 37B"
)
assert abs(facts.num_params / 671e9 - 1) < 0.01
HGX, NVL72 = "dgx-h100-ndr", "gb200-nvl72-ndr"

# %% [markdown]
# ## The exchange of tokens, expert by expert
#
# Each token visits 8 of 256 experts, in 58 layers, twice forward and twice backward. On H100 an exchange over
# more than eight GPUs leaves the node; on the rack EP 64 does not.

# %%
job = {
    "model": "deepseek-v3-671b",
    "gpus": 1024,
    "global_batch": 8192,
    "seq_len": 4096,
    "pp": 16,
    "recompute": "full",
}


def exchange(est):
    """Return busy and exposed seconds of the experts' exchange, and the slowest tier that it runs on."""
    lines = [line for line in est.bill.time_lines if line.axis == "ep" and line.seconds > 0]
    tier = max((int(line.tier) for line in lines), default=0)
    return (
        sum(float(line.seconds) for line in lines),
        sum(float(line.exposed_seconds) for line in lines),
        est.bill.tier_names[tier],
    )


rows = []
for cluster in (HGX, NVL72):
    for ep in (8, 16, 32, 64):
        est = cm.estimate(cluster=cluster, ep=ep, **job)
        busy, exposed, tier = exchange(est)
        step = float(est.step_time_s)
        rows.append(
            (cluster, ep, tier, busy, exposed, exposed / step, step, float(est.memory_bytes_per_gpu) / 2**30)
        )
names = [
    "cluster",
    "ep",
    "slowest link",
    "busy [s]",
    "waits [s]",
    "share of step",
    "step [s]",
    "memory [GiB]",
]
table = pd.DataFrame(rows, columns=names)
table

# %% [markdown]
# The second source: DeepSeek's own kernels, measured (DeepEP, README: EP 64 over 8 nodes, about 50 GB/s of
# InfiniBand a GPU for dispatch). What a GPU sends in a layer of our bill over its time is that rate.

# %%
h100 = cm.estimate(cluster=HGX, ep=64, **job, switches={"moe_dispatcher": "deep-ep"})
line = next(line for line in h100.bill.time_lines if line.name.endswith("dispatch.forward"))
rate = float(line.bytes_each / line.each_s) / 1e9
print(
    f"{line.name}: {rate:.0f} GB/s on {h100.bill.tier_names[int(line.tier)]}, published 40 to 60, ratio {rate / 50:.2f}"
)
assert 0.5 < rate / 50 < 2.0

# %%
wait = table.set_index(["cluster", "ep"])["busy [s]"]
print(
    f"EP64: the exchange takes {wait[HGX, 64] / wait[NVL72, 64]:.1f} times as long on H100 nodes as in the rack"
)
assert wait[HGX, 64] > 3 * wait[NVL72, 64]

# %% [markdown]
# ## How much of the gain is the domain, and how much the GPU?
#
# A cluster is a value: put GB200 GPUs into domains of eight, and look again.

# %%
rack = cm.load_cluster(NVL72)
inside, *outside = rack.tiers
split = dataclasses.replace(
    rack, name="gb200-in-eights", tiers=(dataclasses.replace(inside, size=8), *outside)
)
steps = {}
for name, cluster in (
    ("H100, domains of 8", HGX),
    ("GB200, domains of 8", split),
    ("GB200, domains of 72", rack),
):
    est = cm.estimate(cluster=cluster, ep=64, **job)
    steps[name] = float(est.step_time_s)
    print(f"{name:22s} {steps[name]:7.2f} s a step, {exchange(est)[1]:6.2f} s of it waiting for the exchange")
chip = steps["H100, domains of 8"] / steps["GB200, domains of 8"]
domain = steps["GB200, domains of 8"] / steps["GB200, domains of 72"]
print(f"the chip: {chip:.2f} times; the domain: {domain:.2f} times; both: {chip * domain:.2f} times")
assert domain > 1.1

# %% [markdown]
# ## Where context parallelism begins to pay
#
# Splitting the sequence costs an exchange of keys and values, which is cheap inside the domain. For each sequence
# length, at 4 M tokens a step: the best layout without context parallelism and the best with it. The rule of thumb
# that this is set beside: from 16 to 32 thousand tokens on nodes of eight, from 4 to 8 thousand in a rack. The model
# agrees for the nodes within a factor of two and not for the rack: with 186 GiB a GPU short sequences fit without it,
# and layouts with five per cent of memory to spare are within a few per cent of each other up to 32 thousand tokens.

# %%
rows = []
for cluster in (HGX, NVL72):
    for seq_len in (4096, 8192, 16384, 32768, 65536, 131072):
        asked = {
            "model": "llama3-70b",
            "cluster": cluster,
            "gpus": 128,
            "global_batch": 2**22 // seq_len,
            "seq_len": seq_len,
            "recompute": ["none", "selective", "full"],
            "vp": [1, 2, 4, 5],
        }
        best = {}
        for name, cps in (("without", [1]), ("with", [2, 4, 8, 16, 32])):
            try:
                best[name] = cm.plan(**asked, cp=cps, num_candidates=1).best
            except cm.CostModelError:
                continue
        steps = {name: float(est.step_time_s) for name, est in best.items()}
        ratio = steps.get("without", float("inf")) / steps["with"]
        rows.append(
            (cluster, seq_len, steps.get("without"), steps["with"], int(best["with"].job.layout.cp), ratio)
        )
crossing = pd.DataFrame(
    rows, columns=["cluster", "tokens", "without CP [s]", "with CP [s]", "cp", "gain of CP"]
)
crossing

# %%
from_tokens = {}
for cluster, held in crossing.groupby("cluster", sort=False):
    pays = held[held["gain of CP"] > 1.02]["tokens"]
    from_tokens[cluster] = int(pays.min())
    print(f"{cluster:18s} context parallelism pays from {pays.min():,} tokens a sequence")
assert max(from_tokens.values()) <= 32768
