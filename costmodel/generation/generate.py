"""What it takes to answer a batch of prompts, and the layout of a replica that does it best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError, NothingFitsError
from costmodel.base.units import format_bytes
from costmodel.base.version import __version__
from costmodel.base.words import plural
from costmodel.bill.lines import Bill
from costmodel.bill.quantity import Figure, Quantity, quantity
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import with_price
from costmodel.describe.models.model import Model
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.decode import decode_step, line_rows, prefill_step
from costmodel.generation.deployment import (
    NUMBER_FORMATS,
    SERVED,
    Deployment,
    Split,
    beyond_context,
    deployment,
    divides,
    parse_split,
    value_of,
)
from costmodel.generation.memory import cache_bytes, cache_room, largest_batch, weights_bytes

Array = NDArray[np.float64]

PROMPT_LEN, RESPONSE_LEN = 1024.0, 1024.0
"""Tokens of prompts and answers where none are named, as in vendors' published throughput tables."""
_MEMORY_FRACTION = 0.9
"""vLLM's default of ``gpu_memory_utilization``. [-]"""


@dataclass(frozen=True)
class Workload:
    """What a deployment has to answer."""

    gpus: int  # All GPUs; they hold as many replicas as fit. [-]
    # Tokens of prompts and of answers, on average. [-]
    prompt_len: float
    response_len: float
    batch: float | None  # Sequences that are answered together on all GPUs; None for as many as fit. [-]
    max_running: float  # Sequences that the engine of a replica runs together at most. [-]
    assumed: tuple[str, ...] = ()
    """Fields of the answer that nobody named."""

    @property
    def longest(self) -> float:
        """Tokens of a whole sequence. [-]"""
        return self.prompt_len + self.response_len

    def running(self, served: Deployment, split: Split) -> Array:
        """Return sequences that run together on a replica: what is wanted, as far as their whole length fits. [-]"""
        fitting = np.floor(largest_batch(served, split, self.longest))
        wanted = np.inf if self.batch is None else self.batch / (self.gpus / split.gpus)
        return np.asarray(np.minimum(fitting, np.minimum(wanted, self.max_running)))


def decode_bill(served: Deployment, split: Split, work: Workload) -> Bill:
    """Return the decode step at the batch that runs, with its share of the prefill of prompts that come in."""
    running = np.maximum(work.running(served, split), 1e-9)
    context = work.prompt_len + work.response_len / 2.0
    return decode_step(served, split, running, context, prompt=work.prompt_len, response=work.response_len)


def throughput(served: Deployment, split: Split, work: Workload, itl_s: ArrayLike) -> Quantity:
    """Return tokens that are generated a second and GPU, all replicas together. [1/s]"""
    return quantity(
        "replicas * running / itl_s / gpus",
        replicas=work.gpus / split.gpus,
        running=work.running(served, split),
        itl_s=itl_s,
        gpus=float(work.gpus),
    )


