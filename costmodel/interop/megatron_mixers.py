"""Layers with other mixers than softmax attention in Megatron-LM's arguments, both ways.

Names of megatron-core 0.16.1: ``core/transformer/transformer_config.py`` (gated delta nets, sparse attention, an output
gate), ``core/ssm/mamba_hybrid_layer_allocation.py`` (patterns of state-space models, whose layers are one block each), and
of NVIDIA/Megatron-LM d98e8a64 ``megatron/training/arguments.py`` (``--hybrid-layer-pattern``).
"""

from __future__ import annotations

from typing import Any

from costmodel.describe.models.mixers import GatedDelta, Indexed, Mamba2
from costmodel.describe.models.model import Model
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron_text import Flags, layer_pattern

_CONV_KERNEL, _CHUNK = 4, 128
"""What ``MambaMixer`` has where no flag says otherwise: tokens of its convolution, and of a chunk."""
_STATE, _HEAD_DIM, _GROUPS, _EXPAND = 128, 64, 8, 2
_LETTERS = {"M": ("m", "n"), "*": ("f", "n"), "-": ("n", "d"), "E": ("n", "e")}
"""A letter of Megatron's patterns, with ours of what mixes and of the MLP."""
_SPEC = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")
PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
RATIOS = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio")


def is_hybrid(model: Model) -> bool:
    """Return whether a model is one of ``pretrain_mamba.py``: every layer is one block, some a state space."""
    return any(isinstance(sizes, Mamba2) for sizes in model.mixers.values()) and "n" in model.mlp_pattern


def mixer_flags(model: Model) -> list[str]:
    """Return the flags of layers that are no plain softmax attention.

    Raises
    ------
    FrameworkConfigError
        If Megatron-LM has no such layers.
    """
    flags = ["--attention-output-gate"] if model.attention_gate else []
    if not model.mixers:
        return flags
    if len(model.mixers) > 1:
        kinds = " and ".join(sorted({sizes.kind for sizes in model.mixers.values()}))
        raise FrameworkConfigError(f"emit: Megatron-LM has no model with mixers of two sorts ({kinds})")
    letter, sizes = next(iter(model.mixers.items()))
    if isinstance(sizes, Mamba2):
        return [*flags, *_hybrid_flags(model, sizes)]
    if isinstance(sizes, GatedDelta):
        pattern = [int(each == letter) for each in model.attention_pattern]
        return [
            *flags,
            "--experimental-attention-variant",
            "gated_delta_net",
            "--linear-attention-freq",
            f"({str(pattern).replace(' ', '')})",
            "--linear-conv-kernel-dim",
            str(sizes.conv_kernel),
            "--linear-key-head-dim",
            str(sizes.key_head_dim),
            "--linear-value-head-dim",
            str(sizes.value_head_dim),
            "--linear-num-key-heads",
            str(sizes.key_heads),
            "--linear-num-value-heads",
            str(sizes.value_heads),
        ]
    if isinstance(sizes, Indexed) and not sizes.shared and set(model.attention_pattern) == {letter}:
        return [
            *flags,
            "--experimental-attention-variant",
            "dsa",
            "--dsa-indexer-n-heads",
            str(sizes.heads),
            "--dsa-indexer-head-dim",
            str(sizes.head_dim),
            "--dsa-indexer-topk",
            str(sizes.top_k),
        ]
    raise FrameworkConfigError(f"emit: Megatron-LM has no layers of {sizes.kind} as {model.name} has them")


def _hybrid_flags(model: Model, sizes: Mamba2) -> list[str]:
    """Return the pattern of a state-space model, and the sizes of its mixers."""
    for name, has, wanted in (
        ("conv_kernel", sizes.conv_kernel, _CONV_KERNEL),
        ("chunk", sizes.chunk, _CHUNK),
        ("conv_bias", sizes.conv_bias, True),
        ("norm", sizes.norm, True),
        ("bias", sizes.bias, False),
        ("beside_attention", sizes.beside_attention, False),
    ):
        if has != wanted:
            raise FrameworkConfigError(
                f"emit: Megatron-LM's state-space layers have {name} = {wanted}, {model.name} has {has}"
            )
    letters = {ours: theirs for theirs, ours in _LETTERS.items()}
    letter = next(iter(model.mixers))
    halves = [
        ("m" if mixes == letter else mixes, mlp)
        for mixes, mlp in zip(
            model.attention_pattern, model.mlp_pattern or "d" * model.num_layers, strict=True
        )
    ]
    if not set(halves) <= letters.keys():
        raise FrameworkConfigError(
            "emit: Megatron-LM's models with state spaces have one block a layer, a mixer or an MLP; "
            f"those of {model.name} have both"
        )
    return [
        "--hybrid-layer-pattern",
        "".join(letters[half] for half in halves),
        "--mamba-state-dim",
        str(sizes.state),
        "--mamba-head-dim",
        str(sizes.head_dim),
        "--mamba-num-groups",
        str(sizes.groups),
        "--mamba-num-heads",
        str(sizes.heads),
        "--spec",
        *_SPEC,
    ]


