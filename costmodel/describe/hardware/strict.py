"""What every block of a hardware file holds to."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator


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
