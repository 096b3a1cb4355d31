"""The functions that render each class of answer, by ``renderers.csv``: ``module:name`` inside `costmodel.reporting`.

A module is imported only when its function is called: a table of an estimate needs neither matplotlib nor planning.
"""

from __future__ import annotations

import csv
from pathlib import Path

from costmodel.base.answer import Renderers


def _read() -> dict[str, Renderers]:
    with Path(__file__).with_name("renderers.csv").open(encoding="utf-8", newline="") as table:
        return {
            row["answer"]: Renderers(
                grids=row["grids"],
                remarks=row["remarks"],
                figures=dict(figure.split("=") for figure in row["figures"].split()),
                summary=row["summary"],
            )
            for row in csv.DictReader(table)
        }


RENDERERS = _read()
"""By the name of the answer's class."""
