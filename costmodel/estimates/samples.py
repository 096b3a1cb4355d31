"""How sure an estimate is: the same job priced at samples of every uncertain factor, and the main sources of uncertainty.

There is one pricing: the samples are a leading dimension of the factors (`costmodel.describe.factors`), and every
figure of the answer has it too. Values of a factor depend on its name and the seed alone, so that two jobs of one
machine err together where they share a factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError
from costmodel.base.numbers import place_of, quantiles
from costmodel.describe.factors import Factors, draw, factors, factors_of, inherited_factors, quantile
from costmodel.estimates.frame import ColumnDoc
from costmodel.estimates.priced_job import PricedJob
from costmodel.step.price import price

Array = NDArray[np.float64]

DEFAULT_SAMPLES = 200  # Samples where none are asked for: quantiles of a Latin hypercube settle early
LEAST_SAMPLES, MOST_SAMPLES = 10, 100_000
SHARE = 0.8  # Of the distribution, that an interval holds: p10 to p90


class Interval(NamedTuple):
    """From where to where a share of a distribution lies, in the unit of the figure."""

    low: float
    high: float


class Cause(NamedTuple):
    """A factor, and how far the figure moves from its p10 to its p90 with all others at their middle."""

    name: str
    scales: str
    low: float
    """The figure there over the figure at the middle of all factors, the lower first. [-]"""
    high: float
    source: str

    @property
    def width(self) -> float:
        """How much apart both are. [-]"""
        return self.high - self.low


@dataclass(frozen=True, repr=False)
class Samples(Answer):
    """A job of one layout at samples of its factors."""

    nominal: PricedJob  # With every factor at 1, the headline
    factors: Factors  # What was drawn: values of each factor, one a sample
    priced: PricedJob  # With those: its figures have a value a sample
    seed: int

    @property
    def count(self) -> int:
        """How many there are. [-]"""
        return len(next(iter(self.factors.values())))

    @property
    def step_time_s(self) -> Array:
        """Step time of every sample. [s]"""
        return np.broadcast_to(self.priced.step_time_s, (self.count,))

    @property
    def memory_bytes_per_gpu(self) -> Array:
        """Memory of the worst stage of every sample. [B]"""
        return np.broadcast_to(self.priced.memory_bytes_per_gpu, (self.count,))

    @property
    def mfu(self) -> Array:
        """Model FLOPs utilisation of every sample. [-]"""
        return np.broadcast_to(self.priced.mfu, (self.count,))

    @property
    def fits_share(self) -> float:
        """Share of the samples that fit, on the GPU and on the host. [-]"""
        return float(np.mean(np.broadcast_to(self.priced.fits, (self.count,))))

    def quantile(self, share: float, figure: str = "step_time_s") -> float:
        """Return the value of a figure that so many of the samples do not exceed."""
        return float(quantiles(self.figures[figure], share)[0])

    @cached_property
    def figures(self) -> dict[str, Array]:
        """What is sampled, by name; days, GPU-hours and dollars where the job says its tokens and GPUs have a price."""
        found = {
            "step_time_s": self.step_time_s,
            "mfu": self.mfu,
            "memory_bytes_per_gpu": self.memory_bytes_per_gpu,
        }
        tokens = self.nominal.job.tokens
        if tokens is not None:
            found["days"] = np.broadcast_to(self.priced.days(tokens), (self.count,))
            found["gpu_hours"] = np.broadcast_to(self.priced.gpu_hours(tokens), (self.count,))
            price = self.nominal.job.cluster.price_usd_per_gpu_hour
            if price is not None:
                found["dollars"] = price * found["gpu_hours"]
        return found

    @property
    def headline_place(self) -> float:
        """Share of the samples whose step is shorter than the headline. [-]"""
        return place_of(float(self.nominal.step_time_s), self.step_time_s)

    def interval(self, share: float = SHARE, figure: str = "step_time_s") -> Interval:
        """Return the middle `share` of a figure's distribution."""
        require_share(share)
        outside = 0.5 * (1.0 - share)
        return Interval(self.quantile(outside, figure), self.quantile(1.0 - outside, figure))

    @cached_property
    def time_causes(self) -> tuple[Cause, ...]:
        """Factors by how much they widen the step time, the most first."""
        return self._causes("step_time_s")

    @cached_property
    def memory_causes(self) -> tuple[Cause, ...]:
        """Factors by how much they widen the memory, the most first."""
        return self._causes("memory_bytes_per_gpu")

    @cached_property
    def _one_by_one(self) -> PricedJob:
        """The job at the middle of all factors, then with each at its p10 and its p90 alone."""
        job = self.nominal.job
        at = {
            name: [quantile(name, share, job.belief) for share in (0.5, 0.5 - SHARE / 2, 0.5 + SHARE / 2)]
            for name in self.factors
        }
        values = {name: np.full(1 + 2 * len(at), middle) for name, (middle, _, _) in at.items()}
        for index, (name, (_, low, high)) in enumerate(at.items()):
            values[name][1 + 2 * index], values[name][2 + 2 * index] = low, high
        return _priced(self.nominal, Factors(values))

    def _causes(self, figure: str) -> tuple[Cause, ...]:
        known = factors()
        values = np.broadcast_to(getattr(self._one_by_one, figure), (1 + 2 * len(self.factors),))
        ends = np.sort((values[1:] / values[0]).reshape(-1, 2), axis=1)
        found = [
            Cause(name, known[name].scales, float(low), float(high), known[name].source)
            for name, (low, high) in zip(self.factors, ends, strict=True)
        ]
        return tuple(sorted((one for one in found if one.width > 0.0), key=lambda one: -one.width))

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a sample: its figures, and the value of each factor."""
        return {
            "sample": list(range(self.count)),
            **{name: values.tolist() for name, values in self.figures.items()},
            **{f"factor.{name}": values.tolist() for name, values in self.factors.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return quantiles of every figure, the probability that it fits, and the main sources of uncertainty."""
        return {"schema_version": 1, **sample_record(self)}


