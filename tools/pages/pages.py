"""The pages of the documentation, and the blocks in them that the program writes.

A block stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``, on whichever page it is wanted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"


def pages() -> list[Path]:
    """Return README.md and all pages of docs/."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def read_pages() -> dict[Path, str]:
    """Return the text of every page."""
    return {page: page.read_text(encoding="utf-8") for page in pages()}


def fill(texts: Mapping[Path, str], blocks: Mapping[str, str]) -> dict[Path, str]:
    """Put each block between its markers, on every page that has them.

    Raises
    ------
    SystemExit
        Where no page has a place for a block.
    """
    filled = dict(texts)
    for name, block in blocks.items():
        between = re.compile(rf"(<!-- {name}:begin -->).*?(<!-- {name}:end -->)", re.DOTALL)
        holding = [page for page, text in filled.items() if between.search(text)]
        if not holding:
            raise SystemExit(f"no page has a place for the block {name!r}")
        for page in holding:
            filled[page] = between.sub(lambda m, block=block: f"{m[1]}\n{block}\n{m[2]}", filled[page])
    return filled


def settle(texts: Mapping[Path, str]) -> int:
    """Write pages that changed; with ``--check`` name them instead, and return 1 if there are any."""
    stale = [page for page, text in texts.items() if not page.exists() or page.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is out of date; run {sys.argv[0]}", file=sys.stderr)
        return int(bool(stale))
    for page in stale:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(texts[page], encoding="utf-8")
    return 0
