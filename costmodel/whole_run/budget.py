"""From money or time back to tokens, parameters and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.base.version import __version__
from costmodel.describe.factors import bits_of, draw, factor_name, inherited_factors, job_class
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.hardware.prices import price_note, with_price
from costmodel.describe.jobs.fields import BUDGET_FIELDS, FIELD, shows
from costmodel.describe.jobs.job import precision_on
from costmodel.describe.jobs.reading import keywords, read_all
from costmodel.describe.models.model_families import LARGEST, SMALLEST, dense_model
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.decode import decode_step
from costmodel.generation.deployment import deployment
from costmodel.generation.generate import PROMPT_LEN, RESPONSE_LEN, possible_splits
from costmodel.generation.memory import largest_batch
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
    serve_usd: float | None  # None where so large a model was not priced
    source: str

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens for each parameter. [-]."""
        return self.tokens / self.num_params


class Serving(NamedTuple):
    """What it costs to decode with a model: a replica of so many GPUs, a batch of sequences, a step."""

    gpus: int
    batch: float
    step_s: float
    usd_per_token: float  # Of a generated token, with its share of the prompt where there is one. [USD]


_FIGURES = ("price_usd_per_gpu_hour", "dollars", "gpu_hours", "training_flops", "mfu", "effective_time")


