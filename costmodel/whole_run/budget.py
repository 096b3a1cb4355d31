"""From money or time back to tokens, parameters and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, NoLayoutError
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
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.decode import decode_step
from costmodel.generation.deployment import Split, deployment
from costmodel.generation.generate import PROMPT_LEN, RESPONSE_LEN, possible_splits
from costmodel.generation.memory import cache_bytes, largest_batch
from costmodel.physics.run.scaling_laws import (
    KAPLAN_SOURCE,
    LAWS,
    cheapest_over_lifetime,
    compute_optimal,
    kaplan_loss,
    kaplan_optimal,
    loss,
)
from costmodel.step.anatomy.params import num_params
from costmodel.whole_run.solved import SAMPLES, Solved, read_pass_rate, solved_by, train_and_sample

if TYPE_CHECKING:
    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.describe.recipe import Recipe

Array = NDArray[np.float64]

PERCENTILES = (10, 50, 90)
_SIZES = 120
_SERVING_GPUS, _SERVING_BATCHES = 128, 2.0 ** np.arange(0, 14.25, 0.25)[:, None]


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
    """Of a replica. [-]"""
    batch: float
    step_s: float
    tokens_per_s_per_gpu: float
    cache_bytes_per_sequence: float
    usd_per_token: float
    """Of a generated token, with its share of the prompt where there is one. [USD]"""


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
    answers: int = 0
    """Problems to answer over the model's life. [-]"""
    solved: tuple[Solved, ...] = ()
    """What samples solve of them, and what it costs."""

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
            "answers": self.answers,
            "solved": [dict(one.__dict__) for one in self.solved],
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
    cluster: Cluster,
    *,
    price_usd_per_gpu_hour: float,
    context: float = 4096.0,
    prompt_len: float = 0.0,
    response_len: float = np.inf,
    step_limit_s: float = 0.05,
) -> Serving:
    """Find the cheapest decoding of a model: the layout of a replica, and the largest batch that is fast enough.

    Parameters
    ----------
    model : Model
        In 16 bits.
    cluster : Cluster
        That serves.
    price_usd_per_gpu_hour : float
        [USD/h]
    context : float
        Tokens a sequence holds on average. [-]
    prompt_len, response_len : float
        Tokens of prompts and answers, whose prefill is then part of a step; whole sequences fit. [-]
    step_limit_s : float
        Longest step, so slowest token, that users accept. [s]

    Returns
    -------
    Serving
        Priced by the lines of `costmodel.generate`, the engine's constants pooled.

    Raises
    ------
    NoLayoutError
        If no layout of up to 128 GPUs holds the model and is fast enough.
    """
    served = deployment(model, cluster)
    splits = possible_splits(model, _SERVING_GPUS)
    whole = prompt_len + response_len if np.isfinite(response_len) else context
    most = np.floor(largest_batch(served, splits, whole))
    batch = np.minimum(_SERVING_BATCHES, np.maximum(most, 1.0))
    bill = decode_step(served, splits, batch, context, prompt=prompt_len, response=response_len)
    step = bill.step_time_s()
    cost = np.where((most >= 1.0) & (step <= step_limit_s), splits.gpus * step / batch, np.inf)
    at = np.unravel_index(int(np.argmin(cost)), cost.shape)
    if not np.isfinite(cost[at]):
        raise NoLayoutError(
            f"serving: {model.name} at {whole:,.0f} tokens does not fit {_SERVING_GPUS} {cluster.accelerator.name} "
            f"within {step_limit_s * 1e3:.0f} ms a token"
        )
    rate = 1.0 / float(cost[at])
    return Serving(
        gpus=int(splits.gpus[at[1]]),
        batch=float(batch[at]),
        step_s=float(step[at]),
        tokens_per_s_per_gpu=rate,
        cache_bytes_per_sequence=float(cache_bytes(served, Split(), context)),
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
    answers : int
        Problems to answer over the model's life; 0 leaves them out. [-]
    pass_rate : str
        How often a sample solves one: ``"0.2"``, pass@k at two k ``"1=0.2 16=0.55"``, ``"beta 0.4 2"``, of `model`; or
        of two models, ``"8B/15T: 0.3; 70B/15T: 0.55"``, and the budget is shared by training and samples.
    samples_per_prompt : int
        Samples of a problem; by default the best power of two up to 1,024. [-]
    model : str or Model
        That answers, where `pass_rate` is of one model; its training takes the budget.
    prompt_len, response_len : float
        Tokens of a problem and of a sample. [-]
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
        answers=one("answers"),
        solved=tuple(_solved(given, the_cluster, flops, dollars, price)),
    )


