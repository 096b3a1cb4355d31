"""Everything that ``--set name=value`` can change: switches of the recipe, of the job, and of its ranks' health.

A switch has one name, and that name one place: a group of the recipe, the job's `Policy`, or its `Health`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from costmodel.base.errors import RecipeError, choices_hint, shown
from costmodel.base.words import rule
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.recipe import GROUPS, Recipe, with_switches
from costmodel.describe.switch_table import SWITCHES, Dtypes, Health, Policy, Switch, Switches

_HOMES: tuple[type[Switches], ...] = (*GROUPS.values(), Policy, Health)

HOME: Mapping[str, type[Switches]] = {name: home for home in _HOMES for name in home.model_fields}
"""Which model holds each switch, in the order in which switches are shown."""

NUMERIC = frozenset((*Dtypes.model_fields, "gradient_compression", "sync_every", "outer_momentum"))
"""Switches that change what is computed: the model that comes out is another one."""


def require_switch(name: str, where: str = "switches") -> None:
    """Refuse a name of no switch.

    Raises
    ------
    RecipeError
        If there is none of that name.
    """
    if name in FIELD and name not in HOME:
        raise RecipeError(
            f"{where}: {shown(name)} is no switch but a field of the job: {FIELD[name].flags[0]}"
        )
    if name not in HOME:
        raise RecipeError(f"{where}: {shown(name)} is unknown; {choices_hint(name[:60], HOME)}")


def switch(name: str) -> Switch:
    """Return the row of a switch.

    Raises
    ------
    RecipeError
        If there is none of that name.
    """
    require_switch(name)
    return SWITCHES[name]


def switch_choices(name: str) -> tuple[str, ...]:
    """Return the words that a switch can be one of, empty for all others."""
    found = switch(name)
    return found.choices if found.kind == "word" else ()


def is_number(name: str) -> bool:
    """Say whether a switch is a number, which may be left to the device."""
    return switch(name).kind in ("number", "open number", "elements")


def takes_several(name: str) -> bool:
    """Say whether a switch is a list."""
    return switch(name).kind in ("words", "numbers")


class Settings(NamedTuple):
    """A recipe with the switches that are the job's own."""

    recipe: Recipe
    policy: Policy = Policy()
    health: Health = Health()

    @property
    def values(self) -> dict[str, Any]:
        """Values of all switches by name."""
        return {**self.recipe.switches, **dict(self.policy), **dict(self.health)}

    def switched(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with some switches changed.

        Raises
        ------
        RecipeError
            If there is no such switch, or it cannot have the value.
        """
        for name in changes:
            require_switch(name)

        def of(*homes: type[Switches]) -> dict[str, Any]:
            return {name: value for name, value in changes.items() if HOME[name] in homes}

        return Settings(
            with_switches(self.recipe, of(*GROUPS.values())),
            _checked(self.policy, of(Policy)),
            _checked(self.health, of(Health)),
        )

    def plain(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in self.values.items()
        }


def _checked(held: Switches, changes: Mapping[str, Any]) -> Switches:
    """Return a model with some fields changed and checked."""
    if not changes:
        return held
    try:
        return type(held).model_validate({**dict(held), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"job: {key}: {rule(first['msg'])}, got {shown(first['input'])}") from None
