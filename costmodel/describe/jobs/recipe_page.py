"""`costmodel.recipe`: every switch of a recipe, what it may be and what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.base.answer import Answer, Listing
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.switches import Settings
from costmodel.describe.recipe import GROUP_OF, LABELS, Recipe, list_recipes, load_recipe
from costmodel.describe.switch_table import SWITCHES


@dataclass(frozen=True, repr=False)
class RecipePage(Answer):
    """A recipe's switches, and those of the job, with value, default, choices and meaning."""

    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        """Return the switches as plain data."""
        recipe = self.settings.recipe
        values, defaults = self.settings.plain(), Settings(Recipe(name=recipe.name)).plain()
        return {
            "schema_version": 1,
            **recipe.model_dump(mode="json", include=set(LABELS)),
            "switches": [
                {
                    "switch": key,
                    "group": GROUP_OF.get(key, "job"),
                    "value": value,
                    "default": defaults[key],
                    "choices": _choices(key),
                    "meaning": SWITCHES[key].meaning,
                }
                for key, value in values.items()
            ],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a switch."""
        rows = self.to_dict()["switches"]
        return {
            "switch": [row["switch"] for row in rows],
            "group": [row["group"] for row in rows],
            "value": [set_text(row["value"]) for row in rows],
            "default": [set_text(row["default"]) for row in rows],
            "choices": [row["choices"] for row in rows],
            "meaning": [row["meaning"] for row in rows],
        }


def recipe(name: str | Recipe, *, switches: Mapping[str, Any] | Sequence[str] | None = None) -> RecipePage:
    """Show every switch of a recipe: its value, its default, its choices and what it changes.

    Parameters
    ----------
    name : str or Recipe
        As for `costmodel.estimate`.
    switches : mapping or sequence of str, optional
        Switches to change, as there.

    Raises
    ------
    CostModelError
        If there is no such recipe or switch.

    Examples
    --------
    >>> page = recipe("llama3", switches=["fused_norm=false"])
    >>> page.settings.recipe.kernels.fused_norm
    False
    """
    made = load_recipe(name) if isinstance(name, str) else name
    return RecipePage(Settings(made).switched(read("switches", switches) if switches else {}))


def recipes_table() -> Listing:
    """List the shipped recipes."""
    found = [load_recipe(name) for name in list_recipes()]
    return Listing(
        "recipes", {"name": [r.name for r in found], "description": [r.description for r in found]}
    )


def _choices(name: str) -> str:
    """Return what a switch may be, as a text."""
    kind, words = SWITCHES[name].kind, ", ".join(SWITCHES[name].choices)
    said = {"truth": "true or false", "whole": "whole number", "open number": "number, or null"}
    said |= {"word": words, "words": f"some of {words}", "numbers": "numbers"}
    return said.get(kind, "number")


def set_text(value: Any) -> str:
    """Return a switch's value as ``--set`` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return ",".join(value) if isinstance(value, list) else str(value)
