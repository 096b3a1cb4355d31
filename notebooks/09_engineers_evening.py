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
# # An engineer's evening: plan, try three, measure, calibrate, plan again
#
# Llama 3 70B starts tomorrow on 64 H100. Tonight the cluster is free for a few short trials. The plan says which; what
# they measured goes back into the model; the plan is made again.
#
# **The measurements here are synthetic.** There is no cluster behind this page: steps are those of the model on a machine whose
# InfiniBand carries a quarter of what its profile says (two of eight adapters came up), with 1 % of noise, written as
# Megatron-LM would print them. Whoever has a cluster replaces the cell that writes the logs by running the trials.

# %%
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import costmodel as cm

JOB = {"model": "llama3-70b", "gpus": 64, "global_batch": 32, "seq_len": 8192}
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Plan
#
# On the shipped profile of such a machine.

# %%
first = cm.plan(**JOB)
print(first.best)
print(first.commands(1)[0])

# %% [markdown]
# ## Try three
#
# Of the good ways to split the model: the fastest, and those that wait most and least for the network between nodes. What
# they share says little; what tells them apart says which constants of the model are off.


# %%
def between_nodes(est):
    """Return the share of a step that waits for links outside the node."""
    lines = est.to_dict()["lines"]
    return sum(one["exposed_seconds"] for one in lines if one["tier"] not in (None, "nvlink")) / float(
        est.step_time_s
    )


splits = {}
for est in first.top(300):
    layout = est.job.layout
    name = f"tp{float(layout.tp):.0f} cp{float(layout.cp):.0f} pp{float(layout.pp):.0f}"
    splits.setdefault(name, est)
waits = {name: between_nodes(est) for name, est in splits.items()}
chosen = dict.fromkeys([next(iter(splits)), max(waits, key=waits.get), min(waits, key=waits.get)])
tries = {name: splits[name] for name in chosen}
assert len(tries) == 3
pd.DataFrame(
    {
        name: {"predicted step [s]": float(est.step_time_s), "waits for the network": waits[name]}
        for name, est in tries.items()
    }
).T.round(3)

# %% [markdown]
# ## Measure
#
# Forty steps of each, in the log that the framework prints anyway; the first three compile and connect. (Synthetic, see above.)

# %%
shipped = cm.load_cluster("dgx-h100-ndr")
inside, *outside = shipped.tiers
slow = dataclasses.replace(
    shipped,
    tiers=(
        inside,
        *(dataclasses.replace(one, bandwidth_bytes_per_s=one.bandwidth_bytes_per_s / 4) for one in outside),
    ),
)
rng = np.random.default_rng(7)


def inputs(est, **changed):
    """Return the keywords that price a layout again, on another machine or with a site."""
    return {**est.to_dict()["inputs"], **changed}


def write_log(path, step_s):
    """Write steps as Megatron-LM prints them."""
    seconds = step_s * (1 + 0.01 * rng.standard_normal(40)) * np.where(np.arange(40) < 3, 6.0, 1.0)
    path.write_text(
        "".join(
            f" [2026-01-29 20:{n // 60:02d}:{n % 60:02d}] iteration {n:8d}/ 100000 | elapsed time per iteration"
            f" (ms): {1e3 * one:.1f} | global batch size: {JOB['global_batch']:5d} |\n"
            for n, one in enumerate(seconds, start=1)
        )
    )


logs = {}
for number, (name, est) in enumerate(tries.items()):
    logs[name] = folder / f"try{number}.log"
    write_log(logs[name], float(cm.estimate(**inputs(est, cluster=slow)).step_time_s))
times = {name: cm.calibrate.step_times(log, tries[name]) for name, log in logs.items()}
pd.DataFrame(
    {
        name: {
            "measured step [s]": one.step_time_s,
            "standard error [s]": one.error * one.step_time_s,
            "lines of warm-up": one.left_out[0].lines,
        }
        for name, one in times.items()
    }
).T.round(3)

# %% [markdown]
# ## Calibrate
#
# `costmodel observed calibrate runs` does the same with files. The steps are slower than predicted, and not all alike: one is as
# predicted, two are far off. The factor that explains all three is the speed of what crosses InfiniBand.

# %%
found = cm.calibrate.runs({name: (tries[name], one.step_time_s) for name, one in times.items()})
(site_file, text), *_ = found.files(folder / "site.yaml").items()
site_file.write_text(text)
found

# %%
told = found.moves[0]
print(f"{told.name}: seconds x {np.exp(told.center):.2f}")
assert told.name == "collective.ib.transfer"
assert 3 < np.exp(told.center) < 4.5
assert found.errors["after"] < 0.02 < found.errors["before"]

# %% [markdown]
# ## Plan again
#
# On the same profile, with the site file: `costmodel plan ... --site site.yaml`.

# %%
second = cm.plan(**JOB, site=str(site_file))
print(second.best)
print(second.commands(1)[0].replace(str(folder), "."))

# %% [markdown]
# The plan changed. The reason, by axis: both plans priced with what the runs said. What data parallelism waits for between
# nodes goes away with twice the stages, each of half the parameters; that is now worth more than the bubble and the smaller
# pieces of work that they cost.

# %%
before = cm.estimate(**inputs(first.best, site=str(site_file)))
after = second.best


assert float(after.job.layout.pp) != float(before.job.layout.pp)
by_axis = pd.DataFrame(
    {
        "first plan": {axis: float(value) for axis, value in before.exposed_by("axis").items()},
        "second plan": {axis: float(value) for axis, value in after.exposed_by("axis").items()},
    }
).fillna(0.0)
by_axis["difference [s]"] = by_axis["second plan"] - by_axis["first plan"]
by_axis.sort_values("difference [s]").round(3)

# %% [markdown]
# ## Was it worth the evening?
#
# On the machine that the logs came from (which only this page knows): the first plan, the second, and what was
# predicted of the second before it ever ran.

# %%
truth = {
    name: float(cm.estimate(**inputs(est, cluster=slow, site=None)).step_time_s)
    for name, est in (("first plan", first.best), ("second plan", second.best))
}
low, high = second.best.interval()
print(pd.Series(truth, name="step on that machine [s]").round(3).to_string())
print(
    f"predicted of the second plan: {float(second.best.step_time_s):.3f} s, p10 to p90 {low:.3f} to {high:.3f} s"
)
assert truth["second plan"] < truth["first plan"]
assert low < truth["second plan"] < high
