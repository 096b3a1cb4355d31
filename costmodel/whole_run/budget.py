"""From money or time back to tokens, parameters and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError
from costmodel.base.version import __version__
from costmodel.describe.factors import bits_of, classed, draw, kin_of, named
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.hardware.prices import price_note, with_price
from costmodel.describe.jobs.fields import BUDGET_FIELDS, FIELD
from costmodel.describe.jobs.job import precision_on
from costmodel.describe.jobs.keywords import RunKeywords
from costmodel.describe.jobs.reading import keywords, read
from costmodel.describe.jobs.signature import shows
from costmodel.describe.models.dense_model import LARGEST, SMALLEST, dense_model
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.physics.run.scaling_laws import (
    KAPLAN_SOURCE,
    LAWS,
    cheapest_over_lifetime,
    compute_optimal,
    kaplan_loss,
    kaplan_optimal,
    loss,
)
from costmodel.step.anatomy.decode import decode_step_s, kv_cache_bytes, largest_batch
from costmodel.step.anatomy.params import num_params

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Accelerator, Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe

Array = NDArray[np.float64]

PERCENTILES = (10, 50, 90)
_SIZES = 120
_SERVING_GPUS, _SERVING_BATCHES = 2.0 ** np.arange(8), 2.0 ** np.arange(0, 10.25, 0.25)[:, None]


@dataclass(frozen=True)
class Purchase:
    """What one rule would buy."""

    rule: str
    num_params: float
    tokens: float
    loss: float
    train_usd: float
    serve_usd: float | None
    """None where so large a model was not priced."""
    source: str

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens for each parameter. [-]."""
        return self.tokens / self.num_params

    def to_dict(self) -> dict[str, Any]:
        """Return the fields with their ratio."""
        return {**self.__dict__, "tokens_per_parameter": self.tokens_per_parameter}


@dataclass(frozen=True)
class Serving:
    """What it costs to decode with a model."""

    gpus: int
    batch: float
    step_s: float
    tokens_per_s_per_gpu: float
    cache_bytes_per_sequence: float
    usd_per_token: float


