"""`costmodel.vary`: a job several times with other values of a field or a switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Unpack

from costmodel.base.errors import CostModelError, choices_hint, shown
from costmodel.describe.jobs.fields import JOB_FIELDS, canonical, names
from costmodel.describe.jobs.keywords import JobKeywords
from costmodel.describe.jobs.merge import merge_jobs
from costmodel.describe.jobs.reading import keywords, read
from costmodel.describe.jobs.signature import shows
from costmodel.describe.jobs.switches import HOME, takes_several
from costmodel.estimates.estimate import Estimate, estimate


@shows(JOB_FIELDS)
def vary(values: Sequence[str], **job: Unpack[JobKeywords]) -> dict[str, Estimate]:
    """Price a job with every combination of other values of fields or switches.

    Parameters
    ----------
    values : sequence of str
        ``name=a,b`` each, such as ``"tp=4,8"`` or ``"dp_overlap=none"``.
    **job
        As for `costmodel.estimate`. The data-parallel degree follows from what varies.

    Returns
    -------
    estimates : dict of Estimate
        By label, for `costmodel.compare`; a single combination is preceded by the job as given, under "".

    Raises
    ------
    CostModelError
        If a text is not ``name=values``, or there is no such field or switch.

    Examples
    --------
    >>> job = {"model": "llama3-8b", "gpus": 8, "global_batch": 16, "seq_len": 4096}
    >>> list(vary(["tp=2,4", "dp_overlap=none"], **job))
    ['tp=2 dp_overlap=none', 'tp=4 dp_overlap=none']
    """
    given = keywords(job, JOB_FIELDS, who="vary")
    return {label: estimate(**asked) for label, asked in varied_jobs(given, values)}


def varied_jobs(job: Mapping[str, Any], vary: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return labels and keywords of the job with every combination of the values to vary.

    A single combination is preceded by the job as given. The data-parallel degree follows from what
    varies.

    Raises
    ------
    CostModelError
        If a text is not ``name=values``, or there is no such field or switch.

    Examples
    --------
    >>> [label for label, _ in varied_jobs({"tp": 2}, ["tp=4,8", "dp_overlap=none"])]
    ['tp=4 dp_overlap=none', 'tp=8 dp_overlap=none']
    """
    choices = [_read(text) for text in vary]
    changes = [dict(values) for values in product(*choices)] if choices else []
    found = [("", dict(job))] if len(changes) < 2 else []
    for change in changes:
        fields: dict[str, Any] = {"dp": None}
        switches = {}
        for (name, is_switch), value in change.items():
            if is_switch:
                switches[name] = value
            else:
                fields[name] = value
        label = " ".join(f"{name}={_label(value)}" for (name, _), value in change.items())
        below = {key: value for key, value in job.items() if key != "dp" or len(switches) == len(change)}
        found.append((label, merge_jobs(below, {**fields, "switches": switches or None})))
    return found


def _label(value: Any) -> str:
    return (
        "+".join(value)
        if isinstance(value, list)
        else " ".join(value)
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _read(text: str) -> list[tuple[tuple[str, bool], Any]]:
    """Read one ``name=a,b`` as pairs of (name, whether it is a switch) and value."""
    name, equals, values = text.partition("=")
    name = canonical(name.strip().replace("-", "_"))
    if not equals or not values:
        raise CostModelError(f"vary: expected name=values, such as tp=4,8; got {shown(text)}")
    fields = {*names(JOB_FIELDS)} - {"switches", "dp"}
    switches = set(HOME)
    if name not in fields | switches:
        raise CostModelError(
            f"vary: {shown(name)} is no field or switch; {choices_hint(name, fields | switches)}"
        )
    parts = [part.strip() for part in values.split(",") if part.strip()]
    if name in switches:
        return [((name, True), part.split("+") if takes_several(name) else part) for part in parts]
    return [((name, False), read(name, part)) for part in parts]
