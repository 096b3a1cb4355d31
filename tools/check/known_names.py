"""Look the names that we list up in copies of the frameworks, and write where each stands.

    PYTHONPATH=. python tools/check/known_names.py FOLDER    # FOLDER holds unpacked wheels, one folder a distribution

Writes tests/interop/known_names.csv: framework, name, source, place. Rows whose source is no distribution in FOLDER
stay as they are: files of repositories that are no package (Megatron-LM's ``training/arguments.py``, its forks'
flags, launchers) were read by eye. Names only; no code of another project stands here.
"""

from __future__ import annotations

import ast
import csv
import sys
from pathlib import Path

INTEROP = Path(__file__).parents[2] / "tests" / "interop"
sys.path.insert(0, str(INTEROP))
TABLE = INTEROP / "known_names.csv"
# Framework, distribution as unpacked, which files of it, and its version.
COPIES = (
    ("megatron", "megatron_core", "**/*config*.py", "megatron-core 0.16.1"),
    ("megatron-bridge", "megatron_bridge", "**/training/**/*.py", "megatron-bridge 0.3.1"),
    ("megatron-bridge", "megatron_bridge", "**/models/**/*.py", "megatron-bridge 0.3.1"),
    ("megatron-bridge", "megatron_core", "**/*config*.py", "megatron-core 0.16.1"),
    ("torchtitan", "torchtitan", "**/*.py", "torchtitan 0.3.0"),
    ("deepspeed", "deepspeed-0.19.8", "deepspeed/**/*.py", "deepspeed 0.19.8"),
    ("accelerate", "accelerate", "**/*.py", "accelerate 1.15.0"),
    ("axolotl", "axolotl", "**/schemas/**/*.py", "axolotl 0.19.0"),
)


def names_of(path: Path) -> dict[str, int]:
    """Return the fields of classes, the constants and the keys that a file names, with their lines."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, node.lineno)
        elif isinstance(node, ast.arg):
            found.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.setdefault(node.value, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            found.setdefault(node.value[2:].replace("-", "_"), node.lineno)
    return found


def main() -> int:
    """Write the table; return 1 if a name that we list is in no copy."""
    from listed_names import LISTED

    folder = Path(sys.argv[1])
    rows = {(row["framework"], row["name"]): row for row in csv.DictReader(TABLE.open(newline=""))}
    for framework, distribution, pattern, source in COPIES:
        wanted = {name for name in LISTED[framework]() if (framework, name) not in rows}
        for path in sorted((folder / distribution).glob(pattern)):
            there = names_of(path)
            for name in sorted(wanted):
                if (line := there.get(name.replace("-", "_"))) is not None:
                    place = f"{path.relative_to(folder / distribution)}:{line}"
                    rows[framework, name] = {
                        "framework": framework,
                        "name": name,
                        "source": source,
                        "place": place,
                    }
                    wanted.discard(name)
    listed = {(framework, name) for framework, names in LISTED.items() for name in names()}
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["framework", "name", "source", "place"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows.keys() & listed))
    for key in sorted(listed - rows.keys()):
        print(": ".join(key))
    return int(bool(listed - rows.keys()))


if __name__ == "__main__":
    sys.exit(main())
