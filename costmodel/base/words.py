"""Words in sentences: plurals, probabilities, the name of devices, and messages of pydantic."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from costmodel.base.errors import CostModelError

DEVICE = "GPU"  # The word for a device in texts; `with_device_name` replaces it for other hardware

_ARTICLE = re.compile(r"\b([Aa]) GPU\b")
_WORD = re.compile(r"\bGPU(s?)\b")


def with_device_name(text: str, device: str) -> str:
    """Return a text about GPUs with another name for the devices, such as TPU."""
    if device == DEVICE:
        return text
    if device[0] in "AEFHILMNORSX" and device.isupper():  # read letter by letter
        text = _ARTICLE.sub(r"\1n GPU", text)
    return _WORD.sub(rf"{device}\1", text)


@contextmanager
def errors_with_device_name(device: str) -> Iterator[None]:
    """Replace "GPU" by the name of the job's devices in errors raised inside."""
    try:
        yield
    except CostModelError as error:
        error.args = (with_device_name(str(error), device), *error.args[1:])
        raise


def common_device(words: Iterable[str]) -> str:
    """Return the common name of devices, or the default where names differ."""
    found = set(words)
    return found.pop() if len(found) == 1 else DEVICE


def plural(count: float, noun: str, *, several: str = "", form: str = ",.0f") -> str:
    """Return a count with its noun, in the plural unless it is one."""
    return f"{count:{form}} {noun if count == 1 else several or noun + 's'}"


def chance_text(share: float) -> str:
    """Return a probability as text, never 0 or 100 %.

    >>> chance_text(0.97), chance_text(1.0), chance_text(0.001)
    ('97%', '> 99%', '< 1%')
    """
    return "> 99%" if share > 0.99 else "< 1%" if share < 0.01 else f"{share:.0%}"


def expected_text(message: str) -> str:
    """Return what value a message of pydantic expects, in plain words."""
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


def error_sentence(message: str) -> str:
    """Return the sentence for a message of pydantic: what it expects, or the text of one of our own checks."""
    own = message.removeprefix("Value error, ")
    return own if own != message else f"expected {expected_text(message)}"
