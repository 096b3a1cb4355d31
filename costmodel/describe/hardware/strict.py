"""What every block of a hardware file holds to."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator

from costmodel.base.units import EXAMPLES, parse_quantity


class Strict(BaseModel):
    """Refuses keys it does not know, numbers that are none, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, given: object) -> object:
        """Refuse true and false where a number stands; pydantic would read 1 and 0."""
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        for key, value in given.items() if isinstance(given, dict) else ():
            field = fields.get(key)
            if field is None or "bool" in str(field.annotation):
                continue
            parts = value if isinstance(value, (list, tuple)) else (value,)
            if isinstance(value, dict) and str(field.annotation).startswith("dict"):
                parts = tuple(value.values())
            if strange := [part for part in parts if isinstance(part, bool)]:
                raise ValueError(f"{key}: expected a number or a text, not true or false; got {strange[0]}")
        return given


def _quantity(unit: str) -> Any:
    """Return the type of a number that a file writes as text with a unit; a bare number has two readings."""
    schema = WithJsonSchema({"type": "string", "examples": [EXAMPLES[unit]]})
    return Annotated[float, BeforeValidator(partial(parse_quantity, unit=unit)), schema]


Bytes: Any = _quantity("B")
BytesPerSecond: Any = _quantity("B/s")
FlopsPerSecond: Any = _quantity("FLOP/s")
Seconds: Any = _quantity("s")
Watts: Any = _quantity("W")
