"""A job as texts by field, as forms, links and assistants give it: read as the command line reads its flags.

Nothing here knows a name or a range: fields, their readers and their errors are those of `costmodel.describe.jobs`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.fields import (
    FIELD,
    JOB_FIELDS,
    PLAN_FIELDS,
    RUN_FIELDS,
    Field,
    canonical,
    names,
    unknown_field,
)
from costmodel.describe.jobs.job import expand_layout
from costmodel.describe.jobs.merge import merge_jobs
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.short_form import PAIRS, flags_of, number_text
from costmodel.describe.models.model import Model, make_model, same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.interop.answer import JobFile, job_of_file, model_yaml
from costmodel.interop.text_file import TextFile, decoded, shown

MODEL_FILE = "model.yaml"
"""What commands call a model that is no preset; the page gives it out under this name."""

SEARCH_FIELDS = tuple(f for f in PLAN_FIELDS if f.tuned or f.group == "search")
"""What a plan takes besides a job: values to try, and constraints."""

WHOLE_RUN_FIELDS = (FIELD["dollars"], FIELD["days"], *RUN_FIELDS)
"""What a whole run takes besides a job: how far to train where no tokens are named, failures, prices."""

_HELD_BY_JOB = tuple(f.name for f in PLAN_FIELDS if f not in SEARCH_FIELDS)


@dataclass(frozen=True)
class Texts:
    """A job as somebody typed it: texts by field, and what only files say."""

    fields: Mapping[str, str] = field(default_factory=dict)
    model: str = ""  # A model file of ours (YAML) in place of a preset, if not empty
    batches: str = ""  # All batches of one that grows, which a plan's layouts have to run

    def named(self) -> dict[str, str]:
        """Return the fields that have a text, in the order of the table."""
        return {name: text for name in FIELD if (text := self.fields.get(name, "").strip())}


def job_keywords(job: Texts) -> dict[str, Any]:
    """Return the keywords of `costmodel.estimate`."""
    return merge_jobs({}, _with_model(_values(job), job))


def _values(job: Texts) -> dict[str, Any]:
    return {name: _read(name, text) for name, text in job.named().items()}


def plan_keywords(job: Texts, search: Mapping[str, str]) -> dict[str, Any]:
    """Return the keywords of `costmodel.plan`: a job whose layout is free, and what the search takes."""
    above: dict[str, Any] = {}
    for name, text in search.items():
        if text.strip():
            several = FIELD[name].several or FIELD[name].tuned
            above[name] = text.strip() if several else _read(name, text)
    batches = tuple(int(one) for one in job.batches.split(",") if one.isdecimal())
    return {**above, "job": JobFile(job_keywords(job), batches=batches)}


def run_keywords(job: Texts, run: Mapping[str, str]) -> dict[str, Any]:
    """Return the keywords of `costmodel.run`: a job, and what a whole run takes besides."""
    extra = {name: _read(name, text) for name, text in run.items() if text.strip()}
    return merge_jobs({}, {**_with_model(_values(job), job), **extra})


def _with_model(given: Mapping[str, Any], job: Texts) -> dict[str, Any]:
    return {**given, **({"model": model_of(job.model)} if job.model else {})}


def model_of(text: str) -> Model:
    """Return the model that a model file of ours describes."""
    return make_model(
        {"name": "model", **parse_mapping(text, MODEL_FILE, example="num_layers: 32")}, MODEL_FILE
    )


def _read(name: str, text: str) -> Any:
    return read(name, text.split() if FIELD[name].kind in PAIRS else text.strip())


def texts_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a job as texts that read as their values.

    >>> texts_of({"gpus": 64, "switches": {"dp_overlap": "none"}, "sequence_parallel": True})
    {'gpus': '64', 'sequence_parallel': 'true', 'switches': 'dp_overlap=none'}
    """
    return {name: _text(values[name]) for name in names(JOB_FIELDS) if values.get(name) is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list | tuple):
        return (" " if all(item in ("tp", "cp", "pp", "dp") for item in value) else ",").join(
            map(_text, value)
        )
    return str(value)


def known_fields(given: Mapping[str, str], fields: Iterable[Field]) -> dict[str, str]:
    """Return the texts of a link by field, from names or aliases of fields."""
    known, found = tuple(fields), {}
    for key, text in given.items():
        name = canonical(key)
        if name not in names(known):
            raise CostModelError(f"link: {unknown_field(key, known)}")
        found[name] = text
    return found


def field_of(message: str) -> str:
    """Return the field that an error is about, empty where it names none: messages begin with it.

    >>> field_of("gpus: expected a whole number …"), field_of("model 'x' …"), field_of("unknown cluster 'x': …")
    ('gpus', 'model', 'cluster')
    """
    words = re.split(r"[\s:,']+", message)[:2]
    found = (canonical(word) for word in words if word != "unknown")
    return next((name for name in found if name in FIELD), "")


def command(
    name: str,
    job: Texts,
    more: Iterable[str] = (),
    search: Mapping[str, str] | None = None,
    run: Mapping[str, str] | None = None,
) -> str:
    """Return the command line that answers the same: ``costmodel NAME`` with a flag for every text.

    >>> command("estimate", Texts({"gpus": "64", "model": "llama3-8b", "axis_order": "tp cp dp pp"}))
    "costmodel estimate -m llama3-8b -n 64 --axis-order 'tp cp dp pp'"
    """
    texts = job.named()
    if search is not None:
        texts = {key: text for key, text in texts.items() if key in _HELD_BY_JOB}
        texts |= {key: text for key in FIELD if (text := search.get(key, "").strip())}
    texts |= {key: text for key in names(WHOLE_RUN_FIELDS) if (text := (run or {}).get(key, "").strip())}
    if job.model:
        texts = {"model": MODEL_FILE, **{key: text for key, text in texts.items() if key != "model"}}
    words = ["costmodel", name]
    for key, text in texts.items():
        words += flags_of(key, text, is_listed=search is not None)
    return shlex.join([*words, *more])


# --- files that somebody drops, read by the readers of `costmodel.interop` from their text alone ---

_LONGEST_NAME = 80


def text_of(name: str, content: bytes) -> TextFile:
    """Return the text of a file that lies nowhere; of its name only the last part is used, for messages."""
    called = shown(PurePath(name.replace("\\", "/")).name, most=_LONGEST_NAME) or "file"
    if not content.strip():
        raise CostModelError(f"{called}: is empty")
    return TextFile(decoded(content, called), called)


def read_upload(name: str, content: bytes, form: Mapping[str, str] | None = None) -> tuple[Texts, JobFile]:
    """Read a file of any kind from its bytes; return what it says as texts, and as it was read."""
    file = text_of(name, content)
    found, _ = job_of_file(file, {})
    fills = {name: text for name, text in (form or {}).items() if text and name not in found.keywords}
    if fills:
        found, _ = job_of_file(file, fills)
    job = expand_layout(found.keywords)
    model = job.pop("model", None)
    own = _of_model(model) if isinstance(model, Model) else Texts(texts_of({"model": model}))
    return Texts({**texts_of(job), **own.fields}, own.model, ",".join(map(str, found.batches))), found


def _of_model(model: Model) -> Texts:
    """Return a model by name where a preset of that name is the same, by its file where not."""
    try:
        if same_shape(load_model(model.name), model):
            return Texts({"model": model.name})
    except CostModelError:
        pass
    return Texts({}, model_yaml(model))
