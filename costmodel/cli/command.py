"""What every command shares: the flags of a job and of its result, and how a job is merged from a file and flags."""

from __future__ import annotations

import inspect
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import typer

from costmodel.base.errors import CostModelError, shown
from costmodel.cli import options as opt
from costmodel.cli.group import COMMANDS, SHOWN_FLAGS, Group
from costmodel.cli.output import Target
from costmodel.cli.positional import is_file_name, job_and_machine, parted
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LENGTH_FIELDS, Field

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.interop.answer import JobFile

_Command = Callable[..., Any]
OUTPUT_FLAGS = ("format", "out", "csv", "force", "quiet")
DETAILED = (*OUTPUT_FLAGS, "details")
"""Of commands that print twenty lines unless more are asked for."""


def command_group(name: str) -> typer.Typer:
    """Return a group of commands."""
    group = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, help=COMMANDS[name].summary)
    group.callback()(lambda: None)
    return group


def _with_output(
    format: opt.Format | None = opt.FORMAT,
    out: str = opt.OUT,
    csv: str = opt.CSV,
    force: bool = opt.FORCE,
    quiet: bool = opt.QUIET,
    details: bool = opt.DETAILS,
) -> None:
    """Hold the flags of the output."""


def _with_surroundings(
    stragglers: bool | None = opt.STRAGGLERS,
    profiles: list[Path] | None = opt.PROFILES,
    kind: str | None = opt.FROM,
    vocab_size: int | None = opt.VOCAB_SIZE,
    env: list[str] | None = opt.ENV,
    allow_source: list[str] | None = opt.ALLOW_SOURCE,
) -> None:
    """Hold the flags of a job that are no fields."""


def _with_job_file(job: str = opt.JOB_FILE, machine: str = opt.MACHINE) -> None:
    """Hold the arguments that name a job file or a model, and a machine."""


def _with_help(help_all: bool = opt.HELP_ALL) -> None:
    """Hold the flag for the help of all flags."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their annotations resolved, all as keywords."""
    kinds = typing.get_type_hints(function)
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=kinds[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in found]


@cache
def _flag(field: Field, several: bool) -> inspect.Parameter:
    """Return the parameter of a field's flag; values are read later, by the field's one reader."""
    many = several and opt.takes_several(field)
    kind: Any = str | None
    if field.kind in ("switches", "choices", "hardware") or many:
        kind = list[str] | None
    elif field.kind == "truth":
        kind = bool | None
    default = opt.of_field(field.name, several=several)
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _joined(name: str, value: Any, several: bool) -> Any:
    """Return what a flag was given that may be repeated or hold several values: one text, or the texts of orders."""
    field = FIELD.get(name)
    if not (several and field is not None and opt.takes_several(field) and isinstance(value, list)):
        return value
    if len(value) < 2:
        return value[0] if value else None
    return value if field.kind == "order" else ",".join(value)


def command(
    examples: str = "",
    *,
    fields: Iterable[Field] = (),
    several: bool = False,
    job_file: bool = True,
    output: Iterable[str] = OUTPUT_FLAGS,
    group: typer.Typer | None = None,
    name: str = "",
) -> Callable[[_Command], _Command]:
    """Make a command of a function: with the flags of a job (its parameter `given`) and of a result (`target`).

    Parameters
    ----------
    examples : str
        Lines for the end of its help.
    fields : iterable of Field
        Of a job, those that it takes.
    several : bool
        Whether a flag may name several values where a search takes them.
    job_file : bool
        Whether fields may come from a job file as well.
    output : iterable of str
        Which of `DETAILED` it takes.
    group, name : typer.Typer, str
        Where it belongs to a group of commands: which, and what it is called there.

    Notes
    -----
    A parameter of the function's own replaces one of the same name. What a command returns, if anything, is
    shown; one that has more to do takes `target` and shows its answer itself.
    """
    taken = tuple(fields)

    def decorate(function: _Command) -> _Command:
        own = [p for p in _parameters(function) if p.name not in ("given", "target")]
        replaced = {p.name for p in own}
        job: list[inspect.Parameter] = []
        if taken:
            surroundings = [
                p
                for p in _parameters(_with_surroundings)
                if p.name != "stragglers" or FIELD["switches"] in taken
            ]
            file = _parameters(_with_job_file) if job_file else []
            job = [*file, *(_flag(field, several) for field in taken), *surroundings]
        # Who takes several files finds the machine among them.
        job = [p for p in job if p.name not in replaced | ({"machine"} if "job" in replaced else set())]
        rest = [p for p in _parameters(_with_output) if p.name in set(output) - replaced]
        wanted = inspect.signature(function).parameters

        def run(**values: Any) -> None:
            target = Target.of(**{p.name: values[p.name] for p in rest})
            keywords = {p.name: values[p.name] for p in own}
            if "given" in wanted:
                asked = {p.name: _joined(p.name, values[p.name], several) for p in job}
                asked["note"] = cache(target.note)
                if isinstance(values.get("job"), list):
                    keywords["job"], machine = parted(values["job"])
                else:
                    file, machine = job_and_machine(values.get("job") or "", asked.pop("machine", ""))
                    if file and not is_file_name(file):
                        file, machine = "", {"model": file, **machine}
                    (keywords if "job" in replaced else asked)["job"] = file
                keywords["given"] = _with_words(asked, machine)
            if "target" in wanted:
                keywords["target"] = target
            found = function(**keywords)
            if found is not None:
                target.show(found)

        lines = inspect.cleandoc(examples)
        heading = "Examples" if "\n" in lines else "Example"
        run.epilog = f"\b\n{heading}:\n{indent(lines, '  ')}\n" if examples else ""  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        parameters = [*job, *own, *rest]
        if len(parameters) > SHOWN_FLAGS + 2:
            parameters += _parameters(_with_help)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        if group is not None:
            group.command(name, epilog=run.epilog)(run)  # type: ignore[attr-defined]
        return run

    return decorate


