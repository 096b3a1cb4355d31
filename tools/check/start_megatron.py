"""Give the flags that plans emit to Megatron-Core's own checks, which need neither a GPU nor PyTorch here.

Fetch the release whose flags are written and unpack it, then name its folder and files with launch lines:

    pip download --no-deps megatron-core==0.16.1 && unzip -q megatron_core-*.whl -d megatron-core
    costmodel plan -m llama3-70b -c h100 -n 256 --emit megatron > plan.sh
    python tools/check/start_megatron.py megatron-core plan.sh

`TransformerConfig.__post_init__` runs as it is; PyTorch is a stand-in, and every release of
Transformer Engine is new enough.
A file's second line names its release. Where that is a commit of Megatron-LM no wheel has it: name a checkout of it, whose
folder is called after the commit. Prints a line a file, and leaves with 1 if one would not start or is of another release than
the folder. Megatron-LM's own ``validate_args`` is not part of the wheel.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_RENAMED = {
    "num_experts": "num_moe_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "optimizer": "",
}
_LISTS = ("recompute_modules", "cuda_graph_scope")
_SWITCHED = {
    "swiglu": ("gated_linear_unit", True),
    "disable_bias_linear": ("add_bias_linear", False),
    "no_overlap_p2p_communication": ("overlap_p2p_comm", False),
    "squared_relu": ("gated_linear_unit", False),
}


_STANDS_IN = (
    *(
        "torch",
        "torch.nn",
        "torch.nn.functional",
        "megatron.core.utils",
        "megatron.core.fusions.fused_bias_geglu",
    ),
    "megatron.core.quantization.quant_config",
)


def config_class(folder: Path, *, latent: bool) -> Any:
    """Return Megatron-Core's own configuration of a model, of multi-latent attention or not."""
    for name in _STANDS_IN:
        sys.modules.setdefault(name, MagicMock(name=name))
    # Folders without what their __init__ imports, which is the whole library.
    for name in (
        "megatron",
        "megatron.core",
        *(f"megatron.core.{part}" for part in ("transformer", "fusions", "quantization")),
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
    module = importlib.import_module("megatron.core.transformer.transformer_config")
    return module.MLATransformerConfig if latent else module.TransformerConfig


def flags_of(text: str) -> dict[str, list[str]]:
    """Return the flags of a launch line with their values."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith(("#", "export")))
    words = shlex.split(lines.replace("\\\n", " "))
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word[2:].replace("-", "_")] = []
        elif found:
            found[next(reversed(found))].append(word)
    return found


def release_of(text: str) -> str:
    """Return the release that a file with launch lines names: ``megatron-core 0.16.1``, or a commit."""
    return re.search(r"^# flags of (.+)$", text, re.M)[1]


def version_of(folder: Path) -> str:
    """Return the version of the release in a folder."""
    info = (folder / "megatron/core/package_info.py").read_text(encoding="utf-8")
    return ".".join(re.search(rf"^{part} = (\d+)", info, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def arguments_of(flags: dict[str, list[str]], fields: dict[str, Any]) -> dict[str, Any]:
    """Return what the configuration is made with; flags of the optimizer, the batch and the data are not part of it."""
    found: dict[str, Any] = {}
    for flag, words in flags.items():
        if flag in _SWITCHED:
            name, value = _SWITCHED[flag]
            found[name] = value
            continue
        name = _RENAMED.get(flag, flag)
        if name in fields:
            found[name] = _value(words, listed=name in _LISTS)
    return found


def _value(words: list[str], *, listed: bool) -> Any:
    if not words:
        return True
    if listed:
        return [_plain(word) for word in words]
    return _plain(words[0])


def _plain(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def main(folder: str, *files: str) -> int:
    """Check files with launch lines; return 1 if a job would not start."""
    bad, version = 0, version_of(Path(folder))
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        flags = flags_of(text)
        if not flags:
            sys.exit(f"{file}: has no launch line")
        release = release_of(text)
        if release.split()[-1] not in (version, Path(folder).name):
            bad += 1
            print(f"{file}: is of {release}, not of what lies in {folder}: not checked")
            continue
        config = config_class(Path(folder), latent="multi_latent_attention" in flags)
        fields = {field.name: field for field in dataclasses.fields(config)}
        try:
            given = arguments_of(flags, fields)
            given["pipeline_dtype"] = "the parameters'"  # as Megatron-LM sets it from --bf16 or --fp16
            if "cuda_graph_scope" in given:
                scopes = importlib.import_module("megatron.core.transformer.enums").CudaGraphScope
                given["cuda_graph_scope"] = [scopes[word] for word in given["cuda_graph_scope"]]
            config(**given)
        except Exception as refused:
            bad += 1
            print(f"{file}: does not start: {type(refused).__name__}: {refused}")
        else:
            print(f"{file}: starts ({len(given)} settings)")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