@dataclass(frozen=True, repr=False)
class Generation(Answer):
    """A priced batch of prompts on one layout of the replicas. Every second comes from the lines of `bill`."""

    _device = "served.cluster.accelerator.called"

    served: Deployment
    split: Split
    work: Workload
    considered: int
    """Layouts of a replica that were priced to find this one; 1 where it was given. [-]"""

    @cached_property
    def bill(self) -> Bill:
        """Lines of one decode step, whose sum is the inter-token latency."""
        return decode_bill(self.served, self.split, self.work)

    @property
    def itl_s(self) -> float:
        """Inter-token latency: from one token of a sequence to its next. [s]"""
        return float(self.bill.step_time_s())

    @cached_property
    def first_token_s(self) -> float:
        """Time to the first token of a prompt that waits for nobody: its prefill. [s]"""
        return float(prefill_step(self.served, self.split, 1.0, self.work.prompt_len).step_time_s())

    replicas = Figure("gpus / each", "Copies of the model. [-]", gpus="work.gpus", each="split.gpus")

    @property
    def running(self) -> float:
        """Sequences that run together on all GPUs. [-]"""
        return self.replicas * float(self.work.running(self.served, self.split))

    @property
    def largest_batch(self) -> float:
        """Sequences whose whole length fits the caches of all GPUs. [-]"""
        return self.replicas * float(np.floor(largest_batch(self.served, self.split, self.work.longest)))

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Generated tokens a second and GPU. [1/s]"""
        return float(throughput(self.served, self.split, self.work, self.itl_s).value)

    @property
    def cache_bytes_per_token(self) -> float:
        """Key-value cache of a token over all layers, uncut. [B]"""
        return float(cache_bytes(self.served, Split(), 1.0))

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars for a million generated tokens, their prompts included; None without a price. [USD]"""
        price = self.served.cluster.price_usd_per_gpu_hour
        if price is None:
            return None
        return price / 3600.0 / self.tokens_per_s_per_gpu * 1e6

    @property
    def memory(self) -> dict[str, float]:
        """Bytes of one GPU: its weights, and the room of its cache. [B]"""
        return {
            "weights": float(weights_bytes(self.served, self.split)),
            "cache_room": float(cache_room(self.served, self.split).value),
        }

    @property
    def warnings(self) -> list[str]:
        """Plain words about what was given and is not so."""
        found = beyond_context(self.served.model, self.work.longest)
        if self.work.batch is not None and self.running < self.work.batch * (1.0 - 1e-9):
            found.append(
                f"{self.running:,.0f} of {self.work.batch:,.0f} sequences run together; the others wait"
            )
        if not self.served.has_units:
            accelerator, weights = self.served.cluster.accelerator.name, self.served.weights.name
            found.append(
                f"{accelerator} has no {weights} units, or none with kernel constants: weights are stored so, and "
                "multiplied in bf16"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts."""
        served, work = self.served, self.work
        figures = (
            "replicas", "considered", "running", "largest_batch", "itl_s", "first_token_s", "tokens_per_s_per_gpu",
            "cache_bytes_per_token", "usd_per_million_tokens",
        )  # fmt: skip
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "model": served.model.name,
            "cluster": served.cluster.name,
            "gpus": work.gpus,
            "layout": self.split.degrees,
            "engine": served.engine.name,
            "precision": served.weights.name,
            "prompt_len": work.prompt_len,
            "response_len": work.response_len,
            **{name: getattr(self, name) for name in figures},
            "memory_bytes": self.memory,
            "lines": line_rows(self.bill.time_lines),
            "warnings": self.warnings,
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a line of the decode step."""
        return columns_of(line_rows(self.bill.time_lines))


def generation_of(given: Mapping[str, Any]) -> Generation:
    """Price the batch of prompts that keywords describe; see `costmodel.generate`, which reads files too."""
    missing = [name for name in ("model", "gpus") if name not in given]
    if missing:
        raise CostModelError(f"generate: {' and '.join(missing)} missing, such as llama3-70b 8xH100")
    one = partial(value_of, given)
    cluster = one("cluster")
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    served = deployment(
        one("model"),
        with_price(cluster, one("price_usd_per_gpu_hour")),
        precision=one("precision"),
        memory_fraction=one("memory_fraction", _MEMORY_FRACTION),
        **{name: one(name) for name in SERVED},
    )
    prompt_len, response_len = one("prompt_len", PROMPT_LEN), one("response_len", RESPONSE_LEN)
    assumed = tuple(name for name in ASSUMED if name not in given)
    work = Workload(one("gpus"), prompt_len, response_len, one("batch"), one("max_running"), assumed)
    if "layout" in given:
        split = parse_split("layout", given["layout"], work.gpus, served.model)
        return _best(served, Split(*(np.array([degree]) for degree in split)), work)
    return _best(served, possible_splits(served.model, work.gpus), work)


ASSUMED = ("engine", "precision", "prompt_len", "response_len")
"""What has a default where nobody names it."""


def possible_splits(model: Model, gpus: int) -> Split:
    """Return every layout of a replica in powers of two (and all GPUs) whose replicas fill the GPUs."""
    powers = [2**n for n in range(gpus.bit_length())]
    sizes = sorted({size for size in (*powers, gpus) if gpus % size == 0})
    groups = sizes if model.num_experts else [1]
    found = []
    for tp, pp, dp in product(sizes, powers, groups):
        if gpus % (tp * pp * dp) == 0:
            # Engines spread the experts over all of tp times dp, or cut each of them.
            found += [(tp, pp, ep, dp) for ep in sorted({1, tp * dp}) if divides(model, tp, pp, ep, dp)]
    return Split(*(np.array(degrees, dtype=np.float64) for degrees in zip(*found, strict=True)))


def _remedies(served: Deployment, work: Workload) -> str:
    """Return what would hold the model: twice the GPUs and so on, or weights of fewer bytes that the chip multiplies."""

    def holds(served: Deployment, gpus: int) -> bool:
        splits = possible_splits(served.model, gpus)
        return bool(np.any(largest_batch(served, splits, work.longest) >= 1.0))

    more = [f"{n} GPUs" for n in (work.gpus * 2**k for k in range(1, 7)) if holds(served, n)]
    narrower = (replace(served, weights=one) for one in NUMBER_FORMATS.values())
    formats = [
        f"--precision {one.weights.name}" for one in narrower if one.has_units and holds(one, work.gpus)
    ]
    found = more[:1] + formats[:1]
    return f"; {' or '.join(found)} would do" if found else ""


def _best(served: Deployment, splits: Split, work: Workload) -> Generation:
    """Return the layout that yields the most tokens a second; of equals the one that answers soonest."""
    running = work.running(served, splits)
    if not np.any(running > 0.0):
        need = float(np.min(weights_bytes(served, splits)))
        raise NothingFitsError(
            f"generate: no layout of {plural(work.gpus, 'GPU')} holds {served.model.name} in {served.weights.name} and one "
            f"sequence of {work.longest:,.0f} tokens: {format_bytes(need)} of weights a GPU at "
            f"least, of {format_bytes(served.memory_fraction * float(served.cluster.accelerator.memory_bytes))}"
            f"{_remedies(served, work)}"
        )
    itl_s = decode_bill(served, splits, work).step_time_s()
    rate = np.where(running > 0.0, throughput(served, splits, work, itl_s).value, 0.0)
    best = int(np.lexsort((itl_s, -rate.round(9)))[0])
    return Generation(served, Split(*(float(np.asarray(degree)[best]) for degree in splits)), work, len(rate))