def _with_words(given: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Return flags with the model, the GPUs and the cluster that were named without one.

    Raises
    ------
    CostModelError
        If a flag names them too.
    """
    for name, value in words.items():
        if given.get(name) is not None:
            raise CostModelError(
                f"{name}: given twice, as {shown(value)} and by {FIELD[name].flags[0]} {given[name]}"
            )
    return {**given, **words}


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
        Take the usual batch where none is named, and refuse a job that lacks something else without a default.
    several : bool
        Leave flags that may name several values to those who search over them.

    Raises
    ------
    CostModelError
        If a value cannot be read, or something without a default is missing.
    """
    from costmodel.describe.jobs.merge import merge_jobs
    from costmodel.describe.jobs.reading import require_complete

    path = given.get("job", "") if file is None else file
    merged = merge_jobs(job_of_file(path, given).keywords, read_flags(given, several=several))
    merged = with_profiles(merged, given.get("profiles"))
    if complete:
        merged |= usual_batch(merged, given)
        require_complete(merged)
    return merged


PLANNED_HERE = "No layout was named, and data parallelism alone does not do: this is the planner's best (-l names another)."


def named_or_fitting(asked: Mapping[str, Any]) -> tuple[Estimate, bool]:
    """Return the estimate of a job, and whether its layout is the planner's; what searches is imported where it must."""
    import costmodel as cm
    from costmodel.describe.jobs.merge import names_no_degree

    return cm.fitting_or_planned(asked) if names_no_degree(asked) else (cm.estimate(**asked), False)


def priced(given: Mapping[str, Any]) -> Estimate:
    """Return the estimate of what is looked into; where it is the planner's layout, say so on stderr."""
    est, is_planned = named_or_fitting(merged_job(given))
    if is_planned:
        _say(given, PLANNED_HERE)
    return est


def usual_batch(asked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual global batch and sequence length, those that a job does not name, and say so on stderr."""
    from costmodel.describe.jobs import merge

    usual = merge.usual_batch(asked)
    if usual and asked.get("gpus") is not None:
        said = {"global_batch": "batches of {:,} sequences", "seq_len": "sequences of {:,} tokens"}
        flags = " and ".join(FIELD[name].flags[0] for name in usual)
        _say(
            given,
            f"Assumed: {', '.join(said[name].format(value) for name, value in usual.items())}; {flags} "
            f"{'change' if len(usual) > 1 else 'changes'} it.",
        )
    return usual


def read_flags(given: Mapping[str, Any], *, several: bool = False) -> dict[str, Any]:
    """Return the fields that flags name; with `several` those that may name several values unread.

    Raises
    ------
    CostModelError
        If a value cannot be read.
    """
    from costmodel.describe.jobs.merge import with_stragglers
    from costmodel.describe.jobs.reading import read

    flags = {
        name: value if several and opt.takes_several(FIELD[name]) else read(name, value)
        for name, value in given.items()
        if name in FIELD and value is not None
    }
    switches = with_stragglers(flags.get("switches"), given.get("stragglers"))
    return {**flags, **({} if switches is None else {"switches": switches})}


def with_profiles(merged: dict[str, Any], profiles: Any) -> dict[str, Any]:
    """Return a job whose clusters are looked up in the user's folders too."""
    if not profiles:
        return merged
    import costmodel as cm
    from costmodel.describe.jobs.reading import read_several

    names = read_several("cluster", merged.get("cluster", FIELD["cluster"].default))
    found = [cm.load_cluster(name, profile_path=profiles) for name in names]
    return {**merged, "cluster": found[0] if len(found) == 1 else found}


def job_of_file(path: str, given: Mapping[str, Any], *, layout: bool = True) -> JobFile:
    """Return what any file says of a job; what has no price is said on stderr.

    Parameters
    ----------
    path : str
        The file, empty for none.
    given : mapping
        The flags. Those of a job that name one value fill in what the file leaves open.
    layout : bool
        Whether flags of the layout do so too: those of a search are constraints, and say nothing of the file.

    Raises
    ------
    CostModelError
        If the file cannot be read, or its model cannot be priced.
    """
    from costmodel.interop.answer import JobFile, job_file

    folders = tuple(word for folder in given.get("profiles") or () for word in ("--profiles", str(folder)))
    if not path:
        return JobFile({}, words=folders)
    if not is_file_name(path):
        return JobFile({"model": path}, words=folders)
    taken = {field.name for field in (*JOB_FIELDS, *LENGTH_FIELDS) if layout or field.group != "layout"}
    fields = {name: value for name, value in given.items() if name in taken and _is_one(value)}
    others = {name: value for name, value in given.items() if name not in FIELD}
    found = job_file(path, given.get("kind") or "", **surroundings({**others, **fields}))
    for remark in found.remarks:
        _say(given, f"Warning: {remark}")
    return found._replace(words=(*found.words, *folders))


def assumed(asked: Mapping[str, Any]) -> set[str]:
    """Return what of a job nobody named, of the fields that change the answer most."""
    from costmodel.describe.jobs.merge import names_no_degree

    open_layout = {"layout"} if names_no_degree(asked) else set()
    return open_layout | {name for name in _STARRED if asked.get(name) is None}


def _say(given: Mapping[str, Any], text: str) -> None:
    """Say something on stderr, once a command."""
    given.get("note", partial(typer.echo, err=True))(text)


_STARRED = ("cluster", "recipe", "precision", "global_batch", "seq_len")


def command_with(name: str, given: Mapping[str, Any], fields: Iterable[Field], *more: str) -> str:
    """Return another command for the same job, as a person would type it: the flags that it takes, and some more.

    >>> command_with("plan", {"job": "job.yaml", "gpus": "8", "layout": "tp2"}, [FIELD["gpus"]], "--details")
    'costmodel plan job.yaml -n 8 --details'
    """
    job = given.get("job") or []
    words = ["costmodel", name, *([job] if isinstance(job, str) else job)]
    for field in fields:
        value = given.get(field.name)
        flag = field.short or field.flags[0]
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            words += [
                part for one in (value if isinstance(value, list) else [value]) for part in (flag, str(one))
            ]
    for name, flag in _SURROUNDINGS.items():
        value = given.get(name)
        if value is not None:
            words += [
                part for one in (value if isinstance(value, list) else [value]) for part in (flag, str(one))
            ]
    return shlex.join([*words, *more])


_SURROUNDINGS = {"profiles": "--profiles", "kind": "--from", "vocab_size": "--vocab-size", "env": "--env"}


def _is_one(value: Any) -> bool:
    return not (isinstance(value, str) and any(mark in value for mark in (",", ":", " ")))


def surroundings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what flags say of a file's surroundings: fields of a job, variables, vocabulary.

    Raises
    ------
    CostModelError
        If a value cannot be read, or a variable has no name.
    """
    from costmodel.describe.jobs.merge import with_stragglers
    from costmodel.describe.jobs.reading import read

    found = {name: read(name, value) for name, value in given.items() if name in FIELD and value is not None}
    if (switches := with_stragglers(found.get("switches"), given.get("stragglers"))) is not None:
        found["switches"] = switches
    env = {}
    for pair in given.get("env") or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CostModelError(f"--env: expected NAME=VALUE, got {pair!r}")
        env[name] = value
    beside = {name: given.get(name) or None for name in ("allow_source", "vocab_size")}
    return {**found, "env": env or None, **beside}


def short_names(files: list[str]) -> list[str]:
    """Return the names of files without folder and ending where that tells them apart; a file's second is numbered.

    >>> short_names(["x/a.yaml", "b.yaml"]), short_names(["a.yaml", "a.yaml"])
    (['a', 'b'], ['a.yaml', 'a.yaml (2)'])
    """
    stems = [Path(file).stem if is_file_name(file) else file for file in files]
    if len(set(stems)) == len(stems):
        return stems
    before = [files[:index].count(file) for index, file in enumerate(files)]
    return [f"{file} ({count + 1})" if count else file for file, count in zip(files, before, strict=True)]
