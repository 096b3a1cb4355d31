"""The functions that render each class of answer: its tables by ``renderers.csv``, its figures by ``figures.csv``.

Functions are named as ``module:name`` inside `costmodel.reporting`; a module is imported only when its function is called: a
table of an estimate needs neither matplotlib nor planning.
"""

from __future__ import annotations

from pathlib import Path

from costmodel.base.answer import Renderers
from costmodel.base.csv_text import read_rows

FIGURES = read_rows(Path(__file__).with_name("figures.csv"))
"""Of each answer; of an estimate with a title, and the degree that has to be above one for a job to have it."""
RENDERERS = {
    row["answer"]: Renderers(
        grids=row["grids"],
        remarks=row["remarks"],
        figures={each["figure"]: each["function"] for each in FIGURES if each["answer"] == row["answer"]},
        summary=row["summary"],
    )
    for row in read_rows(Path(__file__).with_name("renderers.csv"))
}
"""By the name of the answer's class."""
