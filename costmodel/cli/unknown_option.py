"""What to say of a flag that a command does not have: its own flag of that meaning, one spelled alike, or who has it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

_ALIKE = (
    ("--out", "--html", "--write", "--output", "--file"),
    ("--gpus", "--ranks", "--gpu", "--num-gpus", "--world-size"),
    ("--size", "--sizes"),
    ("--budget", "--dollars", "--cost"),
    ("--seq-len", "--seq", "--seq-length", "--sequence-length", "--context-length"),
    ("--global-batch", "--batch", "--batch-size", "--gbs", "--global-batch-size"),
    ("--micro-batch", "--micro-batch-size", "--mbs"),
    ("--cluster", "--hardware", "--hw", "--machine"),
    ("--hw", "--degraded", "--oversubscription", "--power-cap"),
    ("--model", "--model-name"),
    ("--recompute", "--activation-checkpointing", "--checkpoint-activations"),
    ("--zero", "--zero-stage", "--fsdp"),
    ("--price", "--price-usd-per-gpu-hour", "--cost-per-hour"),
    ("--set", "--switch", "--switches"),
    ("--json", "--format"),
)
"""Flags that mean the same, here or elsewhere: of an unknown one, those of its row that the command has are offered."""
_CUTOFF = 0.75
"""Below this likeness a flag is another word, not a slip of the hand."""


def unknown_option(error: Any) -> str:
    """Return the sentence about a flag that does not exist, from the parser's error; no guess that is only a guess."""
    name, context = str(error.option_name), error.ctx
    sentence = f"No such option: {name[:60]}"
    if context is None:
        return sentence
    own = _flags(context.command)
    same = [flag for row in _ALIKE if name in row for flag in row if flag in own]
    near = same or get_close_matches(name[:60], own, n=2, cutoff=_CUTOFF)
    if near:
        return f"{sentence}; did you mean {' or '.join(near)}?"
    if context.parent is None:
        return sentence
    if context.info_name == "sweep":
        return f"{sentence}; the keys of the grid file say what is swept"
    group = context.parent.command
    holders = [
        each for each in group.list_commands(context) if name in _flags(group.get_command(context, each))
    ]
    if not holders:
        return sentence
    others = ", ".join(f"costmodel {each}" for each in holders[:3])
    return f"{sentence}; {others}{' and others have' if len(holders) > 3 else ' has' if len(holders) == 1 else ' have'} it"


def _flags(command: Any) -> list[str]:
    return sorted({flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")})
