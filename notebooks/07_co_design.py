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
# # A co-design sweep
#
# Which machine should be built for a model? Change one number of the hardware, let the search find the layout
# that suits the changed machine, and compare: a faster network is worth nothing to a layout that hides it.

# %%
import dataclasses

import numpy as np
import pandas as pd

import costmodel as cm

pd.set_option("display.width", 200)
base = cm.load_cluster("dgx-h100-ndr")
job = {"model": "llama3-70b", "gpus": 512, "global_batch": 1024, "seq_len": 8192}
free = {"recompute": ["none", "selective", "full"], "vp": [1, 2, 4, 5, 8], "micro_batch": [1, 2]}


def best_on(cluster):
    """Return the best estimate on a changed machine."""
    return cm.plan(cluster=cluster, **job, **free, num_candidates=1).best


start = best_on(base)
start

# %% [markdown]
# ## What the step waits for
#
# Elasticities: percent of step time per percent of a number. Time is homogeneous in rates and latencies, so
# those of all rates, less those of all latencies, sum to -1: a check on every formula at once.

# %%
found = cm.sensitivity(start)
total = found.total("rate") - found.total("latency")
print(
    f"rates {found.total('rate'):.4f}, latencies {found.total('latency'):.4f}, together {total:.4f}, expected -1"
)
assert abs(total + 1) < 0.02
found.plot.tornado()


# %% [markdown]
# ## Machines that do not exist
#
# Each number doubled on its own, with the layout of the old machine and with the best for the new one.


# %%
def changed(peak=1.0, hbm=1.0, nvlink=1.0, network=1.0, memory=1.0, domain=8):
    """Return the base machine with rates and sizes multiplied, and domains of so many GPUs."""
    gpu = base.accelerator
    accelerator = dataclasses.replace(
        gpu,
        peak_flops_per_s={name: peak * rate for name, rate in gpu.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=hbm * gpu.memory_bandwidth_bytes_per_s,
        memory_bytes=memory * gpu.memory_bytes,
    )
    inside, *outside = base.tiers
    tiers = [
        dataclasses.replace(inside, size=domain, bandwidth_bytes_per_s=nvlink * inside.bandwidth_bytes_per_s)
    ]
    tiers += [
        dataclasses.replace(tier, bandwidth_bytes_per_s=network * tier.bandwidth_bytes_per_s)
        for tier in outside
    ]
    return dataclasses.replace(base, accelerator=accelerator, tiers=tuple(tiers))


knobs = (
    "tp",
    "cp",
    "pp",
    "vp",
    "micro_batch",
    "zero_stage",
    "recompute",
    "schedule",
    "sequence_parallel",
    "shard_group",
)
same_layout = {name: getattr(start.job.layout, name) for name in knobs}
now = float(start.step_time_s)
rows = []
variants = {
    "peak x 2": {"peak": 2},
    "HBM rate x 2": {"hbm": 2},
    "NVLink x 2": {"nvlink": 2},
    "network x 2": {"network": 2},
    "memory x 2": {"memory": 2},
    "domains of 64": {"domain": 64},
}
for name, change in variants.items():
    cluster = changed(**change)
    kept = float(cm.estimate(cluster=cluster, **job, **same_layout).step_time_s)
    new = best_on(cluster)
    layout = " ".join(f"{axis}{int(getattr(new.job.layout, axis))}" for axis in ("tp", "cp", "pp", "dp"))
    rows.append((name, now / kept, now / float(new.step_time_s), layout))
table = pd.DataFrame(rows, columns=["machine", "faster, old layout", "faster, new layout", "new layout"])
assert (table["faster, new layout"] > table["faster, old layout"] - 1e-9).all()
table

# %% [markdown]
# A doubled peak gives less than twice the speed, by Amdahl's law: the elasticity predicts how much less to
# first order.

# %%
elasticity = next(effect.elasticity for effect in found.effects if effect.name == "bf16 peak")
predicted = 1 / (1 + elasticity + -elasticity * 0.5)
got = table.set_index("machine")["faster, old layout"]["peak x 2"]
print(f"peak x 2: {got:.3f} times as fast, from the elasticity {predicted:.3f}, ratio {got / predicted:.3f}")
assert 0.85 < got / predicted < 1.15

# %% [markdown]
# ## Network against fast domain
#
# Step time in seconds over both, each cell the best layout for that machine.

# %%
domains, networks = (8, 16, 32, 64), (0.25, 0.5, 1.0, 2.0)
steps = np.array(
    [[float(best_on(changed(domain=d, network=n)).step_time_s) for n in networks] for d in domains]
)
grid = pd.DataFrame(
    steps,
    index=pd.Index(domains, name="GPUs in a domain"),
    columns=pd.Index([f"{50 * n:g} GB/s" for n in networks], name="network a GPU"),
)
assert (np.diff(steps, axis=1) <= 1e-9).all()  # a faster network never hurts
grid.round(2)
