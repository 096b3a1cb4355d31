"""``costmodel measure``: this machine's kernels and collectives, for `costmodel calibrate`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.texts import show_help

app = typer.Typer(
    rich_markup_mode=None, help="Measure kernels and collectives of this machine (needs torch and a GPU)."
)
DeviceOption = Annotated[
    str, typer.Option("--device", help="cuda, or cpu to try the path.  [default: cuda]", show_default=False)
]
SmallOption = Annotated[bool, typer.Option("--small", help="Few and small shapes, for a trial.")]

MATMUL_EPILOG = """\b
Example:
  costmodel measure matmul --dtypes bf16,fp8 --out matmul.csv
"""
COLLECTIVES_EPILOG = """\b
Examples:
  torchrun --nproc-per-node 8 -m costmodel measure collectives --sizes 1KiB:4GiB --out sweep.log
  costmodel measure collectives --local 2 --device cpu --sizes 1KiB:1MiB
"""


@app.callback(invoke_without_command=True)
def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show_help(context)


def _sweep(what: str, dtypes: list[str], device: str, small: bool, output: Mapping[str, Any]) -> None:
    """Run one sweep and write its CSV."""
    from costmodel.base.csv_text import to_csv
    from costmodel.cli.output import plan_output, write_whole
    from costmodel.cli.progress import progress
    from costmodel.trust.calibration import measure_kernels as kernels
    from costmodel.trust.calibration.measure_device import choose_device, headline, import_torch

    target = plan_output(opt.Format.csv, **output)
    torch = import_torch()
    chosen = choose_device(torch, device)
    sweeps = {
        "matmul": lambda: kernels.measure_matmul(torch, chosen, dtypes, small=small),
        "attention": lambda: kernels.measure_attention(torch, chosen, small=small),
        "memory": lambda: kernels.measure_memory(torch, chosen, small=small),
    }
    rows = []
    with progress(
        f"measuring {what}", kernels.count_rows(what, len(dtypes), chosen, small=small), quiet=target.quiet
    ) as done:
        for row in sweeps[what]():
            rows.append(row)
            done()
    table = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    text = f"{headline(torch, chosen)}\n{to_csv(table)}"
    if target.out is not None:
        write_whole(target.out, text, target)
    else:
        sys.stdout.write(text)


@app.command("matmul", epilog=MATMUL_EPILOG)
@takes_output("out", "force", "quiet")
def matmul(
    output: Mapping[str, Any],
    dtypes: Annotated[
        str, typer.Option("--dtypes", help="Of bf16, fp16, tf32, fp32 and fp8, by commas.")
    ] = "bf16",
    device: DeviceOption = "cuda",
    small: SmallOption = False,
) -> None:
    """Time the matrix products of transformer layers."""
    from costmodel.base.errors import CostModelError, choices_hint

    known = ("bf16", "fp16", "tf32", "fp32", "fp8")
    wanted = [one.strip() for one in dtypes.split(",")]
    for one in wanted:
        if one not in known:
            raise CostModelError(f"dtypes: unknown {one!r}; {choices_hint(one, known)}")
    _sweep("matmul", wanted, device, small, output)


@app.command("attention")
@takes_output("out", "force", "quiet")
def attention(
    output: Mapping[str, Any],
    device: DeviceOption = "cuda",
    small: SmallOption = False,
) -> None:
    """Time fused attention, forward and backward, with and without a causal mask."""
    _sweep("attention", ["bf16"], device, small, output)


@app.command("memory")
@takes_output("out", "force", "quiet")
def memory(
    output: Mapping[str, Any],
    device: DeviceOption = "cuda",
    small: SmallOption = False,
) -> None:
    """Time copies on the device, which the memory's bandwidth bounds."""
    _sweep("memory", ["bytes"], device, small, output)


@app.command("collectives", epilog=COLLECTIVES_EPILOG)
@takes_output("out", "force", "quiet")
def collectives(
    output: Mapping[str, Any],
    names: Annotated[
        str, typer.Option("--collectives", help="Which, by commas.  [default: the four of training]")
    ] = "all-reduce,all-gather,reduce-scatter,all-to-all",
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="FROM:TO", help="Bytes of the full tensor.")
    ] = "1KiB:1GiB",
    local: Annotated[
        int, typer.Option("--local", help="Start this many ranks here, instead of torchrun.")
    ] = 0,
    device: DeviceOption = "cuda",
) -> None:
    """Time collectives over torch.distributed and print them as nccl-tests does."""
    from costmodel.base.errors import CostModelError
    from costmodel.cli.output import plan_output, write_whole
    from costmodel.cli.progress import progress
    from costmodel.cli.sizes import parse_sizes
    from costmodel.estimates.collective import canonical
    from costmodel.trust.calibration import measure_collectives as bench
    from costmodel.trust.calibration.measure_device import choose_device, import_torch
    from costmodel.trust.calibration.nccl_tests import PROGRAMS

    target = plan_output(None, **output)
    torch = import_torch()
    chosen = choose_device(torch, device)
    wanted = [canonical(name) for name in names.split(",")]
    for one in wanted:
        if one not in PROGRAMS.values():
            raise CostModelError(f"collectives: {one.replace('_', '-')} is not one that nccl-tests has")
    span = parse_sizes(sizes)
    if local:
        if local < 2 or bench.under_torchrun():
            raise CostModelError("local: expected two ranks or more, and no torchrun around it")
        if chosen == "cuda" and local > torch.cuda.device_count():
            raise CostModelError(
                f"local: {local} ranks, but this machine has {torch.cuda.device_count()} GPUs"
            )
        text = bench.run_local(local, wanted, span[0], span[-1], chosen)
    elif bench.under_torchrun():
        with progress("measuring collectives", len(wanted) * len(span), quiet=target.quiet) as done:
            text = bench.measure_collectives(wanted, span[0], span[-1], chosen, done=done)
    else:
        raise CostModelError("collectives: expected several ranks; start with torchrun or --local 2")
    if not text:  # not rank 0
        return
    if target.out is not None:
        write_whole(target.out, text, target)
    else:
        sys.stdout.write(text)
