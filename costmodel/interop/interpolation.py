"""OmegaConf's references inside YAML: ``${a.b}``, ``${.sibling}`` and the arithmetic that NeMo's launcher has.

Grammar of omry/omegaconf ``docs/source/grammar.rst``; ``multiply`` and the others are resolvers of
NVIDIA/NeMo-Framework-Launcher ``launcher_scripts/main.py``, ``mul`` and ``max`` of
NVIDIA-NeMo/RL. What cannot be followed is left out, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodel.interop.text_file import value_of_word

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_PARTS = ("training", "cfg", "recipes")
"""Names that a launcher puts before a part's own keys."""
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "multiply": lambda a, b: a * b,
    "mul": lambda a, b: a * b,
    "max": max,
    "add": lambda a, b: a + b,
    "divide_floor": lambda a, b: a // b,
    "divide_ceil": lambda a, b: -(-a // b),
}
_DEEPEST = 20


def resolved(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with its references followed; those that lead nowhere are null.

    Examples
    --------
    >>> resolved({"model": {"hidden_size": 8, "ffn_hidden_size": "${multiply:4, ${.hidden_size}}", "x": "${y.z}"}})
    {'model': {'hidden_size': 8, 'ffn_hidden_size': 32, 'x': None}}
    """
    return {key: _value(value, raw, (raw,), 0) for key, value in raw.items()}


def _value(value: Any, root: Mapping[str, Any], around: Sequence[Mapping[str, Any]], depth: int) -> Any:
    """Return a value without references; `around` are the mappings that it stands in, the innermost last."""
    if isinstance(value, Mapping):
        return {key: _value(item, root, (*around, value), depth) for key, item in value.items()}
    if isinstance(value, list):
        return [_value(item, root, around, depth) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    text = value
    while match := _REFERENCE.search(text):
        if depth > _DEEPEST:
            return None
        depth += 1
        found = _followed(match[1].strip(), root, around, depth)
        if match[0] == text or found is None or isinstance(found, (Mapping, list)):
            return found
        text = text[: match.start()] + str(found) + text[match.end() :]
    return None if "${" in text else text


def _followed(
    reference: str, root: Mapping[str, Any], around: Sequence[Mapping[str, Any]], depth: int
) -> Any:
    """Return what a reference or a call means."""
    name, call, rest = reference.partition(":")
    if call and name == "oc.select":
        key, _, default = rest.partition(",")
        found = _followed(key.strip(), root, around, depth)
        return value_of_word(default.strip()) if found is None else found
    if call:
        words = [word.strip() for word in rest.split(",")]
        if (
            name not in _ARITHMETIC
            or len(words) != 2
            or not all(word.lstrip("-").isdigit() for word in words)
        ):
            return None
        first, second = (int(word) for word in words)
        return None if "divide" in name and second == 0 else _ARITHMETIC[name](first, second)
    up = len(reference) - len(reference.lstrip("."))
    if up > len(around):
        return None
    path = [part for part in reference.lstrip(".").split(".") if part]
    chain = list(around[: len(around) - up + 1]) if up else [root]
    here: Any = chain[-1]
    if not up and path and path[0] in _PARTS and path[0] not in root:
        path = path[1:]
    for part in path:
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
        chain.append(here)
    inside = [table for table in chain[:-1] if isinstance(table, Mapping)] or [root]
    return _value(here, root, inside, depth)
