"""Flags as a shell script writes them: continuation lines, comments, ``--flag=value``."""

from __future__ import annotations

import re
import shlex
from typing import overload

from costmodel.interop.framework import FrameworkConfigError

# Flags of a launcher or of training that shape no bill.
_SHAPELESS = re.compile(
    r"--(lr|min-lr|lr-.*|weight-decay|adam-.*|clip-grad|train-.*|eval-.*|log-.*|save.*|load.*|tensorboard-.*|wandb-.*"
    r"|data-.*path|split|tokenizer-.*|vocab-file|merge-file|seed|init-.*|exit-.*|node-rank|node_rank|master-.*"
    r"|master_.*|rdzv.*|distributed-.*|manual-gc.*|num-workers|use-mcore-models|transformer-impl|ckpt-.*|rotary-.*"
    r"|norm-epsilon|timing-.*|no-load.*|no-save.*|override-.*|mock-data|optimizer|moe-aux-loss-coeff"
    r"|moe-router-load-balancing-type|use-flash-attn|dataloader-type|enable-experimental)$"
)


class Flags:
    """The flags of a command line, remembering which have been read."""

    def __init__(self, text: str) -> None:
        try:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise FrameworkConfigError(f"megatron: cannot read the arguments: {error}") from None
        self._values: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in words:
            if word.startswith("--"):
                flag, equals, value = word.partition("=")
                flag = {"--nproc_per_node": "--nproc-per-node"}.get(flag, flag)
                current = self._values[flag] = [value] if equals else []
            elif current is not None:
                current.append(word)
        self._read: set[str] = set()
        if not self._values:
            raise FrameworkConfigError("megatron: no arguments found; expected flags such as --num-layers 32")

    def has(self, flag: str) -> bool:
        """Return whether a switch is there."""
        self._read.add(flag)
        return flag in self._values

    def words(self, flag: str) -> list[str]:
        """Return the values of a flag that takes several."""
        self._read.add(flag)
        return [part for part in self._values.get(flag, []) if not part.endswith((".py", ")"))]

    def text(self, flag: str, default: str) -> str:
        """Return the value of a flag."""
        self._read.add(flag)
        values = self._values.get(flag)
        return default if not values else values[0]

    @overload
    def number(self, flag: str, default: int) -> int: ...
    @overload
    def number(self, flag: str, default: None = None) -> int | None: ...
    def number(self, flag: str, default: int | None = None) -> int | None:
        """Return a whole number."""
        if not self.has(flag):
            return default
        given = self.text(flag, "")
        try:
            return int(given)
        except ValueError:
            raise FrameworkConfigError(f"{flag}: expected a whole number, got {given!r}") from None

    def need(self, flag: str) -> int:
        """Return a whole number that must be there."""
        found = self.number(flag)
        if found is None:
            raise FrameworkConfigError(f"megatron: {flag} is missing")
        return found

    def real(self, flag: str, default: float) -> float:
        """Return a number."""
        if not self.has(flag):
            return default
        given = self.text(flag, "")
        try:
            return float(given)
        except ValueError:
            raise FrameworkConfigError(f"{flag}: expected a number, got {given!r}") from None

    def unread(self) -> tuple[str, ...]:
        """Return flags that may matter and were not read."""
        return tuple(flag for flag in self._values if flag not in self._read and not _SHAPELESS.match(flag))


def layer_pattern(given: str, num_layers: int) -> list[int]:
    """Read ``--moe-layer-freq``: a number, or a list expression such as ``([0]*3+[1]*58)``.

    >>> layer_pattern("([0]*2+[1]*3)", 5), layer_pattern("2", 4)
    ([0, 0, 1, 1, 1], [1, 0, 1, 0])
    """
    text = given.replace(" ", "").strip("()")
    if text.isdigit():
        return [1 if layer % int(text) == 0 else 0 for layer in range(num_layers)]
    pattern: list[int] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d+))?", term)
        if match is None:
            raise FrameworkConfigError(
                f"--moe-layer-freq: expected a number or a list such as [0]*3+[1]*58, got {given!r}"
            )
        pattern += [int(part) for part in match[1].split(",")] * int(match[2] or 1)
    if len(pattern) != num_layers:
        raise FrameworkConfigError(
            f"--moe-layer-freq: {given!r} has {len(pattern)} layers, --num-layers is {num_layers}"
        )
    return pattern
