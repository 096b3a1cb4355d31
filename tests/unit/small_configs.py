"""HuggingFace configs of every family, with their parameters: `small_configs.yaml` as mappings."""

from pathlib import Path

from costmodel.base.yaml_files import read_mapping

_TABLE = read_mapping(Path(__file__).with_suffix(".yaml"), example="tiny: {}")
_ABOUT = ("of", "params", "billions", "active")


def _config(row):
    """Return the keys of a config: its tables of keys, and its own."""
    config = {}
    for base in row.get("of", ()):
        config |= _config(_TABLE["bases"][base])
    return config | {key: value for key, value in row.items() if key not in _ABOUT}


BASE, GROUPED, WIDE, ROUTED, SEVEN = (
    _config(_TABLE["bases"][name]) for name in ("BASE", "GROUPED", "WIDE", "ROUTED", "SEVEN")
)
TINY, ENCODERS, PUBLISHED, RELEASED = (
    {kind: (row["params"], _config(row)) for kind, row in _TABLE[section].items()}
    for section in ("tiny", "encoders", "published", "released")
)
CARDS = {kind: (_config(row), row["billions"], row["active"]) for kind, row in _TABLE["cards"].items()}
PRESETS = {name: _config(row) for name, row in _TABLE["presets"].items()}
