"""Finding and reading models: shipped ones and their aliases, YAML files, HuggingFace configs."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from costmodel.base.errors import ModelConfigError, listed_names, shown
from costmodel.base.files import files_are_closed, is_there, refuse_path
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.model import Model, make_model

_EXAMPLE = "num_layers: 32"
_DATA = files("costmodel") / "describe" / "data"


@cache
def list_models() -> tuple[str, ...]:
    """Return the names of the shipped models; a shell asks for them, so that no YAML is parsed."""
    text = (_DATA / "models.yaml").read_text(encoding="utf-8")
    return tuple(sorted(re.findall(r"^([a-z0-9][^:\s]*):", text, re.MULTILINE)))


def load_model(name: str) -> Model:
    """Return a model: a preset's name, a size such as ``dense-100b``, a YAML file or a ``config.json``.

    Names ignore case and punctuation, and the words that only one preset goes on with may be left out
    (``qwen3-235b``); a folder is searched for its ``config.json``.

    Raises
    ------
    ModelConfigError
        If there is no such preset or file, or it cannot be read as a model.
    """
    if not isinstance(name, str | Path):
        raise ModelConfigError(f"model: expected a name or a path, got {shown(name)}")
    path, name = Path(name), str(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _load_file(path)
    plain_names = {_plain(shipped): shipped for shipped in (*_hub(), *list_models())}
    plain_names |= {_plain(alias): preset for alias, preset in _aliases().items()}
    for candidate in _same_shape(name):
        if shipped := plain_names.get(_plain(candidate)):
            return _load_shipped(shipped)
    if not files_are_closed() and is_there(path, folder=True):
        return _load_file(path / "config.json")
    if size := re.fullmatch(r"dense-?(\d+(?:\.\d+)?)b", name.strip().lower()):
        from costmodel.describe.models.model_families import dense_model

        return dense_model(float(size[1]) * 1e9)
    preset_by_name = {name: name for name in (*list_models(), *_hub())} | _aliases()
    begun = {
        preset for known, preset in preset_by_name.items() if known.startswith(f"{_same_shape(name)[0]}-")
    }
    if len(begun) == 1:
        return _load_shipped(*begun)
    near = get_close_matches(name.lower()[:100], preset_by_name, n=3, cutoff=0.5)
    nearest = dict.fromkeys(repr(preset_by_name[match]) for match in near)
    listed = f"known: {listed_names(list_models())}"
    hint = f"did you mean {' or '.join(nearest)}? ({listed})" if nearest else listed
    raise ModelConfigError(
        f"model: {shown(name)} is unknown; {hint}; also dense-<N>b, a .yaml file or a config.json"
    )


def _load_file(path: Path) -> Model:
    """Return the model of a YAML file or of a HuggingFace ``config.json``."""
    refuse_path(path, "model", ModelConfigError)
    if not is_there(path):
        raise ModelConfigError(f"model file {path}: no such file")
    if path.suffix == ".json":
        from costmodel.describe.models.huggingface import model_from_hf_config

        return model_from_hf_config(path)
    values = read_mapping(path, example=_EXAMPLE, error=ModelConfigError, name=f"model file {path}")
    return make_model({"name": path.stem, **values}, f"model file {path}")


# Words of a hub name that change no shape, and what a name may end with: a month or a version.
_VARIANTS = frozenset(
    "base bf16 chat fp8 hf instruct it nvfp4 preview pt terminus thinking".split()  # noqa: SIM905
)
_DATED = re.compile(r"-(?:\d{4}|v\d(?:\.\d)?)$")


def _same_shape(name: str) -> list[str]:
    """Return a hub name, then what is left of it without the words that change no shape.

    >>> _same_shape("Qwen/Qwen3-4B-Instruct-2507")
    ['qwen3-4b-instruct-2507', 'qwen3-4b-2507', 'qwen3-4b']
    """
    whole = name.strip().rsplit("/", 1)[-1].lower()
    short = "-".join(word for word in whole.split("-") if word not in _VARIANTS)
    return list(dict.fromkeys([whole, short, _DATED.sub("", short)]))


def _plain(name: str) -> str:
    """Return a name without case, punctuation and the maker's folder (``meta-llama/``)."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


@cache
def shipped_models() -> dict[str, dict[str, Any]]:
    """Return the fields of every shipped model, with other names in use under ``also``."""
    rows = read_mapping(_DATA / "models.yaml", example="m: {num_layers: 32}", error=ModelConfigError)
    return {name: row for name, row in rows.items() if not name.startswith("_")}


@cache
def _aliases() -> dict[str, str]:
    """Return other names in use, each with its preset."""
    return {str(alias): name for name, row in shipped_models().items() for alias in row.get("also", ())}


_HUB_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


@cache
def _hub() -> dict[str, dict[str, Any]]:
    """Return the models of the hub that are known by name: keys that shape them, and their counts."""
    file = _DATA / "hub_models.yaml"
    return read_mapping(file, example="gpt-j-6b: {params: …, config: […]}", error=ModelConfigError)


@cache
def _load_shipped(name: str) -> Model:
    """Return a shipped model, or one of the hub, by its exact name."""
    if name in shipped_models():
        return make_model({"name": name, **{k: v for k, v in shipped_models()[name].items() if k != "also"}})
    from costmodel.describe.models.huggingface import model_from_hf_config

    row = _hub()[name]["config"]
    more = row[len(_HUB_KEYS)] if len(row) > len(_HUB_KEYS) else {}
    return model_from_hf_config({**dict(zip(_HUB_KEYS, row, strict=False)), **more}, name)
