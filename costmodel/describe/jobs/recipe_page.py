"""`costmodel.recipe`: every switch of a recipe, what it may be and what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.base.answer import Answer, Listing, columns_of
from costmodel.describe.jobs.reading import read
from costmodel.describe.recipe import LABELS, Recipe, list_recipes, load_recipe, make_recipe, switch_text
from costmodel.describe.switch_table import SWITCHES

_OF_THE_JOB = ("policy", "health")


@dataclass(frozen=True, repr=False)
class RecipePage(Answer):
    """A recipe's switches, and those of the job, with value, default, choices and meaning."""

    recipe: Recipe

    def to_dict(self) -> dict[str, Any]:
        """Return the switches as plain data."""
        defaults = make_recipe({"name": self.recipe.name}).plain_switches
        return {
            "schema_version": 1,
            **self.recipe.model_dump(mode="json", include=set(LABELS)),
            "switches": [
                {
                    "switch": key,
                    "group": "job" if SWITCHES[key].group in _OF_THE_JOB else SWITCHES[key].group,
                    "value": value,
                    "default": defaults[key],
                    "choices": _choices(key),
                    "meaning": SWITCHES[key].meaning,
                }
                for key, value in self.recipe.plain_switches.items()
            ],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a switch."""
        table = columns_of(self.to_dict()["switches"])
        return table | {name: list(map(switch_text, table[name])) for name in ("value", "default")}


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
    >>> page.recipe.kernels.fused_norm
    False
    """
    made = load_recipe(name) if isinstance(name, str) else name
    return RecipePage(made.switched(read("switches", switches) if switches else {}))


def recipes_table() -> Listing:
    """List the shipped recipes."""
    found = [load_recipe(name) for name in list_recipes()]
    return Listing(
        "recipes", {"name": [r.name for r in found], "description": [r.description for r in found]}
    )


def _choices(name: str) -> str:
    """Return what a switch may be, as a text."""
    kind, words = SWITCHES[name].kind, ", ".join(SWITCHES[name].choices)
    stated = {"truth": "true or false", "whole": "whole number", "open number": "number, or null"}
    stated |= {"word": words, "words": f"some of {words}", "numbers": "numbers"}
    return stated.get(kind, "number")
