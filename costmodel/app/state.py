"""The state of the page as the query of its address, the only place where it is kept."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode

from costmodel.app.texts import SEARCH_FIELDS, WHOLE_RUN_FIELDS, Texts, known_fields
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.job import expand_layout
from costmodel.reporting import renderers as reporting

VIEWS = {
    "overview": "Overview",
    "bill": "Time",
    "memory": "Memory",
    "sure": "How sure",
    "figures": "Figures",
    "plan": "Plan",
    "run": "Whole run",
    "compare": "Compare",
    "export": "Export",
}
"""Views of the page, with titles."""
FIGURES = {
    row["figure"].replace("_", "-"): row["title"] for row in reporting.FIGURES if row["answer"] == "Estimate"
}
"""Figures of a job, with titles."""

_SECOND, _SEARCH, _RUN, _MODEL = "b.", "plan.", "run.", "model_file"
_BATCHES = "batches"
_LONGEST_MODEL = 100_000
"""Upper limit of a model unpacked from a link, in characters."""


@dataclass(frozen=True)
class State:
    """Two jobs, the inputs of a plan and of a whole run, the view and its open line."""

    jobs: tuple[Texts, Texts] = field(default_factory=lambda: (Texts(), Texts()))
    search: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    view: str = "overview"
    figure: str = "time"
    second: bool = False
    line: str = ""

    @property
    def job(self) -> Texts:
        """The job that is shown."""
        return self.jobs[self.second]

    def with_job(self, job: Texts) -> State:
        """Return the state with the shown job replaced."""
        return replace(self, jobs=(self.jobs[0], job) if self.second else (job, self.jobs[1]))


FIRST = "model=llama3-8b&cluster=dgx-h100-ndr&gpus=8&cp=2&pp=2&global_batch=64&seq_len=8k"
"""State of an address without a query."""


def query_of(state: State) -> str:
    """Return a state as the query of an address, without the question mark.

    >>> query_of(State(jobs=(Texts({"gpus": "64"}), Texts({"gpus": "8"})), search={"tp": "2,4"}, view="plan"))
    'gpus=64&b.gpus=8&plan.tp=2%2C4&view=plan'
    """
    pairs: list[tuple[str, str]] = []
    for prefix, job in zip(("", _SECOND), state.jobs, strict=True):
        pairs += [(f"{prefix}{name}", text) for name, text in job.named().items()]
        if job.model:
            pairs.append((f"{prefix}{_MODEL}", _packed(job.model)))
        pairs += [(f"{prefix}{_BATCHES}", job.batches)] if job.batches else []
    for prefix, texts in ((_SEARCH, state.search), (_RUN, state.run)):
        pairs += [(f"{prefix}{name}", text.strip()) for name, text in texts.items() if text.strip()]
    looked_at = {"view": state.view, "figure": state.figure, "line": state.line}
    first = {"view": "overview", "figure": "time", "line": ""}
    pairs += [(name, text) for name, text in looked_at.items() if text != first[name]]
    return urlencode([*pairs, *([("job", "b")] if state.second else [])])


def state_of(query: str) -> State:
    """Return the state of a query; that of `FIRST` for an empty one."""
    pairs = dict(parse_qsl(query or FIRST, keep_blank_values=True))
    own = {name: pairs.pop(name, "") for name in ("view", "figure", "line", "job")}
    for name, known in (("view", VIEWS), ("figure", FIGURES), ("job", ("a", "b"))):
        if own[name] and own[name] not in known:
            raise CostModelError(f"link: {name}={own[name]!r} is unknown; {choices_hint(own[name], known)}")
    parts: dict[str, dict[str, str]] = {"": {}, _SECOND: {}, _SEARCH: {}, _RUN: {}}
    for name, text in pairs.items():
        prefix = next((prefix for prefix in (_SECOND, _SEARCH, _RUN) if name.startswith(prefix)), "")
        parts[prefix][name.removeprefix(prefix)] = text
    models = [_unpacked(parts[prefix].pop(_MODEL, "")) for prefix in ("", _SECOND)]
    batches = [parts[prefix].pop(_BATCHES, "") for prefix in ("", _SECOND)]
    first, second = (
        Texts(_by_degree(known_fields(parts[prefix], JOB_FIELDS)), model, grows)
        for prefix, model, grows in zip(("", _SECOND), models, batches, strict=True)
    )
    return State(
        jobs=(first, second),
        search=known_fields(parts[_SEARCH], SEARCH_FIELDS),
        run=known_fields(parts[_RUN], WHOLE_RUN_FIELDS),
        view=own["view"] or "overview",
        figure=own["figure"] or "time",
        second=own["job"] == "b",
        line=own["line"],
    )


def _by_degree(texts: dict[str, str]) -> dict[str, str]:
    """Replace the layout text by its degrees, which the form has inputs for.

    A text that is invalid or contradicts a degree stays, so that the answer shows its error.

    >>> _by_degree({"layout": "tp8 pp4", "gpus": "64"}), _by_degree({"layout": "tp8", "tp": "4"})
    ({'gpus': '64', 'tp': '8', 'pp': '4'}, {'layout': 'tp8', 'tp': '4'})
    """
    try:
        return {name: str(value) for name, value in expand_layout(texts).items()}
    except CostModelError:
        return texts


def _packed(text: str) -> str:
    """Return a text in few characters that an address may hold."""
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def _unpacked(packed: str) -> str:
    """Return what `_packed` was given."""
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        reader = zlib.decompressobj()
        text = reader.decompress(raw, _LONGEST_MODEL).decode()
        if packed and not reader.eof:
            raise ValueError("cut, or longer than any model")
    except (zlib.error, ValueError):
        raise CostModelError(f"link: {_MODEL}: is cut or changed; copy the whole address") from None
    return text
