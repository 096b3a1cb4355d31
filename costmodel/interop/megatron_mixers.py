"""Layers with other mixers than softmax attention in Megatron-LM's arguments, both ways.

Names of megatron-core 0.16.1: ``core/transformer/transformer_config.py`` (gated delta nets, sparse attention, an output
gate), ``core/ssm/mamba_hybrid_layer_allocation.py`` (patterns of state-space models, whose layers are one block each), and
of NVIDIA/Megatron-LM d98e8a64 ``megatron/training/arguments.py`` (``--hybrid-layer-pattern``).
"""

from __future__ import annotations

import re
from typing import Any

from costmodel.base.errors import shown
from costmodel.describe.models.mixers import GatedDelta, Indexed, Mamba2
from costmodel.describe.models.model import MOST_LAYERS, Model
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.keys import Flags

_CONV_KERNEL, _CHUNK, _EXPAND = 4, 128, 2
"""What ``MambaMixer`` has where no flag says otherwise: tokens of its convolution and of a chunk, width over hidden size."""
_LETTERS = {"M": ("m", "n"), "*": ("f", "n"), "-": ("n", "d"), "E": ("n", "e")}
"""A letter of Megatron's patterns of layers, with ours of what mixes and of the MLP."""
_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
_SIZES = {
    "mamba-2": {
        "heads": "mamba_heads",
        "head_dim": "mamba_head_dim",
        "groups": "mamba_groups",
        "state": "mamba_state",
    },
    "gated-delta": {
        "key_heads": "linear_key_heads",
        "value_heads": "linear_value_heads",
        "key_head_dim": "linear_key_head_dim",
        "value_head_dim": "linear_value_head_dim",
        "conv_kernel": "linear_conv_kernel",
    },
    "indexed": {"heads": "dsa_heads", "head_dim": "dsa_head_dim", "top_k": "dsa_top_k"},
}
"""Sizes of each kind of mixer with our names for their flags."""


def is_hybrid(model: Model) -> bool:
    """Return whether a model is one of ``pretrain_mamba.py``: every layer is one block, some a state space."""
    return any(isinstance(sizes, Mamba2) for sizes in model.mixers.values()) and "n" in model.mlp_pattern


def mixer_arguments(model: Model) -> dict[str, Any]:
    """Return the arguments of layers that are no plain softmax attention, by our names."""
    gate = {"attention_gate": model.attention_gate}
    if not model.mixers:
        return gate
    if len(model.mixers) > 1:
        kinds = " and ".join(sorted({sizes.kind for sizes in model.mixers.values()}))
        raise FrameworkConfigError(f"emit: Megatron-LM has no model with mixers of two sorts ({kinds})")
    letter, sizes = next(iter(model.mixers.items()))
    found = {theirs: getattr(sizes, ours) for ours, theirs in _SIZES.get(sizes.kind, {}).items()} | gate
    if isinstance(sizes, Mamba2):
        return {**found, "hybrid_pattern": _pattern_of(model, letter, sizes), "spec": _SPEC}
    if isinstance(sizes, GatedDelta):
        linear = ",".join(str(int(each == letter)) for each in model.attention_pattern)
        return {**found, "attention_variant": "gated_delta_net", "linear_freq": f"([{linear}])"}
    if isinstance(sizes, Indexed) and not sizes.shared and set(model.attention_pattern) == {letter}:
        return {**found, "attention_variant": "dsa"}
    raise FrameworkConfigError(f"emit: Megatron-LM has no layers of {sizes.kind} as {model.name} has them")


def _pattern_of(model: Model, letter: str, sizes: Mamba2) -> str:
    """Return the layers of a state-space model in Megatron's letters."""
    wanted = {"conv_kernel": _CONV_KERNEL, "chunk": _CHUNK, "conv_bias": True, "norm": True}
    wanted |= {"bias": False, "beside_attention": False}
    for name, value in wanted.items():
        if getattr(sizes, name) != value:
            raise FrameworkConfigError(
                f"emit: Megatron-LM's state-space layers have {name} = {value}, "
                f"{model.name} has {getattr(sizes, name)}"
            )
    letters = {ours: theirs for theirs, ours in _LETTERS.items()}
    mlps = model.mlp_pattern or "d" * model.num_layers
    halves = [
        ("m" if mixes == letter else mixes, mlp)
        for mixes, mlp in zip(model.attention_pattern, mlps, strict=True)
    ]
    if not set(halves) <= letters.keys():
        raise FrameworkConfigError(
            "emit: Megatron-LM's models with state spaces have one block a layer, a mixer or an MLP; "
            f"those of {model.name} have both"
        )
    return "".join(letters[half] for half in halves)


