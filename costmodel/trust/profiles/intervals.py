"""Exact unions of intervals of time, in whole nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


class Spans(NamedTuple):
    """Intervals that do not touch, in order: what is covered by a set of intervals. [ns]"""

    start: Whole
    end: Whole

    def length(self) -> int:
        """Return how long they last together. [ns]"""
        return int((self.end - self.start).sum())

    def gaps(self) -> Whole:
        """Return how long each pause between two of them lasts. [ns]"""
        return np.asarray(self.start[1:] - self.end[:-1])

    def until(self, times: Whole) -> Whole:
        """Return how much is covered before each of some times. [ns]"""
        if not self.start.size:
            return np.zeros_like(times)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        last = np.searchsorted(self.start, times, side="right")
        # What of the last span that has begun lies behind the time.
        rest = np.maximum(self.end[np.maximum(last - 1, 0)] - times, 0)
        return np.asarray(np.where(last > 0, before[last] - rest, 0))


NOTHING = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Whole, end: Whole) -> Spans:
    """Return the union of intervals given in any order; those of no length cover nothing.

    >>> union(np.array([5, 0, 1]), np.array([9, 2, 3]))
    Spans(start=array([0, 5]), end=array([3, 9]))
    """
    order = np.argsort(start, kind="stable")
    first, last = start[order], end[order]
    kept = last > first
    first, last = first[kept], last[kept]
    if not first.size:
        return NOTHING
    reach = np.maximum.accumulate(last)
    # An interval opens a new span where everything before it has ended.
    opens = np.concatenate(([True], first[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Spans(first[opens], reach[closes])


def both(one: Spans, other: Spans) -> Spans:
    """Return the union of two sets."""
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def alone_ns(one: Spans, other: Spans) -> int:
    """Return how long the first covers what the second does not. [ns]

    >>> alone_ns(union(np.array([0]), np.array([10])), union(np.array([4]), np.array([20])))
    4
    """
    return both(one, other).length() - other.length()


def shared_ns(one: Spans, other: Spans) -> int:
    """Return how long both cover. [ns]"""
    return one.length() - alone_ns(one, other)