def hybrid_pattern(flags: Flags) -> str:
    """Return the layers of a state-space model in Megatron's letters, empty where it is none.

    Parts behind a slash are prediction layers, bars cut stages. Without a pattern two shares say it.

    Raises
    ------
    FrameworkConfigError
        If a letter is unknown.
    """
    written = ""
    for flag in PATTERNS:
        written = written or flags.text(flag, "")
    pattern = written.split("/")[0].replace("|", "")
    if not pattern and any(flag in flags.names() for flag in RATIOS):
        attention, mlp = (flags.real(flag, 0.0) for flag in RATIOS)
        pattern = _spread(flags.need("--num-layers"), attention, mlp)
    if strange := sorted(set(pattern) - set(_LETTERS)):
        raise FrameworkConfigError(
            f"--hybrid-layer-pattern: {strange[0]!r} is no layer; expected {' '.join(_LETTERS)}"
        )
    return pattern


def take_mixers(flags: Flags, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model that say its mixers.

    Parameters
    ----------
    flags : Flags
        Of the program.
    values : dict
        What is known of the model; ``num_layers`` and ``hidden_size`` among it.

    Raises
    ------
    FrameworkConfigError
        If they contradict each other.
    """
    pattern = hybrid_pattern(flags)
    found: dict[str, Any] = {"attention_gate": flags.has("--attention-output-gate")}
    if pattern:
        flags.has("--is-hybrid-model")
        head_dim = flags.number("--mamba-head-dim", _HEAD_DIM)
        heads = flags.number("--mamba-num-heads", values["hidden_size"] * _EXPAND // head_dim)
        sizes = {
            "kind": "mamba-2",
            "heads": heads,
            "head_dim": head_dim,
            "groups": flags.number("--mamba-num-groups", _GROUPS),
            "state": flags.number("--mamba-state-dim", _STATE),
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
    variant = flags.text("--experimental-attention-variant", "")
    layers = values["num_layers"]
    if variant == "gated_delta_net":
        linear = layer_pattern_of(flags.text("--linear-attention-freq", "4"), layers)
        sizes = {
            "kind": "gated-delta",
            "key_heads": flags.number("--linear-num-key-heads", 16),
            "value_heads": flags.number("--linear-num-value-heads", 32),
            "key_head_dim": flags.number("--linear-key-head-dim", 128),
            "value_head_dim": flags.number("--linear-value-head-dim", 128),
            "conv_kernel": flags.number("--linear-conv-kernel-dim", 4),
        }
        return {
            **found,
            "attention_pattern": "".join("d" if each else "f" for each in linear),
            "mixers": {"d": sizes} if any(linear) else {},
        }
    if variant == "dsa":
        sizes = {
            "kind": "indexed",
            "heads": flags.need("--dsa-indexer-n-heads"),
            "head_dim": flags.need("--dsa-indexer-head-dim"),
            "top_k": flags.need("--dsa-indexer-topk"),
        }
        return {**found, "attention_pattern": "i" * layers, "mixers": {"i": sizes}}
    return found


def layer_pattern_of(given: str, layers: int) -> list[int]:
    """Return which layers are of linear attention: all but the last of every n, or a list.

    Raises
    ------
    FrameworkConfigError
        If it is neither.
    """
    if given.strip().isdigit() and int(given) > 0:
        return [int((layer + 1) % int(given) != 0) for layer in range(layers)]
    try:
        return layer_pattern(given, layers)
    except FrameworkConfigError as error:
        raise FrameworkConfigError(
            str(error).replace("--moe-layer-freq", "--linear-attention-freq")
        ) from None


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
