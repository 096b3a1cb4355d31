"""costmodel: what a step of distributed LLM training takes, second by second and byte by byte.

>>> import costmodel as cm
>>> est = cm.estimate(model="llama3-8b", cluster="dgx-h100-ndr", gpus=8, layout="tp2 pp1",
...                   global_batch=128, seq_len=8192)
>>> bool(est.fits), bool(est.step_time_s > 0)
(True, True)
"""

import re
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

# Loaded when first used: `costmodel --help` must not pay for numpy.
_IMPORTS = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_LISTED, _, _UNLISTED = Path(__file__).with_suffix(".pyi").read_text().partition("\n\n")
_HOME = {name: module for module, name in _IMPORTS.findall(f"{_LISTED}\n{_UNLISTED}")}

__all__ = sorted(name for _, name in _IMPORTS.findall(_LISTED))


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOME:
        near = get_close_matches(name, __all__, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise AttributeError(f"module 'costmodel' has no attribute {name!r}{hint}")
    home = import_module(_HOME[name])
    # A name that its home has not loaded is a module of it.
    value = getattr(home, name) if hasattr(home, name) else import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
