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
    from costmodel.budgets import budget
    from costmodel.describe.hardware import list_profiles, load_accelerator, load_cluster
    from costmodel.describe.model import list_models, load_model
    from costmodel.errors import CostModelError
    from costmodel.estimates import Estimate, estimate
    from costmodel.report.compare import compare
    from costmodel.search import Plan, plan
    from costmodel.sensitivities import sensitivity
    from costmodel.sweeps import Sweep, sweep
    from costmodel.training_run import TrainingRun, run

__version__ = "0.1.0"

# Loaded when first used: `costmodel --help` must not pay for numpy.
_HOME = {
    "estimate": "costmodel.estimates",
    "Estimate": "costmodel.estimates",
    "load_cluster": "costmodel.describe.hardware",
    "load_accelerator": "costmodel.describe.hardware",
    "list_profiles": "costmodel.describe.hardware",
    "load_model": "costmodel.describe.model",
    "list_models": "costmodel.describe.model",
    "plan": "costmodel.search",
    "Plan": "costmodel.search",
    "sweep": "costmodel.sweeps",
    "Sweep": "costmodel.sweeps",
    "budget": "costmodel.budgets",
    "run": "costmodel.training_run",
    "TrainingRun": "costmodel.training_run",
    "CostModelError": "costmodel.errors",
    "compare": "costmodel.report.compare",
    "sensitivity": "costmodel.sensitivities",
}

__all__ = [
    "CostModelError",
    "Estimate",
    "Plan",
    "Sweep",
    "TrainingRun",
    "__version__",
    "budget",
    "compare",
    "estimate",
    "list_models",
    "list_profiles",
    "load_accelerator",
    "load_cluster",
    "load_model",
    "plan",
    "run",
    "sensitivity",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
