"""Finding and reading models: shipped presets and their aliases, YAML files, HuggingFace configs."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import ModelConfigError, listed_names, shown
from costmodel.base.files import is_there
from costmodel.base.own_files import files_are_closed, refuse_path
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.model import Model, make_model

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_ALIASES = "aliases.yaml"
_EXAMPLE = "num_layers: 32"


@cache
def list_models() -> tuple[str, ...]:
    """Return the names of the shipped models; no file is read."""
    found = (f.name for f in _folder().iterdir() if f.name.endswith(".yaml") and f.name != _ALIASES)
    return tuple(sorted(name.removesuffix(".yaml") for name in found))


def load_model(name: str) -> Model:
    """Return a model: a preset's name, a size such as ``dense-100b``, a YAML file or a ``config.json``.

    Names ignore case and punctuation; a folder is searched for its ``config.json``.

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
    for candidate in _same_shape(name):
        if preset := _preset_of(candidate):
            return _load_preset(preset)
        if entry := _hub_entry(candidate):
            return _load_hub(entry)
    if not files_are_closed() and is_there(path, folder=True):
        return _load_file(path / "config.json")
    if size := re.fullmatch(r"dense-?(\d+(?:\.\d+)?)b", name.strip().lower()):
        from costmodel.describe.models.dense_model import dense_model

        return dense_model(float(size[1]) * 1e9)
    raise ModelConfigError(
        f"model: {shown(name)} is unknown; {_hint(name)}; also dense-<N>b, a .yaml file or a config.json"
    )


def _hint(name: str) -> str:
    """Return the presets nearest to a wrong name, by their names or aliases, then all presets."""
    preset_by_name = {name: name for name in (*list_models(), *_hub())} | _aliases()
    near = get_close_matches(name.lower()[:100], preset_by_name, n=3, cutoff=0.5)
    nearest = dict.fromkeys(preset_by_name[match] for match in near)
    listed = f"known: {listed_names(list_models())}"
    return (
        f"did you mean {' or '.join(repr(preset) for preset in nearest)}? ({listed})" if nearest else listed
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


@cache
def _load_preset(name: str) -> Model:
    """Return a shipped model by its exact name."""
    values = read_mapping(_folder() / f"{name}.yaml", example=_EXAMPLE, error=ModelConfigError)
    return make_model({"name": name, **values})


def _preset_of(name: str) -> str | None:
    """Return the preset that a name or alias means, None for no preset."""
    wanted = _plain(name)
    by_name = {_plain(preset): preset for preset in list_models()}
    if wanted in by_name:
        return by_name[wanted]
    return {_plain(alias): preset for alias, preset in _aliases().items()}.get(wanted)


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
    file = files("costmodel") / "describe" / "data" / "hub_models.yaml"
    return read_mapping(file, example="gpt-j-6b: {params: …, config: […]}", error=ModelConfigError)


def _hub_entry(name: str) -> str | None:
    """Return the hub's model that a name means, None for none."""
    return {_plain(known): known for known in _hub()}.get(_plain(name))


@cache
def _load_hub(name: str) -> Model:
    """Return a model of the hub by its exact name."""
    from costmodel.describe.models.huggingface import model_from_hf_config

    row = _hub()[name]["config"]
    more = row[len(_HUB_KEYS)] if len(row) > len(_HUB_KEYS) else {}
    config = {**dict(zip(_HUB_KEYS, row, strict=False)), **more}
    return model_from_hf_config(config, name)


def _plain(name: str) -> str:
    """Return a name without case, punctuation and the maker's folder (``meta-llama/``)."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


@cache
def _aliases() -> dict[str, str]:
    """Return other names in use, each with its preset."""
    table = read_mapping(_folder() / _ALIASES, example="llama3-8b: [llama-3-8b]", error=ModelConfigError)
    return {str(alias): preset for preset, others in table.items() for alias in others}


def _folder() -> Traversable:
    return files("costmodel") / "describe" / "data" / "models"
