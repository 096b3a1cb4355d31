"""Tables, constants and defaults that stand in modules, as they were last accepted: a net under the tests of each.

`recorded_tables.csv` holds a value a line: words that readers translate, limits, shares, defaults of functions and of
records. Sentences for people are left out. A change that is meant is recorded by
``python tests/unit/test_recorded_tables.py``; a new module or table needs no record, it joins with the next change.
"""

import ast
import csv
import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("recorded_tables.csv")
ROOMS = (
    "base",
    "bill",
    "physics",
    "describe",
    "step",
    "estimates",
    "interop",
    "trust",
    "whole_run",
    "planning",
    "what_if",
    "reporting",
    "cli",
    "app",
)
MOST = 250
MOST_OF_A_DEFAULT = 40
# Words with an operator between them: formulas are looked at, sentences are not.
FORMULA = re.compile(r"(?=.*\w [*/+<>=-]+ \(?\w)[\w .,*/+<>=!()-]+$")
PLAIN = (str, int, float, bool, type(None))


def leaves(value, path=()):
    """Yield the place and the text of each plain value of a table."""
    if isinstance(value, re.Pattern):
        yield path, f"{value.pattern!r} {value.flags}"
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from leaves(held, (*path, str(key)))
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from leaves(value._asdict(), path)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from leaves({field.name: getattr(value, field.name) for field in fields(value)}, path)
    elif isinstance(value, (set, frozenset)):
        yield path, " ".join(sorted(map(str, value)))
    elif isinstance(value, np.ndarray) and value.ndim == 0:
        yield path, repr(value.item())
    elif isinstance(value, (list, tuple, np.ndarray)) and len(value) < 200:
        for place, held in enumerate(value):
            yield from leaves(held, (*path, str(place)))
    elif (
        isinstance(value, PLAIN)
        and (str(value).count(" ") < 4 or FORMULA.match(str(value)))
        and str(ROOT) not in str(value)
    ):
        yield path, repr(value)


def own_names(file):
    """Return the names that a module gives a value of its own, and its functions and classes."""
    tree = ast.parse(file.read_text())
    names, made = [], []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        # What is only put together from other tables is recorded with those.
        if any(isinstance(one, ast.Constant) and one.value is not None for one in ast.walk(node)):
            names += [one.id for one in targets if isinstance(one, ast.Name)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.append(node.name)
    return names, made


def defaults(made):
    """Yield the place and the default of each argument of a function, or of the methods of a class."""
    for name, held in vars(made).items() if isinstance(made, type) else ((made.__name__, made),):
        if inspect.isfunction(held) and held.__module__ == made.__module__:
            for argument in inspect.signature(held).parameters.values():
                told = (
                    []
                    if argument.default is argument.empty
                    else list(leaves(argument.default, (name, argument.name)))
                )
                yield from told if len(told) <= MOST_OF_A_DEFAULT else []


def bounds(made):
    """Return the default and the bounds of each field of a record, as pydantic or a named tuple holds them."""
    if issubclass(made, BaseModel):
        return {
            f"{name}.__field__": " ".join([repr(field.default), *map(str, field.metadata)])
            for name, field in made.model_fields.items()
            if name in made.__annotations__ and "at 0x" not in repr((field.default, field.metadata))
        }
    given = getattr(made, "_field_defaults", {})
    return {f"{name}.__field__": repr(value) for name, value in given.items() if isinstance(value, PLAIN)}


def facts(file):
    """Return the values of a module by place."""
    module = importlib.import_module(file.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
    names, made = own_names(file)
    found = {}
    for name in names:
        told = {".".join(path): text for path, text in leaves(getattr(module, name, None), (name,))}
        found |= told if len(told) <= MOST else {}
    for name in made:
        held = inspect.unwrap(getattr(module, name))
        if isinstance(held, type) or inspect.isfunction(held):
            found |= {".".join((name, *path)): text for path, text in defaults(held)}
        if isinstance(held, type):
            found |= {f"{name}.{field}": told for field, told in bounds(held).items()}
        if hasattr(held, "__total__"):
            found[f"{name}.__total__"] = str(held.__total__)
        if is_dataclass(held):
            kept = held.__dataclass_params__
            found[f"{name}.__dataclass__"] = f"frozen {kept.frozen}, eq {kept.eq}, order {kept.order}"
    return found


def modules():
    """Return the files of the rooms, but for those that take an extra to import."""
    found = [file for room in ROOMS for file in sorted((ROOT / "costmodel" / room).rglob("*.py"))]
    return [file for file in found if "app" not in file.parts or "nicegui" not in file.read_text()]


KNOWN = {}
if __name__ != "__main__":
    with RECORDED.open(newline="") as opened:
        for module, place, value in csv.reader(opened):
            KNOWN.setdefault(module, {})[place] = value


@pytest.mark.parametrize("module", KNOWN)
def test_tables_say_what_they_said(module):
    found = facts(ROOT / module)
    assert {place: found.get(place) for place in KNOWN[module]} == KNOWN[module]


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        for file in modules():
            writer.writerows((file.relative_to(ROOT).as_posix(), *fact) for fact in facts(file).items())
