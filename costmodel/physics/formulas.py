"""`costmodel.formulas`: the textbook by itself, arrays in and arrays out; no model, no recipe, no file.

What an estimate is made of stands on its bill. These are the formulas that people compute alone, to
check a guide or to teach: collectives, ridge points, bubbles, the slowest of many, checkpoints,
scaling laws, samples until a problem is solved.
"""

from costmodel.physics.network.collectives import crossover_size_bytes, textbook_time, two_level_time
from costmodel.physics.network.comm_roofline import data_parallel_intensity, regime, ridge_point
from costmodel.physics.pipeline.schedules import bubble_time_s, schedule_code
from costmodel.physics.run.answers import beta_of_points, pass_at_k, pass_at_k_beta, usd_per_solved
from costmodel.physics.run.goodput import best_interval_s, daly_interval_s, young_interval_s
from costmodel.physics.run.scaling_laws import (
    LAWS,
    compute_optimal,
    kaplan_loss,
    kaplan_optimal,
    kaplan_params_for_loss,
    loss,
    params_for_loss,
    tokens_for_loss,
)
from costmodel.physics.run.stragglers import RankTimes, expected_maximum_normal, maximum_moments

__all__ = [
    "LAWS",
    "RankTimes",
    "best_interval_s",
    "beta_of_points",
    "bubble_time_s",
    "compute_optimal",
    "crossover_size_bytes",
    "daly_interval_s",
    "data_parallel_intensity",
    "expected_maximum_normal",
    "kaplan_loss",
    "kaplan_optimal",
    "kaplan_params_for_loss",
    "loss",
    "maximum_moments",
    "params_for_loss",
    "pass_at_k",
    "pass_at_k_beta",
    "regime",
    "ridge_point",
    "schedule_code",
    "textbook_time",
    "tokens_for_loss",
    "two_level_time",
    "usd_per_solved",
    "young_interval_s",
]
