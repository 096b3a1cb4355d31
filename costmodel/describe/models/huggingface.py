"""Reading a HuggingFace ``config.json`` without transformers.

The ``model_type`` decides which keys mean what: a row of ``describe/data/huggingface.yaml``; an unknown one is refused,
never guessed. A key that shapes the model and is missing is an error unless the class of that type has a known default.
Keys follow transformers 5.23 (``src/transformers/models/*/configuration_*.py``); files written by
older versions, with the older names, are read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import ModelConfigError, choices_hint
from costmodel.base.files import refuse_endless
from costmodel.describe.models import huggingface_layers, huggingface_odd
from costmodel.describe.models.huggingface_keys import Keys, by_name, shapes_nothing, sizes_of, table
from costmodel.describe.models.huggingface_layers import HIDDEN, common_values, routing_groups, value_of
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.model import MOST, Model, make_model
from costmodel.describe.models.sizes import tower_of

_SHAPES = re.compile(r"(^|_)(experts?|moe|latent|rank)(_|$)")
"""Words in keys of layers' sizes, which a price needs."""


class Family(NamedTuple):
    """One row of the table, with what it takes from the rows it is like."""

    parts: tuple[tuple[str, Any], ...] = ()
    """Functions that read several fields at once, each with its argument."""
    fields: Mapping[str, Any] = {}  # Other fields: a constant, or text for `value_of`
    reads: tuple[str, ...] = ()
    never: Mapping[str, str] = {}
    only: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}


@cache
def families() -> dict[str, Family]:
    """Return the families by ``model_type``."""
    rows = table("families")
    found = {name: _family(name, rows) for name in rows}
    found |= {other: found[name] for name, row in rows.items() for other in row.get("also", ())}
    return {name: found[name] for name in sorted(found) if not name.startswith("_")}


def _family(name: str, rows: Mapping[str, Any]) -> Family:
    """Return one row over those that it is like."""
    row = dict(rows[name])
    like = row.get("like", [])
    parts = [part if isinstance(part, dict) else {part: None} for part in row.get("parts", ())]
    fields = {
        field: stated
        for names, stated in row.items()
        if names not in (*Family._fields, "like", "also")
        for field in names.split(", ")
    }
    own = Family(
        tuple(pair for part in parts for pair in part.items()),
        fields,
        tuple(row.get("reads", "").split()),
        *(row.get(each, {}) for each in ("never", "only", "keys")),
    )
    return reduce(
        _over, [*(_family(each, rows) for each in ([like] if isinstance(like, str) else like)), own]
    )


def _over(below: Family, above: Family) -> Family:
    """Return one family over another; own names of keys are not lent."""
    return Family(
        (*below.parts, *above.parts),
        {**below.fields, **above.fields},
        (*below.reads, *above.reads),
        {**below.never, **above.never},
        {**below.only, **above.only},
        above.keys,
    )


class HuggingFaceModel(NamedTuple):
    """A model read from a config, and what was not understood of it."""

    model: Model
    ignored: tuple[str, ...]  # Keys that may shape the model but were not read; worth a warning
    notes: tuple[str, ...] = ()
    """Sentences: class defaults that the file leaves out, towers that are not priced."""


def model_from_hf_config(config: str | Path | Mapping[str, Any], name: str = "") -> Model:
    """Return the model that a ``config.json`` (path or mapping) describes."""
    return read_hf_config(config, name).model


def read_hf_config(config: str | Path | Mapping[str, Any], name: str = "") -> HuggingFaceModel:
    """Return the model that a ``config.json`` describes, with the keys that were ignored."""
    if isinstance(config, Mapping):
        origin, raw, stem = name or "config", dict(config), ""
    else:
        path = Path(config)
        origin, raw = str(config), _read_json(path)
        own = path.suffix == ".json" and path.name != "config.json"
        stem = path.stem if own else path.absolute().parent.name
    text = language_model(raw, origin)
    keys = Keys(text.raw, origin, text.defaults)
    family = _family_of(keys)
    keys.raw = {family.keys.get(key, key): value for key, value in keys.raw.items()}
    try:
        values = {**common_values(keys), **_read_fields(keys, family)}
        values |= _launch_details(keys.raw, values)
        if values.get("num_experts"):
            values |= routing_groups(keys)
    except ModelConfigError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
        kind = keys.raw["model_type"]
        raise ModelConfigError(
            f"{origin}: model_type {kind!r}: a value is of another kind than its key wants, such as a text for a list"
        ) from None
    called = name or str(raw.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1] or stem
    hidden_size, tower, problem = keys.need(*HIDDEN), None, ""
    try:
        tower = tower_of(raw, hidden_size, origin)
    except ModelConfigError as error:  # the language model has a price without it
        problem = str(error).removeprefix(f"{origin}: ")
    model = make_model(
        {
            **values,
            "tower": tower,
            "tower_problem": problem,
            "name": called or keys.raw["model_type"],
            "source": origin,
        },
        origin,
    )
    left = sorted(key for key in keys.raw.keys() - keys.used if _may_shape(key, keys.raw[key]))
    for key in left:
        _require_shaped(key, keys.raw[key], origin)
    # Keys of a wrapper inside a wrapper are not in the outermost.
    outer = [key for key in text.outer if _may_shape(key, raw.get(key, key))]
    notes = [f"{key} = {text.defaults[key]}: the file leaves it out" for key in sorted(keys.defaulted)]
    images = "; without images_per_sample only"
    towers = (
        one.replace("; only", images) if tower and one.startswith(f"{tower.name}_config") else one
        for one in text.left_out
    )
    return HuggingFaceModel(model, (*left, *outer), (*notes, *towers))


