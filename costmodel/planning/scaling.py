"""The best layout of every job of a question: what scaling curves are drawn from."""

from __future__ import annotations

from dataclasses import replace

from costmodel.base.errors import LayoutError, NoLayoutError
from costmodel.estimates.estimate import Estimate
from costmodel.planning.plan import Plan, search


def best_of_each_job(plan: Plan) -> list[Estimate]:
    """Return the best estimate of every job that has one, by number of GPUs.

    A search over several jobs keeps the best of all of them together, which are often of one job;
    the others are searched again on their own.

    Raises
    ------
    LayoutError
        If the question has a single job.
    """
    jobs = plan.question.jobs
    if len(jobs) < 2:
        raise LayoutError("scaling: one job was planned; name several GPU counts, such as 64,128,256")
    first = plan.asked_job(plan.pick)
    found = [plan.best]
    for index, job in enumerate(jobs):
        if index == first:
            continue
        try:
            found.append(search(replace(plan.question, jobs=(job,))).best)
        except NoLayoutError:
            continue
    return sorted(found, key=lambda est: float(est.job.layout.gpus))
