"""Files that somebody drops on the page: read by the readers of `costmodel.interop`, from their text alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from costmodel.app.asked import Texts, texts_of
from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.fields import FIELD
from costmodel.describe.jobs.job import spelled_out
from costmodel.describe.models.model import Model, make_model, same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.interop.answer import model_yaml
from costmodel.interop.reading import kind_of, read_file
from costmodel.interop.text_file import TextFile, decoded, shown

_NO_NAME = "file"
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Upload:
    """What was read of a file.

    Attributes
    ----------
    job : Texts
        The fields that it says, and its model where that is no preset.
    kind : str
        What the file was taken for.
    remarks : tuple of str
        What was not understood, and what the file cannot say.
    """

    job: Texts
    kind: str
    remarks: tuple[str, ...] = ()


def read_upload(name: str, content: bytes) -> Upload:
    """Read a job, a launch script, a configuration or a model.

    Parameters
    ----------
    name : str
        As the browser says it; only its last part is used, for messages and the ending.
    content : bytes
        The file.

    Raises
    ------
    CostModelError
        One line: it is no text, of no known kind, or wrong.
    """
    called = shown(PurePath(name.replace("\\", "/")).name, most=_LONGEST_NAME) or _NO_NAME
    if not content.strip():
        raise CostModelError(f"{called}: is empty")
    file = TextFile(decoded(content, called), called)
    kind = kind_of(file)
    if kind == "job" and (model := _own_model(file)) is not None:
        return Upload(_of_model(model), "model")
    found = read_file(file, kind)
    if found.unpriced:
        raise CostModelError(f"{called}: the model cannot be priced: {found.unpriced}")
    if found.sweeps and not found.job:
        raise CostModelError(f"{called}: holds measurements, not a job; costmodel calibrate reads them")
    job = spelled_out({key: value for key, value in found.job.items() if key in FIELD and value is not None})
    model = job.pop("model", None)
    own = _of_model(model) if isinstance(model, Model) else Texts(texts_of({"model": model}))
    missing = (f"The file does not say: {', '.join(found.missing)}.",) if found.missing else ()
    return Upload(
        Texts({**texts_of(job), **own.fields}, own.model),
        found.kind,
        (*found.notes, *found.remarks, *missing),
    )


def _of_model(model: Model) -> Texts:
    """Return a model by name where a preset of that name is the same, by its file where not."""
    try:
        if same_shape(load_model(model.name), model):
            return Texts({"model": model.name})
    except CostModelError:
        pass
    return Texts({}, model_yaml(model))


def _own_model(file: TextFile) -> Model | None:
    """Return the model of a model file of ours, none where the file is something else."""
    raw = parse_mapping(file.text, file.name, example="model: llama3-8b")
    if "num_layers" not in raw:
        return None
    return make_model({"name": PurePath(file.name).stem, **raw}, file.name)
