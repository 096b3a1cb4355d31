"""What the package says of itself: name, licence, extras, and the hints that install them."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from costmodel.base import version

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "costmodel"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _called_extras() -> set[str]:
    """Return the literal arguments of every call of `install_command` in the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "install_command":
                found.add(ast.literal_eval(node.args[0]))
    return found


def test_every_hint_names_an_extra_that_exists():
    called = _called_extras()
    assert {"plot", "mcp", "measure"} <= called
    assert called <= set(PROJECT["optional-dependencies"])


def test_no_hint_is_spelled_by_hand():
    spelled = [
        path.relative_to(ROOT)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"pip install|costmodel\[", path.read_text(encoding="utf-8"))
        and path != Path(version.__file__)
    ]
    assert spelled == []


def test_a_hint_of_an_installed_package_names_the_distribution(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "__file__", str(tmp_path / "costmodel" / "base" / "version.py"))
    assert version.install_command("plot") == f"{sys.executable} -m pip install 'llm-costmodel[plot]'"


def test_the_distribution_has_the_name_of_the_constant_and_one_version():
    assert PROJECT["name"] == version.DISTRIBUTION
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version.__version__)
