"""What every command shares: the flags of a job and of its result, and how a job is merged from a file and flags."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer
from typer.models import OptionInfo

from costmodel.base.errors import CostModelError, NothingFitsError, shown
from costmodel.cli import options as opt
from costmodel.cli.group import COMMANDS, SHOWN_FLAGS, Command, Group
from costmodel.cli.output import Result, Target
from costmodel.describe.jobs.fields import FIELD, Field
from costmodel.describe.jobs.positional import is_file_name, job_and_machine, jobs_and_machines

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate
    from costmodel.interop.answer import JobFile

_Command = Callable[..., Any]
OUTPUT_FLAGS = ("format", "out", "csv", "force", "quiet", "details")
_DETAIL_FLAGS = ("every_line", "every_one", "top", "worst", "line", "samples", "expect")
"""Flags that ask for more than the short answer."""
_LAYOUT_FLAGS = ("check", "emit", "save", "plot")
"""Flags that need a layout: with them "nothing fits" is an error."""


def command_group(name: str, summary: str = "") -> typer.Typer:
    """Return a group of commands."""
    about = summary or COMMANDS[name].summary
    group = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, help=about)
    group.callback()(lambda: None)
    return group


def _changed(own: Iterable[inspect.Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a command itself that have another value than by default, under the names that people type."""
    return {
        p.default.param_decls[0].removeprefix("--").partition("/")[0]: values[p.name]
        for p in own
        if isinstance(p.default, OptionInfo) and p.default.param_decls and values[p.name] != p.default.default
    }


def _joined(name: str, value: Any, several: bool) -> Any:
    """Return the value of a repeatable flag: one comma-separated text, or a list for orders."""
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
    uses: str = "",
    output: Iterable[str] = OUTPUT_FLAGS,
    endings: Sequence[str] = (),
    group: typer.Typer | None = None,
    name: str = "",
) -> Callable[[_Command], _Command]:
    """Make a command of a function: with the flags of a job (its parameter `given`) and of a result (`target`).

    Flags of its own, a row each of ``flags.csv``, and those of several commands that it `uses` replace flags of the same
    name; they are the attributes of its parameter `options`, or without one its other parameters. What it returns, if
    anything, is shown. `examples` end the help, `fields` are those of a job that it takes, of which with `several` a flag
    may name several values, and `output` are the flags of a result, whose files may have the `endings` besides those of
    tables.
    """
    taken = tuple(fields)

    def decorate(function: _Command) -> _Command:
        called = function.__name__
        own = [opt.flag(called, name) for name in (*opt.names_of(called), *uses.split())]
        # Commands with several files take the machine as one of these words.
        several_words = any(
            p.name == "job" and (p.annotation is not str or isinstance(p.default, OptionInfo)) for p in own
        )
        replaced = {p.name for p in own} | ({"machine"} if several_words else set())
        job: list[inspect.Parameter] = []
        if taken:
            job = [opt.flag("", name) for name in (("job", "machine") if job_file else ())]
            job += [opt.of_field(field, several) for field in taken]
            job += [
                opt.flag("", name)
                for name in opt.SURROUNDINGS
                if name != "stragglers" or FIELD["switches"] in taken
            ]
            job = [p for p in job if p.name not in replaced]
        rest = [opt.flag("", name) for name in output if name not in replaced]
        wanted = inspect.signature(function).parameters

        def run(**values: Any) -> None:
            target = Target.of(**{p.name: values[p.name] for p in rest}, endings=endings)
            target = target._replace(is_short=not any(values.get(name) for name in _DETAIL_FLAGS))
            notes: list[str] = []
            mine = {p.name: values[p.name] for p in own}
            passed: dict[str, Any] = {}
            if "given" in wanted:
                flags = {p.name: _joined(p.name, values[p.name], several) for p in job}
                flags["note"] = notes.append
                flags["own"] = _changed(own, values)
                if not isinstance(values.get("job"), list):
                    file, machine = job_and_machine(values.get("job") or "", flags.pop("machine", ""))
                    (mine if "job" in mine else flags)["job"] = file
                    flags = _with_words(flags, machine)
                passed["given"] = flags
            if "target" in wanted:
                passed["target"] = target
            passed |= {"options": SimpleNamespace(**mine)} if "options" in wanted else mine
            try:
                found = function(**passed)
                if found is not None:
                    target.show(found)
            except NothingFitsError as error:
                # People get this as an answer; programs need an error, as there is nothing to continue with.
                notes.clear()
                if target.is_read_by_programs or any(mine.get(name) for name in _LAYOUT_FLAGS):
                    typer.echo(f"Error: {error}", err=True)
                    raise typer.Exit(3) from None
                sentence = str(error).partition(": ")[2]
                target.show(Result(tuple, dict, dict, [sentence[0].upper() + sentence[1:]]))
            except CostModelError:
                notes.clear()  # the error alone is shown
                raise
            finally:
                for note in dict.fromkeys(notes):
                    target.note(note)

        lines = inspect.cleandoc(examples)
        heading = "Examples" if "\n" in lines else "Example"
        run.epilog = f"\b\n{heading}:\n{indent(lines, '  ')}\n" if examples else ""  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        parameters = sorted([*job, *own, *rest], key=lambda p: p.name != "job")
        if len(parameters) > SHOWN_FLAGS + 2:
            parameters.append(opt.flag("", "help_all"))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        if group is not None:
            group.command(name, cls=Command, epilog=run.epilog)(run)  # type: ignore[attr-defined]
        return run

    return decorate


