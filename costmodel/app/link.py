"""The whole state of the page as the query of an address: what a link restores, and nothing else is kept anywhere."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode

from costmodel.app.asked import SEARCH_FIELDS, WHOLE_RUN_FIELDS, Texts, known_fields
from costmodel.app.limits import LIMITS, LimitError
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.describe.jobs.fields import JOB_FIELDS
from costmodel.describe.jobs.job import spelled_out

VIEWS = ("bill", "memory", "sure", "figures", "plan", "run", "compare", "export")
FIGURES = ("time", "memory", "pipeline", "compute-roofline", "communication-roofline", "mesh", "tornado")

_SECOND, _SEARCH, _RUN, _MODEL = "b.", "plan.", "run.", "model_file"
_MOST_MODEL = 100_000
_MOST_PARTS = 400


@dataclass(frozen=True)
class State:
    """What somebody looks at.

    Attributes
    ----------
    jobs : tuple of Texts
        The job, and the one it is compared with.
    search : mapping
        Texts by name of what a plan is told beside the job.
    run : mapping
        Texts by name of what a whole run is told beside the job.
    view, figure : str
        One of `VIEWS`, and of `FIGURES`.
    second : bool
        Whether the second job is the one that is looked at.
    line : str
        The line of the bill that is open, empty for none.
    """

    jobs: tuple[Texts, Texts] = field(default_factory=lambda: (Texts(), Texts()))
    search: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    view: str = VIEWS[0]
    figure: str = FIGURES[0]
    second: bool = False
    line: str = ""

    @property
    def job(self) -> Texts:
        """The job that is looked at."""
        return self.jobs[self.second]

    def with_job(self, job: Texts) -> State:
        """Return the state with another job in the place of the one that is looked at."""
        return replace(self, jobs=(self.jobs[0], job) if self.second else (job, self.jobs[1]))


FIRST = State(
    jobs=(
        Texts(
            {
                "model": "llama3-8b",
                "cluster": "dgx-h100-ndr",
                "gpus": "8",
                "tp": "4",
                "global_batch": "64",
                "seq_len": "8k",
            }
        ),
        Texts(),
    )
)
"""What the page shows where the address says nothing."""


def query_of(state: State) -> str:
    """Return a state as the query of an address, without the question mark.

    >>> query_of(State(jobs=(Texts({"gpus": "64"}), Texts({"gpus": "8"})), search={"tp": "2,4"}, view="plan"))
    'gpus=64&b.gpus=8&plan.tp=2%2C4&view=plan'
    """
    pairs: list[tuple[str, str]] = []
    for prefix, job in zip(("", _SECOND), state.jobs, strict=True):
        pairs += [(f"{prefix}{name}", text) for name, text in job.said().items()]
        if job.model:
            pairs.append((f"{prefix}{_MODEL}", _packed(job.model)))
    for prefix, beside in ((_SEARCH, state.search), (_RUN, state.run)):
        pairs += [(f"{prefix}{name}", text.strip()) for name, text in beside.items() if text.strip()]
    first = State()
    pairs += [
        (name, getattr(state, name))
        for name in ("view", "figure", "line")
        if getattr(state, name) != getattr(first, name)
    ]
    if state.second:
        pairs.append(("job", "b"))
    return urlencode(pairs)


def state_of(query: str) -> State:
    """Return the state that the query of an address says; `FIRST` for an empty one.

    Raises
    ------
    CostModelError
        If it is too long, or names what there is not.
    """
    if not query:
        return FIRST
    if len(query) > LIMITS.link_characters:
        raise LimitError(f"link: expected at most {LIMITS.link_characters:,} characters, got {len(query):,}")
    try:
        pairs = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARTS))
    except ValueError:
        raise LimitError(f"link: expected at most {_MOST_PARTS} parts") from None
    own = {name: pairs.pop(name, "") for name in ("view", "figure", "line", "job")}
    for name, known in (("view", VIEWS), ("figure", FIGURES), ("job", ("a", "b"))):
        if own[name] and own[name] not in known:
            raise CostModelError(f"link: {name}={own[name]!r} is unknown; {choices_hint(own[name], known)}")
    parts: dict[str, dict[str, str]] = {"": {}, _SECOND: {}, _SEARCH: {}, _RUN: {}}
    for name, text in pairs.items():
        prefix = next((prefix for prefix in (_SECOND, _SEARCH, _RUN) if name.startswith(prefix)), "")
        parts[prefix][name.removeprefix(prefix)] = text
    models = [_unpacked(parts[prefix].pop(_MODEL, "")) for prefix in ("", _SECOND)]
    first, second = (
        Texts(_by_degree(known_fields(parts[prefix], JOB_FIELDS, "link")), model)
        for prefix, model in zip(("", _SECOND), models, strict=True)
    )
    return State(
        jobs=(first, second),
        search=known_fields(parts[_SEARCH], SEARCH_FIELDS, "link"),
        run=known_fields(parts[_RUN], WHOLE_RUN_FIELDS, "link"),
        view=own["view"] or VIEWS[0],
        figure=own["figure"] or FIGURES[0],
        second=own["job"] == "b",
        line=own["line"],
    )


def _by_degree(texts: dict[str, str]) -> dict[str, str]:
    """Put the degrees of a layout's text into their own inputs, since the form has none for the text.

    One that cannot be read, or that differs from a degree beside it, stays as it is: the answer says what is wrong.

    >>> _by_degree({"layout": "tp8 pp4", "gpus": "64"}), _by_degree({"layout": "tp8", "tp": "4"})
    ({'gpus': '64', 'tp': '8', 'pp': '4'}, {'layout': 'tp8', 'tp': '4'})
    """
    try:
        return {name: str(value) for name, value in spelled_out(texts).items()}
    except CostModelError:
        return texts


def _packed(text: str) -> str:
    """Return a text in few characters that an address may hold."""
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def _unpacked(packed: str) -> str:
    """Return what `_packed` was given; what would unpack to more than any model is refused unread."""
    if not packed:
        return ""
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        reader = zlib.decompressobj()
        text = reader.decompress(raw, _MOST_MODEL)
        if reader.unconsumed_tail:
            raise LimitError(f"link: {_MODEL}: expected at most {_MOST_MODEL:,} characters")
        if not reader.eof:
            raise zlib.error("cut")
        return text.decode()
    except (binascii.Error, zlib.error, ValueError) as error:
        if isinstance(error, CostModelError):
            raise
        raise CostModelError(f"link: {_MODEL}: is cut or changed; copy the whole address") from None
