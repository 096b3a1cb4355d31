"""JSON Schemas of the files that people write: jobs, grids, hardware profiles, models and recipes.

They follow from what reads the files: the table of fields, and the pydantic models of profiles, models and
switches, so that an editor completes and refuses what the program knows and refuses.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.describe.hardware import kernel_rules
from costmodel.describe.hardware.kernels import KernelBlocks, KernelConstants
from costmodel.describe.hardware.profile_files import SCHEMA_VERSION
from costmodel.describe.hardware.profile_schema import SCHEMAS
from costmodel.describe.jobs.fields import DEGREES, FIELDS, JOB_FIELDS, SWEEP_FIELDS, Field
from costmodel.describe.models.model import DERIVED, Model
from costmodel.describe.models.model_files import list_models
from costmodel.describe.recipe import LABELS, Prints, Recipe, list_recipes
from costmodel.describe.switch_table import GROUPS
from costmodel.physics.network.mesh import DEFAULT_ORDER

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER = r"^\s*[+-]?\$?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*([kKMGTP]i?)?\s*$"
_QUANTITY = {
    "bytes": r"^\s*[0-9.eE+-]+\s*[kKMGTP]?i?B\s*$",
    "rate": r"^\s*[0-9.eE+-]+\s*[kKMGTP]?i?(B|bit)/s\s*$",
    "time": r"^\s*[0-9.eE+-]+\s*(s|ms|us|ns|min|h|d)\s*$",
    "share": r"^\s*[0-9.eE+-]+\s*%?\s*$",
}


def schema(kind: str) -> Schema:
    """Return the JSON Schema of a kind of file.

    Parameters
    ----------
    kind : str
        ``job``, ``grid`` (of `sweep`), ``hardware`` (a profile of any kind), ``model`` or ``recipe``.

    Raises
    ------
    CostModelError
        If there is no such kind.

    Examples
    --------
    >>> sorted(schema("job")["properties"])[:3]
    ['axis_order', 'base_dtype', 'cluster']
    >>> schema("job")["properties"]["gpus"]["anyOf"][0]["maximum"]
    10000000
    """
    if kind not in _KINDS:
        raise CostModelError(f"schema: {kind!r} is unknown; {choices_hint(kind, _KINDS)}")
    title, make = _KINDS[kind]
    return {"$schema": _DIALECT, "title": title, **make()}


def _job() -> Schema:
    measured = {"description": "What a step took, for calibrate runs.", "type": "object"}
    return _record({**_properties(JOB_FIELDS, one_of_field), "measured": measured})


def _grid() -> Schema:
    def swept(field: Field) -> Schema:
        one = one_of_field(field)
        listed = {"type": "array", "items": one, "minItems": 1}
        return {"description": field.help, "anyOf": [one, listed]} if field.swept else one

    return _record(_properties(SWEEP_FIELDS, swept))


def _properties(fields: Iterable[Field], made: Callable[[Field], Schema]) -> dict[str, Schema]:
    """Return what each key takes, under its name and its aliases; every key may be left empty."""
    return {
        name: {"anyOf": [*found.pop("anyOf"), {"type": "null"}], **found}
        for field in fields
        for name in (field.name, *field.aliases)
        for found in [made(field)]
    }


def _record(properties: Mapping[str, Any], required: Iterable[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def one_of_field(field: Field) -> Schema:
    """Return what a key of a job file takes."""
    stated: Schema = {"description": field.help}
    if isinstance(field.default, bool | int | float | str):
        stated["default"] = field.default
    if field.kind == "name" and (known := _KNOWN_NAMES.get(field.name)):
        stated["examples"] = list(known())
    return {"anyOf": _forms(field), **stated}


def _forms(field: Field) -> list[Schema]:
    """Return the forms in which a field may be written."""
    text: Schema = {"type": "string", "minLength": 1}
    match field.kind:
        case "whole" | "number" | "price":
            kind, number = ("integer", int) if field.kind == "whole" else ("number", float)
            bounds = {"minimum": number(field.least), "maximum": number(field.most)}
            one: list[Schema] = [{"type": kind, **bounds}, {"type": "string", "pattern": _NUMBER}]
            if field.kind != "price":
                return one
            return [one[0], {"type": "string"}, {"type": "object", "additionalProperties": {"anyOf": one}}]
        case "bytes" | "rate" | "time" | "share":
            return [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _QUANTITY[field.kind]}]
        case "word":
            return [{"enum": list(field.words)}]
        case "truth":
            return [{"type": "boolean"}]
        case "layout":
            degrees = rf"^\s*(({'|'.join(DEGREES)})\s*=?\s*[0-9]+[\s,]*)+$"
            return [{"type": "string", "pattern": degrees}]
        case "order":
            size = len(DEFAULT_ORDER)
            several = {"type": "array", "items": {"enum": list(DEFAULT_ORDER)}, "uniqueItems": True}
            return [{"type": "string"}, {**several, "minItems": size, "maxItems": size}]
        case "switches":
            # ``no``, ``0.5`` or ``none`` in quotes are read as well, so a text is refused only where words are asked for.
            texts = {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9_]+=.*$"}}
            return [_record(_switch_schemas(GROUPS.values())), texts]
        case "choices":
            tuned = [name for other in FIELDS if other.tuned for name in (other.name, *other.aliases)]
            return [{"type": "object", "propertyNames": {"enum": tuned}}]
        case "hardware":
            return [{"type": "object", "additionalProperties": {"type": ["string", "number"]}}]
        case _:
            return [text]


_KNOWN_NAMES: dict[str, Callable[[], Iterable[str]]] = {"model": list_models, "recipe": list_recipes}


class _Documented(GenerateJsonSchema):
    """Schemas with the text below each field as its description, and files' own forms of what is read into others."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model."""
        cls = schema["cls"]
        if cls is KernelConstants:
            texts: dict[str, Schema] = {key: {"type": "string"} for key in kernel_rules.LENT}
            groups: dict[str, Schema] = {group: {"type": "object"} for group in kernel_rules.GROUPS}
            rules = _record({**texts, "num_sms": {"type": "number"}, **groups}, ())
            return {"anyOf": [self.generate_inner(KernelBlocks.__pydantic_core_schema__), rules]}
        found = super().model_schema(schema)
        found.pop("title", None)
        for name, stated in _meanings_of(cls).items():
            if name in found.get("properties", {}):
                found["properties"][name].setdefault("description", stated)
        return found


