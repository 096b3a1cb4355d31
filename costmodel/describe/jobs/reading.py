"""Readers: what people write for a field, turned into its value; one reader a kind, for files, flags and Python.

Every refusal is one line that names the field, what it takes, and what was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, LayoutError, RecipeError, UnitError, choices_hint, shown
from costmodel.base.units import parse_number, read_quantity
from costmodel.describe.jobs.fields import (
    FIELD,
    FIELDS,
    KNOBS,
    LAYOUT_FIELDS,
    Field,
    canonical,
    names,
    unknown_field,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_TRUTHS = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
_LONGEST_NAME = 4096
DAY_S = 86400.0
_AXES = tuple(str(FIELD["axis_order"].default).split())
ARRAYS = ("gpus", "global_batch", "seq_len", *(name for name in names(LAYOUT_FIELDS) if name != "dp"))
"""Fields of which an estimate in Python takes a value a layout."""


def keywords(
    given: Mapping[Any, Any], fields: Iterable[Field], *, who: str, thing: str = "field"
) -> dict[str, Any]:
    """Return what is given under the names of the table: aliases replaced, what is None left out, values unread."""
    listed = tuple(fields)
    known = {*names(listed)}
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = canonical(key) if isinstance(key, str) else key
        if name not in known:
            raise LayoutError(f"{who}: {unknown_field(key, listed, thing)}")
        if value is None:
            continue
        if name in found:
            raise LayoutError(f"{who}: {name} is given twice, as {shown(found[name])} and as {shown(value)}")
        found[name] = value
    return found


def require_complete(given: Mapping[str, Any], *, who: str = "job", remarks: Iterable[str] = ()) -> None:
    """Refuse a job that leaves out what has no default: everything that is missing, and why of its file's remarks."""
    missing = [field for field in FIELDS if field.required and given.get(field.name) is None]
    if missing:
        given_as = " ".join(f"{name}=…" for name in names(missing))
        begins = tuple(name.replace("_", " ") for name in names(missing))
        why = "".join(f"; {remark}" for remark in remarks if remark.startswith(begins))
        raise CostModelError(
            f"{who}: {', '.join(names(missing))} missing; give {given_as} or a job file with these keys{why}"
        )


def read(name: str, given: Any) -> Any:
    """Read one value of a field as a file, a flag or a keyword has it.

    >>> read("seq_len", "32k"), read("tokens", "15T"), read("recompute", "full")
    (32768, 15000000000000.0, 'full')
    """
    field = FIELD[name]
    return _READERS[field.kind](field, given)


def read_given(given: Mapping[str, Any], name: str) -> Any:
    """Read a field of several, its default where they do not have it; None where there is no default."""
    value = given.get(name, FIELD[name].default)
    return None if value is None else read(name, value)


