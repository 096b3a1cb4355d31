"""Numbers in sentences: one GPU and two GPUs, the second and the third; and what a device is called."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from costmodel.base.errors import CostModelError

DEVICE = "GPU"
"""What texts call a device; `called` puts the word of other hardware there."""

_ARTICLE = re.compile(r"\b([Aa]) GPU\b")
_WORD = re.compile(r"\bGPU(s?)\b")


def called(text: str, device: str) -> str:
    """Return a text about GPUs with the word that people use for the devices of other hardware.

    >>> called("16 GPUs, 79 GiB a GPU, a GPU-hour, tokens/s/GPU, GPUDirect", "chip")
    '16 chips, 79 GiB a chip, a chip-hour, tokens/s/chip, GPUDirect'
    >>> called("A GPU of eight", "NPU"), called("a GPU", "GPU")
    ('An NPU of eight', 'a GPU')
    """
    if device == DEVICE:
        return text
    if device[0] in "AEFHILMNORSX" and device.isupper():  # read letter by letter
        text = _ARTICLE.sub(r"\1n GPU", text)
    return _WORD.sub(rf"{device}\1", text)


@contextmanager
def errors_called(device: str) -> Iterator[None]:
    """Let the errors raised inside speak of the devices of a job as people who use them do.

    >>> with errors_called("chip"):
    ...     raise CostModelError("gpus: 6 do not divide 8 GPUs")
    Traceback (most recent call last):
    costmodel.base.errors.CostModelError: gpus: 6 do not divide 8 chips
    """
    try:
        yield
    except CostModelError as error:
        error.args = (called(str(error), device), *error.args[1:])
        raise


def common_device(words: Iterable[str]) -> str:
    """Return what devices are called where all are called alike, else what texts call them.

    >>> common_device(["chip", "chip"]), common_device(["chip", "GPU"])
    ('chip', 'GPU')
    """
    found = set(words)
    return found.pop() if len(found) == 1 else DEVICE


def plural(count: float, noun: str, *, several: str = "", form: str = ",.0f") -> str:
    """Return a count with its noun, in the plural unless it is one.

    >>> plural(1, "GPU"), plural(16384, "GPU"), plural(0, "spare node")
    ('1 GPU', '16,384 GPUs', '0 spare nodes')
    """
    return f"{count:{form}} {noun if count == 1 else several or noun + 's'}"


def chance_text(share: float) -> str:
    """Return a probability; none is certain.

    >>> chance_text(0.97), chance_text(1.0), chance_text(0.001)
    ('97%', '> 99%', '< 1%')
    """
    return "> 99%" if share > 0.99 else "< 1%" if share < 0.01 else f"{share:.0%}"


def ordinal(number: int) -> str:
    """Return the number of a place.

    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 103)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '21st', '103rd']
    """
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def wanted(message: str) -> str:
    """Return in plain words what a message of pydantic's says a value should be.

    >>> wanted("Input should be a valid integer, unable to parse string as an integer")
    'a whole number'
    >>> wanted("Input should be greater than 0"), wanted("Input should be 'none' or 'all'")
    ('a number greater than 0', "'none' or 'all'")
    """
    text = (
        message.removeprefix("Input should be ")
        .replace("a valid ", "a ")
        .replace("a integer", "a whole number")
    )
    text = text.replace("a boolean", "true or false").split(", unable to ")[0]
    text = f"a number {text}" if text.startswith(("greater", "less")) else text
    return text.replace("a tuple", "a list such as [16, 16]").replace(
        "a dictionary", "keys with a value each"
    )


def rule(message: str) -> str:
    """Return what a message of pydantic's says is wrong: what is expected, or the sentence of a check of our own.

    >>> rule("Input should be less than 2"), rule("Value error, a: needs b")
    ('expected a number less than 2', 'a: needs b')
    """
    own = message.removeprefix("Value error, ")
    return own if own != message else f"expected {wanted(message)}"