def _solved(
    given: Mapping[str, Any], cluster: Cluster, flops: float, dollars: float, price: float
) -> list[Solved]:
    """Return what samples of problems solve for the budget: of a model that is named, or of the best to train."""
    asked = {
        name: read(name, given[name]) if name in given else None
        for name in ("answers", "pass_rate", "samples_per_prompt", "model", "prompt_len", "response_len")
    }
    problems = asked["answers"]
    if not problems:
        others = [name for name, value in asked.items() if value is not None and name != "answers"]
        if others:
            raise CostModelError(f"{others[0]}: goes with the number of problems to answer; give --answers")
        return []
    if asked["pass_rate"] is None:
        raise CostModelError("answers: give --pass-rate, how often a sample solves a problem, such as 0.2")
    measured = read_pass_rate(asked["pass_rate"])
    samples: Array = (
        SAMPLES
        if asked["samples_per_prompt"] is None
        else np.array([asked["samples_per_prompt"]], dtype=np.float64)
    )
    prompt = PROMPT_LEN if asked["prompt_len"] is None else asked["prompt_len"]
    response = RESPONSE_LEN if asked["response_len"] is None else asked["response_len"]
    lengths = {"context": prompt + response / 2.0, "prompt_len": prompt, "response_len": response}
    named = asked["model"]
    if len(measured) == 1:
        if named is None:
            raise CostModelError(
                "pass_rate: of one model it needs --model, whose samples are priced; or give the rates of two models, "
                "such as '8B/15T: 0.3; 70B/15T: 0.55'"
            )
        model = load_model(named) if isinstance(named, str) else named
        found = serving(model, cluster, price_usd_per_gpu_hour=price, **lengths)
        return solved_by(
            model.name,
            num_params(model),
            measured[0].difficulty,
            samples=samples,
            problems=problems,
            usd_per_sample=found.usd_per_token * response,
            train_usd=dollars,
        )
    if named is not None:
        raise CostModelError("model: with the rates of two models the size is what is sought; leave it out")
    sizes, usd_per_token = _serving_costs(cluster, price, **lengths)
    rows = []
    for name, law in LAWS.items():
        for rule, tried in (("one sample", SAMPLES[:1]), ("best samples", samples)):
            if len(samples) == 1 and rule == "one sample":
                continue
            best = train_and_sample(
                law,
                measured,
                rule=f"{name}, {rule if len(samples) > 1 else 'samples given'}",
                dollars=dollars,
                problems=problems,
                samples=tried,
                sizes=sizes,
                usd_per_sample=usd_per_token * response,
                train_usd_per_flop=dollars / flops,
            )
            if best is not None:
                rows.append(best)
    if not rows:
        raise CostModelError(
            f"answers: ${dollars:,.0f} do not pay for {problems:,.0f} answers and the training of any model"
        )
    return rows


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
        sizes, usd_per_token = _serving_costs(cluster, price, context=context)
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


def _serving_costs(cluster: Cluster, price: float, **lengths: float) -> tuple[Array, Array]:
    """Return sizes of generic dense models and what a served token costs with each [USD]."""
    sizes, costs = [], []
    for wanted in np.geomspace(SMALLEST * 1.2, min(LARGEST, 1e13), _SIZES):
        model = dense_model(float(wanted))
        try:
            found = serving(model, cluster, price_usd_per_gpu_hour=price, **lengths)
        except NoLayoutError:
            break
        sizes.append(num_params(model))
        costs.append(found.usd_per_token)
    if not sizes:
        raise CostModelError(
            f"serving: {cluster.accelerator.name} is too slow or small for the smallest model"
        )
    order = np.argsort(sizes)
    return np.asarray(sizes)[order], np.asarray(costs)[order]
