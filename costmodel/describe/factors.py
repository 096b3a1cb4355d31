"""Uncertain factors: the error distribution of each calibrated constant, and sampled values to price with.

A factor multiplies one constant of the pricing (or the seconds that it makes); 1 is the calibrated value. `FACTORS`
is every factor: its role (`ROLES`: what it scales, where it is applied), what it is of (a generation, a fabric, a class
of jobs), and the spread of its natural logarithm, from residuals by `tools/fit/fit_factors.py`, which
writes ``describe/data/factors.yaml``. Factors are independent of each other unless a belief says otherwise.

How it is used, from below to above::

    drawn = draw(factors_of(job), 200, seed=1)      # Factors: name -> 200 values, the same for every job (common
                                                    # random numbers: they depend on the name and the seed alone)
    price(replace(job, factors=drawn))              # every figure has one more, leading, dimension: the samples
    Factors({"matmul.hopper.16-bit": np.array(1.05)})   # or any values: scalars, or arrays that broadcast

A site's knowledge is a `Belief` about the factors it names; all others keep the shipped prior. `Job.belief` carries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from costmodel.base.csv_text import read_records
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.recipe import is_fitted
from costmodel.physics.run.distributions import normal_quantile, student_quantile

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Accelerator

Array = NDArray[np.float64]

Scaled = Literal["time", "memory"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A kind of factors and what they scale: a row of ``describe/data/factor_roles.csv``."""

    name: str  # First part of the factors' names
    scales: str
    unit: str  # What is multiplied, and its unit: s, B or - for a share
    of: Scaled  # Which bill it changes
    keys: tuple[str, ...]
    """Meaning of the other parts of a name, in order: generation, bits, link, part, axis, class, recipe."""
    each_layout: bool  # Every layout has an independent value


ROLES: Mapping[str, Role] = read_records(
    Path(__file__).parent / "data" / "factor_roles.csv", Role, keys=lambda row: tuple(row["keys"].split())
)
"""Every kind of factor."""

OTHER = "other"
"""Key in a factor's name for hardware without residuals: its spread is that between the measured ones."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One uncertain constant, named by its role and what it is of: ``matmul.hopper.8-bit``."""

    name: str
    role: Role
    center: float  # Median of its natural logarithm; 0 where the calibrated value is the middle. [-]
    spread: float  # Scale of the natural logarithm: the standard deviation where tails are normal. [-]
    tail: float  # Degrees of freedom of Student's t; infinite for a normal one. [-]
    points: int  # Number of residuals; 0 where it is inherited. [-]
    source: str

    @property
    def scales(self) -> str:
        """Description of what it multiplies."""
        of = self.name.partition(".")[2].replace(".", ", ")
        return f"{self.role.scales} ({of})" if of else self.role.scales


@cache
def factors() -> Mapping[str, Factor]:
    """Return every factor by name."""
    path = files("costmodel") / "describe" / "data" / "factors.yaml"
    raw = read_mapping(path, example="launch: {center: 0, spread: 0.2, tail: 4, points: 3, source: runs}")
    stated = dict(raw)
    for role, rule in raw.items():
        if "like" in rule:
            del stated[role]
            stated |= {
                f"{role}.{name.partition('.')[2]}": {
                    **one,
                    "spread": rule["times"] * one["spread"],
                    "source": f"{one['source']}; {rule['source']}",
                }
                for name, one in raw.items()
                if name.partition(".")[0] == rule["like"]
            }
    return {
        name: Factor(name=name, role=_role(name.partition(".")[0]), **one) for name, one in stated.items()
    }


def _role(name: str) -> Role:
    if name not in ROLES:
        raise CostModelError(f"factor: unknown role {name!r}; {choices_hint(name, ROLES)}")
    return ROLES[name]


@lru_cache(maxsize=4096)
def factor_name(role: str, *keys: str) -> str:
    """Return the name of the factor of a role for these keys, or of the fallback without residuals."""
    return nearest(_role(role).name, keys, factors())


def nearest(role: str, keys: Sequence[str], known: Iterable[str]) -> str:
    """Return the name among `known` for these keys, with `OTHER` for keys that have none."""
    names = known if isinstance(known, Mapping) else set(known)
    for each in (keys, (OTHER, *keys[1:]), (*keys[:1], OTHER), (OTHER,) * len(keys)):
        name = ".".join([role, *each])
        if name in names:
            return name
    raise CostModelError(f"factors.yaml: nothing for {'.'.join([role, *keys])}, nor for other ones")


