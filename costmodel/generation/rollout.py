"""A rollout: answers of several lengths decoded by continuous batching, until the last one ends.

Lengths are a distribution of generated tokens, of which a rollout needs quantiles and two moments. A rollout is a short
list of spans in which about as many sequences run: first the span in which answers wait for a place (where not all fit
at once), then the drain, in which nothing takes the place of an answer that ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import CostModelError
from costmodel.base.files import refuse_endless

Array = NDArray[np.float64]

_POINTS = 4096
_LEVELS = (np.arange(_POINTS) + 0.5) / _POINTS
_MOST_MEASURED = 1_000_000
_SPANS = 48


@dataclass(frozen=True)
class Lengths:
    """Tokens of an answer: a quantile function, linear between ascending `levels` [-] and `values` (tokens)."""

    levels: Array
    values: Array

    def quantile(self, level: ArrayLike) -> Array:
        """Return the tokens that a share of the answers does not exceed. [-]"""
        return np.asarray(np.interp(np.asarray(level, dtype=np.float64), self.levels, self.values))

    @cached_property
    def _sample(self) -> Array:
        """Return quantiles of equal weight."""
        return self.quantile(_LEVELS)

    @property
    def mean(self) -> float:
        """Mean tokens of an answer. [-]"""
        return float(self._sample.mean())

    @property
    def longest(self) -> float:
        """Tokens of the longest answer there may be. [-]"""
        return float(self.values[-1])

    def expected_longest(self, count: float) -> float:
        """Return the mean of the longest of so many answers: the largest of n has the n-th root of a level. [-]"""
        return float(self.quantile(_LEVELS ** (1.0 / count)).mean())

    @property
    def spread(self) -> float:
        """Standard deviation over the mean. [-]"""
        return float(self._sample.std() / self._sample.mean())

    @property
    def mean_age(self) -> float:
        """Tokens that an answer in progress has so far, at a random moment. [-]"""
        return float(self.age_of_remaining(0.0))

    @cached_property
    def remaining(self) -> Lengths:
        """What answers in progress at a random moment still lack (the residual life of renewal theory).

        It exceeds t with probability :math:`E[(l - t)^+] / E[l]`.
        """
        at = np.linspace(0.0, self.longest, 513)
        beyond = np.array([np.maximum(self._sample - t, 0.0).mean() for t in at]) / self.mean
        return Lengths(np.asarray(1.0 - beyond), at)

    def age_of_remaining(self, steps: ArrayLike, oldest: float = np.inf) -> Array:
        r"""Return the tokens that answers had at a random moment, of those still in progress so many steps later. [-]

        Age and residual life have the joint density :math:`f(a + r) / E[l]`. With no age beyond :math:`o` the mean is
        :math:`(E[((l - t)^+)^2] - E[((l - t - o)^+)^2]) / (2 E[(l - t)^+])`.
        """
        beyond = np.maximum(self._sample - np.asarray(steps, dtype=np.float64)[..., None], 0.0)
        older = np.maximum(beyond - oldest, 0.0)
        return np.asarray((beyond**2 - older**2).mean(axis=-1) / np.maximum(2.0 * beyond.mean(axis=-1), 1e-9))

    def after(self, prompt_len: float) -> Lengths:
        """Return the lengths with a prompt of so many tokens in front."""
        return Lengths(self.levels, self.values + prompt_len)


def exponential_lengths(mean: float, longest: float) -> Lengths:
    r"""Return exponential lengths cut off at the limit, with the given mean.

    With scale s and limit c, :math:`E[\min(x, c)] = s (1 - e^{-c/s})`; answers that would be longer end at the limit.
    """
    if not 0.0 < mean <= longest:
        raise CostModelError(
            f"response_len: {mean:,.0f} tokens on average, but max_response_len is {longest:,.0f}"
        )
    tail = 1.0 / (16.0 * _POINTS)
    levels = 1.0 - np.concatenate([np.linspace(1.0, 0.02, 197), np.geomspace(0.02, tail, 120)[1:], [0.0]])
    if mean > 0.995 * longest:
        return Lengths(np.array([0.0, 1.0]), np.array([longest, longest]))
    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2.0
        if -np.expm1(-middle) / middle > mean / longest:
            low = middle
        else:
            high = middle
    values = np.minimum(-longest / low * np.log(np.maximum(1.0 - levels, tail / 16.0)), longest)
    values[-1] = longest
    return Lengths(levels, values)


def quantile_lengths(points: Mapping[float, float], longest: float) -> Lengths:
    """Return lengths of which some quantiles are known, such as ``{0.5: 800, 0.9: 3000, 0.99: 8000}``."""
    levels, values = [0.0, *sorted(points), 1.0], [points[level] for level in sorted(points)]
    if not points or levels[1] < 0.0 or levels[-2] > 1.0:
        raise CostModelError(
            "response_quantiles: expected shares from 0 to 1 such as 0.5, each with its tokens"
        )
    first = values[0] * levels[1] / levels[2] if len(points) > 1 and levels[2] > 0.0 else values[0]
    full = [min(first, values[0]), *values, longest]
    if any(after < before for before, after in pairwise(full)) or values[0] <= 0.0:
        raise CostModelError(
            f"response_quantiles: tokens must rise with their shares, up to max_response_len {longest:,.0f}"
        )
    return Lengths(np.asarray(levels), np.asarray(full, dtype=np.float64))


def measured_lengths(tokens: Sequence[float] | Array) -> Lengths:
    """Return the distribution of measured lengths."""
    found = np.sort(np.asarray(tokens, dtype=np.float64))
    if found.size < 2 or not np.isfinite(found).all() or found[0] < 0.0 or found[-1] < 1.0:
        raise CostModelError("lengths: expected two measured lengths or more, in tokens")
    return Lengths((np.arange(found.size)) / (found.size - 1.0), found)


def read_lengths(path: str | Path) -> Lengths:
    """Read a file of measured lengths: one a line, or the last column of a CSV."""
    refuse_endless(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CostModelError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no text'})"
        ) from None
    found: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        cell = line.split(",")[-1].strip()
        if not cell or cell.startswith("#") or (number == 1 and not cell.replace(".", "", 1).isdigit()):
            continue
        try:
            found.append(float(cell))
        except ValueError:
            raise CostModelError(f"{path}: line {number}: expected tokens, got {cell[:40]!r}") from None
        if len(found) > _MOST_MEASURED:
            raise CostModelError(f"{path}: expected at most {_MOST_MEASURED:,} lengths")
    return measured_lengths(found)


class Spans(NamedTuple):
    """Decode steps of one replica by spans: how many, sequences that run in each, and the tokens these hold on average."""

    steps: Array
    batch: Array
    context: Array

    @property
    def tokens(self) -> float:
        """Tokens that are generated. [-]"""
        return float((self.steps * self.batch).sum())

    @property
    def mean_batch(self) -> float:
        """Sequences that run in an average step. [-]"""
        return self.tokens / float(self.steps.sum())


def rollout_spans(
    lengths: Lengths, samples: float, places: float, prompt: float, *, of_all: float = 0.0
) -> Spans:
    r"""Return the decode steps that a replica needs for its samples.

    Where all samples have a place, :math:`n S(t)` of them still run after t steps, S being the share of longer answers,
    until the longest of them ends. Where they have not, as many as there are places run together while others wait;
    what is then left of the running answers is the residual life of renewal theory, and drains like the former.

    `samples` are the answers of this replica, `places` the sequences that fit at once, and `of_all` the answers of all
    replicas, whose longest one is waited for.

    References
    ----------
    .. [1] S. Ross, "Introduction to probability models," section 7.5.2 (residual life).
    """
    running = min(samples, max(places, 1.0))
    if samples <= running:
        return _drain(lengths, samples, prompt, of_all=max(of_all, samples))
    left = lengths.remaining
    queued_tokens = max(samples * lengths.mean - running * left.mean, 0.0)
    steps = queued_tokens / running
    drained = _drain(left, running, prompt, of_all=running)
    # What is left was begun before the drain, and after the rollout.
    drained = drained._replace(
        context=drained.context + lengths.age_of_remaining(drained.context - prompt, steps)
    )
    if not steps:
        return drained
    # Every token is decoded at its own place in its answer: that gives the context while answers queue.
    held = (queued_tokens + drained.tokens) * (prompt + lengths.mean_age)
    held -= float((drained.steps * drained.batch * drained.context).sum())
    context = max(held / queued_tokens, prompt)
    return Spans(
        *(np.insert(each, 0, first) for each, first in zip(drained, (steps, running, context), strict=True))
    )


def _drain(lengths: Lengths, samples: float, prompt: float, *, of_all: float) -> Spans:
    """Return spans in which ever fewer of the samples run; each ends where the next rank of them ends."""
    if samples <= 1.0:
        ranks = np.array([samples])
    else:
        many, few = np.linspace(1.0, 0.1, 17), np.geomspace(samples * 0.1, 1.0, _SPANS - 17)
        ranks = np.unique(np.concatenate([samples * many, few]))[::-1]
    # Fewer than r of the samples run after the quantile of 1 - (r - 1/2) / n; of all replicas' answers the longest ends last.
    levels = 1.0 - np.maximum(ranks - 0.5, 0.0) / samples
    last = lengths.expected_longest(of_all)
    ends = np.append(np.minimum(lengths.quantile(levels), last), last)
    starts = np.concatenate([[0.0], ends[:-1]])
    steps = ends - starts
    held = np.concatenate([[samples], ranks])
    batch = np.concatenate([(held[:-1] + held[1:]) / 2.0, [min(samples, 1.0)]])
    kept = steps > 0.0
    context = prompt + (starts + ends) / 2.0
    steps, batch, context = steps[kept], batch[kept], context[kept]
    # Spans hold the tokens of the mean exactly, whatever their number.
    scale = samples * lengths.mean / float((steps * batch).sum())
    return Spans(steps, np.clip(batch * scale, min(samples, 1.0), samples), context)
