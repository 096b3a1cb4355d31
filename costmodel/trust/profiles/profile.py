"""Profiles of real steps: `costmodel.profile`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from costmodel.base.errors import CostModelError
from costmodel.estimates.estimate import Estimate
from costmodel.trust.profiles.beside import lay_beside
from costmodel.trust.profiles.measure_trace import Measured
from costmodel.trust.profiles.site_of_trace import site_of_trace
from costmodel.trust.profiles.trace_profile import TraceProfile


def profile(
    trace: str | Path, est: Estimate | None = None, *, device: int | None = None, step_range: str = ""
) -> TraceProfile:
    """Read a profiler's trace of training steps and add it up; with an estimate lay it beside the bill.

    Parameters
    ----------
    trace : str or Path
        Trace of the PyTorch profiler (JSON, also gzipped), or SQLite export of Nsight Systems.
    est : Estimate, optional
        The job that ran, of one layout.
    device : int, optional
        Which GPU of the trace; by default the one with the most kernels.
    step_range : str
        What the names of the ranges that are steps begin with; by default names such as ``ProfilerStep#3`` and
        ``iteration 3``, otherwise kernels that recur.

    Returns
    -------
    TraceProfile
        Kernels by class, what of them is exposed, streams and their overlap, idle time, steps.

    Raises
    ------
    CostModelError
        If the trace cannot be read or holds nothing that ran on a GPU, has no such device or range, or the estimate
        has many layouts.
    """
    if est is not None and est.shape:
        raise CostModelError("profile: expected an estimate of one layout")
    measured = Measured(Path(trace), device=device, step_range=step_range)
    found = measured.profile()
    if est is None:
        return found
    steps = len(found.steps)
    beside = lay_beside(
        est,
        measured.each_step(),
        {one.family for one in found.families},
        step_s=sum(one.time_s for one in found.steps) / steps,
        idle_s=sum(one.idle_s for one in found.steps) / steps,
    )
    return replace(found, beside=beside, learnt=site_of_trace(est, beside, Path(trace).name))
