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
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, LENGTH_FIELDS, Field
from costmodel.describe.jobs.positional import is_file_name, job_and_machine, parted

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.interop.answer import JobFile

_Command = Callable[..., Any]
OUTPUT_FLAGS = ("format", "out", "csv", "force", "quiet")
DETAILED = (*OUTPUT_FLAGS, "details")
"""Of commands that print twenty lines unless more are asked for."""


def command_group(name: str, summary: str = "") -> typer.Typer:
    """Return a group of commands."""
    about = summary or COMMANDS[name].summary
    group = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, help=about)
    group.callback()(lambda: None)
    return group


def _own_flags(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the flags and arguments that a command's function names itself."""
    kinds = typing.get_type_hints(function)
    named = [name for name in inspect.signature(function).parameters if name not in ("given", "target")]
    return [opt.flag(function.__name__, name, kinds[name]) for name in named]


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

    The other parameters of the function are flags of its own, a row each of ``flags.csv``, and replace one of the same
    name. What it returns, if anything, is shown. `examples` end the help, `fields` are those of a job that it takes, of
    which with `several` a flag may name several values, and `output` are the flags of a result.
    """
    taken = tuple(fields)

    def decorate(function: _Command) -> _Command:
        own = _own_flags(function)
        # Who takes several files finds the machine among them.
        replaced = {p.name for p in own} | ({"machine"} if any(p.name == "job" for p in own) else set())
        job: list[inspect.Parameter] = []
        if taken:
            file = {"job": str, "machine": str} if job_file else {}
            around = {
                name: kind
                for name, kind in opt.SURROUNDINGS.items()
                if name != "stragglers" or FIELD["switches"] in taken
            }
            job = [opt.flag("", name, kind) for name, kind in file.items()]
            job += [opt.of_field(field, several) for field in taken]
            job += [opt.flag("", name, kind) for name, kind in around.items()]
            job = [p for p in job if p.name not in replaced]
        rest = [opt.flag("", name, opt.OUTPUT[name]) for name in output if name not in replaced]
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
                    (keywords if "job" in keywords else asked)["job"] = file
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
            parameters.append(opt.flag("", "help_all", bool))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        if group is not None:
            group.command(name, epilog=run.epilog)(run)  # type: ignore[attr-defined]
        return run

    return decorate


def _with_words(given: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Return flags with the model, the GPUs and the cluster that were named without one, and by no flag too."""
    for name, value in words.items():
        if given.get(name) is not None:
            raise CostModelError(
                f"{name}: given twice, as {shown(value)} and by {FIELD[name].flags[0]} {given[name]}"
            )
    return {**given, **words}


def merged_job(
    given: Mapping[str, Any], file: str | None = None, *, complete: bool = True, several: bool = False
) -> dict[str, Any]:
    """Lay the flags over the job file, or over another one, and return the keywords of `costmodel.estimate`.

    With `complete` the usual batch is taken where none is named, and a job that lacks something else without a default
    is an error; with `several`, flags that may name several values are left to those who search over them.
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
    """Return the fields that flags name; with `several` those that may name several values unread."""
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
    """Return what any file says of a job, nothing for an empty path; what has no price is said on stderr.

    Flags of a job that name one value fill in what the file leaves open, those of the layout only with `layout`: those
    of a search are constraints, and say nothing of the file.
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
    flags = {field.name: field.short or field.flags[0] for field in fields} | _SURROUNDINGS
    for name, flag in flags.items():
        value = given.get(name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            words += [part for each in values for part in (flag, str(each))]
    return shlex.join([*words, *more])


_SURROUNDINGS = {"profiles": "--profiles", "kind": "--from", "vocab_size": "--vocab-size", "env": "--env"}


def _is_one(value: Any) -> bool:
    return not (isinstance(value, str) and any(mark in value for mark in (",", ":", " ")))


def surroundings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what flags say of a file's surroundings: fields of a job, variables, vocabulary."""
    env = {}
    for pair in given.get("env") or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CostModelError(f"--env: expected NAME=VALUE, got {pair!r}")
        env[name] = value
    beside = {name: given.get(name) or None for name in ("allow_source", "vocab_size")}
    return {**read_flags(given), "env": env or None, **beside}


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
