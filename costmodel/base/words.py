"""Numbers in sentences: one GPU and two GPUs, the second and the third."""


def plural(count: float, noun: str, *, several: str = "", form: str = ",.0f") -> str:
    """Return a count with its noun, in the plural unless it is one.

    >>> plural(1, "GPU"), plural(16384, "GPU"), plural(0, "spare node")
    ('1 GPU', '16,384 GPUs', '0 spare nodes')
    """
    return f"{count:{form}} {noun if count == 1 else several or noun + 's'}"


def ordinal(number: int) -> str:
    """Return the number of a place.

    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 103)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '103rd']
    """
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
