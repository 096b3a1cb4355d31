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
    from costmodel.base.errors import CostModelError
    from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_cluster
    from costmodel.describe.models.model_files import list_models, load_model
    from costmodel.estimates.estimate import Estimate, estimate
    from costmodel.planning.plan import Plan, plan
    from costmodel.planning.sweep import Sweep, sweep
    from costmodel.what_if.compare import compare
    from costmodel.what_if.sensitivity import sensitivity
    from costmodel.whole_run.budget import budget
    from costmodel.whole_run.run import TrainingRun, run

from costmodel.base.version import __version__

# Loaded when first used: `costmodel --help` must not pay for numpy.
_HOME = {
    "estimate": "costmodel.estimates.estimate",
    "Estimate": "costmodel.estimates.estimate",
    "load_cluster": "costmodel.describe.hardware.hardware",
    "load_accelerator": "costmodel.describe.hardware.hardware",
    "list_profiles": "costmodel.describe.hardware.hardware",
    "load_model": "costmodel.describe.models.model_files",
    "list_models": "costmodel.describe.models.model_files",
    "plan": "costmodel.planning.plan",
    "Plan": "costmodel.planning.plan",
    "sweep": "costmodel.planning.sweep",
    "Sweep": "costmodel.planning.sweep",
    "budget": "costmodel.whole_run.budget",
    "run": "costmodel.whole_run.run",
    "TrainingRun": "costmodel.whole_run.run",
    "CostModelError": "costmodel.base.errors",
    "compare": "costmodel.what_if.compare",
    "sensitivity": "costmodel.what_if.sensitivity",
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
