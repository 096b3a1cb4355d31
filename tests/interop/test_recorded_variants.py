"""What foreign files are read as, as it was last accepted: a net under the values of the readers' own tests.

Of every base of `foreign_bases.yaml` the same without each of its keys (what is the default?), with its numbers
doubled, its truths turned and its words as other bases of its kind have them, and with each key more that the reader's
source names, as true, false and 3.
`recorded_variants.jsonl` holds a base a line: its answer, of each variant what it changes or the error, and the
variants that change nothing. A change that is meant is recorded by ``python tests/interop/test_recorded_variants.py``, of some
bases by their names behind it.
"""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import document_text
from costmodel.interop.reading import READERS, kind_of, read_file
from costmodel.interop.text_file import TextFile

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("recorded_variants.jsonl")
BASES = YAML(typ="safe", pure=True).load(Path(__file__).with_name("foreign_bases.yaml").read_text())
KEY = re.compile(r"(--)?[a-z][a-z0-9_-]{2,}$")
MORE = {"true": True, "false": False, "3": 3}
PARTS = ("missing", "ignored", "notes", "warnings", "facts", "unpriced", "framework", "sweeps")


def in_toml(tree, path=""):
    """Return a tree as TOML, its tables by their whole names."""
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    lines = [f"[{path}]"] if path else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
    deeper = [
        in_toml(value, f"{path}.{key}" if path else key)
        for key, value in tree.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*lines, *deeper])


def in_a_command(tree):
    """Return flags as a command: a truth is a flag alone, a list several words."""
    words = []
    for flag, value in tree.items():
        if value is not False and value is not None:
            several = value if isinstance(value, list) else [] if value is True else [value]
            words.append(" ".join([flag, *(f"'{one}'" for one in several)]))
    first = [word for word in words if word.startswith("--nn") or word.startswith("--nproc")]
    rest = [word for word in words if word not in first]
    return f"torchrun {' '.join(first)} pretrain_gpt.py {' '.join(rest)}\n"


WRITE = {"yaml": document_text, "json": json.dumps, "toml": in_toml, "sh": in_a_command}


def flat(node, path=""):
    """Yield place and value of all that is not empty."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from flat(child, f"{path}.{key}" if path else str(key))
    elif node not in (None, "", [], ()):
        yield path, node


def answer(base, tree):
    """Return what a tree is read as, by place."""
    file = TextFile(WRITE[base["form"]](tree), f"job.{base['form']}")
    try:
        found = read_file(file, base["kind"], **base.get("given", {}))
    except CostModelError as error:
        return {"refused": str(error)}
    job = dict(found.job)
    if hasattr(job.get("model"), "model_dump"):
        job["model"] = job["model"].model_dump(mode="json", exclude_defaults=True, exclude={"source"})
    told = {"sniffed": kind_of(file), "job": job, **{part: getattr(found, part) for part in PARTS}}
    return dict(flat(json.loads(json.dumps(told, default=str))))


def places(tree, path=()):
    """Yield the path of each key, tables before what is in them, and its value."""
    for key, value in tree.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def changed(tree, path, *value):
    """Return a tree with another value at a path, or without it."""
    key, *rest = path
    if rest:
        return {**tree, key: changed(tree.get(key) or {}, rest, *value)}
    without = {name: held for name, held in tree.items() if name != key}
    return {**tree, key: value[0]} if value else without


def turned(path, value, kind):
    """Return other values of the same sort, by name."""
    if isinstance(value, bool):
        return {"not": not value}
    if isinstance(value, int | float):
        return {"twice": 2 * value}
    if isinstance(value, list):
        return {"shorter": value[:-1]}
    if not isinstance(value, str):
        return {}
    same = [held for base in BASES if base["kind"] == kind for at, held in places(base["tree"]) if at == path]
    others = dict.fromkeys(str(one) for one in same if one != value and not isinstance(one, dict))
    return {"other": "other", **{f"as {one}": one for one in others}}


def named_in_source(base):
    """Return the words of a reader's source that may be keys."""
    sources = {READERS[base["kind"]].home[0], *base.get("more", ())}
    trees = [ast.parse((ROOT / f"{one.replace('.', '/')}.py").read_text()) for one in sorted(sources)]
    nodes = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return sorted(
        {word for node in nodes if isinstance(node, str) for word in node.split() if KEY.match(word)}
    )


def variants(base, keys):
    """Return the trees near a base by what was done."""
    tree, kind = base["tree"], base["kind"]
    found = {}
    for path, value in places(tree):
        name = " ".join(path)
        found[f"without {name}"] = changed(tree, path)
        if not isinstance(value, dict):
            found |= {
                f"{how} {name}": changed(tree, path, other)
                for how, other in turned(path, value, kind).items()
            }
    for table in base.get("tables", [[]]):
        for key in keys:
            spelled = f"--{key.replace('_', '-')}" if base["form"] == "sh" and key[0] != "-" else key
            if (*table, spelled) not in dict(places(tree)):
                more = {f"{said} {' '.join([*table, spelled])}": value for said, value in MORE.items()}
                found |= {name: changed(tree, (*table, spelled), value) for name, value in more.items()}
    return found


def difference(base, other):
    """Return what another answer has otherwise; of a refusal only why."""
    if "refused" in other:
        return {} if other == base else {"refused": other["refused"]}
    return {at: other.get(at) for at in sorted({*base, *other}) if base.get(at) != other.get(at)}


def record(base):
    """Return the answer of a base, and what each variant changes."""
    own = answer(base, base["tree"])
    keys = named_in_source(base)
    changes = {name: difference(own, answer(base, tree)) for name, tree in variants(base, keys).items()}
    # A key that changes only what was not read is of another table, or of nobody.
    added = {name for name in changes if name.split()[0] in MORE}
    unread = {name for name in added if set(changes[name]) <= {"ignored"}}
    return {
        "base": base["name"],
        "keys": sorted({name.split()[-1] for name in added - unread}),
        "answer": own,
        "changes": {name: change for name, change in changes.items() if name not in unread},
    }


KNOWN = [] if __name__ == "__main__" else [json.loads(line) for line in RECORDED.read_text().splitlines()]
OF_NAME = {base["name"]: base for base in BASES}


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row["base"])
def test_a_file_is_read_as_it_was(row):
    base = OF_NAME[row["base"]]
    found = answer(base, base["tree"])
    assert found == row["answer"]
    trees = variants(base, row["keys"])
    changes = {name: difference(found, answer(base, trees[name])) for name in row["changes"]}
    assert changes == row["changes"]


if __name__ == "__main__":
    old = {json.loads(line)["base"]: line for line in RECORDED.read_text().splitlines()}
    wanted = sys.argv[1:] or OF_NAME
    lines = [
        json.dumps(record(base), sort_keys=True) if name in wanted else old[name]
        for name, base in OF_NAME.items()
    ]
    RECORDED.write_text("".join(f"{line}\n" for line in lines))