def read_all(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read one value of each of several fields, by their names."""
    return {name: read(name, value) for name, value in given.items()}


def read_several(name: str, given: Any) -> list[Any]:
    """Read one or several values of a field: a value, a sequence of them, or a text with commas."""
    return [read(name, part) for part in _parts(FIELD[name], given)]


def read_codes(name: str, given: Any) -> tuple[float, ...]:
    """Read one or several values of a field of a layout as the numbers that stand for them, ascending."""
    return tuple(sorted({_code(FIELD[name], part) for part in _parts(FIELD[name], given)}))


def _parts(field: Field, given: Any) -> list[Any]:
    """Part what names several values into them."""
    if isinstance(given, str):
        # An order of axes has blanks and commas of its own, the path of a file may have blanks.
        blanks = field.kind not in ("name", "text")
        parts: list[Any] = given.replace(",", " ").split() if blanks else given.split(",")
        parts = [given] if field.kind == "order" else [part for part in parts if part.strip()]
    elif hasattr(given, "ravel"):
        parts = given.ravel().tolist()
    elif field.kind == "order" and isinstance(given, Sequence) and given and given[0] in _AXES:
        parts = [given]
    else:
        parts = list(given) if isinstance(given, list | tuple | set | frozenset | range) else [given]
    if not parts:
        raise LayoutError(f"{field.name}: expected {field.allowed}, got no value")
    return parts


def read_array(name: str, given: Any) -> Array:
    """Read a field of a layout as float64: a value, or values of any shape; words become their codes."""
    import numpy as np

    field = FIELD[name]
    try:
        array = np.asarray(given)
    except ValueError:
        raise _refusal(field, given) from None
    if not array.size:
        raise LayoutError(f"{name}: expected {field.allowed}, got no value")
    if array.dtype.kind in "iuf":
        codes = field.kind != "word" or array.dtype.kind in "iu" or not array.shape
        return _checked(field, array.astype(np.float64) if codes else array)
    if array.dtype.kind == "b" and field.kind == "truth":
        return array.astype(np.float64)
    values = [_code(field, one) for one in array.ravel().tolist()]
    return np.asarray(values, dtype=np.float64).reshape(array.shape)


def _checked(field: Field, array: Array) -> Array:
    """Refuse numbers outside the field's range, or that are not whole where they must be."""
    import numpy as np

    ranges = {"word": (0.0, len(field.words) - 1.0), "truth": (0.0, 1.0)}
    least, most = ranges.get(field.kind, (field.least, field.most))
    bad = ~(np.isfinite(array) & (array >= least) & (array <= most))
    if field.kind != "number":
        bad |= array != np.floor(array)
    if bad.any():
        raise _refusal(field, array[bad].flat[0].item())
    return array


def _code(field: Field, given: Any) -> float:
    """Read one value of a field as the number that stands for it in a layout."""
    if field.kind == "word" and isinstance(given, int | float) and not isinstance(given, bool):
        if not 0 <= given < len(field.words):
            raise _refusal(field, given)
        if given != int(given):
            raise _refusal(field, given)
        return float(given)
    value = _READERS[field.kind](field, given)
    return float(field.words.index(value)) if field.kind == "word" else float(value)


def _refusal(field: Field, given: Any) -> LayoutError:
    """Return the error that says what a field takes and what it got."""
    if field.kind == "word" and isinstance(given, str):
        return LayoutError(
            f"{field.name}: {shown(given)} is unknown; {choices_hint(given[:60], field.words)}"
        )
    if not isinstance(given, list | tuple):
        note = ""
    elif field.name in ARRAYS:
        note = " (lists are for the Python API)"
    else:
        hint = f", {field.hint}" if field.hint and not field.words else ""
        note = f" (one value{hint}{'; costmodel.sweep takes several' if field.swept else ''})"
    if isinstance(given, float) and given.is_integer() and abs(given) < 1e15:
        given = int(given)  # as people wrote it
    return LayoutError(f"{field.name}: expected {field.allowed}, got {shown(given)}{note}")


def require_alike(given: Mapping[str, Any]) -> None:
    """Refuse lists of a job that do not go together: one line with the fields and how many values each has."""
    import numpy as np

    shapes = {name: read_array(name, given[name]).shape for name in ARRAYS if name in given}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        stated = {name: "x".join(map(str, shape)) for name, shape in shapes.items() if shape}
        raise LayoutError(
            f"{', '.join(stated)}: expected lists of one length, value by value, got "
            f"{', '.join(f'{length} of {name}' for name, length in stated.items())}; costmodel.sweep takes every combination"
        ) from None


def _plain(given: Any) -> Any:
    """Return a number of NumPy's as one of Python's; this module is read before NumPy is."""
    return given.item() if hasattr(given, "item") and not hasattr(given, "__setitem__") else given


def _number(field: Field, given: Any) -> int | float:
    """Read a number in the field's range from a number or a text."""
    value = given = _plain(given)
    if isinstance(given, str):
        digits = given.strip().removeprefix("$") if field.unit.startswith("USD") else given
        is_time = field.unit == "d" and digits.strip()[-1:].isalpha()
        try:
            value = (
                read_quantity(field.name, digits, "s") / DAY_S
                if is_time
                else parse_number(digits, field.thousand)
            )
        except UnitError as error:
            why = f" ({error})" if "two readings" in str(error) else ""
            raise LayoutError(f"{field.name}: expected {field.allowed}, got {shown(given)}{why}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(field, given)
    # Also false for NaN; a whole number of a thousand digits compares without overflow.
    if not field.least <= value <= field.most:
        raise _refusal(field, value)
    if field.kind == "whole" and value != int(value):
        raise _refusal(field, given)
    return int(value) if field.kind == "whole" else float(value)


def _read_name(field: Field, given: Any) -> Any:
    """Read a name; an object passes, and what it must be is for those who use it."""
    if isinstance(given, str):
        if not given.strip() or len(given) > _LONGEST_NAME:
            raise _refusal(field, given)
        return given.strip()
    if isinstance(given, bool | int | float | list | tuple | dict | set | bytes) or hasattr(given, "dtype"):
        raise _refusal(field, given)
    return given


_SAME_SCHEDULES = {"pipedream-flush": "1f1b", "zb-h2": "zb-2p"}
_WITHOUT_FLUSH = ("pipedream", "pipedream-2bw")


def _read_word(field: Field, given: Any) -> str:
    text = given.strip().lower() if isinstance(given, str) else None
    if field.name == "schedule":
        if text in _WITHOUT_FLUSH:
            raise LayoutError(
                f"schedule: {text} steps on stale weights, which is not priced; with a flush it is 1f1b"
            )
        text = _SAME_SCHEDULES.get(text or "", text)
    if text not in field.words:
        raise _refusal(field, given)
    return str(text)


def _read_truth(field: Field, given: Any) -> bool:
    if isinstance(given, str) and given.strip().lower() in _TRUTHS:
        return _TRUTHS[given.strip().lower()]
    if isinstance(plain := _plain(given), bool | int | float) and plain in (0, 1):
        return bool(plain)
    raise _refusal(field, given)


_MAY_BE_EMPTY = ("lora_targets", "frozen")
"""Texts that an answer's inputs have empty where nothing is meant."""


def _read_text(field: Field, given: Any) -> str:
    if not isinstance(given, str):
        raise _refusal(field, given)
    if not given and field.name in _MAY_BE_EMPTY:
        return ""
    return str(_read_name(field, given))


def _read_order(field: Field, given: Any) -> tuple[str, ...]:
    """Read an axis order such as "tp cp dp pp" or "tp-cp-pp-dp", innermost first."""
    if isinstance(given, str):
        axes: tuple[Any, ...] = tuple(given.replace("-", " ").replace(",", " ").lower().split())
    elif isinstance(given, Sequence):
        axes = tuple(given)
    else:
        raise LayoutError(f"{field.name}: expected {field.allowed}, got {shown(given)}")
    is_text = all(isinstance(axis, str) for axis in axes)
    if not is_text or sorted(axes) != sorted(_AXES):
        stated = shown(" ".join(axes) if is_text else given)
        raise LayoutError(f"{field.name}: {stated} must name each of tp, cp, dp, pp once, innermost first")
    return axes


_UNITS = {"bytes": "B", "rate": "B/s", "time": "s"}


def _read_quantity(field: Field, given: Any) -> float:
    """Read a quantity in SI units: a number, or a text with a unit; memory may be endless."""
    value = _plain(given)
    if isinstance(value, str):
        value = read_quantity(field.name, given, _UNITS[field.kind])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(field, given)
    if value == inf and field.kind == "bytes" and not isinstance(given, str):
        return float(value)
    if not (field.least <= value <= field.most if field.kind == "time" else 0.0 < value <= 1e18):
        raise _refusal(field, given)
    return float(value)


def _read_share(field: Field, given: Any) -> float:
    """Read a share: per cent, or a number from the least of the field to below 1."""
    text = given.strip() if isinstance(given, str) else None
    try:
        value = float(text[:-1]) / 100.0 if text and text.endswith("%") else float(given)
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if isinstance(given, bool) or not field.least <= value < 1.0:
        raise LayoutError(f"{field.name}: expected {field.allowed}, got {shown(given)}")
    return value


_PAIRS = {
    "switches": "switch=value, such as dp_overlap=none",
    "choices": "knob=value, such as pp=1",
    "price": "a price, or one a cluster such as dgx-h200-ndr=2.5,tpu-v6e=1.8",
    "hardware": "NUMBER=VALUE once each, such as tdp=500W",
}


def _pairs(field: Field, given: Any) -> list[tuple[Any, Any]]:
    """Part a mapping, or texts such as ``pp=1``, into names and values; prices and hardware stand in one text too."""
    from costmodel.describe.switch_table import SWITCHES

    if isinstance(given, Mapping):
        return list(given.items())
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise LayoutError(f"{field.name}: expected {field.allowed}, got {shown(given)}")
    in_one = field.kind in ("price", "hardware")
    found: list[tuple[str, str]] = []
    for text in ",".join(texts).split(",") if in_one else texts:
        name, _, value = (part.strip() for part in text.partition("="))
        is_empty_list = "=" in text and name in SWITCHES and SWITCHES[name].is_list
        if not name or not (value or is_empty_list) or (in_one and name in dict(found)):
            stated = shown(given if in_one else text)
            raise LayoutError(f"{field.name}: expected {_PAIRS[field.kind]}; got {stated}")
        found.append((name, value))
    return found


def _read_switches(field: Field, given: Any) -> dict[str, Any]:
    """Read switches from a mapping, or from texts such as ``dp_overlap=none``; commas part the values of a list.

    >>> read("switches", ["dp_overlap=none", "selective_modules=core_attn,mlp", "bucket_elements=50M"])
    {'dp_overlap': 'none', 'selective_modules': ['core_attn', 'mlp'], 'bucket_elements': 50000000}
    """
    from costmodel.describe.recipe import find_switch
    from costmodel.describe.switch_table import SWITCHES

    pairs = _pairs(field, given)
    for name, _ in pairs:
        if not isinstance(name, str):
            raise RecipeError(f"{field.name}: expected names of switches, got {shown(dict(given))}")
        if name in FIELD and name not in SWITCHES:
            flag = FIELD[name].flags[0]
            raise RecipeError(f"{field.name}: {shown(name)} is no switch but a field of the job: {flag}")
    found = dict(pairs)
    for name, value in found.items():
        if isinstance(value, str):
            switch = find_switch(name)
            if switch.is_list:
                found[name] = [part for part in value.split(",") if part]
            elif value == "null" and switch.kind == "open number":
                found[name] = None
            elif switch.is_number or switch.kind == "whole":
                with suppress(UnitError):  # what is no number, its recipe refuses
                    found[name] = parse_number(value)
    return found


def _read_choices(field: Field, given: Any) -> dict[str, Any]:
    """Read fields that are decided from a mapping, or from texts such as ``pp=1``."""
    from costmodel.describe.switch_table import SWITCHES

    knobs = tuple(FIELD[name] for name in KNOBS)
    found: dict[str, Any] = {}
    for key, value in _pairs(field, given):
        knob = key if isinstance(given, Mapping) else key.replace("-", "_")
        if isinstance(knob, str) and canonical(knob) not in KNOBS and knob in SWITCHES:
            raise LayoutError(
                f"{field.name}: {knob} is a switch of the recipe, not a knob of the layout; give it as -s "
                f"{knob}={value} (switches={{{knob!r}: ...}}), which holds it too"
            )
        for name, choice in keywords({knob: value}, knobs, who=field.name, thing="knob").items():
            if name in found:
                raise LayoutError(
                    f"{field.name}: {name} is fixed twice, to {shown(found[name])} and to {shown(choice)}"
                )
            found[name] = choice
    return found


def _read_price(field: Field, given: Any) -> float | dict[str, float]:
    """Read a price, or one a cluster from a mapping or a text such as ``dgx-h200-ndr=2.5,tpu-v6e=1.8``."""
    if not isinstance(given, Mapping) and not (isinstance(given, str) and "=" in given):
        return _number(field, given)
    pairs = _pairs(field, given)
    if not all(isinstance(name, str) and name and usd != "" for name, usd in pairs):
        raise LayoutError(f"{field.name}: expected {_PAIRS['price']}; got {shown(given)}")
    return {name: _number(field, usd) for name, usd in pairs}


def _read_hardware(field: Field, given: Any) -> dict[str, Any]:
    """Read numbers of the hardware from a mapping, or from texts such as ``tdp=500W``; a cluster knows their units."""
    return {str(name): value for name, value in _pairs(field, given)}


_READERS: dict[str, Callable[[Field, Any], Any]] = {
    "name": _read_name,  # a text that a table of its own resolves, or the object that it means
    "text": _read_text,
    "whole": _number,
    "number": _number,
    "word": _read_word,  # one of the choices
    "truth": _read_truth,
    "layout": _read_text,  # degrees in one text
    "order": _read_order,
    "switches": _read_switches,
    **dict.fromkeys(_UNITS, _read_quantity),
    "share": _read_share,
    "choices": _read_choices,  # names and values of searched fields
    "price": _read_price,  # a number of dollars, or one a cluster
    "hardware": _read_hardware,
}
