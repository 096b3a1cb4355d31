"""New weights for the engine: seconds by method, from the tensors and bytes that move."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_rows
from costmodel.bill.lines import TimeLine, time_line
from costmodel.describe.models.model import Model
from costmodel.step.anatomy.params import layer_param_blocks


class RefitMethod(NamedTuple):
    """A way to bring weights from the trainer to the engine: a row of ``refit.csv``.

    Attributes
    ----------
    method : str
        Its name.
    start_s, tensor_s : float
        Once a refit, and for each tensor. [s]
    bytes_per_s : float
        Of the slowest path. [B/s]
    moves_all : bool
        Whether the whole model passes that path, or what one generating GPU holds.
    spread : float
        Factor within which published refits lie around it. [-]
    source : str
        Where it was measured.
    """

    method: str
    start_s: float
    tensor_s: float
    bytes_per_s: float
    moves_all: bool
    spread: float
    source: str


REFITS: dict[str, RefitMethod] = {
    row["method"]: RefitMethod(
        row["method"],
        float(row["start_s"]),
        float(row["tensor_ms"]) * 1e-3,
        float(row["bytes_per_s"]),
        row["bytes"] == "all",
        float(row["spread"]),
        row["source"],
    )
    for row in read_rows(Path(__file__).with_name("refit.csv"))
}
"""Every method by name."""

HOST_COPY_BYTES_PER_S = 5e9
"""Between a GPU and main memory that is not pinned, all GPUs of a node at once: optimizer and gradients of 30B 7.5 s,
of 235B 22 s on B200 (total less transfer, NVIDIA-NeMo/RL PR 3294), of DeepSeek-V3 about 20 s (PR 638). [B/s]"""


def num_tensors(model: Model) -> int:
    """Return the tensors of a checkpoint, every expert's matrices apart. [-]

    Examples
    --------
    >>> from costmodel.describe.models.model_files import load_model
    >>> num_tensors(load_model("qwen3-30b-a3b")) > 18_000, num_tensors(load_model("llama3-8b")) < 400
    (True, True)
    """
    kinds, kind_of = model.layer_kinds(), model.kind_of_layer
    count = 3
    for number, kind in enumerate(kinds):
        blocks = layer_param_blocks(model, kind)
        of_experts = sum(block.part == "experts" for block in blocks)
        each = len(blocks) - of_experts
        if of_experts:
            each += model.num_experts * (3 if model.gated_mlp else 2)
        count += kind_of.count(number) * each
    return count


def refit_lines(
    method: RefitMethod, *, tensors: float, all_bytes: float, held_bytes: float
) -> list[TimeLine]:
    """Return what one refit takes.

    Parameters
    ----------
    method : RefitMethod
        How weights move.
    tensors : float
        Of the model. [-]
    all_bytes, held_bytes : float
        Of all weights, and of those of one generating GPU. [B]
    """
    moved = all_bytes if method.moves_all else held_bytes
    return [
        time_line(
            f"refit.{method.method}",
            axis="dp",
            category="communication",
            phase="step",
            count=1.0,
            formula="start_s + tensors * tensor_s + moved_bytes / bytes_per_s",
            terms={
                "start_s": method.start_s,
                "tensors": tensors,
                "tensor_s": method.tensor_s,
                "moved_bytes": moved,
                "bytes_per_s": method.bytes_per_s,
            },
            bytes_each=moved,
            source=method.source,
        )
    ]


def host_copy_line(name: str, moved_bytes: float, source: str) -> TimeLine:
    """Return what a copy of so many bytes of a GPU from or to main memory takes."""
    return time_line(
        name,
        axis="optimizer",
        category="communication",
        phase="step",
        count=1.0,
        formula="moved_bytes / bytes_per_s",
        terms={"moved_bytes": moved_bytes, "bytes_per_s": HOST_COPY_BYTES_PER_S},
        bytes_each=moved_bytes,
        source=source,
    )
