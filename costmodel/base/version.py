"""Version and distribution name, where every part of the package may read them."""

import shlex
import sys
from pathlib import Path

__version__ = "0.1.0"
DISTRIBUTION = "llm-costmodel"  # What `pip` calls the package; the import and the command are ``costmodel``


def install_command(extra: str) -> str:
    """Return the command that adds an optional extra to where this package runs; in a checkout it names the checkout."""
    checkout = Path(__file__).resolve().parents[2]
    here = (checkout / "pyproject.toml").is_file()
    target = f"-e '{checkout}[{extra}]'" if here else f"'{DISTRIBUTION}[{extra}]'"
    return f"{shlex.quote(sys.executable or 'python')} -m pip install {target}"
