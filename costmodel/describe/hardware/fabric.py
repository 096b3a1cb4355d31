"""Constants of the collective library on one link: the ``fabric:`` block of a link's YAML file.

`tools/fit/fit_fabric.py` writes the block from published sweeps. The constants are the
fields of `costmodel.physics.network.fabric.Fabric`, which says what each is and has their defaults; the
file model is made from them: a name's ending is its unit, and left out of the key where the value
has it (``pipeline_s`` is ``pipeline: 2.5 us``).
"""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from costmodel.describe.hardware.strict import BytesPerSecond, Seconds, Strict
from costmodel.physics.network.fabric import Fabric

Basis = Literal["measured", "similar-link", "estimated"]

# Longest ending first: a rate also ends in seconds.
_UNITS: tuple[tuple[str, Any, bool], ...] = (
    ("_bytes_per_s", BytesPerSecond, True),
    ("_s", Seconds, True),
    ("_factor", Annotated[float, Field(gt=0)], False),
    ("_ranks", Annotated[int, Field(ge=2)], False),
)


def _file_field(name: str) -> tuple[Any, Any]:
    """Return type and default of a constant in a file, under its key there."""
    for ending, kind, has_unit in _UNITS:
        if name.endswith(ending):
            default = Fabric._field_defaults[name]
            return kind, Field(default=default, alias=name.removesuffix(ending) if has_unit else None)
    raise TypeError(f"the name of constant {name!r} does not end in its unit")


_FIELDS: dict[str, Any] = {name: _file_field(name) for name in Fabric._fields}


class _Block(Strict):
    model_config = ConfigDict(populate_by_name=True)


_Constants: Any = create_model("_Constants", __base__=_Block, **_FIELDS)


class FabricConstants(_Constants):
    """Fitted constants of one link, and where they come from."""

    basis: Basis = "estimated"
    source: str = "assumed"
    points: int = Field(default=0, ge=0)
    residual: float | None = Field(default=None, ge=0)

    @cached_property
    def constants(self) -> Fabric:
        """The numbers alone, as the formulas receive them."""
        return Fabric(**{name: float(getattr(self, name)) for name in Fabric._fields})
