"""``costmodel measure``: this machine's kernels and collectives, for `costmodel calibrate`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.output import Target
from costmodel.cli.texts import command_group

app = command_group("Measure kernels and collectives of this machine (needs torch and a GPU).")
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


def _kernels(
    what: str, device: str, small: bool, output: Mapping[str, Any], dtypes: Sequence[str] = ("bf16",)
) -> None:
    """Time one kind of kernel and write its CSV."""
    import costmodel as cm
    from costmodel.cli.output import plan_output
    from costmodel.cli.plan_input import waiting

    target = plan_output(opt.Format.csv, **output)
    with waiting(f"measuring {what}", quiet=target.quiet) as progress:
        text = cm.measure.kernels(what, dtypes=dtypes, device=device, small=small, progress=progress)
    _put(text, target)


def _put(text: str, target: Target) -> None:
    """Print a text or write it."""
    from costmodel.cli.output import write_file

    if target.out is not None:
        write_file(target.out, text, target)
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
    _kernels("matmul", device, small, output, [one.strip() for one in dtypes.split(",")])


@app.command("attention")
@takes_output("out", "force", "quiet")
def attention(
    output: Mapping[str, Any],
    device: DeviceOption = "cuda",
    small: SmallOption = False,
) -> None:
    """Time fused attention, forward and backward, with and without a causal mask."""
    _kernels("attention", device, small, output)


@app.command("memory")
@takes_output("out", "force", "quiet")
def memory(
    output: Mapping[str, Any],
    device: DeviceOption = "cuda",
    small: SmallOption = False,
) -> None:
    """Time copies on the device, which the memory's bandwidth bounds."""
    _kernels("memory", device, small, output)


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
    import costmodel as cm
    from costmodel.cli.output import plan_output
    from costmodel.cli.plan_input import waiting
    from costmodel.cli.sizes import parse_sizes

    target = plan_output(None, **output)
    span = parse_sizes(sizes)
    with waiting("measuring collectives", quiet=target.quiet) as progress:
        text = cm.measure.collectives(
            names.split(","),
            low_bytes=span[0],
            high_bytes=span[-1],
            local=local,
            device=device,
            progress=progress,
        )
    if text:  # of rank 0
        _put(text, target)
