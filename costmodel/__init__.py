"""costmodel: what a step of distributed LLM training takes, second by second and byte by byte.

>>> import costmodel as cm
>>> est = cm.estimate(model="llama3-8b", cluster="dgx-h100-ndr", gpus=8, layout="tp2 pp1",
...                   global_batch=128, seq_len=8192)
>>> bool(est.fits), bool(est.step_time_s > 0)
(True, True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodel.base.answer import Answer
    from costmodel.base.errors import CostModelError, NoLayoutError
    from costmodel.describe.frameworks import FRAMEWORKS
    from costmodel.describe.hardware.cluster import Accelerator, Cluster
    from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_cluster
    from costmodel.describe.hardware.profile_pages import ProfilePage, hardware_profile, profiles_table
    from costmodel.describe.jobs.job import DEFAULT_CLUSTER, DEFAULT_RECIPE
    from costmodel.describe.jobs.recipe_page import RecipePage, recipe, recipes_table
    from costmodel.describe.models.model import Model
    from costmodel.describe.models.model_files import list_models, load_model
    from costmodel.describe.optimizers import OPTIMIZERS
    from costmodel.describe.precision import PRECISIONS
    from costmodel.describe.recipe import Recipe, list_recipes, load_recipe
    from costmodel.describe.schemas import schema
    from costmodel.estimates.collective_costs import CollectiveCosts, collective
    from costmodel.estimates.estimate import Estimate, estimate
    from costmodel.estimates.mesh import MeshTable, mesh
    from costmodel.estimates.model_facts import ModelFacts, model_facts, models_table
    from costmodel.estimates.profile_check import check_profile
    from costmodel.estimates.roofline import Roofline, roofline
    from costmodel.estimates.trace import Trace, trace
    from costmodel.interop.emit import emit
    from costmodel.interop.framework import Imported
    from costmodel.interop.reading import read
    from costmodel.physics import formulas
    from costmodel.planning.beside import beside, named_or_planned
    from costmodel.planning.plan import Plan, plan
    from costmodel.planning.planned_run import run
    from costmodel.planning.sweep import Sweep, points_of, read_grid, sweep
    from costmodel.reporting.html.report import report
    from costmodel.trust import calibrate, measure, overheads
    from costmodel.trust.profiles.profile import profile
    from costmodel.trust.profiles.trace_profile import TraceProfile
    from costmodel.trust.validation import Validation, validate
    from costmodel.what_if.compare import Comparison, compare
    from costmodel.what_if.expect import expect, read_expected
    from costmodel.what_if.runs import Runs, runs
    from costmodel.what_if.sensitivity import Sensitivity, sensitivity
    from costmodel.what_if.vary import vary
    from costmodel.whole_run.budget import Budget, budget
    from costmodel.whole_run.run import TrainingRun
    from costmodel.whole_run.watch import Watch, Watcher, watch
from costmodel.base.version import __version__

_NAMES = {
    "base.answer": ("Answer",),
    "base.errors": ("CostModelError", "NoLayoutError"),
    "describe.frameworks": ("FRAMEWORKS",),
    "describe.hardware.cluster": ("Accelerator", "Cluster"),
    "describe.hardware.hardware": ("list_profiles", "load_accelerator", "load_cluster"),
    "describe.hardware.profile_pages": ("ProfilePage", "hardware_profile", "profiles_table"),
    "describe.jobs.job": ("DEFAULT_CLUSTER", "DEFAULT_RECIPE"),
    "describe.jobs.recipe_page": ("RecipePage", "recipe", "recipes_table"),
    "describe.models.model": ("Model",),
    "describe.models.model_files": ("list_models", "load_model"),
    "describe.optimizers": ("OPTIMIZERS",),
    "describe.precision": ("PRECISIONS",),
    "describe.recipe": ("Recipe", "list_recipes", "load_recipe"),
    "describe.schemas": ("schema",),
    "estimates.collective_costs": ("CollectiveCosts", "collective"),
    "estimates.estimate": ("Estimate", "estimate"),
    "estimates.mesh": ("MeshTable", "mesh"),
    "estimates.model_facts": ("ModelFacts", "model_facts", "models_table"),
    "estimates.profile_check": ("check_profile",),
    "estimates.roofline": ("Roofline", "roofline"),
    "estimates.trace": ("Trace", "trace"),
    "interop.emit": ("emit",),
    "interop.framework": ("Imported",),
    "interop.reading": ("read",),
    "physics": ("formulas",),
    "planning.beside": ("beside", "named_or_planned"),
    "planning.plan": ("Plan", "plan"),
    "planning.planned_run": ("run",),
    "planning.sweep": ("Sweep", "points_of", "read_grid", "sweep"),
    "reporting.html.report": ("report",),
    "trust": ("calibrate", "measure", "overheads"),
    "trust.profiles.profile": ("profile",),
    "trust.profiles.trace_profile": ("TraceProfile",),
    "trust.validation": ("Validation", "validate"),
    "what_if.compare": ("Comparison", "compare"),
    "what_if.expect": ("expect", "read_expected"),
    "what_if.runs": ("Runs", "runs"),
    "what_if.sensitivity": ("Sensitivity", "sensitivity"),
    "what_if.vary": ("vary",),
    "whole_run.budget": ("Budget", "budget"),
    "whole_run.run": ("TrainingRun",),
    "whole_run.watch": ("Watch", "Watcher", "watch"),
}
"""The public names by the module that each lives in, below this package."""

# Loaded when first used: `costmodel --help` must not pay for numpy.
_HOME = {name: f"costmodel.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "DEFAULT_CLUSTER",
    "DEFAULT_RECIPE",
    "FRAMEWORKS",
    "OPTIMIZERS",
    "PRECISIONS",
    "Accelerator",
    "Answer",
    "Budget",
    "Cluster",
    "CollectiveCosts",
    "Comparison",
    "CostModelError",
    "Estimate",
    "Imported",
    "MeshTable",
    "Model",
    "ModelFacts",
    "NoLayoutError",
    "Plan",
    "ProfilePage",
    "Recipe",
    "RecipePage",
    "Roofline",
    "Runs",
    "Sensitivity",
    "Sweep",
    "Trace",
    "TraceProfile",
    "TrainingRun",
    "Validation",
    "Watch",
    "Watcher",
    "__version__",
    "beside",
    "budget",
    "calibrate",
    "check_profile",
    "collective",
    "compare",
    "emit",
    "estimate",
    "expect",
    "formulas",
    "hardware_profile",
    "list_models",
    "list_profiles",
    "list_recipes",
    "load_accelerator",
    "load_cluster",
    "load_model",
    "load_recipe",
    "measure",
    "mesh",
    "model_facts",
    "models_table",
    "named_or_planned",
    "overheads",
    "plan",
    "points_of",
    "profile",
    "profiles_table",
    "read",
    "read_expected",
    "read_grid",
    "recipe",
    "recipes_table",
    "report",
    "roofline",
    "run",
    "runs",
    "schema",
    "sensitivity",
    "sweep",
    "trace",
    "validate",
    "vary",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
    home = import_module(_HOME[name])
    # A name that its home has not loaded is a module of it.
    value = getattr(home, name) if hasattr(home, name) else import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
