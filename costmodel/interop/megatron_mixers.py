"""Layers with other mixers than softmax attention in Megatron-LM's arguments, both ways.

Names of megatron-core 0.16.1: ``core/transformer/transformer_config.py`` (gated delta nets, sparse attention, an output
gate), ``core/ssm/mamba_hybrid_layer_allocation.py`` (patterns of state-space models, whose layers are one block each), and
of NVIDIA/Megatron-LM d98e8a64 ``megatron/training/arguments.py`` (``--hybrid-layer-pattern``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.models.mixers import GatedDelta, Indexed, Mamba2
from costmodel.describe.models.model import Model
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron_text import MEGATRON, Flags, layer_pattern

_CONV_KERNEL, _CHUNK, _EXPAND = 4, 128, 2
"""What ``MambaMixer`` has where no flag says otherwise: tokens of its convolution and of a chunk, width over hidden size."""
_LETTERS: Mapping[str, tuple[str, str]] = {
    theirs: (mixes, mlp) for theirs, (mixes, mlp) in MEGATRON.more["words"]["pattern_letters"].items()
}
_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")


def is_hybrid(model: Model) -> bool:
    """Return whether a model is one of ``pretrain_mamba.py``: every layer is one block, some a state space."""
    return any(isinstance(sizes, Mamba2) for sizes in model.mixers.values()) and "n" in model.mlp_pattern


def mixer_arguments(model: Model) -> dict[str, Any]:
    """Return the arguments of layers that are no plain softmax attention, by our names.

    Raises
    ------
    FrameworkConfigError
        If Megatron-LM has no such layers.
    """
    gate = {"attention_gate": model.attention_gate}
    if not model.mixers:
        return gate
    if len(model.mixers) > 1:
        kinds = " and ".join(sorted({sizes.kind for sizes in model.mixers.values()}))
        raise FrameworkConfigError(f"emit: Megatron-LM has no model with mixers of two sorts ({kinds})")
    letter, sizes = next(iter(model.mixers.items()))
    if isinstance(sizes, Mamba2):
        return {**gate, **_hybrid_arguments(model, letter, sizes)}
    if isinstance(sizes, GatedDelta):
        pattern = ",".join(str(int(each == letter)) for each in model.attention_pattern)
        return {
            **gate,
            "attention_variant": "gated_delta_net",
            "linear_freq": f"([{pattern}])",
            "linear_conv_kernel": sizes.conv_kernel,
            "linear_key_head_dim": sizes.key_head_dim,
            "linear_value_head_dim": sizes.value_head_dim,
            "linear_key_heads": sizes.key_heads,
            "linear_value_heads": sizes.value_heads,
        }
    if isinstance(sizes, Indexed) and not sizes.shared and set(model.attention_pattern) == {letter}:
        return {
            **gate,
            "attention_variant": "dsa",
            "dsa_heads": sizes.heads,
            "dsa_head_dim": sizes.head_dim,
            "dsa_top_k": sizes.top_k,
        }
    raise FrameworkConfigError(f"emit: Megatron-LM has no layers of {sizes.kind} as {model.name} has them")


def _hybrid_arguments(model: Model, letter: str, sizes: Mamba2) -> dict[str, Any]:
    """Return the pattern of a state-space model, and the sizes of its mixers."""
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
    return {
        "hybrid_pattern": "".join(letters[half] for half in halves),
        "mamba_state": sizes.state,
        "mamba_head_dim": sizes.head_dim,
        "mamba_groups": sizes.groups,
        "mamba_heads": sizes.heads,
        "spec": _SPEC,
    }


def says_hybrid(flags: Flags) -> bool:
    """Return whether flags say which layers are state spaces, by a pattern or by shares."""
    return any(flags.said(name) for name in ("hybrid_pattern", "hybrid_attention", "hybrid_mlp"))


def hybrid_pattern(flags: Flags) -> str:
    """Return the layers of a state-space model in Megatron's letters, empty where it is none.

    Parts behind a slash are prediction layers, bars cut stages. Without a pattern two shares say it.

    Raises
    ------
    FrameworkConfigError
        If a letter is unknown.
    """
    pattern = str(flags["hybrid_pattern"]).split("/")[0].replace("|", "")
    if not pattern and (flags.said("hybrid_attention") or flags.said("hybrid_mlp")):
        pattern = _spread(flags.need("num_layers"), flags["hybrid_attention"], flags["hybrid_mlp"])
    if strange := sorted(set(pattern) - set(_LETTERS)):
        raise FrameworkConfigError(
            f"--hybrid-layer-pattern: {strange[0]!r} is no layer; expected {' '.join(_LETTERS)}"
        )
    return pattern


def take_mixers(flags: Flags, hidden_size: int, layers: int) -> dict[str, Any]:
    """Return the fields of a model that say its mixers.

    Raises
    ------
    FrameworkConfigError
        If they contradict each other.
    """
    pattern, variant = hybrid_pattern(flags), flags["attention_variant"]
    found: dict[str, Any] = {"attention_gate": flags["attention_gate"]}
    if pattern:
        sizes = {
            "kind": "mamba-2",
            "heads": flags["mamba_heads"] or hidden_size * _EXPAND // flags["mamba_head_dim"],
            "head_dim": flags["mamba_head_dim"],
            "groups": flags["mamba_groups"],
            "state": flags["mamba_state"],
            "conv_kernel": _CONV_KERNEL,
            "chunk": _CHUNK,
        }
        halves = [_LETTERS[letter] for letter in pattern]
        return {
            **found,
            "attention_pattern": "".join(mixes for mixes, _ in halves),
            "mlp_pattern": "".join(mlp for _, mlp in halves),
            "mixers": {"m": sizes} if "M" in pattern else {},
        }
    if variant == "gated_delta_net":
        linear = _linear_layers(flags["linear_freq"], layers)
        sizes = {
            "kind": "gated-delta",
            "key_heads": flags["linear_key_heads"],
            "value_heads": flags["linear_value_heads"],
            "key_head_dim": flags["linear_key_head_dim"],
            "value_head_dim": flags["linear_value_head_dim"],
            "conv_kernel": flags["linear_conv_kernel"],
        }
        return {
            **found,
            "attention_pattern": "".join("d" if each else "f" for each in linear),
            "mixers": {"d": sizes} if any(linear) else {},
        }
    if variant == "dsa":
        sizes = {
            "kind": "indexed",
            "heads": flags.need("dsa_heads"),
            "head_dim": flags.need("dsa_head_dim"),
            "top_k": flags.need("dsa_top_k"),
        }
        return {**found, "attention_pattern": "i" * layers, "mixers": {"i": sizes}}
    return found


def _linear_layers(given: str, layers: int) -> list[int]:
    """Return which layers are of linear attention: all but the last of every n, or a list."""
    if given.strip().isdigit() and int(given) > 0:
        return [int((layer + 1) % int(given) != 0) for layer in range(layers)]
    return layer_pattern(given, layers, flag="--linear-attention-freq")


def _spread(layers: int, attention: float, mlp: float) -> str:
    """Return the pattern that shares of attention and of MLPs mean: each sort as evenly as it goes.

    Attention stands between runs of like length, MLPs replace state spaces from the right, as
    ``mamba_hybrid_layer_allocation.py`` deals them out: after every so many others comes one of them.
    """
    attended = round(layers * attention)
    pattern = _every(["M"] * layers, (layers - attended) / (attended + 1), "*")
    dense = round(layers * mlp)
    if not dense:
        return "".join(pattern)
    return "".join(_every(pattern, (layers - attended - dense) / dense, "-"))


def _every(pattern: list[str], run: float, letter: str) -> list[str]:
    """Put a letter on the state space behind every run of them, runs of a whole length on average `run`."""
    found, left = list(pattern), run
    for place, other in enumerate(pattern):
        if other != "M":
            continue
        if left < 0.5:
            found[place], left = letter, left + run
        else:
            left -= 1
    return found
