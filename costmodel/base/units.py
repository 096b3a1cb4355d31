"""Quantities with units: text such as ``"3.35 TB/s"`` to SI floats at the file boundary, and back.

Inside the package every number is a plain float in bytes, seconds, FLOP, or these per second.
GB is 10⁹ and GiB is 2³⁰ bytes; a bit is an eighth of a byte and must be spelled out.
"""

import math
import re

from costmodel.base.errors import UnitError, shown

_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
_PATTERN = re.compile(_NUMBER + r" (Ki|Mi|Gi|Ti|Pi|[kMGTPEmun])?(B/s|bit/s|FLOP/s|FLOP|B|s|W)")
_PREFIX = {None: 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3}
_PREFIX |= {prefix: 1000.0**power for power, prefix in enumerate("kMGTPE", start=1)}
_PREFIX |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTP", start=1)}
_DIMENSION = {unit: (unit, 1.0) for unit in ("B", "B/s", "FLOP/s", "FLOP", "s", "W")} | {
    "bit/s": ("B/s", 0.125)
}
_SUBUNIT_PREFIXES = {"n", "u", "m"}
EXAMPLES = {
    "B": "80 GiB",
    "B/s": "3.35 TB/s' or '400 Gbit/s",
    "FLOP/s": "989.4 TFLOP/s",
    "FLOP": "1.2 PFLOP",
    "s": "1.3 us",
    "W": "700 W",
}


def parse_quantity(text: object, unit: str) -> float:
    """Return `text` in the base `unit` ("B", "B/s", "FLOP/s", "FLOP", "s" or "W").

    Takes exactly a non-negative number, one space and a unit, case-sensitive. A bare number,
    another dimension, ``Gb``, ``GBps``, thousands marks or a missing space are all refused,
    because each has two readings.
    """
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None or _DIMENSION[match[3]][0] != unit:
        raise UnitError(f"expected a quantity such as '{EXAMPLES[unit]}', got {text!r}")
    number, prefix, suffix = match[1], match[2], match[3]
    if prefix in _SUBUNIT_PREFIXES and suffix != "s":
        raise UnitError(f"{text!r}: '{prefix}{suffix}' is not a unit; prefixes here are k, M, G, T, P")
    if prefix in ("k", "M", "G", "T", "P", "E") and suffix == "s":
        raise UnitError(f"{text!r}: write times in s, ms, us or ns")
    if prefix is not None and prefix.endswith("i") and suffix not in ("B", "B/s"):
        raise UnitError(f"{text!r}: binary prefixes are for bytes only")
    value = float(number) * _PREFIX[prefix] * _DIMENSION[suffix][1]
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is not a finite quantity")
    return value


_PLAIN_NUMBER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?) ?(Ki|Mi|Gi|Ti|[kKMGBT])?")
_THOUSANDS = {"k": 1, "K": 1, "M": 2, "G": 3, "B": 3, "T": 4}
_LONGEST_NUMBER = 40


def parse_number(text: str, thousand: float = 1000.0) -> float:
    """Read a number as people type it: ``32k``, ``15T``, ``300B``, ``3M``, ``4e6``, ``64Ki``, ``1_000``.

    ``k`` stands for a `thousand` (``M`` is k times k, and so on): 1000, 1024, or 0 where both are usual and a prefix is
    refused. ``Ki`` is always 1024. The `UnitError` does not name the value, which the caller does.
    """
    match = _PLAIN_NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST_NUMBER else None
    if match is None:
        raise UnitError("it is not a number")
    digits, prefix = match[1].replace("_", ""), match[2]
    if prefix is None:
        factor = 1.0
    elif prefix.endswith("i"):
        factor = _PREFIX[prefix]
    elif thousand:
        factor = thousand ** _THOUSANDS[prefix]
    else:
        raise UnitError(
            f"{prefix!r} has two readings here; write the digits, or {prefix.upper()}i for powers of 1024"
        )
    if re.fullmatch(r"[+-]?[0-9]+", digits):
        return int(digits) * int(factor)
    value = float(digits) * factor
    return int(value) if math.isfinite(value) and value == math.floor(value) else value


_TYPED = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]*)")
_LONG_TIMES = {
    "min": 60.0,
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("week", "weeks"), 7 * 86400.0),
}


