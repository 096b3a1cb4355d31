"""The functions that render each class of answer, by ``renderers.csv``: ``module:name`` inside `costmodel.reporting`.

A module is imported only when its function is called: a table of an estimate needs neither matplotlib nor planning.
"""

from __future__ import annotations

from pathlib import Path

from costmodel.base.answer import Renderers
from costmodel.base.csv_text import read_rows

RENDERERS = {
    row["answer"]: Renderers(
        grids=row["grids"],
        remarks=row["remarks"],
        figures=dict(figure.split("=") for figure in row["figures"].split()),
        summary=row["summary"],
    )
    for row in read_rows(Path(__file__).with_name("renderers.csv"))
}
"""By the name of the answer's class."""
