"""Build hook: parses the shipped YAML once; see costmodel/base/yaml_files.py."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileYaml(BuildHookInterface):
    """Fill `costmodel/base/compiled` for a wheel, or in a checkout that is installed editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Parse the files, and let the wheel hold what git ignores."""
        sys.path.insert(0, self.root)
        from costmodel.base.yaml_files import COMPILED, compile_shipped

        compile_shipped(Path(self.root))
        build_data["artifacts"].append(f"{COMPILED.relative_to(self.root).as_posix()}/*.pickle")