def read_quantity(name: str, text: object, unit: str) -> float:
    """Read the quantity `name` in the base `unit` as people type it: the space may be missing, times may be in min, h and d.

    Links may be in Gbps, which are bits wherever links are sold.

    Files of record (profiles) have one spelling, `parse_quantity`; this is for flags and keywords.
    """
    match = _TYPED.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= _LONGEST_NUMBER else None
    number, suffix = match.groups() if match is not None else ("", "")
    if not suffix:
        example = (
            "a time such as 90s, 15min, 3h or 2d" if unit == "s" else f"a quantity such as '{EXAMPLES[unit]}'"
        )
        raise UnitError(f"{name}: expected {example}, got {shown(text)}")
    if unit == "s" and suffix in _LONG_TIMES:
        return float(number) * _LONG_TIMES[suffix]
    if unit == "B" and suffix.upper() in ("K", "M", "G", "T"):
        letter = suffix.upper()
        raise UnitError(f"{name}: {text!r} has two readings; write {number}{letter}B or {number}{letter}iB")
    try:
        spelled = suffix.replace("KB", "kB").replace("bps", "bit/s")
        return parse_quantity(f"{number} {spelled}", unit)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None


_DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def format_si(value: float, unit: str, digits: int = 3) -> str:
    """Return `value` with a decimal prefix and `digits` significant digits."""
    if not math.isfinite(value):
        return f"{value} {unit}"
    scale, prefix = next(((s, p) for s, p in _DECIMAL if abs(value) >= s), (1.0, ""))
    return f"{_significant(value / scale, digits)} {prefix}{unit}".rstrip()


def format_count(value: float) -> str:
    """Return a number of tokens or samples as papers write it: in thousands, millions, billions (B) and trillions.

    >>> format_count(1.37e11), format_count(15.6e12)
    ('137 B', '15.6 T')
    """
    return format_si(value, "").replace("G", "B")


def format_bytes(value: float, digits: int = 3) -> str:
    """Return a memory size in GiB (MiB, KiB or B when small)."""
    for scale, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        # Four digits before the unit are a step too far: 1,000 KiB is 0.977 MiB.
        if abs(value) >= 999.5 / 1024.0 * scale and not (unit == "TiB" and abs(value) < 10 * scale):
            return f"{_significant(value / scale, digits)} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float, digits: int = 3) -> str:
    """Return a time in s, ms, us or ns."""
    if value == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, digits)} {unit}"
    return f"{_significant(value / 1e-9, digits)} ns"


def format_duration(*seconds: float, days: bool = False) -> str:
    """Return times in the unit that people would use for the longest: hours, or where it is said days, at most.

    >>> format_duration(1119.0), format_duration(5.0), format_duration(90000.0)
    ('18.6 min', '5.0 s', '25.0 h')
    >>> format_duration(0.0), format_duration(0.5)
    ('0.0 s', '500 ms')
    """
    longest = max(map(abs, seconds))
    if 0.0 < longest < 1.0:
        return " / ".join(map(format_seconds, seconds))
    scales = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))
    usual = ((scale, unit) for scale, unit in scales[not days :] if longest >= 2 * scale)
    scale, unit = next(usual, (1.0, "s"))
    return f"{' / '.join(f'{one / scale:,.1f}' for one in seconds)} {unit}"


def format_days(*days: float) -> str:
    """Return calendar times in the unit that people would use for the longest: days from two of them on.

    >>> format_days(20.54), format_days(2.0), format_days(1.0), format_days(0.01), format_days(-0.5)
    ('20.5 days', '2.0 days', '24.0 h', '14.4 min', '-12.0 h')
    >>> format_days(0.9, 1.5, 2.5)
    '0.9 / 1.5 / 2.5 days'
    """
    return format_duration(*(one * 86400.0 for one in days), days=True)


def format_figure(value: float) -> str:
    """Return a figure in whole numbers where it is large, else in three digits.

    >>> format_figure(1234.5), format_figure(18.44), format_figure(0.02), format_figure(0.0)
    ('1,234', '18.4', '0.02', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def format_dollars(value: float) -> str:
    """Return an amount in whole dollars where it is large, with cents from a dollar, else in three digits.

    >>> format_dollars(7376.6), format_dollars(2.0945), format_dollars(0.0897), format_dollars(0.0)
    ('$7,377', '$2.09', '$0.0897', '$0')
    """
    if abs(value) >= 100.0:
        return f"${value:,.0f}"
    return f"${value:.2f}" if abs(value) >= 1.0 else f"${value:#.3g}" if value else "$0"


def _significant(value: float, digits: int) -> str:
    """Return `value` to `digits` significant digits without an exponent."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"
