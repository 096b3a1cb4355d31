"""The flags that describe a job, made from the table of fields, for every command that takes them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from costmodel.cli import options as opt
from costmodel.describe.jobs.field import Field
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS

OUTPUT_FLAGS = ("format", "out", "csv", "force", "quiet")
_Command = Callable[..., None]


def _output(
    format: opt.FormatOption = None,
    out: opt.OutOption = "",
    csv: opt.CsvOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Hold the flags of the output."""


def _beside(
    stragglers: opt.StragglersOption = None,
    profiles: opt.ProfilesOption = None,
    kind: opt.FromOption = None,
    vocab_size: opt.VocabSizeOption = None,
    env: opt.EnvOption = None,
) -> None:
    """Hold the flags of a job that are no fields."""


def _job_file(job: opt.JobArgument = "") -> None:
    """Hold the argument that names a job file."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their annotations resolved, all as keywords."""
    kinds = typing.get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=kinds[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in found]


@cache
def _flag(field: Field, several: bool) -> inspect.Parameter:
    """Return the parameter of a field's flag; values are read later, by the field's one reader."""
    kind: Any = str | None
    if field.kind in ("switches", "choices") or (several and opt.takes_several(field)):
        kind = list[str] | None
    elif field.kind == "truth" and not (several and opt.takes_several(field)):
        kind = bool | None
    option = opt.option(field.name, several=several)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _joined(name: str, value: Any, several: bool) -> Any:
    """Return what a flag was given that may be repeated or hold several values: one text, or the texts of orders."""
    field = FIELD.get(name)
    if not (several and field is not None and opt.takes_several(field) and isinstance(value, list)):
        return value
    if len(value) < 2:
        return value[0] if value else None
    return value if field.kind == "order" else ",".join(value)


def _job_parameters(fields: Sequence[Field], several: bool, job_file: bool) -> list[inspect.Parameter]:
    """Return the parameters of a job: its file, the flags of its fields, and those beside them."""
    if not fields:
        return []
    beside = _parameters(_beside)
    if not any(field.name == "switches" for field in fields):
        beside = [parameter for parameter in beside if parameter.name != "stragglers"]
    file = _parameters(_job_file) if job_file else []
    return [*file, *(_flag(field, several) for field in fields), *beside]


def takes_job(
    fields: Iterable[Field] = JOB_FIELDS,
    *,
    several: bool = False,
    job_file: bool = True,
    output: Sequence[str] = OUTPUT_FLAGS,
) -> Callable[[_Command], _Command]:
    """Give a command the flags of a job (its parameter `given`) and those of a result (`output`).

    Parameters
    ----------
    fields : iterable of Field
        Those that the command takes; without any it takes no job, and has no `given`.
    several : bool
        Whether a flag may name several values where a search takes them.
    job_file : bool
        Whether fields may come from a job file as well.
    output : sequence of str
        Which of `OUTPUT_FLAGS` it takes; those it has no parameter for are not handed on.

    Notes
    -----
    A parameter of the command's own replaces one of the same name.
    """
    taken = tuple(fields)

    def decorate(command: _Command) -> _Command:
        own = [p for p in _parameters(command) if p.name not in ("given", "output")]
        replaced = {p.name for p in own}
        job = [p for p in _job_parameters(taken, several, job_file) if p.name not in replaced]
        rest = [p for p in _parameters(_output) if p.name in output and p.name not in replaced]
        hands_job = "given" in inspect.signature(command).parameters
        hands_output = "output" in inspect.signature(command).parameters

        def run(**values: Any) -> None:
            keywords = {p.name: values[p.name] for p in own}
            if hands_job:
                keywords["given"] = {p.name: _joined(p.name, values[p.name], several) for p in job}
            if hands_output:
                keywords["output"] = {p.name: values[p.name] for p in rest}
            command(**keywords)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        parameters = [*job, *own, *rest]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def takes_output(*names: str) -> Callable[[_Command], _Command]:
    """Give a command the flags of a result (its parameter `output`): those named, or all."""
    return takes_job((), output=names or OUTPUT_FLAGS)


def merged_job(
    given: Mapping[str, Any], file: str | None = None, *, complete: bool = True, several: bool = False
) -> dict[str, Any]:
    """Lay the flags over the job file and return the keywords of `costmodel.estimate`.

    Parameters
    ----------
    given : mapping
        The flags, as a command gets them.
    file : str, optional
        Job file instead of the one among the flags.
    complete : bool
        Refuse a job that lacks something without a default.
    several : bool
        Leave flags that may name several values to those who search over them.

    Raises
    ------
    CostModelError
        If a value cannot be read, or something without a default is missing.
    """
    from costmodel.cli.read_input import job_of_file
    from costmodel.describe.jobs.fields import FIELD
    from costmodel.describe.jobs.merge import merge_jobs, with_stragglers
    from costmodel.describe.jobs.reading import read, require_complete

    path = given.get("job", "") if file is None else file
    flags = {
        name: value if several and opt.takes_several(FIELD[name]) else read(name, value)
        for name, value in given.items()
        if name in FIELD and value is not None
    }
    switches = with_stragglers(flags.get("switches"), given.get("stragglers"))
    merged = merge_jobs(job_of_file(path, given) if path else {}, {**flags, "switches": switches})
    if complete:
        require_complete(merged)
    return _with_profiles(merged, given.get("profiles"))


def _with_profiles(merged: dict[str, Any], profiles: Any) -> dict[str, Any]:
    """Return a job whose clusters are looked up in the user's folders too."""
    if not profiles:
        return merged
    import costmodel as cm
    from costmodel.describe.jobs.fields import FIELD
    from costmodel.describe.jobs.reading import read_several

    names = read_several("cluster", merged.get("cluster", FIELD["cluster"].default))
    found = [cm.load_cluster(name, profile_path=profiles) for name in names]
    return {**merged, "cluster": found[0] if len(found) == 1 else found}


def short_names(files: list[str]) -> list[str]:
    """Return the names of files without folder and ending where that tells them apart; a file's second is numbered.

    >>> short_names(["x/a.yaml", "b.yaml"]), short_names(["a.yaml", "a.yaml"])
    (['a', 'b'], ['a.yaml', 'a.yaml (2)'])
    """
    from pathlib import Path

    stems = [Path(file).stem for file in files]
    if len(set(stems)) == len(stems):
        return stems
    return [
        file if (before := files[:index].count(file)) == 0 else f"{file} ({before + 1})"
        for index, file in enumerate(files)
    ]
