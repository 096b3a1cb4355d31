"""Reading a HuggingFace ``config.json`` without transformers.

The ``model_type`` decides which keys mean what; an unknown one is refused, never guessed. A key
that shapes the model and is missing is an error unless the class of that type has a known default.
Keys follow transformers 5.23 (``src/transformers/models/*/configuration_*.py``); files written by
older versions, with the older names, are read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.base.errors import ModelConfigError, choices_hint
from costmodel.base.files import refuse_endless
from costmodel.describe.models.huggingface_families import Family, families, read_fields
from costmodel.describe.models.huggingface_keys import Keys, by_name, shapes_nothing
from costmodel.describe.models.huggingface_layers import common_values, routing_groups
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.model import MOST, Model, make_model

_SHAPES = re.compile(r"(^|_)(experts?|moe|latent|rank)(_|$)")
"""Words in keys of layers' sizes, which a price needs."""


class HuggingFaceModel(NamedTuple):
    """A model read from a config, and what was not understood of it."""

    model: Model
    ignored: tuple[str, ...]
    """Keys that may shape the model but were not read; worth a warning."""
    notes: tuple[str, ...] = ()
    """Sentences: class defaults that the file leaves out, towers that are not priced."""


def model_from_hf_config(config: str | Path | Mapping[str, Any], name: str = "") -> Model:
    """Return the model that a ``config.json`` (path or mapping) describes."""
    return read_hf_config(config, name).model


def read_hf_config(config: str | Path | Mapping[str, Any], name: str = "") -> HuggingFaceModel:
    """Return the model that a ``config.json`` describes, with the keys that were ignored."""
    if isinstance(config, Mapping):
        origin, raw = name or "config", dict(config)
    else:
        origin, raw = str(config), _read_json(Path(config))
    text = language_model(raw, origin)
    keys = Keys(text.raw, origin, text.defaults)
    family = _family_of(keys)
    keys.raw = {family.keys.get(key, key): value for key, value in keys.raw.items()}
    try:
        values = {**common_values(keys), **read_fields(keys, family)}
        values |= _launch_details(keys, values)
        if values.get("num_experts"):
            values |= routing_groups(keys)
    except ModelConfigError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError):
        kind = keys.raw["model_type"]
        raise ModelConfigError(
            f"{origin}: model_type {kind!r}: a value is of another kind than its key wants, such as a text for a list"
        ) from None
    chosen = name or str(raw.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1] or _stem(config)
    model = make_model({**values, "name": chosen or keys.raw["model_type"], "source": origin}, origin)
    unread = (key for key in keys.raw.keys() - keys.used if not shapes_nothing(key))
    left = sorted(key for key in unread if not _is_empty(keys.raw[key]))
    for key in left:
        _require_shaped(key, keys.raw[key], origin)
    # Keys of a wrapper inside a wrapper are not in the outermost.
    outer = [key for key in text.outer if not shapes_nothing(key) and not _is_empty(raw.get(key, key))]
    notes = [f"{key} = {text.defaults[key]}: the file leaves it out" for key in sorted(keys.defaulted)]
    return HuggingFaceModel(model, (*left, *outer), (*notes, *text.left_out))


def _require_shaped(key: str, value: Any, origin: str) -> None:
    """Refuse a key that is not read and that, by its name, changes the experts' sizes."""
    of_every_layer = value == 1 and key.endswith(("frequency", "freq", "interval"))
    if _SHAPES.search(key) and value and not of_every_layer and not isinstance(value, dict):
        raise ModelConfigError(
            f"{origin}: {key}: {value!r} is not understood, and by its name changes the experts; "
            "remove it where it does not"
        )


def supported_types() -> tuple[str, ...]:
    """Return every ``model_type`` that can be read."""
    return tuple(families())


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; a folder means its ``config.json``."""
    if path.is_dir():
        path = path / "config.json"
    refuse_endless(path, ModelConfigError)
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ModelConfigError(f"{path}: not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ModelConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelConfigError(f"{path}: expected a JSON object with a 'model_type'")
    return raw


def _stem(config: str | Path | Mapping[str, Any]) -> str:
    """Return the folder of a ``config.json``, which usually is the model's name."""
    if isinstance(config, Mapping):
        return ""
    path = Path(config)
    return path.stem if path.suffix == ".json" and path.name != "config.json" else path.absolute().parent.name


def _is_empty(value: Any) -> bool:
    """Whether a key's value cannot shape anything."""
    return value is None or value is False or value == [] or value == {}


def _family_of(keys: Keys) -> Family:
    """Return how a config of this type is read."""
    kind = keys.need("model_type")
    if kind in families():
        return families()[kind]
    reason = by_name("refused").get(kind)
    said = f": {reason}" if reason else f" is not supported; {choices_hint(kind, supported_types())}"
    raise keys.refuse(f"model_type {kind!r}{_size_of(keys.raw)}{said}")


_SIZES = {
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "decoder_layers", "num_blocks"),
    "hidden size": ("hidden_size", "d_model", "n_embd", "embedding_dim"),
    "vocabulary": ("vocab_size",),
}


def _size_of(raw: Mapping[str, Any]) -> str:
    """Return how large a model is that cannot be read, such as `` (layers 2, hidden size 64)``."""
    found = {word: [raw[key] for key in names if type(raw.get(key)) is int] for word, names in _SIZES.items()}
    sizes = ", ".join(f"{word} {values[0]:,}" for word, values in found.items() if values)
    return f" ({sizes})" if sizes else ""


# What a launch file says of a model and no price depends on. A key of an unexpected kind (a base for each layer) is
# passed over: it has no price, and no one setting to write.
_THETA = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
_EPSILON = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
    "layer_norm_rms_epsilon",
)
_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "seq_length",
)
_SHARE = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent")


def _launch_details(keys: Keys, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `Model` that frameworks have to be told of, as far as a config says them as one number.

    Parameters
    ----------
    keys : Keys
        The config; nothing is noted as read, for these names are known to shape nothing.
    values : mapping
        What its family's reader has made of it.
    """
    raw = keys.raw
    found: dict[str, Any] = {"norm_epsilon": _number(raw, _EPSILON, below=1)}
    length = _number(raw, _LENGTH, below=MOST)
    position = values.get("position", "rope")
    if position != "learned" and length is not None and length == int(length):
        found["context_length"] = int(length)
    # transformers 5 has all of a rotation in one table, one inside another where layers differ.
    table = raw.get("rope_parameters")
    tables = [table if isinstance(table, dict) else {}, raw]
    if position == "rope":
        found["rope_theta"] = next((n for n in (_number(each, _THETA) for each in tables) if n), None)
    if position == "rope" and values.get("attention") != "mla":
        shares = (_number(each, _SHARE, below=1 + 1e-9) for each in tables)
        found["rotary_share"] = next((share for share in shares if share), _share_of_dims(raw, values))
    return {name: value for name, value in found.items() if value}


def _share_of_dims(raw: Mapping[str, Any], values: Mapping[str, Any]) -> float | None:
    """Return the rotated share where a config counts the dimensions that are (GPT-J)."""
    dims, width = raw.get("rotary_dim"), values.get("head_dim")
    hidden, heads = values.get("hidden_size"), values.get("num_heads")
    if width is None and type(hidden) is int and type(heads) is int and heads > 0:
        width = hidden // heads
    if type(dims) is not int or type(width) is not int or not 0 < dims < width:
        return None
    return dims / width


def _number(raw: Mapping[str, Any], names: tuple[str, ...], below: float = float("inf")) -> float | None:
    """Return the first of some keys that is a positive number below a bound."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < below:
            return float(value)
    return None
