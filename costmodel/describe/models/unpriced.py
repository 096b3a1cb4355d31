"""The size of HuggingFace models that cannot be priced: formulas over a config's keys, from ``unpriced.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from costmodel.describe.models.huggingface_formulas import formulas_of, number_of, rows_of
from costmodel.describe.models.huggingface_keys import Keys, by_name, shapes_nothing, sizes_of
from costmodel.describe.models.huggingface_wrappers import language_model

_PREDICTING = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Layers that predict further tokens, which transformers does not build."""


class Size(NamedTuple):
    """What is known of a model without a price."""

    shape: dict[str, Any]
    """Parameters, layers and widths, under the names of `Model`."""
    ignored: tuple[str, ...]
    """Keys that were not read and may matter."""
    left_out: tuple[str, ...]
    """Sentences: towers and layers that are not counted."""


def size_of(raw: Mapping[str, Any], origin: str, name: str = "") -> Size | None:
    """Return the size of the model that a config describes; without its parameters where no row counts its type.

    None for a type that is not known to have no price.
    """
    text = language_model(raw, origin)
    kind = str(text.raw.get("model_type"))
    if kind not in counted_types():
        known = {"name": name or kind, "model_type": kind, **sizes_of(text.raw)}
        return Size(known, (), text.left_out) if kind in by_name("refused") else None
    keys = Keys(text.raw, origin, text.defaults)
    formulas = formulas_of("unpriced.yaml", kind, "_decoder")
    if keys.get("add_cross_attention"):
        raise keys.refuse(f"add_cross_attention: a {kind!r} with it cannot be counted")
    fields = {
        "num_params": "parameters",
        "num_layers": "layers",
        "hidden_size": "hidden",
        "num_heads": "heads",
    }
    fields |= {"num_kv_heads": "num_key_value_heads", "vocab_size": "vocab"}
    try:
        with np.errstate(all="raise"):
            found = {field: number_of(keys, formulas, each) for field, each in fields.items()}
            tied = number_of(keys, formulas, "tied")
    except ArithmeticError:
        raise keys.refuse(f"model_type {kind!r}: a size of 0 cannot be counted") from None
    if strange := [field for field, value in found.items() if value < 0 or not value.is_integer()]:
        raise keys.refuse(f"model_type {kind!r}: its sizes make {strange[0]} no whole number")
    sizes = {field: int(value) for field, value in found.items() if value}
    shape = {"name": name or kind, "model_type": kind, **sizes, "tied_embeddings": bool(tied)}
    silent = [*rows_of("unpriced.yaml")["_shapes_nothing"].split(), *_PREDICTING]
    left = (key for key in keys.raw.keys() - keys.used if not shapes_nothing(key) and key not in silent)
    ignored = tuple(sorted(key for key in left if keys.raw[key] not in (None, False, 0, [], {})))
    predicting = [f"{key}: these layers are not counted" for key in _PREDICTING if keys.raw.get(key)]
    return Size(shape, ignored, (*text.left_out, *predicting))


def counted_types() -> tuple[str, ...]:
    """Return every ``model_type`` whose parameters are counted."""
    return tuple(kind for kind in rows_of("unpriced.yaml") if not kind.startswith("_"))
