"""What chooses a layout: ``costmodel plan`` and ``sweep``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import CostModelError, choices_hint, shown
from costmodel.cli import options as opt
from costmodel.cli.command import (
    command,
    command_with,
    file_and_flags,
    merged_job,
    refuse_flags,
    with_profiles,
)
from costmodel.cli.output import Result, Target, checked_folder, planned_figure, result_of, shortened, waiting
from costmodel.describe.jobs.fields import LENGTH_FIELDS, PLAN_FIELDS

if TYPE_CHECKING:
    from costmodel.planning.rl import RLPlan


@command(
    r"""
    costmodel plan -m gpt3-175b -c dgx-a100-hdr -n 4096 --global-batch 1536 --seq-len 2048
    costmodel plan -m llama3-70b -n 64 --global-batch 128 --seq-len 8192 --tp 1,2,4,8 \
        --fix schedule=1f1b --max-memory 72GiB --why-not "tp8 pp4" --csv plans.csv
    costmodel plan job.yaml --gpus 256,512,1024 --objective gpu-hours --format json
    costmodel plan job.yaml --emit megatron > flags.txt
    costmodel plan job.yaml --gpus 512 --emit job --out best.yaml
    """,
    fields=(*PLAN_FIELDS, *LENGTH_FIELDS),
    several=True,
    endings=(".yaml", ".yml", ".sh", ".toml", ".py"),
    uses="start plot",
)
def plan(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Find the best layout: every one that divides is priced; the best, the front and the reasons are shown.

    Knobs that are not given take every sensible value. Wrong input and constraints that nothing
    meets are one line that names the constraint and what would do. A job file with a section ``rl`` is asked for the
    split of its GPUs between training and generation.
    """
    import costmodel as cm
    from costmodel.base.allocator import keep_freed_memory
    from costmodel.describe.jobs.merge import is_rl
    from costmodel.describe.jobs.reading import read

    job = merged_job(given, several=True) if given.get("job") else {}
    if is_rl(job):
        refusal = "a plan of reinforcement learning has none; it has --emit job"
        taken = ("emit",) if options.emit == opt.JOB else ()
        refuse_flags(given, refusal, taken, details=target.details, tokens=given.get("tokens"))
        return _plan_rl(cm.plan_rl(**job), given, target, options.emit)
    draw = planned_figure("Plan", options.plot, target)
    folder = checked_folder(options.save, target.force) if options.save else None
    keywords = _keywords(given, options.emit)
    below = keywords["job"].keywords
    if options.start:
        try:
            date.fromisoformat(options.start)
        except ValueError:
            raise CostModelError(
                f"start: expected a date such as 2026-12-01, got {shown(options.start)}"
            ) from None
    within = read("days", options.days) if options.days else None
    for what, text in (("start", options.start), ("days", options.days)):
        if text and not any(
            named.get(name) for named in (keywords, below) for name in ("tokens", "dataset_samples")
        ):
            raise CostModelError(f"{what}: needs --tokens, for a run that ends")
    keep_freed_memory()
    with waiting("pricing layouts", quiet=target.quiet) as progress:
        found = cm.plan(**keywords, progress=progress)
    answers = [
        (text, found.why_not(text, job=found.job_of_row(found.pick))) for text in options.why_not or []
    ]
    answered = [
        *(found.finished(options.start) if options.start else []),
        *(found.in_time(within) if within is not None else []),
        *(f"Why not {text}: {answer}" for text, answer in answers),
    ]
    remarks = [*found.remarks(), "Reproduce:", f"  {found.commands(1)[0]}", *answered]
    if options.emit:
        target.put(found.job_file() if options.emit == opt.JOB else cm.emit(found.best, options.emit))
        noted = found.question.file.remarks if found.question.file else ()
        target.note("\n".join(remark for remark in remarks if remark not in noted))
        return
    if folder is not None:
        written = found.launch_folders(keywords.get("framework") or "")
        why = [line[2:] for text in written.values() for line in text.splitlines() if line.startswith("* No")]
        for line in dict.fromkeys(why):
            target.note(line)
        for name, text in written.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            target.write(folder / name, text)
    count = options.top or 10
    gains = cache(found.gains)
    result = Result(
        grids=lambda: found.grids(count=count, gains=gains(), start=options.start),
        record=lambda: found.to_dict(count=count, gains=gains(), answers=answers),
        table=found.columns,
        remarks=remarks,
    )
    dates = [
        word
        for flag, text in (("--start", options.start), ("--days", options.days))
        if text
        for word in (flag, text)
    ]
    following = (found.commands(1)[0], command_with("plan", given, PLAN_FIELDS, *dates, "--details"))
    result = shortened(
        result,
        found,
        *following,
        before=answered,
        count=options.top,
    )
    target.show(result)
    draw(found)


def _plan_rl(found: RLPlan, given: Mapping[str, Any], target: Target, emit: str) -> None:
    """Show the splits of a job of reinforcement learning, or write the best as a job file."""
    result = result_of(found)
    if emit:
        target.put(found.job_file())
        return target.note("\n".join(result.remarks))
    fields = (*PLAN_FIELDS, *LENGTH_FIELDS)
    write = command_with("plan", given, fields, "--emit", opt.JOB, "--out", "best.yaml")
    target.show(
        result._replace(remarks=[*result.remarks, "Next:", f"  {write}", "  costmodel estimate best.yaml"])
    )


def _keywords(given: Mapping[str, Any], emit: str) -> dict[str, Any]:
    """Return the keywords of `costmodel.plan`: the file whose layout is free, and the flags on top."""
    import costmodel as cm

    if emit and emit not in (known := (opt.JOB, *cm.FRAMEWORKS)):
        raise CostModelError(f"--emit: {shown(emit)} is unknown; {choices_hint(emit, known)}")
    file, flags = file_and_flags(given, several=True, layout=False)
    keywords = {**with_profiles(flags, given.get("profiles")), "job": file}
    # What is emitted has to run.
    if emit and emit != opt.JOB and not keywords.get("framework"):
        keywords["framework"] = emit
    return keywords


@command(
    """
    costmodel sweep grid.yaml --workers 2 --resume done.sqlite --csv points.csv
    where grid.yaml holds, for instance:
      model: [llama3-8b, llama3-70b]
      cluster: dgx-h100-ndr
      gpus: [64, 128, 256]
      bandwidth_scale: [1, 2]
      global_batch: 512
      seq_len: 8192
    """,
    uses="samples seed",
)
def sweep(target: Target, options: Any) -> None:
    """Plan every point of a grid of models, clusters, scales, batches and link speeds.

    A point without a feasible layout is a row that says why. The rows are the same whatever the
    number of workers, and whether the sweep was interrupted or not. Points of wrong input are rows
    and a word on stderr; where every point is one, the exit code is 2.
    """
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    import costmodel as cm

    points = cm.points_of(cm.read_grid(options.file), who=options.file)
    executor = (
        partial(ProcessPoolExecutor, min(options.workers, len(points)))
        if min(options.workers, len(points)) > 1
        else None
    )
    with waiting("planning points", quiet=target.quiet) as progress:
        done = cm.sweep(
            points,
            executor=executor,
            resume=options.resume or None,
            samples=options.samples,
            seed=options.seed,
            retries=options.retries,
            progress=progress,
        )
    if not done.refused:
        return target.show(done)
    sentence = (
        f"{len(done.refused)} of {len(done)} points are wrong input, the first: {done.refused[0]['problem']}"
    )
    if len(done.refused) == len(done):
        raise cm.CostModelError(sentence)
    target.show(done)
    target.note(f"Note: {sentence}")
