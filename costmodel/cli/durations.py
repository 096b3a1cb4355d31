"""Times of days, hours and minutes as people type them on a command line."""

import re

from costmodel.base.errors import UnitError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(name: str, text: str | None) -> float | None:
    """Read ``90s``, ``15min``, ``3h`` or ``2d`` in seconds; None stays None.

    >>> duration("restart", "15min")
    900.0
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)", text.strip())
    if match is None:
        raise UnitError(f"{name}: expected a time such as 90s, 15min, 3h or 2d; got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]
