"""What a profile says of the uncertain factors: seconds of kernels, measured apart from all else.

A run says how long a step takes; a profile says of what. Each class of kernels that has a factor of its own is one
measurement of it, under the same priors and with the same tails as `costmodel.trust.site_fit` has for runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodel.describe.factors import bits_of, factor_name, factors
from costmodel.describe.site import Site, make_belief
from costmodel.estimates.estimate import Estimate
from costmodel.trust.posterior import Priors, posterior
from costmodel.trust.profiles.against_bill import AgainstBill, GroupTime
from costmodel.trust.site_fit import ROW_TAIL, FactorMove, prior_at_site

_REPEATS = 0.021
"""By how much the same layout differs in two releases of a framework, the median of published pairs: what a profile of
few steps may be off by. [-]"""
_GROUPS = {
    "matmul": ("matmul",),
    "grouped_matmul": ("experts",),
    "attention": ("attention",),
    "memory_kernels": ("norm", "quantise_and_permute", "elementwise", "loss", "embedding"),
}
"""Groups of lines by the role of the factor that multiplies them."""


class FactorMeasured(NamedTuple):
    """A factor before and after a profile, the logarithm of trace over nominal bill, and what that may be off by. [-]"""

    move: FactorMove
    seen: float
    scale: float


class SiteOfTrace(NamedTuple):
    """What a profile says of factors, and the site that follows; none where it says nothing."""

    measured: tuple[FactorMeasured, ...]
    site: Site | None


def site_of_trace(est: Estimate, against: AgainstBill, file: str) -> SiteOfTrace:
    """Update the factors of kernels by what they took, from the bill of the job beside its profile."""
    job = est.job
    generation, bits = job.cluster.accelerator.generation, bits_of(job.precision.matmul_dtype)
    seen: dict[str, tuple[float, float]] = {}
    for role, groups in _GROUPS.items():
        held = [
            one
            for one in against.groups
            if one.group.partition(".")[0] in groups and one.bill_s and one.alone_s > 0
        ]
        if held:
            name = factor_name(role, generation, *([bits] if "matmul" in role else []))
            center, scale = _log_ratio(held)
            seen[name] = (center + float(np.log(job.factors.get(name, 1.0))), scale)
    if not seen:
        return SiteOfTrace((), None)
    shipped = [factors()[name] for name in seen]
    priors = Priors(
        np.array([one.center for one in shipped]),
        np.array([one.spread for one in shipped]),
        np.array([prior_at_site(name)[2] for name in seen]),
    )
    logs, scales = np.array([*seen.values()]).T
    # What is measured is the factors themselves.
    found = posterior(np.asarray, logs, priors, scales, ROW_TAIL)
    belief = make_belief(tuple(seen), found.center, found.covariance, priors.tail.tolist(), source=file)
    measured = tuple(
        FactorMeasured(FactorMove(one.name, one.scales, one.center, one.spread, center, spread), *of)
        for one, center, spread, of in zip(shipped, belief.center, belief.spread, seen.values(), strict=True)
    )
    prior = {one.name: (one.center, one.spread) for one in shipped}
    run = {
        "name": file,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": round(float(job.layout.gpus)),
        "profile": True,
    }
    return SiteOfTrace(measured, Site(belief, prior=prior, runs=(run,)))


def _log_ratio(groups: list[GroupTime]) -> tuple[float, float]:
    """Return the logarithm of trace over bill of some groups together, and what it may be off by."""
    took = np.array([one.alone_s for one in groups])
    priced = np.array([one.bill_s for one in groups])
    center = float(np.log(took.sum() / priced.sum()))
    share = priced / priced.sum()
    variance = float((share * (np.log(took / priced) - center) ** 2).sum())
    return center, float(np.sqrt(_REPEATS**2 + variance * (share**2).sum()))