@dataclass(frozen=True, repr=False)
class Budget(Answer):
    """A budget of training, and what the scaling laws would do with it."""

    cluster: Cluster
    price_usd_per_gpu_hour: float
    dollars: float
    gpu_hours: float
    training_flops: float
    mfu: float
    effective_time: float
    precision: str
    days: float | None
    gpus: float | None
    served_tokens: float
    context: int
    choices: tuple[Purchase, ...]
    step_over_expected: Array
    """Seconds of a step over those that the MFU says, a value a sample of the uncertain factors. [-]"""

    @property
    def device_word(self) -> str:
        """What a device of the cluster is called."""
        return self.cluster.accelerator.called

    @cached_property
    def spread(self) -> dict[str, dict[str, float]]:
        """What the same training takes, and what the same money trains: p10, p50 and p90 of each figure."""
        figures = {
            "dollars": self.dollars * self.step_over_expected,
            "gpu_hours": self.gpu_hours * self.step_over_expected,
            "training_flops": self.training_flops / self.step_over_expected,
        }
        if self.days is not None:
            figures["days"] = self.days * self.step_over_expected
        return {
            name: {f"p{share}": float(np.percentile(values, share)) for share in PERCENTILES}
            for name, values in figures.items()
        }

    def _within(self, choice: Purchase) -> dict[str, float | None]:
        """Return p10, p50 and p90 of what training a choice takes."""
        scales = {share: float(np.percentile(self.step_over_expected, share)) for share in PERCENTILES}
        days = None if self.days is None else self.days * choice.train_usd / self.dollars
        return {
            **{f"train_usd_p{share}": choice.train_usd * scale for share, scale in scales.items()},
            **{f"days_p{share}": None if days is None else days * scale for share, scale in scales.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts."""
        figures = (
            "price_usd_per_gpu_hour",
            "dollars",
            "gpu_hours",
            "training_flops",
            "mfu",
            "effective_time",
            "precision",
            "days",
            "gpus",
            "served_tokens",
            "context",
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "cluster": self.cluster.name,
            **{key: getattr(self, key) for key in figures},
            "samples": len(self.step_over_expected),
            "spread": self.spread,
            "choices": self._records(),
        }

    def _records(self) -> list[dict[str, Any]]:
        return [{**choice.to_dict(), **self._within(choice)} for choice in self.choices]

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each rule."""
        records = self._records()
        return {key: [record[key] for record in records] for key in records[0]}


class _Typical(NamedTuple):
    """What factors are named by: a dense model on a cluster, nothing else being known."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    precision: Precision


def step_over_expected(cluster: Cluster, precision: Precision, mfu: float, samples: int, seed: int) -> Array:
    """Draw how much longer a dense model's step takes than its utilisation says: the factors of an estimate.

    Matrix products at the speed that the device reaches take ``mfu / reached`` of such a step; those of their factor
    scale that share, what nothing explains and what layouts differ by scale all of it. Values of a factor follow from
    its name and the seed, as in every other answer.

    Parameters
    ----------
    cluster : Cluster
    precision : Precision
        Of the matrix products.
    mfu : float
        Of the step. [-]
    samples, seed : int
        How many values, and what they follow from.
    """
    typical = _Typical(dense_model(7e9), cluster, load_recipe(FIELD["recipe"].default), precision)
    accelerator = cluster.accelerator
    products = named("matmul", accelerator.generation, bits_of(precision.matmul_dtype))
    kind = classed(typical)
    of_all = [named(role, kind) for role in ("unexplained", "layout")]
    drawn = draw([products, *of_all], samples, seed=seed, kin=kin_of(accelerator, [products]))
    reached = accelerator.kernels.matmul[precision.matmul_dtype] if accelerator.kernels is not None else None
    share = min(mfu / (reached.peak_fraction * (1.0 - reached.sustained_loss)), 1.0) if reached else 1.0
    of_step: Array = 1.0 - share + share * drawn[products]
    for name in of_all:
        of_step = of_step * drawn[name]
    return of_step


def _price_of(cluster: Cluster) -> float:
    """Return the price of a GPU-hour."""
    if cluster.price_usd_per_gpu_hour is None:
        raise CostModelError(f"price: {price_note(cluster).replace('no price;', 'no price of a GPU-hour;')}")
    return cluster.price_usd_per_gpu_hour


def serving(
    model: Model,
    accelerator: Accelerator,
    *,
    price_usd_per_gpu_hour: float,
    context: int = 4096,
    step_limit_s: float = 0.05,
    element_bytes: float = 2.0,
) -> Serving:
    """Find the cheapest decoding of a model: GPUs that share it, and the largest batch that is fast enough.

    Parameters
    ----------
    model : Model
        Whose cache and weights are counted exactly.
    accelerator : Accelerator
        That serves.
    price_usd_per_gpu_hour : float
        [USD/h]
    context : int
        Tokens a sequence holds on average. [-]
    step_limit_s : float
        Longest step, so slowest token, that users accept. [s]
    element_bytes : float
        Of weights and cache. [B]

    Returns
    -------
    Serving
        By roofline; communication, prefill and scheduling are left out.

    Raises
    ------
    CostModelError
        If no power of two of GPUs, up to 128, holds the model and is fast enough.
    """
    gpus, batch = _SERVING_GPUS, _SERVING_BATCHES
    most = largest_batch(
        model,
        context,
        gpus=gpus,
        memory_bytes=accelerator.memory_bytes,
        weight_bytes=element_bytes,
        cache_bytes=element_bytes,
    )
    step = decode_step_s(
        model,
        batch,
        context,
        gpus=gpus,
        peak_flops_per_s=accelerator.peak_flops_per_s["bf16"],
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        weight_bytes=element_bytes,
        cache_bytes=element_bytes,
    )
    possible = (batch <= most) & (step <= step_limit_s)
    if not np.any(possible):
        raise CostModelError(
            f"serving: {model.name} at {context} tokens does not fit 128 {accelerator.name} within "
            f"{step_limit_s * 1e3:.0f} ms a token"
        )
    cost = np.where(possible, gpus * step / batch, np.inf)
    at = np.unravel_index(int(np.argmin(cost)), cost.shape)
    rate = 1.0 / float(cost[at])
    return Serving(
        gpus=int(gpus[at[1]]),
        batch=float(batch[at[0], 0]),
        step_s=float(step[at]),
        tokens_per_s_per_gpu=rate,
        cache_bytes_per_sequence=float(kv_cache_bytes(model, context, element_bytes=element_bytes)),
        usd_per_token=price_usd_per_gpu_hour / 3600.0 / rate,
    )


@shows(BUDGET_FIELDS)
def budget(**asked: Unpack[RunKeywords]) -> Budget:
    """Say what model to train on how many tokens for a budget.

    Parameters
    ----------
    dollars : float, optional
        To spend on training; or `gpus` and `days`. [USD]
    gpus, days : float, optional
        Both give the budget; one of them beside `dollars` gives the other. [-], [d]
    cluster : str or Cluster
        Whose accelerator, and dated price, are taken.
    price_usd_per_gpu_hour : float or mapping, optional
        In place of the cluster's; by cluster with a mapping. [USD/h]
    precision : str
        Of the matrix products; `mfu` is of its dense peak.
    mfu, effective_time : float
        Model FLOPs utilisation of a step, and share of the calendar in steps that count; take them
        from `costmodel.run` of a similar job. [-]
    served_tokens : float
        Tokens to serve over the model's life; 0 leaves serving out. [-]
    context : int
        Tokens a served sequence holds on average. [-]
    samples, seed : int
        Of the uncertain factors, for p10 to p90 of days and dollars, and what they follow from.

    Returns
    -------
    Budget
        With a `Purchase` for each law, and, where tokens are served, the cheapest over the life at
        the loss of the compute-optimal one.

    Raises
    ------
    CostModelError
        One line that names what is missing or wrong.
    """
    given = keywords(asked, BUDGET_FIELDS, who="budget")

    def one(name: str) -> Any:
        return read(name, given[name]) if name in given else FIELD[name].default

    named, mfu, effective_time = (one(name) for name in ("cluster", "mfu", "effective_time"))
    served_tokens, context = one("served_tokens"), one("context")
    dollars, gpus, days = one("dollars"), one("gpus"), one("days")
    the_cluster = load_cluster(named) if isinstance(named, str) else named
    the_cluster = with_price(the_cluster, one("price_usd_per_gpu_hour"))
    price = _price_of(the_cluster)
    if dollars is None:
        if gpus is None or days is None:
            raise CostModelError("budget: give --budget USD, or both --gpus and --days")
        hours = gpus * days * 24.0
        dollars = hours * price
    else:
        if gpus is not None and days is not None:
            raise CostModelError("budget: --budget, --gpus and --days are one too many; leave one out")
        hours = dollars / price
        if gpus is not None:
            days = hours / gpus / 24.0
        elif days is not None:
            gpus = hours / days / 24.0
    accelerator = the_cluster.accelerator
    computed_in = precision_on(one("precision") if "precision" in given else None, the_cluster)
    peak = accelerator.peak_flops_per_s[PEAK_KEY[computed_in.matmul_dtype]]
    flops = hours * 3600.0 * peak * mfu * effective_time
    return Budget(
        cluster=the_cluster,
        price_usd_per_gpu_hour=price,
        dollars=dollars,
        gpu_hours=hours,
        training_flops=flops,
        mfu=mfu,
        effective_time=effective_time,
        precision=computed_in.name,
        days=days,
        gpus=gpus,
        served_tokens=served_tokens,
        context=context,
        step_over_expected=step_over_expected(the_cluster, computed_in, mfu, one("samples"), one("seed")),
        choices=tuple(_choices(the_cluster, flops, dollars, price, served_tokens, context)),
    )


def _choices(
    cluster: Cluster, flops: float, dollars: float, price: float, served_tokens: float, context: int
) -> list[Purchase]:
    """Return what each rule buys."""
    found: list[tuple[str, float, float, float, float, str]] = []
    for name, law in LAWS.items():
        n, d = (float(value) for value in compute_optimal(law, flops))
        found.append((f"{name}, compute-optimal", n, d, float(loss(law, n, d)), dollars, law.source))
    n = (flops / 120.0) ** 0.5
    law = LAWS["hoffmann"]
    found.append(
        (
            "20 tokens a parameter",
            n,
            20 * n,
            float(loss(law, n, 20 * n)),
            dollars,
            "Hoffmann et al., arXiv:2203.15556, table 3, as usually quoted",
        )
    )
    n, d = (float(value) for value in kaplan_optimal(flops))
    found.append(("kaplan, compute-optimal", n, d, float(kaplan_loss(n, d)), dollars, KAPLAN_SOURCE))
    if served_tokens:
        sizes, usd_per_token = _serving_costs(cluster.accelerator, price, context)
        for name, law in LAWS.items():
            target = float(loss(law, *compute_optimal(law, flops)))
            best, tokens, _ = cheapest_over_lifetime(
                law,
                target,
                served_tokens,
                num_params=sizes,
                train_usd_per_flop=dollars / flops,
                serve_usd_per_token=usd_per_token,
            )
            if not np.isfinite(tokens):
                continue  # no size that can be served reaches the loss
            spent = 6.0 * float(best) * float(tokens) * dollars / flops
            found.append(
                (
                    f"{name}, cheapest with serving",
                    float(best),
                    float(tokens),
                    target,
                    spent,
                    f"{law.source}; Sardana et al., arXiv:2401.00448",
                )
            )
    else:
        sizes = usd_per_token = np.asarray([])

    def served(n: float) -> float | None:
        if not served_tokens:
            return 0.0
        if not sizes[0] <= n <= sizes[-1]:
            return None
        return float(served_tokens * np.interp(np.log(n), np.log(sizes), usd_per_token))

    return [
        Purchase(rule, n, d, reached, spent, served(n), source)
        for rule, n, d, reached, spent, source in found
    ]


def _serving_costs(accelerator: Accelerator, price: float, context: int) -> tuple[Array, Array]:
    """Return sizes of generic dense models and what a served token costs with each [USD]."""
    sizes, costs = [], []
    for wanted in np.geomspace(SMALLEST * 1.2, min(LARGEST, 1e13), _SIZES):
        model = dense_model(float(wanted))
        try:
            found = serving(model, accelerator, price_usd_per_gpu_hour=price, context=context)
        except CostModelError:
            break
        sizes.append(num_params(model))
        costs.append(found.usd_per_token)
    order = np.argsort(sizes)
    return np.asarray(sizes)[order], np.asarray(costs)[order]
