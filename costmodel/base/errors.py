"""The errors this package raises on purpose.

    CostModelError (also a ValueError)
    ├── UnitError          a quantity such as "80 GB/s" that cannot be read
    ├── ProfileError       a hardware file that is missing or says something impossible
    ├── ModelConfigError   a model file or config.json that cannot be priced
    ├── RecipeError        an unknown recipe, switch or precision
    ├── LayoutError        degrees that do not divide, do not multiply up or do not exist
    └── DataError          a table of measurements that cannot be read

Each message is one line: what was given, what is allowed, what to do. The command line prints
it and exits with code 2; anything else that escapes is a bug and keeps its traceback.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from math import log10
from reprlib import Repr
from typing import Any


class CostModelError(ValueError):
    """Wrong input; the message is one line for the person who gave it."""


class UnitError(CostModelError):
    """A quantity without a unit, with an unknown unit, or of the wrong dimension."""


class ProfileError(CostModelError):
    """A hardware profile that is missing, malformed or inconsistent."""


class ModelConfigError(CostModelError):
    """A model description that is missing, malformed or of an unknown type."""


class RecipeError(CostModelError):
    """An unknown recipe, or a switch with a value it does not have."""


class LayoutError(CostModelError):
    """A layout that does not fit the model, the batch or the cluster."""


class NoLayoutError(LayoutError):
    """No layout meets the constraints; the message names the one that bites, and what would do."""


class NothingFitsError(NoLayoutError):
    """No layout fits the memory there is: an answer, as is a job that does not fit."""

    leanest: Any = None
    """The estimate of the layout of least memory, where a plan has one."""


class DataError(CostModelError):
    """A table of measurements that cannot be read; names file and line."""


def near_hint(given: str, allowed: Iterable[str]) -> str:
    """Ask whether one of the nearest right names was meant; empty where none is near."""
    near = get_close_matches(given[:_LONGEST_NAME], sorted(allowed), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


_LONGEST_NAME = 100
_LONGEST_LIST = 140


class _Short(Repr):
    """`repr` that is never long: neither deep files nor numbers of a thousand digits get through whole."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlevel = 2

    def repr_int(self, x: int, level: int) -> str:
        """Count the digits of a number that nobody could read."""
        digits = int(log10(abs(x))) + 1 if x else 1
        if digits > 1 and abs(x) < 10 ** (digits - 1):  # the logarithm of 99…9 is rounded up
            digits -= 1
        return repr(x) if digits <= 24 else f"a number of {digits} digits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return a value as an error message shows it: quoted where it is a text, and never long."""
    plain = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    return " ".join(_SHORT.repr(plain).split())


_LONGEST_LINE = 300


def one_line(message: str) -> str:
    r"""Return a message as one line of at most 300 characters, without what would steer a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in message[: 4 * _LONGEST_LINE]).split())
    if len(line) <= _LONGEST_LINE:
        return line
    cut = line[: _LONGEST_LINE - 2]
    return f"{cut.rpartition(' ')[0] if line[len(cut)] != ' ' and ' ' in cut[-60:] else cut} …"


def listed_names(names: Sequence[str]) -> str:
    """Return names with commas between them, cut where a line gets too long to read."""
    text = ", ".join(names)
    if len(text) <= _LONGEST_LIST:
        return text
    return f"{text[:_LONGEST_LIST].rpartition(', ')[0]}, …"


def choices_hint(given: str, allowed: Iterable[str]) -> str:
    """Return the end of a message: the nearest right names first, then where it helps, all."""
    known = sorted(allowed)
    near = get_close_matches(str(given)[:_LONGEST_NAME], known, n=3, cutoff=0.5)
    listed = listed_names(known)
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}? (known: {listed})"
    return f"known: {listed}"
