"""Sizes, rates and times as people type them on a command line: without a space before the unit."""

import re

from costmodel.base.errors import CostModelError, UnitError
from costmodel.base.units import read_quantity

MAX_SIZES = 2000


def parse_size(text: str) -> float:
    """Read a size in bytes; a bare number is one of bytes.

    >>> parse_size("1GB"), parse_size("64MiB"), parse_size("8")
    (1000000000.0, 67108864.0, 8.0)
    """
    size = read_quantity("size", f"{text} B" if re.fullmatch(r"\s*[0-9]+\s*", text) else text, "B")
    if size <= 0:
        raise UnitError(f"size: expected more than 0 bytes; got {text!r}")
    return size


def parse_sizes(text: str) -> list[float]:
    """Read ``FROM:TO`` or ``FROM:TO:FACTOR`` as a geometric range with both ends; the factor is 2.

    >>> parse_sizes("1KiB:6KiB")
    [1024.0, 2048.0, 4096.0, 6144.0]
    """
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise CostModelError(f"sizes: expected FROM:TO or FROM:TO:FACTOR, such as 8B:16GB; got {text!r}")
    low, high = parse_size(parts[0]), parse_size(parts[1])
    try:
        factor = float(parts[2]) if len(parts) == 3 else 2.0
    except ValueError:
        factor = 0.0
    if not 1.0 < factor < 1e6:
        raise CostModelError(f"sizes: expected a factor above 1; got {parts[2]!r}")
    if low > high:
        raise CostModelError(f"sizes: expected a range that goes up; got {text!r}")
    sizes = [low]
    while sizes[-1] * factor <= high * (1 + 1e-12):
        sizes.append(sizes[-1] * factor)
        if len(sizes) > MAX_SIZES:
            raise CostModelError(f"sizes: {text!r} has more than {MAX_SIZES} sizes")
    return sizes if sizes[-1] >= high * (1 - 1e-12) else [*sizes, high]
