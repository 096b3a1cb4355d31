"""Slices of a torus: the box of chips that a job gets, by its shape.

A profile's torus has the shape of its largest slice. A job runs on one slice, or on several equal ones
joined by the next tier; `sliced` returns the cluster of such slices.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from costmodel.base.errors import LayoutError, shown
from costmodel.describe.hardware.cluster import Cluster, Tier


def slice_text(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it: ``8x16x16``."""
    return "x".join(map(str, shape))


def parse_slice(text: object) -> tuple[int, ...]:
    """Return the shape that a text such as ``8x16x16`` says."""
    lengths = text.lower().split("x") if isinstance(text, str) else []
    if not lengths or not all(one.isascii() and one.isdigit() and 0 < int(one) < 10**6 for one in lengths):
        raise LayoutError(f"slice: expected chips along each dimension such as 8x16x16, got {shown(text)}")
    return tuple(map(int, lengths))


def sliced(cluster: Cluster, gpus: float, shape: tuple[int, ...] = ()) -> Cluster:
    """Return the cluster with the slices of a job of so many chips, its `default_slice` where no shape is given."""
    pod = cluster.tiers[0]
    if not pod.shape and not shape:
        return cluster
    if not pod.shape:
        raise LayoutError(
            f"slice: {slice_text(shape)} needs a torus; the tier {pod.name} of {cluster.name} is a {pod.topology}"
        )
    made = shape or default_slice(pod, int(gpus))
    if not fits(made, pod.shape):
        sides = "" if len(made) == len(pod.shape) else f": expected {len(pod.shape)} sides"
        raise LayoutError(
            f"slice: {slice_text(made)} does not fit on the {slice_text(pod.shape)} torus of {cluster.name}{sides}"
        )
    if gpus % prod(made):
        raise LayoutError(
            f"slice: {slice_text(made)} has {prod(made)} chips, which do not divide gpus = {gpus:.0f}"
        )
    return replace(cluster, tiers=(replace(pod, shape=made, size=prod(made)), *cluster.tiers[1:]))


def fits(shape: tuple[int, ...], pod: tuple[int, ...]) -> bool:
    """Say whether a slice is a box of the pod's chips, in some orientation."""
    pairs = zip(sorted(shape), sorted(pod), strict=False)
    return len(shape) == len(pod) and all(length <= most for length, most in pairs)


def default_slice(pod: Tier, chips: int) -> tuple[int, ...]:
    """Return the slice of a job that names none: a full torus if there is one, else the nearest to a cube."""
    for size in range(min(chips, prod(pod.shape)), 0, -1):
        if chips % size:
            continue
        if shapes := [shape for shape in _boxes(size, len(pod.shape)) if fits(shape, pod.shape)]:
            return max(shapes, key=lambda shape: (all(replace(pod, shape=shape).wraps), -max(shape), shape))
    raise LayoutError(f"slice: no box on the {slice_text(pod.shape)} torus has a part of {chips} chips")


def _boxes(chips: int, dimensions: int) -> list[tuple[int, ...]]:
    """List the boxes of so many chips, lengths ascending."""
    if dimensions == 1:
        return [(chips,)]
    found = []
    for first in range(1, round(chips ** (1 / dimensions)) + 1):
        if chips % first == 0:
            found += [(first, *rest) for rest in _boxes(chips // first, dimensions - 1) if rest[0] >= first]
    return found