def require_share(share: float) -> None:
    """Refuse what is no share of a distribution."""
    if not 0.0 < share < 1.0:
        raise CostModelError(f"interval: expected a share between 0 and 1, such as 0.8, got {share!r}")


QUANTILES = (0.1, 0.5, 0.9)


def sample_record(samples: Samples) -> dict[str, Any]:
    """Return the distribution of an estimate as plain data."""

    def of(figure: str) -> dict[str, float]:
        return {f"p{100 * share:.0f}": samples.quantile(share, figure) for share in QUANTILES}

    return {
        "samples": samples.count,
        "seed": samples.seed,
        **{figure: of(figure) for figure in samples.figures},
        "headline_place": samples.headline_place,
        "fits_share": samples.fits_share,
        "time_causes": [one._asdict() for one in samples.time_causes],
        "memory_causes": [one._asdict() for one in samples.memory_causes],
    }


def _quantile_columns(name: str, unit: str, what: str, first: str = "") -> tuple[ColumnDoc, ...]:
    """Return the columns of p10, p50 and p90 of a figure, `{}` in its name for which; `first` is added once."""
    shares = ("one sample in ten stays", "half of the samples stay", "nine samples in ten stay")
    return tuple(
        ColumnDoc(
            name.format(f"p{100 * share:.0f}"), unit, f"{what} that {text} below{first if at == 0 else ''}"
        )
        for at, (share, text) in enumerate(zip(QUANTILES, shares, strict=True))
    )


SAMPLE_COLUMNS = (
    *_quantile_columns("step_time_{}_s", "s", "step time", "; with samples only, as all below"),
    ColumnDoc("headline_place", "-", "share of the samples whose step is shorter than step_time_s"),
    *_quantile_columns("memory_{}_bytes", "B", "memory"),
    ColumnDoc("fits_probability", "-", "how surely it fits, by the odds of published runs"),
    ColumnDoc("widest_cause", "text", "factor that widens the step time most"),
    *_quantile_columns("days_{}", "d", "days for the job's tokens", "; empty without tokens, as below"),
    *_quantile_columns("dollars_{}", "USD", "rent", "; empty without a price, too"),
)


def sample_columns(samples: Samples) -> dict[str, list[Any]]:
    """Return what samples add to the wide form: one row."""

    def of(figure: str) -> list[Any]:
        return [samples.quantile(share, figure) if figure in samples.figures else "" for share in QUANTILES]

    values = [
        *of("step_time_s"),
        samples.headline_place,
        *of("memory_bytes_per_gpu"),
        float(samples.nominal.fits_probability),
        samples.time_causes[0].name,
        *of("days"),
        *of("dollars"),
    ]
    return {column.name: [value] for column, value in zip(SAMPLE_COLUMNS, values, strict=True)}


def sample(est: PricedJob, count: int = DEFAULT_SAMPLES, seed: int = 0) -> Samples:
    """Price a job of one layout at samples of the factors that it depends on; see `Estimate.sample`."""
    est.require_single("sample")
    require_count(count)
    names = factors_of(est.job)
    inherited = inherited_factors(est.job.cluster.accelerator, names)
    drawn = draw(names, count, seed=seed, belief=est.job.belief, inherited=inherited)
    return Samples(est, drawn, _priced(est, drawn), seed)


def require_count(count: int) -> None:
    """Refuse a number of samples that says nothing, or that no memory holds."""
    if not LEAST_SAMPLES <= count <= MOST_SAMPLES:
        raise CostModelError(f"samples: expected {LEAST_SAMPLES} to {MOST_SAMPLES:,}, got {count!r}")


def _priced(est: PricedJob, values: Mapping[str, Array]) -> PricedJob:
    """Price the job of an estimate with values of its factors."""
    job = replace(est.job, factors=Factors(values))
    return PricedJob(job, price(job, every_stage=True, order_factor=est.priced.step.order_factor))
