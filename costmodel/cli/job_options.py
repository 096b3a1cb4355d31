"""The flags that describe a job and say where its results go, for every command that takes them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from costmodel.cli import options as opt


def _job(
    job: opt.JobArgument = "",
    model: opt.ModelOption = None,
    cluster: opt.ClusterOption = None,
    gpus: opt.GpusOption = None,
    layout: opt.LayoutOption = None,
    tp: opt.TpOption = None,
    cp: opt.CpOption = None,
    pp: opt.PpOption = None,
    dp: opt.DpOption = None,
    vp: opt.VpOption = None,
    ep: opt.EpOption = None,
    etp: opt.EtpOption = None,
    micro_batch: opt.MicroBatchOption = None,
    global_batch: opt.GlobalBatchOption = None,
    seq_len: opt.SeqLenOption = None,
    precision: opt.PrecisionOption = None,
    recompute: opt.RecomputeOption = None,
    zero_stage: opt.ZeroOption = None,
    shard_group: opt.ShardGroupOption = None,
    schedule: opt.ScheduleOption = None,
    sequence_parallel: opt.SequenceOption = None,
    recipe: opt.RecipeOption = None,
    switches: opt.SetOption = None,
    axis_order: opt.OrderOption = None,
    tokens: opt.TokensOption = None,
    stragglers: opt.StragglersOption = None,
    profiles: opt.ProfilesOption = None,
) -> None:
    """Hold the flags of a job."""


def _output(
    format: opt.FormatOption = None,
    out: opt.OutOption = "",
    csv: opt.CsvOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Hold the flags of the output."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with their annotations resolved, all as keywords."""
    kinds = typing.get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [p.replace(annotation=kinds[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in found]


def takes_job(*, output: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a job (its parameter `given`) and, with `output`, those of a result.

    The command is called with `given`, a mapping of the job's flags, and with the flags of its own
    and of the output under their names. A parameter of its own replaces one of the same name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in _parameters(command) if p.name != "given"]
        replaced = {p.name for p in own}
        job = [p for p in _parameters(_job) if p.name not in replaced]
        rest = [p for p in _parameters(_output) if output and p.name not in replaced]
        names = [p.name for p in job]
        takes = {p.name for p in own}

        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            keyword = {name: values.pop(name) for name in list(values) if name in takes}
            command(given, **keyword, **({"output": values} if output else {}))

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        parameters = [*job, *(p for p in own if p.name != "output"), *rest]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def merged_job(given: Mapping[str, Any], file: str | None = None, *, complete: bool = True) -> dict[str, Any]:
    """Lay the flags over the job file and return the keywords of `costmodel.estimate`.

    Parameters
    ----------
    given : mapping
        The flags, as a command gets them.
    file : str, optional
        Job file instead of the one among the flags.
    complete : bool
        Refuse a job that lacks something without a default.

    Raises
    ------
    CostModelError
        If a value cannot be read, or something without a default is missing.
    """
    from costmodel.describe.jobs.job import DEFAULT_CLUSTER, JOB_KEYS
    from costmodel.describe.jobs.merge import merge_jobs, read_job, read_switches
    from costmodel.describe.jobs.reading import require_complete

    path = given.get("job", "") if file is None else file
    flags = {key: given[key] for key in JOB_KEYS if key in given}
    flags["switches"] = read_switches(given["switches"], given["stragglers"])
    merged = merge_jobs(read_job(path) if path else {}, flags)
    if complete:
        require_complete(merged)
    if given["profiles"]:
        from costmodel.describe.hardware.hardware import load_cluster

        merged["cluster"] = load_cluster(
            merged.get("cluster", DEFAULT_CLUSTER), profile_path=given["profiles"]
        )
    return merged
