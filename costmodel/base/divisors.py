"""Divisors of whole numbers: what degrees of a layout may be."""


def divisors(number: float, most: float = float("inf")) -> tuple[float, ...]:
    """Return the divisors of a whole number, up to `most`.

    >>> divisors(12, 6)
    (1.0, 2.0, 3.0, 4.0, 6.0)
    """
    whole = int(number)
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return tuple(float(d) for d in sorted({*small, *(whole // d for d in small)}) if d <= most)
