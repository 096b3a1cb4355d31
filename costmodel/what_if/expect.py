"""Expectations of a job, such as ``mfu > 0.4``, checked against its answer, for CI of training configurations."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from costmodel.base.errors import CostModelError, UnitError, choices_hint, shown
from costmodel.base.units import format_bytes, format_seconds, parse_number, read_quantity
from costmodel.bill.lines import CATEGORIES, COMMUNICATING
from costmodel.estimates.estimate import Estimate
from costmodel.whole_run.run import TrainingRun

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPECTATION = re.compile(r"\s*([A-Za-z_0-9]+)\s*(<=|>=|<|>)\s*(\S.*?)\s*")
_LONGEST = 200

_HIDDEN = {"hidden": "all", **{f"{axis}_hidden": axis for axis in COMMUNICATING}}
"""Shares of communication that run beside compute: of all of it, and of an axis."""
_OF_A_STEP = {
    **dict.fromkeys(("mfu", "mfu_causal", "hfu", "fits_probability", *CATEGORIES, *_HIDDEN), "share"),
    **dict.fromkeys(("tokens_per_s_per_gpu", "model_tflops_per_gpu", "gpus"), "number"),
    **dict.fromkeys(("memory", "memory_left", "host_memory"), "B"),
    "step_time": "s",
}
"""Figures that can be expected of a step, and what their bounds are: a quantity with the unit ``s`` or ``B``, a number
or per cent (``share``), or any number."""
_OF_A_RUN = {
    f"{name}{percent}": "number"
    for name in ("days", "gpu_hours", "dollars", "energy_kwh")
    for percent in ("", "_p10", "_p50", "_p90")
}
"""The same of a whole run, all of them numbers."""
_ATTRIBUTES = {
    "step_time": "step_time_s",
    "memory": "memory_bytes_per_gpu",
    "host_memory": "host_memory_bytes",
}


def _value(name: str, est: Estimate, run: TrainingRun | None) -> float | None:
    """Return a figure of a step, or of a whole run or a percentile of it; none of dollars without a price."""
    if run is not None and name in _OF_A_RUN:
        figure, _, percent = name.partition("_p")
        spread = run.spread(float(percent)) if percent else {}
        of_run: float | None = getattr(run, figure) if not percent else spread.get(figure, [None])[0]
        return of_run
    if name == "memory_left":
        return float(est.memory_capacity_bytes - est.memory_bytes_per_gpu)
    if name == "gpus":
        return float(est.job.layout.gpus)
    if name in CATEGORIES:
        return float(est.exposed_by("category").get(name, 0.0) / est.step_time_s)
    if name in _HIDDEN:
        # An axis that sends nothing has nothing exposed.
        return float(est.hidden_by_axis().get(_HIDDEN[name], 1.0))
    return float(getattr(est, _ATTRIBUTES.get(name, name)))


class Expected(NamedTuple):
    """One expectation: a figure, a comparison and a bound, in the words that it was given in."""

    name: str
    comparison: str
    bound: float
    text: str


class Outcome(NamedTuple):
    """An expectation and the value of the answer."""

    expected: Expected
    value: float

    @property
    def holds(self) -> bool:
        """Whether it is as expected."""
        return _COMPARISONS[self.expected.comparison](self.value, self.expected.bound)

    @property
    def sentence(self) -> str:
        """What was expected and what was found."""
        word = "as expected" if self.holds else "expected"
        kind = {**_OF_A_STEP, **_OF_A_RUN}[self.expected.name]
        return f"{word} {self.expected.text}: it is {_figure_text(kind, self.value)}"


def read_expected(text: str, *, whole_run: bool = False) -> list[Expected]:
    """Read expectations with commas between them, such as ``step_time < 7 s, mfu > 40%, memory < 75 GiB``.

    With `whole_run` those of a whole run are known too, such as ``dollars_p90 < 3M``.

    Raises
    ------
    CostModelError
        If a figure is unknown, or a bound cannot be read.

    Examples
    --------
    >>> [(one.name, one.comparison, one.bound) for one in read_expected("step_time<7s, mfu >= 40%")]
    [('step_time', '<', 7.0), ('mfu', '>=', 0.4)]
    """
    known = {**_OF_A_STEP, **(_OF_A_RUN if whole_run else {})}
    found = []
    for part in text.split(","):
        match = _EXPECTATION.fullmatch(part) if len(part) <= _LONGEST else None
        if match is None:
            raise CostModelError(
                f"expect: expected a figure, one of < <= > >= and a bound, such as 'mfu > 0.4'; got {shown(part)}"
            )
        name, comparison, bound = match.groups()
        if name not in known:
            if name in _OF_A_RUN:
                raise CostModelError(f"expect: {name} is a figure of a whole run; ask costmodel run")
            raise CostModelError(f"expect: {shown(name)} is no figure; {choices_hint(name, known)}")
        found.append(
            Expected(name, comparison, _bound(name, known[name], bound), f"{name} {comparison} {bound}")
        )
    return found


def _bound(name: str, kind: str, text: str) -> float:
    """Read a bound: a quantity with its unit, per cent, or a number."""
    if kind in ("s", "B"):
        return read_quantity(f"expect: {name}", text, kind)
    per_cent = kind == "share" and text.endswith("%")
    try:
        value = float(parse_number(text.removesuffix("%") if per_cent else text.removeprefix("$"), 1000.0))
    except (UnitError, OverflowError):
        value = math.inf
    if not math.isfinite(value):
        wanted = "a share such as 0.4 or 40%" if kind == "share" else "a number such as 3M"
        raise CostModelError(f"expect: {name}: expected {wanted}, got {shown(text)}") from None
    return value / 100.0 if per_cent else value


def _figure_text(kind: str, value: float) -> str:
    if kind == "s":
        return format_seconds(value, 4)
    if kind == "B":
        return format_bytes(value, 4)
    return f"{value:.1%}" if kind == "share" else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def expect(answer: Estimate | TrainingRun, text: str) -> list[Outcome]:
    """Hold an answer against what is expected of it.

    Parameters
    ----------
    answer : Estimate or TrainingRun
        Of one layout.
    text : str
        Expectations with commas between them: a figure (`read_expected` lists them in its errors), one of
        ``<``, ``<=``, ``>``, ``>=``, and a bound with its unit.

    Returns
    -------
    outcomes : list of Outcome
        One an expectation, each with ``value``, ``holds`` and a ``sentence``.

    Raises
    ------
    CostModelError
        If a figure is unknown, a bound cannot be read, or the answer does not have the figure.

    Examples
    --------
    >>> import costmodel as cm
    >>> est = cm.estimate(model="llama3-8b", gpus=8, layout="tp4", global_batch=8, seq_len=8192)
    >>> [outcome.holds for outcome in cm.expect(est, "mfu > 99%, memory < 80 GiB")]
    [False, True]
    """
    run = answer if isinstance(answer, TrainingRun) else None
    est = run.est if run is not None else answer
    if not isinstance(est, Estimate):
        raise CostModelError(f"expect: expected an estimate or a run, got {shown(answer)}")
    if est.shape:
        raise CostModelError(f"expect: expected one layout, got {est.shape} of them")
    outcomes = []
    for expected in read_expected(text, whole_run=run is not None):
        value = _value(expected.name, est, run)
        if value is None:
            raise CostModelError(f"expect: {expected.name} needs a price; give --price")
        outcomes.append(Outcome(expected, float(value)))
    return outcomes
