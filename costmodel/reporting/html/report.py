"""`costmodel.report`: one page about a job that opens anywhere."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.base.errors import CostModelError
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.samples import DEFAULT_SAMPLES
from costmodel.reporting.html.page import plotly_library, report_page
from costmodel.reporting.html.search import other_layouts
from costmodel.what_if.sensitivity import sensitivity
from costmodel.whole_run.run import first_day

_PARTS = 6


def report(
    est: Estimate,
    *,
    plan: bool = True,
    sensitivities: bool = True,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    start: str = "",
    is_planned: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Return a page with the bill, figures, other layouts, sources, and sliders that are already priced.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    plan : bool
        Search for other layouts of the job.
    sensitivities : bool
        Vary each number and each switch.
    samples, seed : int
        Of the uncertain factors, for p10 to p90, and what they follow from.
    start : str
        Day on which the run starts, such as ``2026-12-01``, to say when it is done; needs tokens.
    is_planned : bool
        Whether the layout is the planner's, because none was named; the page says so.
    progress : callable, optional
        Called with parts done and parts in all.

    Returns
    -------
    page : str
        HTML that needs no network.

    Raises
    ------
    CostModelError
        If plotly is missing, the estimate holds many layouts, or a run starts that has no tokens.
    """
    if start and est.job.tokens is None:
        raise CostModelError("start: needs tokens, for a run that ends")
    if start:
        first_day(start)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, _PARTS)

    plotly_library()
    est = est if est.samples is not None else est.with_samples(samples, seed)
    found = other_layouts(est) if plan else None
    tick()
    moved = sensitivity(est) if sensitivities else None
    tick()
    return report_page(est, plan=found, found=moved, start=start, is_planned=is_planned, tick=tick)
