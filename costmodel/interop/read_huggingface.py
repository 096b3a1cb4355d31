"""A HuggingFace ``config.json`` as an answer of `costmodel.interop.reading`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.models.huggingface import read_hf_config
from costmodel.interop.framework import Imported
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a model; `given` may complete a job around it.

    Raises
    ------
    CostModelError
        If the file cannot be read as a model, or the model cannot be priced.
    """
    raw = parse_json(file.text, file.name)
    found = read_hf_config(raw, _name_of(file, raw))
    job = {**given, "model": found.model}
    job.pop("vocab_size", None)
    missing = [key for key in ("gpus", "global_batch", "seq_len") if key not in job]
    left_out = tuple(note for note in found.notes if note.endswith("is priced"))
    notes = tuple(note for note in found.notes if note not in left_out)
    return Imported(job, tuple(missing), found.ignored, notes, left_out)


def _name_of(file: TextFile, raw: Mapping[str, Any]) -> str:
    """Return the model's name: as the file has it, else its folder or its own name."""
    named = str(raw.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    if named or file.folder is None:
        return named
    stem = file.name.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".json")
    return file.folder.absolute().name if stem in ("config", file.folder.name) else stem
