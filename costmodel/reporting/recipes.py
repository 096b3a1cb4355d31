"""Recipes for people: a list, and one with every switch, what it may be and what it changes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, get_args

from costmodel.base.grid import Grid, columns
from costmodel.describe import recipe as recipes
from costmodel.describe.jobs.switches import HOME, Settings, switch_field
from costmodel.describe.recipe import GROUP_OF, LABELS, Recipe


def list_columns() -> dict[str, list[str]]:
    """Return the shipped recipes as columns."""
    found = [recipes.load_recipe(name) for name in recipes.list_recipes()]
    return {"name": [r.name for r in found], "description": [r.description for r in found]}


def list_grid(table: dict[str, list[str]]) -> Grid:
    """Return the list as a table."""
    return Grid("Recipes", columns("Recipe", "Description"), list(zip(*table.values(), strict=True)))


def recipe_record(settings: Settings) -> dict[str, Any]:
    """Return a recipe's switches, and those of the job, with value, default, choices and meaning as plain data."""
    meanings, recipe = switch_meanings(), settings.recipe
    values, defaults = settings.plain(), Settings(Recipe(name=recipe.name)).plain()
    return {
        "schema_version": 1,
        **{key: getattr(recipe, key) for key in LABELS},
        "switches": [
            {
                "switch": key,
                "group": GROUP_OF.get(key, "job"),
                "value": value,
                "default": defaults[key],
                "choices": _choices(key),
                "meaning": meanings.get(key, ""),
            }
            for key, value in values.items()
        ],
    }


def switch_columns(record: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the switches as columns."""
    rows = record["switches"]
    return {
        "switch": [row["switch"] for row in rows],
        "value": [_text(row["value"]) for row in rows],
        "default": [_text(row["default"]) for row in rows],
        "choices": [row["choices"] for row in rows],
        "meaning": [row["meaning"] for row in rows],
    }


def recipe_grid(record: dict[str, Any]) -> Grid:
    """Return the switches as a table; those that differ from the default stand out."""
    rows = [
        [row["switch"], _text(row["value"]), _text(row["default"]), row["choices"], row["meaning"]]
        for row in record["switches"]
    ]
    changed = frozenset(i for i, row in enumerate(record["switches"]) if row["value"] != row["default"])
    title = f"{record['name']}: {record['description']}"
    titles = columns("Switch", "Value", "Default", "Choices", "Meaning")
    return Grid(title, titles, rows, changed, f"source: {record['source']}" if record["source"] else "")


def switch_meanings() -> dict[str, str]:
    """Return the text below each switch's field, in one line."""
    found: dict[str, str] = {}
    for home in dict.fromkeys(HOME.values()):
        tree = ast.parse(textwrap.dedent(inspect.getsource(home))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)):
                continue
            if isinstance(field.target, ast.Name):
                found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def _choices(name: str) -> str:
    """Return what a switch may be, as a text."""
    annotation = switch_field(name).annotation
    for plain, words in ((bool, "true or false"), (int, "whole number"), (float, "number")):
        if annotation is plain:
            return words
    options = [str(choice) for choice in get_args(annotation)]
    if "Ellipsis" in options:
        inner = get_args(get_args(annotation)[0])
        return "some of " + ", ".join(str(choice) for choice in inner)
    return ", ".join(options)


def _text(value: Any) -> str:
    """Return a switch's value as ``--set`` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)
