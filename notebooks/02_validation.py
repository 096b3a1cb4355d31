# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Held against the world
#
# `costmodel` was compared with training runs that other people measured and published. This notebook prices the
# ones that are in the repository (`tests/published/runs.csv`: a sample of every source), draws predicted against
# measured, and says where the error sits and what each repair of the physics bought.
#
# Two rules kept the comparison honest. Constants of kernels and collectives come from micro-benchmarks
# (matrix products, attention, nccl-tests) and never from a training run. What whole runs may set is one number a
# recipe, the share of a step that no kernel explains (`overhead_fraction`); the last section shows how good it is
# for a source that it has never seen.

# %%
import numpy as np
import pandas as pd

import costmodel as cm

checked = cm.validate()
checked.summary().round(1)

# %% [markdown]
# ## Predicted against measured
#
# Both axes are logarithmic; the grey band is ±10 %. One marker a family of sources.

# %%
import matplotlib.pyplot as plt

scored = checked.judged.dropna(subset=["time_error"])
families = {
    "Megatron-LM, A100": "korthikanti|sc21|megatron-2020|megascale|zero-bubble",
    "Megatron-DeepSpeed, A100": "bloom|vtrain",
    "Aleph Alpha, A100": "aleph",
    "NeMo, H100 and GB200": "nemo|dgxc",
    "Megatron-Bridge": "megatron-bridge|gb200-ladder|megatron-moe",
    "FSDP (LLM Foundry, torchtitan, MaxText)": "llm-foundry|torchtitan|torchao|maxtext|gpu-recipes|jax",
    "others": ".",
}
left = scored.copy()
figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
for marker, (label, pattern) in zip("osD^vPx", families.items(), strict=True):
    rows = left[left.source.str.contains(pattern)]
    left = left.drop(rows.index)
    axes.loglog(
        rows.measured_step_time_s, rows.predicted_step_time_s, marker, label=label, markersize=5, alpha=0.7
    )
ends = np.array([0.05, 500.0])
axes.plot(ends, ends, "k-", linewidth=0.8)
axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="grey", alpha=0.2)
axes.set(
    xlabel="measured step time [s]",
    ylabel="predicted step time [s]",
    title="Published runs, predicted and measured",
)
axes.legend(fontsize="small")
plt.show()

# %%
assert len(left) == 0
assert (
    checked.runs.skipped_reason.eq("").mean() > 0.97
)  # a row that cannot be priced is counted, never dropped
checked.summary("source").round(1)

# %% [markdown]
# ## Where the error sits

# %%
checked.summary("accelerator").round(1)

# %%
checked.summary("axis").round(1)

# %% [markdown]
# Dense models on A100 and H100 are within 4 to 6 % in the median, whatever the axes. What is worse is told by the
# two tables: mixture-of-experts models (`ep`) and Blackwell. They are the same runs to a large part, and the reason is
# the same: many short kernels whose cost is the host's, routing whose imbalance nobody publishes, and kernels of a
# generation that changed from release to release (the same layout moves by 5 to 20 % between containers).
#
# ## Memory, and what does not fit

# %%
checked.summary("source", of="memory").round(1)

# %%
pd.Series(checked.out_of_memory())

# %% [markdown]
# ## Ranking layouts
#
# For a search it matters more that layouts are ordered right than that their times are. Regret is the measured time
# of the layout that the model would have picked, over the best that was measured.

# %%
sweeps = checked.sweeps()
sweeps.round(2)

# %% [markdown]
# ## What the repairs bought
#
# The first version priced kernels and collectives and nothing else. Over the full table of 1,192 published rows it was
# 23 % too fast in the mean, with a spread that no single factor could mend. What closed the gap, in the order of what it
# bought (mean absolute error of the sources concerned, before → after):
#
# | repair | sources | before → after |
# |---|---|---|
# | what FSDP really does: checkpoints that stop early, gathers after the backward pass of a layer, copies between parameters and flat buffers | LLM Foundry, DeepSpeed offload | 13.4 → 8.0 %, 58.6 → 12.7 % |
# | launch-bound layers: host time a launch, launches counted operator by operator, blocking launches where a run used them | vTrain single-node, BLOOM | 33 → 9 %, 24 → 10 % |
# | Aleph Alpha's own code: whole gradients summed in fp32, gathered logits, the gate as a layer of its own | Aleph Alpha | 19.0 → 11.5 % |
# | what MaxText recomputes when only Q, K and V are saved | MaxText | 22.3 → 8.1 % |
# | quantising kernels of fp8: casts, transposes, amax passes at measured bandwidth | NeMo fp8 | 15.6 → 11.6 % |
# | ring attention priced step by step, with the merging of its results | runs with CP | 81 → 8 % too slow on the longest |
# | DualPipe: a rank holds a stage from either end, and 20 SMs belong to communication | DeepSeek-V3 | 15.5 → 5 % |
# | host cost of MoE layers: router kernels, a launch an expert, partial CUDA graphs | DeepSeek-V3 on GB200 | 18.0 → 8.6 % |
#
# and in memory: gradients alive at the widest point of a backward pass, the stubs that Transformer Engine keeps for
# weight gradients, the root unit of FSDP, DeepSpeed's buckets: 19.3 → 5.1 % in the mean, 0.6 % on the SimuMax B200 runs.
#
# What is left over all sources is a nearly constant share, 7 to 25 % by recipe. It has the sign of everything that
# micro-benchmarks do not see: gaps between kernels, jitter between ranks, clocks under a mixed load.

# %% [markdown]
# ## Leaving each source out

# %%
import sys
from pathlib import Path

tools = Path("tools/fit")
sys.path.append(str(tools if tools.exists() else Path("..") / tools))
from fit_overheads import fit_shares, fitted_runs, left_out_errors

runs = fitted_runs(checked.judged)
pd.DataFrame(fit_shares(runs).values(), index=fit_shares(runs)).round(3)

# %%
errors = left_out_errors(runs)
print(
    f"every family of sources scored with constants that were fitted without it: median {errors.abs().median():.1%}, "
    f"mean {errors.abs().mean():.1%}, p90 {errors.abs().quantile(0.9):.1%}, bias {errors.mean():+.1%}"
)
assert errors.abs().median() < 0.10

# %% [markdown]
# That is what `est.error_band` is made of: the middle 80 % of these errors, by GPU generation and kind of model.

# %% [markdown]
# ## Do stated probabilities hold?
#
# Every run was priced at 1,000 samples of its uncertain factors (`est.sample`), with the constants of its recipe fitted
# without its family of sources. Of the runs, how many lie inside the middle 10 %, 20 % … 90 % of their own samples? On the
# diagonal, as many as stated. The table is of all published runs; `tools/pages/score_uncertainty.py` makes it.

# %%
from pathlib import Path

table = Path("tests/published/calibration_curve.csv")
curve = pd.read_csv(table if table.exists() else Path("..") / table).set_index("stated")
fig, ax = plt.subplots(figsize=(5.5, 5), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.6", linewidth=1)
for name in curve:
    ax.plot(
        curve.index, curve[name], marker="o", markersize=3, linewidth=2.5 if name == "all" else 1, label=name
    )
ax.set(
    xlabel="stated", ylabel="share of runs inside", title="Middle share of the samples, and of the runs in it"
)
ax.legend(frameon=False, fontsize="small")
assert (curve["all"] - curve.index).abs().max() < 0.05

# %% [markdown]
# All classes together are held to a few points everywhere. Single classes are held at 80 %, which their spreads were made
# for; inside that, mixtures of experts on Blackwell sit off the middle (what was published of them is slower than what is
# predicted), and those on Hopper nearer to it than stated.