def _with_words(given: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Return flags with the model, the GPUs and the cluster that were named without one, and by no flag too."""
    for name, value in words.items():
        if given.get(name) is not None:
            raise CostModelError(
                f"{name}: given twice, as {shown(value)} and by {FIELD[name].flags[0]} {given[name]}"
            )
    return {**given, **words}


def merged_job(given: Mapping[str, Any], file: str | None = None, *, several: bool = False) -> dict[str, Any]:
    """Lay the flags over the job file, or over another one, and return the keywords of `costmodel.estimate`.

    With `several`, flags that may name several values are left to those who search over them.
    """
    found, flags = file_and_flags(given, file, several=several)
    from costmodel.describe.jobs.merge import merge_jobs

    job = merge_jobs(found.keywords, flags)
    if found.path and job.get("model") is None:
        from costmodel.describe.jobs.reading import require_complete

        open_too = {"gpus": 1, "global_batch": 1, "seq_len": 1, **job}
        require_complete(open_too, who=found.path, remarks=(*found.remarks, *found.notes))
    return with_profiles(job, given.get("profiles"))


def jobs_side_by_side(given: Mapping[str, Any], words: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the keywords of every job file or model on every machine among words, by the name of what tells it apart."""
    from costmodel.describe.jobs.merge import with_own_prices

    files, machines = jobs_and_machines(words or ())
    flags = [(word, _with_words(given, fields)) for word, fields in (machines or {"": {}}).items()]
    found = {}
    for name, file in zip(short_names(files or [""]), files or [""], strict=True):
        for word, one in flags:
            label = " ".join([name] * (len(files) > 1) + [word] * (len(flags) > 1))
            found[label] = merged_job(one, file)
    return dict(zip(found, with_own_prices([*found.values()]), strict=True))


def priced(given: Mapping[str, Any]) -> Estimate:
    """Return the estimate of the job, with its assumptions on stderr."""
    import costmodel as cm

    est = cm.estimate(**merged_job(given))
    for sentence in est.assumptions:
        given["note"](sentence)
    return est


def refuse_flags(given: Mapping[str, Any], why: str, taken: Iterable[str], **more: Any) -> None:
    """Refuse the first of a command's own flags, and of `more`, that has another value than by default, but for those `taken`."""
    for name, value in (given["own"] | more).items():
        if value and name not in taken:
            raise CostModelError(f"--{name.replace('_', '-')}: {why}")


def read_flags(given: Mapping[str, Any], *, several: bool = False) -> dict[str, Any]:
    """Return the fields that flags name; with `several` those that may name several values unread."""
    from costmodel.describe.jobs.reading import read

    flags = {
        name: value if several and opt.takes_several(FIELD[name]) else read(name, value)
        for name, value in given.items()
        if name in FIELD and value is not None
    }
    from costmodel.describe.jobs.merge import with_stragglers

    switches = with_stragglers(flags.get("switches"), given.get("stragglers"))
    return {**flags, **({} if switches is None else {"switches": switches})}


def with_profiles(merged: dict[str, Any], profiles: Any) -> dict[str, Any]:
    """Return a job whose clusters are also searched in the user's folders."""
    if not profiles:
        return merged
    import costmodel as cm
    from costmodel.describe.jobs.reading import read_several

    names = read_several("cluster", merged.get("cluster", FIELD["cluster"].default))
    found = [cm.load_cluster(name, profile_path=profiles) for name in names]
    return {**merged, "cluster": found[0] if len(found) == 1 else found}


def file_and_flags(
    given: Mapping[str, Any], file: str | None = None, *, several: bool = False, layout: bool = True
) -> tuple[JobFile, dict[str, Any]]:
    """Return what a file of any kind says of a job, and the flags on top; keys without a price are listed on stderr."""
    # A wrong flag is refused before anything is loaded that prices.
    path, flags = given.get("job") or "" if file is None else file, read_flags(given, several=several)
    from costmodel.interop.answer import JobFile, job_of_file

    folders = tuple(word for folder in given.get("profiles") or () for word in ("--profiles", str(folder)))
    if path and not is_file_name(path):
        return JobFile({"model": path}, words=folders), flags
    found, _ = job_of_file(path, {**flags, **reading_of(given)}, layout=layout)
    for remark in found.remarks:
        given["note"](f"Warning: {remark}")
    return found._replace(words=(*found.words, *folders)), flags


def command_with(name: str, given: Mapping[str, Any], fields: Iterable[Field], *more: str) -> str:
    """Return another command for the same job, as a person would type it: the flags that it takes, and some more.

    >>> command_with("plan", {"job": "job.yaml", "gpus": "8", "layout": "tp2"}, [FIELD["gpus"]], "--details")
    'costmodel plan job.yaml -n 8 --details'
    >>> machine = {"model": "llama3-8b", "cluster": "h100", "gpus": "8"}
    >>> command_with("run", machine, [FIELD["model"], FIELD["cluster"], FIELD["gpus"]])
    'costmodel run llama3-8b 8xh100'
    """
    job = given.get("job") or []
    words = ["costmodel", name, *([job] if isinstance(job, str) else job)]
    if not job and _PLAIN_NAME.fullmatch(str(given.get("model"))) and not is_file_name(str(given["model"])):
        words.append(given["model"])
        given = {**given, "model": None}
    counted = f"{given.get('gpus')}x{given.get('cluster')}"
    if len(words) == 3 and _MACHINE.fullmatch(counted) and not is_file_name(str(given["cluster"])):
        words.append(counted)
        given = {**given, "gpus": None, "cluster": None}
    flags = {field.name: field.short or field.flags[0] for field in fields} | _SURROUNDINGS
    for name, flag in flags.items():
        value = given.get(name)
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            words += [part for each in values for part in (flag, str(each))]
    return shlex.join([*words, *more])


_PLAIN_NAME = re.compile(r"(?!None$)[A-Za-z][\w.-]*")
_MACHINE = re.compile(r"[0-9]+x(?!None$)[A-Za-z][\w.-]*")
"""Models and machines that a command names without a flag."""
_SURROUNDINGS = {"profiles": "--profiles", "kind": "--from", "vocab_size": "--vocab-size", "env": "--env"}


def reading_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what flags say of how to read a file: its kind, variables, vocabulary."""
    env = {}
    for pair in given.get("env") or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CostModelError(f"--env: expected NAME=VALUE, got {pair!r}")
        env[name] = value
    return {"env": env, **{name: given.get(name) for name in ("kind", "allow_source", "vocab_size")}}


def short_names(files: list[str]) -> list[str]:
    """Return the names of files without folder and ending where these are unique; repeated files are numbered.

    >>> short_names(["x/a.yaml", "b.yaml"]), short_names(["a.yaml", "a.yaml"])
    (['a', 'b'], ['a.yaml', 'a.yaml (2)'])
    """
    stems = [Path(file).stem if is_file_name(file) else file for file in files]
    if len(set(stems)) == len(stems):
        return stems
    before = [files[:index].count(file) for index, file in enumerate(files)]
    return [f"{file} ({count + 1})" if count else file for file, count in zip(files, before, strict=True)]
