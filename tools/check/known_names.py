"""Look the names that we list up in copies of the frameworks, and write where each stands.

    PYTHONPATH=. python tools/check/known_names.py FOLDER    # FOLDER holds unpacked wheels, one folder a distribution

Writes tests/interop/known_names.yaml: framework, distribution and file, names. Files of distributions that are not in
FOLDER stay as they are: files of repositories that are no package (Megatron-LM's ``training/arguments.py``, its forks'
flags, launchers) were read by eye. Names only; no code of another project stands here.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

from ruamel.yaml import YAML

INTEROP = Path(__file__).parents[2] / "tests" / "interop"
sys.path.insert(0, str(INTEROP))
TABLE = INTEROP / "known_names.yaml"
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


def names_of(path: Path) -> set[str]:
    """Return the fields of classes, the constants and the keys that a file names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            found.add(node.value[2:].replace("-", "_"))
    return found


def main() -> int:
    """Write the table; return 1 if a name that we list is in no copy."""
    from listed_names import LISTED

    folder = Path(sys.argv[1])
    known = YAML(typ="safe", pure=True).load(TABLE.read_text())
    lines, lost = [*TABLE.read_text().split("\n\n")[0].splitlines(), ""], []
    for framework, listed in LISTED.items():
        files = {file: {*names.split()} & listed() for file, names in known[framework].items()}
        wanted = listed() - set().union(*files.values())
        for _, distribution, pattern, source in (copy for copy in COPIES if copy[0] == framework):
            for path in sorted((folder / distribution).glob(pattern)):
                there = names_of(path)
                if found := {name for name in wanted if name.replace("-", "_") in there}:
                    place = f"{source}: {path.relative_to(folder / distribution)}"
                    files[place] = files.get(place, set()) | found
                    wanted -= found
        lost += [f"{framework}: {name}" for name in sorted(wanted)]
        lines.append(f"{framework}:")
        for file, names in sorted(files.items()):
            indent = "    "
            words = textwrap.wrap(
                " ".join(sorted(names)), 116, initial_indent=indent, subsequent_indent=indent
            )
            lines += [f'  "{file}": >-', *words] if names else []
    TABLE.write_text("\n".join(lines) + "\n")
    print("\n".join(lost))
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