def _meanings_of(home: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a model in its source, in one line."""
    try:
        source = inspect.getsource(home)
    except OSError:
        # Made while the program runs, as `Sourced` of a kind of number is.
        return {}
    tree = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(ast.literal_eval(below.value)).split())
        for field, below in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
    }


def _schema_of(model: type[BaseModel]) -> Schema:
    return model.model_json_schema(schema_generator=_Documented)


def _switch_schemas(homes: Iterable[type[BaseModel]]) -> dict[str, Schema]:
    """Return what each switch of some groups takes."""
    return {name: switch for home in homes for name, switch in _schema_of(home)["properties"].items()}


def _model() -> Schema:
    found = _schema_of(Model)
    # The name is the file's, and what a model card leaves out is derived.
    found["required"] = [name for name in found["required"] if name not in {"name", *DERIVED}]
    return found


def _recipe() -> Schema:
    labels = {name: stated for name, stated in _schema_of(Recipe)["properties"].items() if name in LABELS}
    labels["prints"] = _schema_of(Prints)
    labels["launches"] = {"type": "object", "description": labels["launches"].get("description", "")}
    labels["base"] = {"enum": list(list_recipes()), "description": "Recipe whose switches hold beside these."}
    return _record({**labels, **_switch_schemas(GROUPS.values())})


def _hardware() -> Schema:
    """Return the schema of a profile of any kind; with ``inherit`` the parent has what is missing."""
    kinds, definitions = [], {}
    for kind, model in SCHEMAS.items():
        found = _schema_of(model)
        definitions.update(found.pop("$defs", {}))
        required = [name for name in found.pop("required") if name not in ("profile", "software")]
        found["properties"] |= {
            "profile": {"const": kind},
            "schema_version": {"const": SCHEMA_VERSION},
            "inherit": {
                "type": "string",
                "description": "Profile whose values hold where this file has none.",
            },
        }
        found["if"] = {"not": {"required": ["inherit"]}}
        found["then"] = {"required": required}
        kinds.append({**found, "required": ["schema_version", "profile"]})
    return {"oneOf": kinds, "$defs": definitions}


_KINDS: dict[str, tuple[str, Callable[[], Schema]]] = {
    "job": ("A job of costmodel", _job),
    "grid": ("A grid of costmodel sweep", _grid),
    "hardware": ("A hardware profile of costmodel", _hardware),
    "model": ("A model of costmodel", _model),
    "recipe": ("A recipe of costmodel", _recipe),
}
