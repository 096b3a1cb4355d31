"""What profiles, recipes, models, tables and registries say, as it was last accepted: a net under `test_data_sheets.py`.

`recorded_facts.csv` holds a value a line, by file and place; titles, notes and sources are left out. A change that is
meant is recorded by ``python tests/values/test_recorded_facts.py``; the diff then shows it. A new file, or a new
value, needs no record: it joins when the next change is recorded.
"""

import csv
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.hardware.cluster import Accelerator, Cluster, Tier
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.policy import Policy
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_families import FAMILIES
from costmodel.describe.optimizers import OPTIMIZERS
from costmodel.describe.precision import PRECISIONS
from costmodel.describe.recipe import GROUPS
from costmodel.describe.reliability import Health

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("recorded_facts.csv")
FOLDERS = ("hardware_profiles", "costmodel/describe/data")
# Of many models' configs; `test_hub_models.py` counts the parameters of each.
ELSEWHERE = ("hub_models.yaml",)
# Of these the text is for people.
WORDS = {
    "title",
    "notes",
    "note",
    "aliases",
    "because",
    "url",
    "accessed",
    "sources",
    "source",
    "schema_version",
}


def leaves(node, path=()):
    """Yield the place and the text of each value."""
    if isinstance(node, dict):
        for key, child in node.items():
            if key not in WORDS:
                yield from leaves(child, (*path, str(key)))
    elif isinstance(node, list):
        for at, child in enumerate(node):
            named = child.get("name", at) if isinstance(child, dict) else at
            yield from leaves(child, (*path, str(named)))
    elif node not in (None, "") and (node is not False or path[0] not in FIELD):
        yield ".".join(path).replace(".value", ""), str(node)


def plain(value):
    """Return a record as a mapping of what it says, without its text for people."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {
            str(key): plain(held)
            for key, held in value.items()
            if key not in TEXT_OF_RECORDS and not callable(held)
        }
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return [plain(held) for held in value] if isinstance(value, list | tuple) else value


def defaults(made):
    """Return the defaults of a class, and the bounds of its fields where it is a model."""
    if issubclass(made, BaseModel):
        found = {}
        for name, field in made.model_fields.items():
            bounds = [str(one) for one in field.metadata if type(one).__name__ in ("Ge", "Gt", "Le", "Lt")]
            found[name] = " ".join([repr(field.get_default(call_default_factory=True)), *bounds])
        return found
    return {one.name: repr(one.default) for one in fields(made) if one.default is not MISSING}


def registry(name):
    """Return what a registry or a class of the package says."""
    held = REGISTRIES[name]
    return defaults(held) if isinstance(held, type) else plain(dict(held))


TEXT_OF_RECORDS = WORDS | {"meaning", "hint", "default_text", "sources", "reference", "description"}
REGISTRIES = {
    "fields": FIELD,
    "precisions": PRECISIONS,
    "optimizers": OPTIMIZERS,
    "frameworks": FRAMEWORKS,
    "families": FAMILIES,
    **{
        f"class {made.__name__}": made
        for made in (*GROUPS.values(), Policy, Health, Model, Accelerator, Cluster, Tier)
    },
}


def facts(file):
    """Return the values of a file, or of a registry, by place."""
    if file in REGISTRIES:
        return dict(leaves(registry(file)))
    return dict(leaves(YAML(typ="safe", pure=True).load((ROOT / file).read_text())))


def files():
    """Return what holds facts."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.yaml"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.name not in ELSEWHERE] + [*REGISTRIES]


def recorded():
    """Return the accepted values by file."""
    found = {}
    with RECORDED.open(newline="") as file:
        for name, place, value in csv.reader(file):
            found.setdefault(name, {})[place] = value
    return found


KNOWN = {} if __name__ == "__main__" else recorded()


@pytest.mark.parametrize("file", KNOWN)
def test_a_file_says_what_it_said(file):
    found = facts(file)
    assert {place: found.get(place) for place in KNOWN[file]} == KNOWN[file]


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows((name, *fact) for name in files() for fact in facts(name).items())