def hybrid_pattern(flags: Flags) -> str:
    """Return the layers of a state-space model in Megatron's letters, empty where it is none.

    Parts behind a slash are prediction layers, bars cut stages.
    """
    pattern = str(flags["hybrid_pattern"]).split("/")[0].replace("|", "")
    if strange := sorted(set(pattern) - set(_LETTERS)):
        raise FrameworkConfigError(
            f"--hybrid-layer-pattern: {strange[0]!r} is no layer; expected {' '.join(_LETTERS)}"
        )
    return pattern


def linear_variant(flags: Flags) -> str:
    """Return the variant of attention that flags say; all sizes of linear layers mean gated delta nets, as slime has them."""
    complete = flags.has("linear_freq") and all(flags.has(name) for name in _SIZES["gated-delta"].values())
    return str(flags["attention_variant"] or ("gated_delta_net" if complete else ""))


def take_mixers(flags: Flags, hidden_size: int, layers: int) -> dict[str, Any]:
    """Return the fields of a model that say its mixers."""
    pattern, variant = hybrid_pattern(flags), linear_variant(flags)
    found: dict[str, Any] = {"attention_gate": flags["attention_gate"]}

    def sizes(kind: str) -> dict[str, Any]:
        return {"kind": kind, **{ours: flags[theirs] for ours, theirs in _SIZES[kind].items()}}

    if pattern:
        blocks = sizes("mamba-2") | {"conv_kernel": _CONV_KERNEL, "chunk": _CHUNK}
        blocks["heads"] = blocks["heads"] or hidden_size * _EXPAND // blocks["head_dim"]
        halves = [_LETTERS[letter] for letter in pattern]
        return {
            **found,
            "attention_pattern": "".join(mixes for mixes, _ in halves),
            "mlp_pattern": "".join(mlp for _, mlp in halves),
            "mixers": {"m": blocks} if "M" in pattern else {},
        }
    if variant == "gated_delta_net":
        linear = _linear_layers(flags["linear_freq"], layers)
        return {
            **found,
            "attention_pattern": "".join("d" if each else "f" for each in linear),
            "mixers": {"d": sizes("gated-delta")} if any(linear) else {},
        }
    if variant == "dsa":
        for name in _SIZES["indexed"].values():
            flags.require(name)
        return {**found, "attention_pattern": "i" * layers, "mixers": {"i": sizes("indexed")}}
    return found


def _linear_layers(given: str, layers: int) -> list[int]:
    """Return which layers are of linear attention: all but the last of every n, or a list."""
    if given.strip().isdigit() and int(given) > 0:
        return [int((layer + 1) % int(given) != 0) for layer in range(layers)]
    return layer_pattern(given, layers, flag="--linear-attention-freq")


def layer_pattern(given: str, num_layers: int, *, flag: str = "--moe-layer-freq") -> list[int]:
    """Read which layers are of a sort: a number for one in so many, or a list expression such as ``([0]*3+[1]*58)``.

    >>> layer_pattern("([0]*2+[1]*3)", 5), layer_pattern("2", 4)
    ([0, 0, 1, 1, 1], [1, 0, 1, 0])
    """
    if num_layers > MOST_LAYERS:
        raise FrameworkConfigError(f"--num-layers: expected at most {MOST_LAYERS:,}, got {shown(num_layers)}")
    text = given.replace(" ", "").strip("()")
    if text.isdecimal() and int(text) > 0:
        return [1 if layer % int(text) == 0 else 0 for layer in range(num_layers)]
    pattern: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\(*\[([01](?:,[01])*),?\](?:\*(\d{1,4}))?\)*", term)
        if match is None:
            raise FrameworkConfigError(
                f"{flag}: expected a number or a list such as [0]*3+[1]*58, got {given!r}"
            )
        pattern += [int(part) for part in match[1].split(",")] * int(match[2] or 1)
    if len(pattern) != num_layers:
        raise FrameworkConfigError(
            f"{flag}: {given!r} has {len(pattern)} layers, --num-layers is {num_layers}"
        )
    return pattern