class Factors(Mapping[str, Array]):
    """Values above 0 of factors by name, which broadcast with a job's layouts; samples are leading dimensions.

    A factor that is not named is 1.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = {name: np.asarray(value, dtype=np.float64) for name, value in (values or {}).items()}
        for name, value in self._values.items():
            if name not in factors():
                raise CostModelError(f"factor: {name!r} is unknown; {choices_hint(name, factors())}")
            if not np.all(value > 0.0):
                raise CostModelError(f"factor {name}: expected values above 0, got {float(np.min(value)):g}")

    # Arrays have no single equality: compare by identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> Array:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def of(self, role: str, *keys: str) -> Array | None:
        """Return the factor of a role's constant; None where it is 1."""
        return self._values.get(factor_name(role, *keys)) if self._values else None

    def over(self, dimensions: int) -> Factors:
        """Return the same values with so many dimensions of length 1 behind them, for layouts that are an array."""
        return Factors({name: value.reshape(value.shape + (1,) * dimensions) for name, value in self.items()})


NOMINAL = Factors()
"""Every factor at 1: the calibrated price."""


@dataclass(frozen=True, kw_only=True)
class Belief:
    """A site's posterior of some factors: a joint distribution of their natural logarithms."""

    names: tuple[str, ...] = ()
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()  # Means and standard deviations. [-]
    correlation: tuple[tuple[float, ...], ...] = ()  # A row a factor. [-]
    tail: tuple[float, ...] = ()  # Degrees of freedom of Student's t of each; infinite for normal ones. [-]
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse what is no distribution of known factors."""
        count = len(self.names)
        for name in self.names:
            if name not in factors():
                raise CostModelError(f"belief: factor {name!r} is unknown; {choices_hint(name, factors())}")
        sizes = (self.center, self.spread, self.tail, self.correlation, *self.correlation)
        if any(len(each) != count for each in sizes):
            raise CostModelError(f"belief: expected center, spread, tail and correlations of {count} factors")


PRIOR = Belief()
"""The shipped spreads alone."""


UNFITTED = "unfitted"
"""Generation in a job's class where the recipe has no fitted constant, or the machine no published runs."""


@cache
def _published() -> frozenset[str]:
    """Return the accelerators of published runs."""
    path = files("costmodel") / "describe" / "data" / "error_bands.yaml"
    return frozenset(read_mapping(path, example="accelerators: [gb200]")["accelerators"])


def job_class(job: Any) -> str:
    """Return the class of a job by which residuals are grouped: generation and kind of model, ``hopper-moe``."""
    accelerator = job.cluster.accelerator
    known = is_fitted(job.recipe.name, accelerator.generation) and accelerator.name in _published()
    return f"{accelerator.generation if known else UNFITTED}-{'moe' if job.model.num_experts else 'dense'}"


def factor_keys(job: Any) -> tuple[tuple[str, ...], ...]:
    """Return role and keys of every factor that the price of a job may depend on."""
    generation, of_class = job.cluster.accelerator.generation, job_class(job)
    bits = sorted({bits_of(job.precision.matmul_dtype), "16-bit"})
    links = sorted({tier.kind or OTHER for tier in job.cluster.tiers})
    kernels = [("matmul", generation, one) for one in bits]
    axes = ["tp", "cp", "dp"]
    if job.model.num_experts:
        kernels += [("grouped_matmul", generation, one) for one in bits]
        axes.append("ep")
    return (
        *kernels,
        ("attention", generation),
        ("memory_kernels", generation),
        *(("collective", link, part) for link in links for part in ("latency", "transfer")),
        ("launch",),
        *(("overlap", axis) for axis in axes),
        *([("routing",)] if job.model.num_experts else []),
        ("unexplained", of_class),
        ("layout", of_class),
        ("activations",),
        ("states",),
        ("slack",),
        ("room", job.recipe.name),
    )


def factors_of(job: Any) -> tuple[str, ...]:
    """Return the names of the factors that the price of a job may depend on."""
    return tuple(dict.fromkeys(factor_name(role, *keys) for role, *keys in factor_keys(job)))


