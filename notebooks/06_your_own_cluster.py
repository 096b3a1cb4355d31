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
# # Your own cluster: from nccl-tests logs to a plan
#
# What a network achieves is not on its data sheet. Run nccl-tests, hand the logs to `costmodel observed calibrate fabric`,
# and every estimate uses your machine. The logs here are assembled from published tables of an H100 cluster
# with NDR InfiniBand.

# %%
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import costmodel as cm

LOGS = sorted((Path.cwd().parent / "tests" / "data" / "nccl_logs").glob("*.log"))
print(*(path.name for path in LOGS), sep="\n")
print("\n".join(LOGS[0].read_text().splitlines()[:12]))

# %% [markdown]
# ## From logs to a profile
#
# The same as on the command line: `costmodel observed calibrate fabric logs/*.log --cluster h100-ndr --write ours.yaml`.

# %%
folder = Path(tempfile.mkdtemp())
profile = folder / "ours.yaml"
fit = cm.calibrate.fabric(LOGS, cluster="h100-ndr")
assert not fit.problems
for path, text in fit.files(profile).items():
    path.write_text(text)
print(*sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# ## Fitted against measured
#
# The second source is the log itself: each sweep's time, priced on the new profile and on the data sheet's
# line rate.

# %%
ours, shipped = cm.load_cluster(str(profile)), cm.load_cluster("h100-ndr")
rows = []
for sweep in fit.log.sweeps:
    sizes, measured = sweep.size_bytes, sweep.time_s
    priced = {}
    for name, cluster in (("ours", ours), ("shipped", shipped)):
        chosen = cm.collective(sweep.primitive, sizes, ranks=int(sweep.ranks), cluster=cluster).time_s
        priced[name] = float(np.mean(np.abs(chosen / measured - 1)))
    rows.append((sweep.primitive, int(sweep.ranks), len(sizes), priced["ours"], priced["shipped"]))
table = pd.DataFrame(rows, columns=["collective", "GPUs", "sizes", "mean error, ours", "mean error, shipped"])
assert table["mean error, ours"].mean() < 0.2
table

# %% [markdown]
# ## A plan on it

# %%
job = {"model": "llama3-8b", "gpus": 64, "global_batch": 512, "seq_len": 8192}
plans = {
    name: cm.plan(cluster=cluster, **job, fix={"pp": 1})
    for name, cluster in (("ours", ours), ("shipped", shipped))
}
for name, plan in plans.items():
    print(f"{name:8s} {plan.best}")
ratio = float(plans["ours"].best.step_time_s / plans["shipped"].best.step_time_s)
print(f"step time on our profile over the shipped one: {ratio:.3f}")
assert abs(ratio - 1) < 0.05  # the shipped profile was fitted to more sweeps of such machines

# %% [markdown]
# ## And if the network were half of it?

# %%
inside, *outside = ours.tiers
halved = [dataclasses.replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / 2) for tier in outside]
slow = cm.plan(cluster=dataclasses.replace(ours, tiers=(inside, *halved)), **job, fix={"pp": 1}).best
ethernet = cm.plan(cluster="cloud-h100-100gbe", **job, fix={"pp": 1}).best
base = plans["ours"].best
for name, est in (("ours", base), ("half the network", slow), ("one 100 Gbit/s port a node", ethernet)):
    print(
        f"{name:28s} {float(est.step_time_s):6.2f} s, {float(est.step_time_s / base.step_time_s):.2f} times"
    )
assert base.step_time_s <= slow.step_time_s <= ethernet.step_time_s

# %%
ethernet.plot.time()
