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
    """Return a text about GPUs with the word that people use for the devices of other hardware."""
    if device == DEVICE:
        return text
    if device[0] in "AEFHILMNORSX" and device.isupper():  # read letter by letter
        text = _ARTICLE.sub(r"\1n GPU", text)
    return _WORD.sub(rf"{device}\1", text)


@contextmanager
def errors_called(device: str) -> Iterator[None]:
    """Let the errors raised inside speak of the devices of a job as people who use them do."""
    try:
        yield
    except CostModelError as error:
        error.args = (called(str(error), device), *error.args[1:])
        raise


def common_device(words: Iterable[str]) -> str:
    """Return what devices are called where all are called alike, else what texts call them."""
    found = set(words)
    return found.pop() if len(found) == 1 else DEVICE


def plural(count: float, noun: str, *, several: str = "", form: str = ",.0f") -> str:
    """Return a count with its noun, in the plural unless it is one."""
    return f"{count:{form}} {noun if count == 1 else several or noun + 's'}"


def chance_text(share: float) -> str:
    """Return a probability; none is certain.

    >>> chance_text(0.97), chance_text(1.0), chance_text(0.001)
    ('97%', '> 99%', '< 1%')
    """
    return "> 99%" if share > 0.99 else "< 1%" if share < 0.01 else f"{share:.0%}"


def wanted(message: str) -> str:
    """Return in plain words what a message of pydantic's says a value should be."""
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
    """Return what a message of pydantic's says is wrong: what is expected, or the sentence of a check of our own."""
    own = message.removeprefix("Value error, ")
    return own if own != message else f"expected {wanted(message)}"
