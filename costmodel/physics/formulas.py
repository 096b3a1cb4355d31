"""`costmodel.formulas`: the textbook by itself, arrays in and arrays out; no model, no recipe, no file.

What an estimate is made of stands on its bill. These are the formulas that people compute alone, to
check a guide or to teach: collectives, ridge points, bubbles, the slowest of many, checkpoints,
scaling laws, samples until a problem is solved.
"""

from costmodel.physics.network.collectives import crossover_size_bytes as crossover_size_bytes
from costmodel.physics.network.collectives import textbook_time as textbook_time
from costmodel.physics.network.collectives import two_level_time as two_level_time
from costmodel.physics.network.comm_roofline import data_parallel_intensity as data_parallel_intensity
from costmodel.physics.network.comm_roofline import regime as regime
from costmodel.physics.network.comm_roofline import ridge_point as ridge_point
from costmodel.physics.pipeline.schedules import bubble_time_s as bubble_time_s
from costmodel.physics.pipeline.schedules import schedule_code as schedule_code
from costmodel.physics.run.answers import beta_of_points as beta_of_points
from costmodel.physics.run.answers import pass_at_k as pass_at_k
from costmodel.physics.run.answers import pass_at_k_beta as pass_at_k_beta
from costmodel.physics.run.answers import usd_per_solved as usd_per_solved
from costmodel.physics.run.goodput import best_interval_s as best_interval_s
from costmodel.physics.run.goodput import daly_interval_s as daly_interval_s
from costmodel.physics.run.goodput import young_interval_s as young_interval_s
from costmodel.physics.run.scaling_laws import LAWS as LAWS
from costmodel.physics.run.scaling_laws import compute_optimal as compute_optimal
from costmodel.physics.run.scaling_laws import kaplan_loss as kaplan_loss
from costmodel.physics.run.scaling_laws import kaplan_optimal as kaplan_optimal
from costmodel.physics.run.scaling_laws import kaplan_params_for_loss as kaplan_params_for_loss
from costmodel.physics.run.scaling_laws import loss as loss
from costmodel.physics.run.scaling_laws import params_for_loss as params_for_loss
from costmodel.physics.run.scaling_laws import tokens_for_loss as tokens_for_loss
from costmodel.physics.run.stragglers import RankTimes as RankTimes
from costmodel.physics.run.stragglers import expected_maximum_normal as expected_maximum_normal
from costmodel.physics.run.stragglers import maximum_moments as maximum_moments
