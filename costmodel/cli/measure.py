"""``costmodel measure``: this machine's kernels and collectives, for `costmodel calibrate`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from costmodel.cli.collective import parse_sizes
from costmodel.cli.command import command, command_group
from costmodel.cli.output import Target, waiting

measure = command_group("measure")
_FILES = ("out", "force", "quiet")
_DEVICE = typer.Option(
    "cuda", "--device", help="cuda, or cpu to try the path.  [default: cuda]", show_default=False
)
_SMALL = typer.Option(False, "--small", help="Few and small shapes, for a trial.")


def _kernels(what: str, device: str, small: bool, target: Target, dtypes: Sequence[str] = ("bf16",)) -> None:
    """Time one kind of kernel and write its CSV."""
    import costmodel as cm

    with waiting(f"measuring {what}", quiet=target.quiet) as progress:
        text = cm.measure.kernels(what, dtypes=dtypes, device=device, small=small, progress=progress)
    target.put(text)


@command(
    "costmodel measure matmul --dtypes bf16,fp8 --out matmul.csv", group=measure, name="matmul", output=_FILES
)
def matmul(
    target: Target,
    dtypes: str = typer.Option("bf16", "--dtypes", help="Of bf16, fp16, tf32, fp32 and fp8, by commas."),
    device: str = _DEVICE,
    small: bool = _SMALL,
) -> None:
    """Time the matrix products of transformer layers."""
    _kernels("matmul", device, small, target, [dtype.strip() for dtype in dtypes.split(",")])


@command(group=measure, name="attention", output=_FILES)
def attention(target: Target, device: str = _DEVICE, small: bool = _SMALL) -> None:
    """Time fused attention, forward and backward, with and without a causal mask."""
    _kernels("attention", device, small, target)


@command(group=measure, name="memory", output=_FILES)
def memory(target: Target, device: str = _DEVICE, small: bool = _SMALL) -> None:
    """Time copies on the device, which the memory's bandwidth bounds."""
    _kernels("memory", device, small, target)


@command(
    """
    torchrun --nproc-per-node 8 -m costmodel measure collectives --sizes 1KiB:4GiB --out sweep.log
    costmodel measure collectives --local 2 --device cpu --sizes 1KiB:1MiB
    """,
    group=measure,
    name="collectives",
    output=_FILES,
)
def collectives(
    target: Target,
    names: str = typer.Option(
        "all-reduce,all-gather,reduce-scatter,all-to-all",
        "--collectives",
        help="Which, by commas.  [default: the four of training]",
    ),
    sizes: str = typer.Option("1KiB:1GiB", "--sizes", metavar="FROM:TO", help="Bytes of the full tensor."),
    local: int = typer.Option(0, "--local", help="Start this many ranks here, instead of torchrun."),
    device: str = _DEVICE,
) -> None:
    """Time collectives over torch.distributed and print them as nccl-tests does."""
    import costmodel as cm

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
        target.put(text)
