"""A rollout: samples of several lengths decoded by continuous batching, until the last one ends.

A rollout is a short list of spans in which about as many sequences run: first the span in which samples wait for a
place (where not all fit at once), then the drain, in which nothing takes the place of an answer that ends. What a
decode step takes in each span is priced by whoever knows the engine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.generation.lengths import Lengths

Array = NDArray[np.float64]

_SPANS = 48


class Spans(NamedTuple):
    """Decode steps of one replica, those with about as many sequences together.

    Attributes
    ----------
    steps : ndarray
        Decode steps of each span. [-]
    batch : ndarray
        Sequences that run in each of its steps. [-]
    context : ndarray
        Tokens that a running sequence holds, on average. [-]
    """

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

    Parameters
    ----------
    lengths : Lengths
        Of the answers.
    samples : float
        Answers of this replica. [-]
    places : float
        Sequences that fit at once. [-]
    prompt : float
        Tokens of a prompt. [-]
    of_all : float
        Answers of all replicas, whose longest one is waited for; by default those of this one. [-]

    References
    ----------
    .. [1] S. Ross, "Introduction to probability models," section 7.5.2 (residual life).
    """
    running = min(samples, max(places, 1.0))
    if samples <= running:
        return _drain(lengths, samples, prompt, of_all=max(of_all, samples))
    left = lengths.remaining
    queued_tokens = max(samples * lengths.mean - running * left.mean, 0.0)
    waiting = Spans(
        np.array([queued_tokens / running]),
        np.array([running]),
        np.array([prompt + lengths.mean_age]),
    )
    # Older by its age than its own steps say: what is left was begun before.
    drained = _drain(left, running, prompt + lengths.mean - left.mean, of_all=running)
    return Spans(*(np.concatenate(parts) for parts in zip(waiting, drained, strict=True)))


def _drain(lengths: Lengths, samples: float, prompt: float, *, of_all: float) -> Spans:
    """Return spans in which ever fewer of the samples run; each ends where the next rank of them ends."""
    if samples <= 1.0:
        ranks = np.array([samples])
    else:
        ranks = np.unique(
            np.concatenate(
                [samples * np.linspace(1.0, 0.1, 17), np.geomspace(samples * 0.1, 1.0, _SPANS - 17)]
            )
        )[::-1]
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
