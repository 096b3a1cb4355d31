"""What somebody expects of a job, such as ``mfu > 0.4``, held against its answer: for CI of training configurations."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from costmodel.base.errors import CostModelError, UnitError, choices_hint, shown
from costmodel.base.units import format_bytes, format_seconds, parse_number, read_quantity
from costmodel.estimates.estimate import Estimate
from costmodel.whole_run.run import TrainingRun

_WAYS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPECTATION = re.compile(r"\s*([A-Za-z_0-9]+)\s*(<=|>=|<|>)\s*(\S.*?)\s*")


class Figure(NamedTuple):
    """A figure that can be expected: what its numbers are, and where an answer has it."""

    kind: str
    """``s`` or ``B``, a quantity with that unit; ``share``, a number or per cent; ``number``, any."""
    of: Callable[[Any], float | None]


def _step(name: str) -> Callable[[Estimate], float]:
    return lambda est: float(getattr(est, name))


_OF_A_STEP: Mapping[str, Figure] = {
    "step_time": Figure("s", _step("step_time_s")),
    "mfu": Figure("share", _step("mfu")),
    "mfu_causal": Figure("share", _step("mfu_causal")),
    "hfu": Figure("share", _step("hfu")),
    "tokens_per_s_per_gpu": Figure("number", _step("tokens_per_s_per_gpu")),
    "model_tflops_per_gpu": Figure("number", _step("model_tflops_per_gpu")),
    "memory": Figure("B", _step("memory_bytes_per_gpu")),
    "memory_left": Figure("B", lambda est: float(est.memory_capacity_bytes - est.memory_bytes_per_gpu)),
    "host_memory": Figure("B", _step("host_memory_bytes")),
    "gpus": Figure("number", lambda est: float(est.job.layout.gpus)),
}


def _run(name: str) -> Callable[[TrainingRun], float | None]:
    return lambda run: getattr(run, name)


def _percentile(name: str, percent: float) -> Callable[[TrainingRun], float | None]:
    def found(run: TrainingRun) -> float | None:
        spread = run.spread(percent)
        return float(spread[name][0]) if name in spread else None

    return found


_SPREAD = ("days", "gpu_hours", "dollars", "energy_kwh")
_OF_A_RUN: Mapping[str, Figure] = {
    **{name: Figure("number", _run(name)) for name in _SPREAD},
    **{
        f"{name}_p{percent}": Figure("number", _percentile(name, percent))
        for name in _SPREAD
        for percent in (10, 50, 90)
    },
}


class Expected(NamedTuple):
    """One expectation: a figure, a comparison and a bound, in the words that it was given in."""

    name: str
    way: str
    bound: float
    text: str

    @property
    def figure(self) -> Figure:
        """The figure that it is about."""
        return {**_OF_A_STEP, **_OF_A_RUN}[self.name]


class Outcome(NamedTuple):
    """An expectation and what the answer has."""

    expected: Expected
    value: float

    @property
    def holds(self) -> bool:
        """Whether it is as expected."""
        return _WAYS[self.expected.way](self.value, self.expected.bound)

    @property
    def sentence(self) -> str:
        """What was expected and what was found."""
        word = "as expected" if self.holds else "expected"
        return f"{word} {self.expected.text}: it is {_said(self.expected.figure.kind, self.value)}"


def read_expected(text: str, *, whole_run: bool = False) -> list[Expected]:
    """Read expectations, with commas between them.

    Parameters
    ----------
    text : str
        Such as ``step_time < 7 s, mfu > 40%, memory < 75 GiB``.
    whole_run : bool
        Whether those of a whole run are known too, such as ``dollars_p90 < 3M``.

    Raises
    ------
    CostModelError
        If a figure is unknown, or a bound cannot be read.

    Examples
    --------
    >>> [(one.name, one.way, one.bound) for one in read_expected("step_time<7s, mfu >= 40%")]
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
        name, way, bound = match.groups()
        if name not in known:
            if name in _OF_A_RUN:
                raise CostModelError(f"expect: {name} is a figure of a whole run; ask costmodel run")
            raise CostModelError(f"expect: {shown(name)} is no figure; {choices_hint(name, known)}")
        found.append(Expected(name, way, _bound(name, known[name].kind, bound), f"{name} {way} {bound}"))
    return found


_LONGEST = 200


def _bound(name: str, kind: str, text: str) -> float:
    """Read a bound: a quantity with its unit, per cent, or a number.

    Raises
    ------
    CostModelError
        If it cannot be read.
    """
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


def _said(kind: str, value: float) -> str:
    """Write a figure as people read it."""
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
    for one in read_expected(text, whole_run=run is not None):
        value = one.figure.of(run if one.name in _OF_A_RUN else est)
        if value is None:
            raise CostModelError(f"expect: {one.name} needs a price; give --price")
        outcomes.append(Outcome(one, float(value)))
    return outcomes
