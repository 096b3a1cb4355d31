"""What profiles, recipes, models and tables say, as it was last accepted: a net under `test_data_sheets.py`.

`recorded_facts.csv` holds a value a line, by file and place; titles, notes and sources are left out. A change that is
meant is recorded by ``python tests/values/test_recorded_facts.py``; the diff then shows it. A new file needs no record:
it joins when the next change is recorded.
"""

import csv
from pathlib import Path

import pytest
from ruamel.yaml import YAML

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
    else:
        yield ".".join(path).replace(".value", ""), str(node)


def facts(file):
    """Return the values of a file by place."""
    return dict(leaves(YAML(typ="safe", pure=True).load((ROOT / file).read_text())))


def files():
    """Return what holds facts."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.yaml"))]
    return [path.relative_to(ROOT).as_posix() for path in found if path.name not in ELSEWHERE]


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
    assert facts(file) == KNOWN[file]


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows((name, *fact) for name in files() for fact in facts(name).items())
