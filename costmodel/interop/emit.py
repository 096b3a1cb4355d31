"""One layout as the configuration of a framework."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from costmodel.base.errors import choices_hint
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.assertions.tables import require_launchable
from costmodel.interop.framework import FrameworkConfigError, require_launched

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate


def emit(est: Estimate, framework: str) -> str:
    """Return the configuration of a priced layout for a framework.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    framework : str
        A name in `costmodel.describe.frameworks.FRAMEWORKS`.

    Returns
    -------
    str
        The file's text.

    Raises
    ------
    FrameworkConfigError
        If the framework is unknown, cannot express the job, or would refuse it by one of its own assertions.
    """
    if framework not in FRAMEWORKS:
        raise FrameworkConfigError(
            f"framework: {framework!r} is unknown; {choices_hint(framework, FRAMEWORKS)}"
        )
    record = FRAMEWORKS[framework]
    require_launched(est.job, record)
    require_launchable(framework, est.job)
    module, function = record.exporter.split(":")
    return str(getattr(import_module(module), function)(est.job))
