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
# # One evening of GRPO
#
# Two nodes of H100, Llama 3.1 8B, 64 prompts with 32 answers each. Where does a step go, how should the GPUs be split,
# is it worth training on answers that are a step old, and what does an answer cost? The job is a published one
# (NVIDIA-NeMo/RL, performance summary: 97.7 s a step with all GPUs doing both in turn, 74.6 s with the halves apart).

# %%
import pandas as pd

import costmodel as cm

job = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 16,
    "recipe": "megatron-bridge",
    "seq_len": 4096,
    "prompts": 64,
    "samples_per_prompt": 32,
    "prompt_len": 132,
    "response_len": 1060,
    "max_response_len": 3964,
    "optimizer_steps": 4,
    "rl_framework": "nemo-rl",
}
published = {"layout": "pp2", "recompute": "full", "generation_layout": "tp1"}

# %% [markdown]
# ## Where a step goes
#
# All GPUs train and generate in turn: the phases add up to the step, and every phase is a bill of its own.

# %%
together = cm.estimate_rl(**job, **published)
together

# %%
together.plot("phases")

# %%
ratio = together.step_time_s / 97.7
print(f"{together.step_time_s:.1f} s against 97.7 s published: {ratio:.2f}")
assert 0.8 < ratio < 1.25

# %% [markdown]
# A step waits for its longest answer, not for the mean one: with the same tokens, a lower limit shortens the rollout.


# %%
def rollout(limit):
    """Return the seconds of a rollout, and the answers that run in an average decode step."""
    found = cm.estimate_rl(**{**job, **published, "max_response_len": limit})
    return {"limit": limit, "rollout_s": found.seconds_of("generation"), "mean_batch": found.spans.mean_batch}


tails = pd.DataFrame([rollout(limit) for limit in (1500, 2000, 3964, 8000, 16000)])
tails.round(1)

# %%
assert tails.rollout_s.is_monotonic_increasing
assert tails.mean_batch.is_monotonic_decreasing

# %% [markdown]
# ## Together or apart, and which split
#
# Without a layout, the planner finds that of the GPUs that train as well.

# %%
plan = cm.plan_rl(**job)
plan.to_frame()[
    ["train_gpus", "generation_gpus", "lag", "training_layout", "generation_tp", "step_time_s"]
].round(1)

# %%
best = plan.best
assert best.step_time_s < together.step_time_s
best.plot("phases")

# %% [markdown]
# ## Synchronous or asynchronous
#
# With a lag of k steps the answers of k steps are under way together: the tail of one hides behind the next, until the
# slower half, training or decoding at full batches, is all that is left. What an older policy costs in learning is no
# number of this program.


# %%
def lagged(lag):
    """Return the step with the halves apart and so many steps of lag."""
    found = cm.estimate_rl(**{**job, **published, "generation_gpus": 8, "lag": lag})
    return {"lag": lag, "step_s": found.step_time_s, "trainer_waits_s": found.waiting_s}


lags = pd.DataFrame([lagged(lag) for lag in (0, 0.5, 1, 2, 4)])
lags.round(1)

# %%
one_off = float(lags.step_s[2])
print(f"one step of lag: {one_off:.1f} s against 74.6 s published: {one_off / 74.6:.2f}")
print(f"synchronous over asynchronous: {together.step_time_s / one_off:.2f} against {97.7 / 74.6:.2f}")
assert lags.step_s.is_monotonic_decreasing
assert 0.8 < one_off / 74.6 < 1.25

# %% [markdown]
# ## What an answer costs
#
# Dollars a step over the answers of a step; an evening is six hours.

# %%
answers = together.job.answers
evening = cm.run_rl(int(6 * 3600 / one_off), **job, **published, generation_gpus=8)
print(f"an answer, together: {100 * together.usd_per_step / answers:.4f} cents")
print(f"an answer, apart:    {100 * best.usd_per_step / answers:.4f} cents")
evening

# %% [markdown]
# An answer is worth something when it solves the problem. With a rate of 20 % an attempt, k of them solve 1 - 0.8^k.

# %%
for k in (1, 4, 16, 32):
    solved = float(cm.formulas.pass_at_k(k, 0.2))
    cents = 100 * float(cm.formulas.usd_per_solved(best.usd_per_step / answers, k, solved))
    print(f"{k:3d} answers a problem: {solved:5.1%} solved, {cents:.4f} cents a solved problem")