@dataclass(frozen=True, repr=False)
class Budget(Answer):
    """A budget of training, and what the scaling laws would do with it."""

    _device = "cluster.accelerator.called"

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
    step_over_expected: Array  # Seconds of a step over those that the MFU says, a value a sample. [-]
    answers: int  # Problems to answer over the model's life. [-]
    solved: tuple[Solved, ...]  # What samples solve of them, and what it costs
    assumed: list[str] = field(default_factory=list)  # Fields of what was bought that nobody named

    @cached_property
    def spread(self) -> dict[str, dict[str, float]]:
        """What the same training takes, and what the same money trains: p10, p50 and p90 of each figure."""
        ends = np.percentile(self.step_over_expected, PERCENTILES)
        takes = {"dollars": self.dollars, "gpu_hours": self.gpu_hours, "days": self.days}
        spread = {name: value * ends for name, value in takes.items() if value is not None}
        spread["training_flops"] = np.percentile(self.training_flops / self.step_over_expected, PERCENTILES)
        places = [f"p{percent}" for percent in PERCENTILES]
        return {name: dict(zip(places, values.tolist(), strict=True)) for name, values in spread.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts."""
        figures = (*_FIGURES, "precision", "days", "gpus", "served_tokens", "context", "spread", "answers")
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "cluster": self.cluster.name,
            **{key: getattr(self, key) for key in figures},
            "assumed": self.assumed,
            "samples": len(self.step_over_expected),
            "choices": self._records(),
            "solved": [dict(way.__dict__) for way in self.solved],
        }

    def _records(self) -> list[dict[str, Any]]:
        records = []
        for choice in self.choices:
            record, share = dict(choice.__dict__), choice.train_usd / self.dollars
            record["tokens_per_parameter"] = choice.tokens_per_parameter
            for column, name in (("train_usd", "dollars"), ("days", "days")):
                ends = self.spread.get(name) or dict.fromkeys(self.spread["dollars"])
                record |= {f"{column}_{place}": end and share * end for place, end in ends.items()}
            records.append(record)
        return records

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each rule."""
        return columns_of(self._records())


def step_over_expected(cluster: Cluster, precision: Precision, mfu: float, samples: int, seed: int) -> Array:
    """Draw how much longer a dense model's step takes than its utilisation says: the factors of an estimate.

    Matrix products at the speed that the device reaches take ``mfu / reached`` of such a step; those of their factor
    scale that share, what nothing explains and what layouts differ by scale all of it. Values of a factor follow from
    its name and the seed, as in every other answer.
    """
    recipe = load_recipe(FIELD["recipe"].default)
    typical = SimpleNamespace(model=dense_model(7e9), cluster=cluster, recipe=recipe, precision=precision)
    accelerator = cluster.accelerator
    products = factor_name("matmul", accelerator.generation, bits_of(precision.matmul_dtype))
    of_all = [factor_name(role, job_class(typical)) for role in ("unexplained", "layout")]
    drawn = draw(
        [products, *of_all], samples, seed=seed, inherited=inherited_factors(accelerator, [products])
    )
    reached = accelerator.kernels.matmul[precision.matmul_dtype] if accelerator.kernels is not None else None
    share = min(mfu / (reached.peak_fraction * (1.0 - reached.sustained_loss)), 1.0) if reached else 1.0
    of_step: Array = 1.0 - share + share * drawn[products]
    for name in of_all:
        of_step = of_step * drawn[name]
    return of_step


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
    """Find the cheapest decoding of a model in 16 bits: the layout of a replica, and the largest batch that is fast enough.

    A sequence holds `context` tokens on average; with lengths of prompts and answers their prefill is part of a step,
    and whole sequences fit. `step_limit_s` is the longest step, so the slowest token, that users accept. Priced by the
    lines of `costmodel.generate`, the engine's constants pooled.
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
    usd_per_token = price_usd_per_gpu_hour / 3600.0 * float(cost[at])
    return Serving(int(splits.gpus[at[1]]), float(batch[at]), float(step[at]), usd_per_token)


@shows(BUDGET_FIELDS)
def budget(**fields: Any) -> Budget:
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
    given = read_all(keywords(fields, BUDGET_FIELDS, who="budget"))
    values = {one.name: given.get(one.name, one.default) for one in BUDGET_FIELDS}
    cluster = load_cluster(values["cluster"]) if isinstance(values["cluster"], str) else values["cluster"]
    cluster = with_price(cluster, values["price_usd_per_gpu_hour"])
    price = cluster.price_usd_per_gpu_hour
    if price is None:
        raise CostModelError(f"price: {price_note(cluster).replace('no price;', 'no price of a GPU-hour;')}")
    dollars, gpus, days = values["dollars"], values["gpus"], values["days"]
    if dollars is None and (gpus is None or days is None):
        raise CostModelError("budget: give --budget USD, or both --gpus and --days")
    if None not in (dollars, gpus, days):
        raise CostModelError("budget: --budget, --gpus and --days are one too many; leave one out")
    hours = gpus * days * 24.0 if dollars is None else dollars / price
    dollars = hours * price if dollars is None else dollars
    days = hours / gpus / 24.0 if gpus is not None and days is None else days
    gpus = hours / days / 24.0 if days is not None and gpus is None else gpus
    precision = precision_on(given.get("precision"), cluster.accelerator)
    peak = cluster.accelerator.peak_flops_per_s[PEAK_KEY[precision.matmul_dtype]]
    flops = hours * 3600.0 * peak * values["mfu"] * values["effective_time"]
    return Budget(
        cluster=cluster,
        price_usd_per_gpu_hour=price,
        dollars=dollars,
        gpu_hours=hours,
        training_flops=flops,
        precision=precision.name,
        days=days,
        gpus=gpus,
        step_over_expected=step_over_expected(
            cluster, precision, values["mfu"], values["samples"], values["seed"]
        ),
        choices=tuple(_choices(cluster, flops, dollars, price, values["served_tokens"], values["context"])),
        solved=tuple(_solved(given, cluster, flops, dollars, price)),
        assumed=[name for name in ("cluster", "mfu", "precision", "effective_time") if name not in given],
        **{name: values[name] for name in ("mfu", "effective_time", "served_tokens", "context", "answers")},
    )


def _solved(
    given: Mapping[str, Any], cluster: Cluster, flops: float, dollars: float, price: float
) -> list[Solved]:
    """Return what samples of problems solve for the budget: of a model that is named, or of the best to train."""
    problems, named, rates = given.get("answers"), given.get("model"), given.get("pass_rate")
    if not problems:
        for name in ("pass_rate", "samples_per_prompt", "model", "prompt_len", "response_len"):
            if given.get(name) is not None:
                raise CostModelError(f"{name}: goes with the number of problems to answer; give --answers")
        return []
    if rates is None:
        raise CostModelError("answers: give --pass-rate, how often a sample solves a problem, such as 0.2")
    measured, count = read_pass_rate(rates), given.get("samples_per_prompt")
    samples: Array = SAMPLES if count is None else np.array([count], dtype=np.float64)
    prompt, response = given.get("prompt_len", PROMPT_LEN), given.get("response_len", RESPONSE_LEN)
    lengths = {"context": prompt + response / 2.0, "prompt_len": prompt, "response_len": response}
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
    tried = {"samples given": samples} if count else {"one sample": SAMPLES[:1], "best samples": samples}
    found_ways = [
        train_and_sample(
            law,
            measured,
            rule=f"{name}, {rule}",
            dollars=dollars,
            problems=problems,
            samples=numbers,
            sizes=sizes,
            usd_per_sample=usd_per_token * response,
            train_usd_per_flop=dollars / flops,
        )
        for name, law in LAWS.items()
        for rule, numbers in tried.items()
    ]
    rows = [way for way in found_ways if way is not None]
    if not rows:
        raise CostModelError(
            f"answers: ${dollars:,.0f} do not pay for {problems:,.0f} answers and the training of any model"
        )
    return rows


def _choices(
    cluster: Cluster, flops: float, dollars: float, price: float, served_tokens: float, context: int
) -> list[Purchase]:
    """Return what each rule buys."""
    found, targets = list[Purchase](), dict[str, float]()

    def buys(rule: str, size: Any, tokens: Any, reached: Any, source: str, spent: float = dollars) -> None:
        found.append(Purchase(rule, float(size), float(tokens), float(reached), spent, 0.0, source))

    for name, law in LAWS.items():
        size, tokens = compute_optimal(law, flops)
        targets[name] = float(loss(law, size, tokens))
        buys(f"{name}, compute-optimal", size, tokens, targets[name], law.source)
    law, size = LAWS["hoffmann"], np.asarray((flops / 120.0) ** 0.5)
    usual = "Hoffmann et al., arXiv:2203.15556, table 3, as usually quoted"
    buys("20 tokens a parameter", size, 20 * size, loss(law, size, 20 * size), usual)
    size, tokens = kaplan_optimal(flops)
    buys("kaplan, compute-optimal", size, tokens, kaplan_loss(size, tokens), KAPLAN_SOURCE)
    if not served_tokens:
        return found
    sizes, usd_per_token = _serving_costs(cluster, price, context=context)
    for name, law in LAWS.items():
        size, tokens, _ = cheapest_over_lifetime(
            law,
            targets[name],
            served_tokens,
            num_params=sizes,
            train_usd_per_flop=dollars / flops,
            serve_usd_per_token=usd_per_token,
        )
        if np.isfinite(tokens):  # else no size that can be served reaches the loss
            spent = 6.0 * float(size) * float(tokens) * dollars / flops
            source = f"{law.source}; Sardana et al., arXiv:2401.00448"
            buys(f"{name}, cheapest with serving", size, tokens, targets[name], source, spent)

    def served(size: float) -> float | None:
        if not sizes[0] <= size <= sizes[-1]:
            return None
        return float(served_tokens * np.interp(np.log(size), np.log(sizes), usd_per_token))

    return [replace(choice, serve_usd=served(choice.num_params)) for choice in found]


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
