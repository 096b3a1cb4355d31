"""What draws each kind of answer: ``faces.csv``, functions as ``module:name`` inside `costmodel.reporting`.

Each is imported when it is called: a table of an estimate needs no matplotlib, and none of planning.
"""

from __future__ import annotations

import csv
from pathlib import Path

from costmodel.base.answer import Drawing


def _read() -> dict[str, Drawing]:
    with Path(__file__).with_name("faces.csv").open(encoding="utf-8", newline="") as table:
        return {
            row["answer"]: Drawing(
                grids=row["grids"],
                remarks=row["remarks"],
                figures=dict(figure.split("=") for figure in row["figures"].split()),
                summary=row["summary"],
            )
            for row in csv.DictReader(table)
        }


DRAWINGS = _read()
"""By the name of the answer's class."""
