"""Where the language model of a multimodal config is, and what the config says beside it.

The towers of a vision-language model are not priced: their mappings are named as left out.
Keys follow transformers 5.23 and, for types that live on the hub, the ``config.json`` of their repositories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from costmodel.base.errors import ModelConfigError

_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")

# The language model of a wrapper whose file does not say the type of it.
_INNER_TYPE = {
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "emu3": "emu3_text_model",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "got_ocr2": "qwen2",
    "granite_speech": "granite",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "kimi_k2",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}

# Wrappers of before nesting: the language model's keys are beside those of the tower.
_FLAT_TYPE = {
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_qwen": "qwen2",
    "phi3_v": "phi3",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl": "qwen2",
}

# Class defaults (transformers 5.23, models/*/configuration_*.py) that published nested configs leave out.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}


class Text(NamedTuple):
    """The language model's part of a config."""

    raw: dict[str, Any]
    defaults: Mapping[str, Any]
    """What its class fills in; empty unless it is nested."""
    outer: tuple[str, ...] = ()
    """Keys beside it that may matter."""
    left_out: tuple[str, ...] = ()
    """Sentences: towers that are not priced."""


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
    if kind not in _INNER_TYPE:
        nested = dict(_with_type(nested))
    if any(isinstance(nested.get(name), dict) for name in _TEXT_KEYS):
        deeper = language_model({**nested, "model_type": nested.get("model_type", kind)}, origin)
        return deeper._replace(left_out=(*towers, *deeper.left_out))
    nested.setdefault("model_type", _INNER_TYPE.get(kind, kind))
    # Some files give the language model the type of the whole.
    nested["model_type"] = _flat_type(str(nested["model_type"]), nested) or nested["model_type"]
    if "tie_word_embeddings" in raw:
        # Newer versions say it in the outer config alone.
        nested.setdefault("tie_word_embeddings", raw["tie_word_embeddings"])
    seen = {key, "tie_word_embeddings", "model_type"}
    outer = tuple(
        sorted(name for name, value in raw.items() if name not in seen and not _is_tower(name, value))
    )
    return Text(nested, CLASS_DEFAULTS.get(str(nested["model_type"]), {}), outer, towers)


def _with_type(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config that says its type: of files of 2023 by their class, of Meta's and Mistral's by their keys."""
    if raw.get("model_type"):
        return raw
    classes = raw.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        plain = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", classes[0]).lower()
        return {**raw, "model_type": plain}
    if {"dim", "n_layers", "n_heads"} <= raw.keys():
        return _from_params(raw)
    return raw


def _from_params(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Llama's ``params.json`` (meta-llama/llama model.py, mistralai/mistral-inference args.py) as a config."""
    if raw.get("moe"):
        return dict(raw)
    dim, width = raw["dim"], raw.get("hidden_dim")
    if width is None and isinstance(dim, int):
        of, factor = raw.get("multiple_of") or 256, raw.get("ffn_dim_multiplier") or 1.0
        width = of * -(-int(factor * int(8 * dim / 3)) // of)
    vocab = raw.get("vocab_size")
    return {
        "model_type": "llama",
        "hidden_size": dim,
        "num_hidden_layers": raw["n_layers"],
        "num_attention_heads": raw["n_heads"],
        "num_key_value_heads": raw.get("n_kv_heads"),
        "head_dim": raw.get("head_dim"),
        "intermediate_size": width,
        # Llama 2 leaves it to the tokenizer, as -1.
        "vocab_size": vocab if isinstance(vocab, int) and vocab > 0 else None,
        "rope_theta": raw.get("rope_theta"),
        **({"tie_word_embeddings": True} if raw.get("tied_embeddings") else {}),
    }


def _flat_type(kind: str, raw: Mapping[str, Any]) -> str:
    """Return the type of a language model whose keys are beside those of its tower."""
    if kind == "minicpmv":
        # 2.6 is built on Qwen2, 2.5 on Llama 3, 2.0 on MiniCPM.
        if "max_window_layers" in raw:
            return "qwen2"
        return "minicpm" if "scale_depth" in raw else "llama"
    return _FLAT_TYPE.get(kind, "")


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
    shape = f" ({layers} layers of width {width})" if layers and width else ""
    return f"{name}: the {name.removesuffix('_config')} model{shape} is left out; only the language model is priced"
