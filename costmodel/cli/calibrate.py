"""``costmodel calibrate``: profiles from your own measurements."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import show_help

app = typer.Typer(
    rich_markup_mode=None, help="Profiles from your own measurements: collectives, kernels, training steps."
)

FABRIC_EPILOG = """\b
Examples:
  costmodel calibrate fabric all_reduce.log all_gather.log --cluster h100-ndr --write my-cluster.yaml
  costmodel calibrate fabric logs/*.log --cluster my-cluster.yaml --plot fit.png
  costmodel estimate -m llama3-8b -c my-cluster.yaml -n 64 -l "tp2" --global-batch 512 --seq-len 8192

"""


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_help(context)


def refuse(problems: Iterable[object], quiet_end: str = "") -> None:
    """Print what is wrong, a line each, and exit with code 2 if anything is."""
    wrong = False
    for problem in problems:
        print(f"Error: {problem}", file=sys.stderr)
        wrong = True
    if wrong:
        if quiet_end:
            print(quiet_end, file=sys.stderr)
        raise typer.Exit(2)


@app.command("fabric", epilog=FABRIC_EPILOG)
@takes_output()
def fabric(
    output: Mapping[str, Any],
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG…", help="What nccl-tests or rccl-tests printed.")
    ],
    cluster: opt.ClusterOption = None,
    write: Annotated[
        str,
        typer.Option(
            "--write", "-w", metavar="FILE.yaml", help="Write the new cluster here, its links beside it."
        ),
    ] = "",
    collective: Annotated[
        str, typer.Option("--collective", help="What was run, where neither log nor file name says.")
    ] = "",
    ranks: Annotated[
        int, typer.Option("--ranks", help="GPUs of each run, where the log does not list them.")
    ] = 0,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of each run, where the log does not say.")] = 0,
    in_place: Annotated[bool, typer.Option("--in-place", help="Fit the in-place times instead.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Report lines that are wrong, and fit without them.")
    ] = False,
    max_error: Annotated[
        float, typer.Option("--max-error", help="Mean relative error above which nothing is written.")
    ] = 0.2,
    plot: Annotated[str, typer.Option("--plot", metavar="FILE", help="Draw measured against fitted.")] = "",
    profiles: opt.ProfilesOption = None,
) -> None:
    """Fit a cluster's fabric to nccl-tests logs; write it as a profile that inherits from a shipped one."""
    from costmodel.cli.output import Result, plan_output, show, write_whole
    from costmodel.cli.pictures import plan_picture, tell
    from costmodel.describe.hardware.hardware import load_cluster
    from costmodel.describe.jobs.job import DEFAULT_CLUSTER
    from costmodel.estimates.collective import canonical
    from costmodel.reporting import calibration as report
    from costmodel.trust.calibration.cluster_fit import fit_cluster, sweep_run
    from costmodel.trust.calibration.nccl_tests import read_logs

    target = plan_output(**output)
    picture = plan_picture(plot, force=output["force"])
    base = cluster or DEFAULT_CLUSTER
    machine = load_cluster(base, profile_path=profiles)
    path = _profile_file(write, output["force"]) if write else None
    log = read_logs(logs, collective=canonical(collective) if collective else "", ranks=ranks, nodes=nodes)
    if not target.quiet:
        for note in log.notes:
            print(f"Note: {note}", file=sys.stderr)
    if skip_bad:
        for problem in log.problems:
            print(f"Warning: {problem}", file=sys.stderr)
    else:
        refuse(log.problems)
    runs = [sweep_run(sweep, machine, in_place=in_place) for sweep in log.sweeps]
    fit = fit_cluster(runs, machine, max_error=max_error)
    show(
        Result(
            grids=lambda: report.fit_grids(fit, machine),
            record=lambda: report.fit_record(fit, machine),
            table=lambda: report.point_columns(fit, machine),
        ),
        target,
    )
    if picture is not None:
        report.draw(picture, fit, machine)
        tell(picture, target)
    refuse(fit.problems, "Nothing was written." if path else "")
    if path is not None:
        from costmodel.trust.calibration.cluster_profile import profile_texts

        names: dict[int, list[str]] = {}
        for sweep, run in zip(log.sweeps, runs, strict=True):
            names.setdefault(0 if run.network is None else 1, []).append(sweep.file)
        texts = profile_texts(path, base, machine, fit.tiers, names, profile_path=profiles)
        for file in texts:
            _profile_file(str(file), output["force"])
        for file, text in texts.items():
            write_whole(file, text, target)


def _profile_file(name: str, force: bool) -> Path:
    """Check a profile's file as `plan_output` checks results."""
    from costmodel.base.errors import CostModelError
    from costmodel.cli.output import plan_output

    if not name.endswith(".yaml"):
        raise CostModelError(f"{name}: expected a file that ends in .yaml")
    path = plan_output(None, name, force=force).out
    assert path is not None
    return path


KERNELS_EPILOG = """\b
Examples:
  costmodel calibrate kernels matmul.csv attention.csv memory.csv --accelerator h200 --write my-h200.yaml
  costmodel measure matmul --out matmul.csv
"""


@app.command("kernels", epilog=KERNELS_EPILOG)
@takes_output()
def kernels(
    output: Mapping[str, Any],
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="CSV…",
            help="Timings: m,n,k,dtype or batch,seq_len,heads,head_dim,op or bytes; and time_us or tflops.",
        ),
    ],
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="Accelerator that was measured: profile or file.")
    ],
    write: Annotated[
        str, typer.Option("--write", "-w", metavar="FILE.yaml", help="Write the new accelerator here.")
    ] = "",
    max_error: Annotated[
        float, typer.Option("--max-error", help="Held-out mean error above which nothing is written.")
    ] = 0.15,
    profiles: opt.ProfilesOption = None,
) -> None:
    """Fit an accelerator's kernels to timings; write it as a profile that inherits from a shipped one."""
    from costmodel.cli.output import Result, plan_output, show, write_whole
    from costmodel.describe.hardware.hardware import load_accelerator
    from costmodel.reporting import steps as report
    from costmodel.trust.calibration.kernel_csv import read_timings
    from costmodel.trust.calibration.kernel_profile import accelerator_text, fit_kernels

    target = plan_output(**output)
    device = load_accelerator(accelerator, profile_path=profiles)
    path = _profile_file(write, output["force"]) if write else None
    timings = read_timings(tables, device.peak_flops_per_s)
    refuse(timings.problems)
    source = ", ".join(file.name for file in tables)
    results, problems = fit_kernels(timings, device, source, max_error=max_error)
    if results:
        show(
            Result(
                grids=lambda: [report.kernel_grid(results, device.name)],
                record=lambda: report.kernel_record(results),
                table=lambda: report.kernel_columns(results),
            ),
            target,
        )
    refuse(problems, "Nothing was written." if path else "")
    if path is not None:
        text = accelerator_text(path, accelerator, device, results, source, profile_path=profiles)
        write_whole(path, text, target)


STEPS_EPILOG = """\b
Examples:
  costmodel calibrate steps job.yaml=5.21s
  costmodel calibrate steps a.yaml=5.21s,61GiB b.yaml=3.4s --overhead
"""


@app.command("steps", epilog=STEPS_EPILOG)
@takes_output()
def steps(
    output: Mapping[str, Any],
    measured: Annotated[
        list[str], typer.Argument(metavar="JOB.yaml=TIME[,MEMORY]…", help="Job files with what a step took.")
    ],
    overhead: Annotated[
        bool,
        typer.Option("--overhead", help="Also print the constant that fits best, to add to your estimates."),
    ] = False,
) -> None:
    """Compare measured training steps with the model, and say which part could explain the difference."""
    from costmodel.base.errors import DataError
    from costmodel.base.units import format_seconds
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.cli.sizes import quantity
    from costmodel.describe.jobs.merge import merge_jobs, read_job
    from costmodel.describe.jobs.reading import require_complete
    from costmodel.estimates.estimate import estimate
    from costmodel.reporting import steps as report
    from costmodel.trust.step_residuals import MeasuredStep, constant_s, explain, split_spec

    target = plan_output(**output)
    found = []
    for text in measured:
        path, time, memory = split_spec(text)
        if not time or not path.name:
            raise DataError(f"{text}: expected a job and its step time, such as job.yaml=5.21s")
        time_s = quantity("step time", time, "s")
        if time_s <= 0:
            raise DataError(f"{text}: step time: expected more than 0 s")
        job = merge_jobs(read_job(path), {})
        require_complete(job)
        memory_bytes = quantity("memory", memory, "B") if memory else float("nan")
        found.append(MeasuredStep(path.stem, estimate(**job), time_s, memory_bytes))
    parts = [one for one in explain(found) if overhead or one.part != "constant"]
    remarks = []
    if overhead:
        seconds = constant_s(found)
        sign = "add" if seconds >= 0 else "take off"
        remarks.append(
            f"Overhead: {sign} {format_seconds(abs(seconds))} a step; no profile or recipe is changed."
        )
    show(
        Result(
            grids=lambda: report.step_grids(found, parts),
            record=lambda: report.step_record(found, parts),
            table=lambda: report.step_columns(found),
            remarks=remarks,
        ),
        target,
    )
