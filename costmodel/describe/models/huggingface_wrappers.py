"""Where the language model of a multimodal config is, and what the config says beside it.

Towers are named as left out; `sizes.tower_of` reads those that it knows.
Keys follow transformers 5.23 and, for types that live on the hub, the ``config.json`` of their repositories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.huggingface_keys import by_name, table

_ENCODER_DECODERS = ("mt5", "t5", "umt5")
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


class Text(NamedTuple):
    """The language model's part of a config."""

    raw: dict[str, Any]
    defaults: Mapping[str, Any]  # What its class fills in; empty unless it is nested
    outer: tuple[str, ...] = ()  # Keys beside it that may matter
    left_out: tuple[str, ...] = ()  # Sentences: towers that are not priced


def language_model(raw: Mapping[str, Any], origin: str) -> Text:
    """Return the part of a config that describes the language model."""
    raw = _with_type(raw)
    key = next((name for name in _TEXT_KEYS if isinstance(raw.get(name), dict)), "")
    kind = str(raw.get("model_type", ""))
    towers = tuple(sorted(_tower(name, value) for name, value in raw.items() if _is_tower(name, value)))
    if not key and kind == "llava":
        raise ModelConfigError(
            f"{origin}: model_type 'llava' without a text_config: transformers takes a Llama 7B, LLaVA's own code "
            f"the keys beside it; set model_type to 'llama' to read those"
        )
    if not key:
        inner = _flat_type(kind, raw)
        alone = {name: value for name, value in raw.items() if not _is_tower(name, value)}
        return Text({**alone, "model_type": inner} if inner else alone, {}, (), towers)
    nested = dict(raw[key])
    if kind not in by_name("inner_type"):
        nested = dict(_with_type(nested))
    if any(isinstance(nested.get(name), dict) for name in _TEXT_KEYS):
        deeper = language_model({**nested, "model_type": nested.get("model_type", kind)}, origin)
        return deeper._replace(left_out=(*towers, *deeper.left_out))
    nested.setdefault("model_type", by_name("inner_type").get(kind, kind))
    # Some files give the language model the type of the whole.
    nested["model_type"] = _flat_type(str(nested["model_type"]), nested) or nested["model_type"]
    if "tie_word_embeddings" in raw:
        # Newer versions say it in the outer config alone.
        nested.setdefault("tie_word_embeddings", raw["tie_word_embeddings"])
    seen = {key, "tie_word_embeddings", "model_type"}
    outer = tuple(
        sorted(name for name, value in raw.items() if name not in seen and not _is_tower(name, value))
    )
    return Text(nested, table("class_defaults").get(str(nested["model_type"]), {}), outer, towers)


def _with_type(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config that says its type: of files of 2023 by their class."""
    classes = raw.get("architectures")
    if kind := raw.get("model_type"):
        alone = kind in _ENCODER_DECODERS and str(classes).endswith("EncoderModel']")
        return {**raw, "model_type": f"{kind}_encoder"} if alone else raw
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        plain = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", classes[0]).lower()
        return {**raw, "model_type": plain}
    return raw


def _flat_type(kind: str, raw: Mapping[str, Any]) -> str:
    """Return the type of a language model whose keys are beside those of its tower."""
    if kind == "minicpmv":
        # 2.6 is built on Qwen2, 2.5 on Llama 3, 2.0 on MiniCPM.
        if "max_window_layers" in raw:
            return "qwen2"
        return "minicpm" if "scale_depth" in raw else "llama"
    return by_name("flat_type").get(kind, "")


def _is_tower(name: str, value: Any) -> bool:
    """Whether a key is the config of another model beside the language model."""
    if not isinstance(value, dict) or name in _TEXT_KEYS or not name.endswith("_config"):
        return False
    return any(
        word in name for word in ("vision", "audio", "visual", "projector", "talker", "token2wav", "vq")
    )


def _tower(name: str, value: Mapping[str, Any]) -> str:
    """Say what is left out."""
    layers = value.get("num_hidden_layers") or value.get("depth") or value.get("num_layers")
    width = value.get("hidden_size") or value.get("embed_dim")
    for size in (layers, width):
        if isinstance(size, int | float) and size < 0:
            raise ModelConfigError(f"{name}: sizes are counts, got {size}")
    shape = f" ({layers} layers of width {width})" if layers and width else ""
    return f"{name}: the {name.removesuffix('_config')} model{shape} is left out; only the language model is priced"
