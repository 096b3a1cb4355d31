"""What a trainer's own file says beside the layout, carried into the configuration that is written for the same trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import one_line
from costmodel.base.yaml_files import document_text, parse_mapping
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.text_file import read_text

_OF_ADAPTERS = ("lora_alpha", "lora_dropout")
_OF_DATA = ("sample_packing", "pad_to_sequence_len")
_ADAPTER = ("adapter", "lora_r")


def with_own_words(text: str, path: str | Path) -> str:
    """Return Axolotl's configuration with what its own file says and no layout changes, and what differs as comments."""
    file = read_text(path)
    own = parse_mapping(file.text, file.name, example="key: value", error=FrameworkConfigError)
    if "base_model" not in own:
        return text
    kept = _kept(own, _parsed(text))
    for key, value in kept.items():
        line = document_text({key: value}).rstrip("\n")
        found = re.search(rf"^{key}: .*$", text, re.M)
        text = f"{text[: found.start()]}{line}{text[found.end() :]}" if found else f"{text}{line}\n"
    name = one_line(Path(file.name).name)
    said = "".join(f"# {line}\n" for line in _differences(own, _parsed(text), name))
    # Below the head, whose first line says which model it is of.
    return re.sub(r"(?:#.*\n)*", lambda head: head[0] + said, text, count=1)


def _parsed(text: str) -> Mapping[str, Any]:
    return parse_mapping(text, "axolotl", example="key: value", error=FrameworkConfigError)


def _kept(own: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's values that mean in the new configuration what they meant in it."""
    same_adapter = all(own.get(key) == new.get(key) for key in _ADAPTER)
    # Axolotl refuses packed batches of several rows that context ranks share.
    packs = new["context_parallel_size"] == 1 or new["micro_batch_size"] == 1
    keys = (*(_OF_ADAPTERS if same_adapter and "lora_r" in new else ()), *(_OF_DATA if packs else ()))
    return {key: own[key] for key in keys if isinstance(own.get(key), bool | int | float)}


def _differences(own: Mapping[str, Any], new: Mapping[str, Any], name: str) -> list[str]:
    """Return lines about values that became others, and keys that are not there."""
    plain = (bool, int, float, str)
    changed = [
        f"{key} (was {one_line(str(own[key]))})"
        for key in own
        if key in new and isinstance(own[key], plain) and own[key] != new[key]
    ]
    left = [one_line(str(key)) for key in own if key not in new]
    lines = [f"other than in {name}: {', '.join(changed)}"] if changed else []
    return [*lines, *([f"in {name} alone: {', '.join(left)}"] if left else [])]
