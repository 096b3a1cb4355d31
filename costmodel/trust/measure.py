"""`costmodel.measure`: this machine's kernels and collectives as tables that `costmodel.calibrate` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.base.answer import columns_of
from costmodel.base.csv_text import to_csv
from costmodel.base.errors import CostModelError, choices_hint
from costmodel.estimates.collective import canonical
from costmodel.interop.nccl_tests import PROGRAMS
from costmodel.trust.calibration import measure_collectives as bench
from costmodel.trust.calibration.measure_kernels import choose_device, headline, import_torch, sweep

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
KERNELS = ("matmul", "attention", "memory")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
Progress = Callable[[int, int], None]


def kernels(
    what: str,
    *,
    dtypes: Sequence[str] = ("bf16",),
    device: str = "cuda",
    small: bool = False,
    progress: Progress | None = None,
) -> str:
    """Time matrix products, fused attention, or copies on the device.

    Parameters
    ----------
    what : str
        One of `KERNELS`.
    dtypes : sequence of str
        Of the products; of `DTYPES`.
    device : str
        cuda, or cpu to try the path.
    small : bool
        Few and small shapes, for a trial.
    progress : callable, optional
        Called with rows timed and rows in all.

    Returns
    -------
    table : str
        A CSV below a line about the device, for `costmodel.calibrate.kernels`.
    """
    if what not in KERNELS:
        raise CostModelError(f"kernels: {what!r} is unknown; {choices_hint(what, KERNELS)}")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise CostModelError(f"dtypes: unknown {dtype!r}; {choices_hint(dtype, DTYPES)}")
    torch = import_torch()
    chosen = choose_device(torch, device)
    total, timed = sweep(torch, what, chosen, dtypes, small=small)
    rows = []
    for row in timed:
        rows.append(row)
        if progress is not None:
            progress(len(rows), total)
    return f"{headline(torch, chosen)}\n{to_csv(columns_of(rows) if rows else {})}"


def collectives(
    names: Sequence[str] = COLLECTIVES,
    *,
    low_bytes: float = 2.0**10,
    high_bytes: float = 2.0**30,
    device: str = "cuda",
    progress: Progress | None = None,
) -> str:
    """Time collectives over torch.distributed.

    Parameters
    ----------
    names : sequence of str
        Which.
    low_bytes, high_bytes : float
        Smallest and largest full tensor, doubled from one to the next. [B]
    device : str
        cuda, or cpu to try the path.
    progress : callable, optional
        Called with sizes timed and sizes in all.

    Returns
    -------
    log : str
        As nccl-tests prints it, for `costmodel.calibrate.fabric`; empty on ranks other than 0.
    """
    torch = import_torch()
    chosen = choose_device(torch, device)
    wanted = [canonical(name) for name in names]
    for one in wanted:
        if one not in PROGRAMS.values():
            raise CostModelError(f"collectives: {one.replace('_', '-')} is not one that nccl-tests has")
    if not bench.under_torchrun():
        raise CostModelError("collectives: expected several ranks; start with torchrun")
    return bench.measure_collectives(wanted, low_bytes, high_bytes, chosen, progress=progress)
