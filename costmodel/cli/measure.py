"""``costmodel measure``: this machine's kernels and collectives, for `costmodel calibrate`."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.cli.collective import parse_sizes
from costmodel.cli.command import command, command_group
from costmodel.cli.output import Target, waiting

measure = command_group("measure")
_FILES = ("out", "force", "quiet")


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
    dtypes: str,
    device: str,
    small: bool,
) -> None:
    """Time the matrix products of transformer layers."""
    _kernels("matmul", device, small, target, [dtype.strip() for dtype in dtypes.split(",")])


@command(group=measure, name="attention", output=_FILES)
def attention(target: Target, device: str, small: bool) -> None:
    """Time fused attention, forward and backward, with and without a causal mask."""
    _kernels("attention", device, small, target)


@command(group=measure, name="memory", output=_FILES)
def memory(target: Target, device: str, small: bool) -> None:
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
    names: str,
    sizes: str,
    local: int,
    device: str,
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
