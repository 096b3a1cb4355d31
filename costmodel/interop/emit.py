"""One layout as the configuration of a framework: which frameworks there are, and what they can run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from costmodel.base.errors import choices_hint
from costmodel.interop.framework import FrameworkConfigError

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

FRAMEWORKS = {
    "megatron": ("costmodel.interop.megatron", "emit_megatron"),
    "torchtitan": ("costmodel.interop.torchtitan", "emit_torchtitan"),
    "deepspeed": ("costmodel.interop.deepspeed", "emit_deepspeed"),
    "nemo": ("costmodel.interop.nemo", "emit_nemo"),
}
"""Home of each exporter."""


def _home(framework: str) -> tuple[str, str]:
    if framework not in FRAMEWORKS:
        raise FrameworkConfigError(
            f"framework: {framework!r} is unknown; {choices_hint(framework, FRAMEWORKS)}"
        )
    return FRAMEWORKS[framework]


def emit(est: Estimate, framework: str) -> str:
    """Return the configuration of a priced layout for a framework.

    Raises
    ------
    FrameworkConfigError
        If the framework is unknown, or cannot express the job.
    """
    module, function = _home(framework)
    return str(getattr(import_module(module), function)(est.job))


def values_that_run(framework: str) -> dict[str, str]:
    """Return the values of knobs that a search must keep to for the framework to run the result."""
    return dict(import_module(_home(framework)[0]).VALUES_THAT_RUN)