def _may_shape(key: str, value: Any) -> bool:
    """Whether a key that was not read can shape anything."""
    is_empty = value is None or value is False or value == [] or value == {}
    return not (is_empty or shapes_nothing(key))


def _require_shaped(key: str, value: Any, origin: str) -> None:
    """Refuse a key that is not read and that, by its name, changes the experts' sizes."""
    of_every_layer = value == 1 and key.endswith(("frequency", "freq", "interval"))
    if _SHAPES.search(key) and value and not of_every_layer and not isinstance(value, dict):
        raise ModelConfigError(
            f"{origin}: {key}: {value!r} is not understood, and by its name changes the experts; "
            "remove it where it does not"
        )


def _read_fields(keys: Keys, family: Family) -> dict[str, Any]:
    """Return the fields of `Model` that a config of this family says."""
    for key, reason in family.never.items():
        if keys.get(key):
            raise keys.refuse(f"{key}: {reason}")
    for key, supported in family.only.items():
        if keys.get(key, default=supported) != supported:
            word = supported if isinstance(supported, str) else json.dumps(supported)
            raise keys.refuse(f"{key}: only {word} is supported")
    keys.get(*family.reads)
    values: dict[str, Any] = {}
    for name, argument in family.parts:
        named = argument if isinstance(argument, dict) else {}
        rest = () if argument is None or named else (argument,)
        # A family's own function, or one that several share.
        part = getattr(huggingface_odd, name, None) or getattr(huggingface_layers, name)
        values |= part(keys, *rest, **named)
    return values | {field: value_of(keys, stated) for field, stated in family.fields.items()}


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; a folder means its ``config.json``."""
    if path.is_dir():
        path = path / "config.json"
    refuse_endless(path, ModelConfigError)
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelConfigError(f"{path}: not JSON: {why}") from None
    if not isinstance(raw, dict):
        raise ModelConfigError(f"{path}: expected a JSON object with a 'model_type'")
    return raw


def _family_of(keys: Keys) -> Family:
    """Return how a config of this type is read; one that cannot be is refused with its size."""
    kind = keys.need("model_type")
    if kind in families():
        return families()[kind]
    sizes = ", ".join(f"{field} {size:,}" for field, size in sizes_of(keys.raw).items())
    reason = by_name("refused").get(kind)
    stated = f": {reason}" if reason else f" is not supported; {choices_hint(kind, families())}"
    raise keys.refuse(f"model_type {kind!r}{f' ({sizes})' if sizes else ''}{stated}")


def _launch_details(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `Model` that frameworks need and no price depends on, as far as they are one number."""
    names = {field: stated.split() for field, stated in table("launch_details").items()}
    # transformers 5 has all of a rotation in one table, one inside another where layers differ.
    rotation = raw.get("rope_parameters")
    tables = [rotation if isinstance(rotation, dict) else {}, raw]
    length, position = _number([raw], names["context_length"], MOST), values.get("position", "rope")
    found = {"norm_epsilon": _number([raw], names["norm_epsilon"], 1)}
    if position != "learned" and length is not None and length == int(length):
        found["context_length"] = int(length)
    if position == "rope":
        found["rope_theta"] = _number(tables, names["rope_theta"])
    if position == "rope" and values.get("attention") != "mla":
        share = _number(tables, names["rotary_share"], 1 + 1e-9)
        found["rotary_share"] = share or _share_of_dims(raw.get("rotary_dim"), values)
    return {name: value for name, value in found.items() if value}


def _share_of_dims(dims: Any, values: Mapping[str, Any]) -> float | None:
    """Return the rotated share where a config counts the dimensions that are (GPT-J)."""
    width, hidden, heads = (values.get(name) for name in ("head_dim", "hidden_size", "num_heads"))
    if width is None and type(hidden) is int and type(heads) is int and heads > 0:
        width = hidden // heads
    return dims / width if type(dims) is int and type(width) is int and 0 < dims < width else None


def _number(tables: list[Mapping[str, Any]], names: list[str], below: float = float("inf")) -> float | None:
    """Return the first of some keys that is a positive number below a bound."""
    for value in (each.get(name) for each in tables for name in names):
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < below:
            return float(value)
    return None