def inherited_factors(accelerator: Accelerator, names: Iterable[str]) -> dict[str, str]:
    """Return the factors of kernels that an accelerator inherits, each with the factor of the generation they are from."""
    if not accelerator.kernels_of or accelerator.kernels_of == accelerator.generation:
        return {}
    found = {}
    for name in names:
        role, *keys = name.split(".")
        if "generation" in ROLES[role].keys:
            parent = factor_name(role, accelerator.kernels_of, *keys[1:])
            if parent != name:
                found[name] = parent
    return found


def bits_of(dtype: str) -> str:
    """Return the width of the operands of a product, as factors are named by it.

    >>> bits_of("bf16"), bits_of("mxfp8"), bits_of("int8"), bits_of("nvfp4")
    ('16-bit', '8-bit', '8-bit', '4-bit')
    """
    if dtype in ("fp32", "tf32"):
        return "32-bit"
    return "4-bit" if "fp4" in dtype else "8-bit" if "fp8" in dtype or dtype == "int8" else "16-bit"


def draw(
    names: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    belief: Belief = PRIOR,
    inherited: Mapping[str, str] | None = None,
) -> Factors:
    r"""Draw common random values of factors: an array of `count` each.

    Latin hypercube: each factor's `count` values are one of every `count`-th part of its distribution, in an order
    that follows from its name and the seed alone. Factors that `belief` correlates are drawn as normal ones,
    :math:`\log f = c + s L z` with the Cholesky factor L of their correlations, then given their tails.

    `belief` replaces center, spread and tail of the factors that it names. `inherited` are factors that share another's
    values, widened to their own spread by values of their own (`inherited_factors`).
    """
    known, joined = factors(), _joined(names, count, seed, belief)
    found: dict[str, Array] = {}
    for name in names:
        center, spread, tail = _distribution(name, belief)
        z = with_tail(joined[name], tail) if name in joined else _normal(name, count, seed, tail)
        found[name] = np.exp(center + spread * z)
    for name, parent in (inherited or {}).items():
        if name in found and name not in belief.names:
            wider = sqrt(max(known[name].spread ** 2 - known[parent].spread ** 2, 0.0))
            shared = draw([parent], count, seed=seed, belief=belief)[parent]
            found[name] = shared * np.exp(wider * _normal(name, count, seed))
    return Factors(found)


def _joined(names: Sequence[str], count: int, seed: int, belief: Belief) -> dict[str, Array]:
    """Return standard normal values of the factors that a belief is about, correlated as it says."""
    about = [index for index, name in enumerate(belief.names) if name in names]
    if not about:
        return {}
    correlation = np.asarray(belief.correlation)[np.ix_(about, about)]
    root = np.linalg.cholesky(correlation + 1e-9 * np.eye(len(about)))
    named = [belief.names[index] for index in about]
    return dict(zip(named, root @ np.stack([_normal(name, count, seed) for name in named]), strict=True))


def _distribution(name: str, belief: Belief) -> tuple[float, float, float]:
    """Return center, spread and tail of a factor, where a belief is about it those of the belief."""
    if name in belief.names:
        index = belief.names.index(name)
        return belief.center[index], belief.spread[index], belief.tail[index]
    prior = factors()[name]
    return prior.center, prior.spread, prior.tail


def quantile(name: str, share: float, belief: Belief = PRIOR) -> float:
    """Return the value that a factor does not exceed with a probability of `share`. [-]"""
    center, spread, tail = _distribution(name, belief)
    return float(np.exp(center + spread * with_tail(normal_quantile(share), tail)))


def _normal(name: str, count: int, seed: int, tail: float = np.inf) -> Array:
    """Return standard normal values of one factor, one in every `count`-th part, with a tail."""
    order = np.random.default_rng([seed, crc32(name.encode())])
    return np.asarray(_quantiles(count, tail)[order.permuted(np.arange(count)[None], axis=1)[0]])


@lru_cache(maxsize=128)
def _quantiles(count: int, tail: float) -> Array:
    """Return the middles of `count` equal parts of the standard normal distribution, with a tail."""
    return with_tail(normal_quantile((np.arange(count) + 0.5) / count), tail)


def with_tail(z: Array, tail: float) -> Array:
    """Return standard normal values as those of Student's t of so many degrees of freedom, quantile by quantile."""
    return student_quantile(tail, z) if np.isfinite(tail) else z
