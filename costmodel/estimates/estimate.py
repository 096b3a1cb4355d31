"""`costmodel.estimate` and what it returns: a bill with the figures people ask for first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import Bill, broadcast_sum
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.jobs.job import DEFAULT_CLUSTER, DEFAULT_RECIPE, Job, make_job
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.step.anatomy.params import model_flops_per_token
from costmodel.step.price import Priced, price

if TYPE_CHECKING:
    import pandas as pd

    from costmodel.describe.hardware.cluster import Cluster
    from costmodel.describe.models.model import Model
    from costmodel.describe.recipe import Recipe
    from costmodel.estimates.explain import Explanation
    from costmodel.reporting.plots.faces import EstimatePlots

Array = NDArray[np.float64]


class ErrorBand(NamedTuple):
    """Measured over predicted step time: the middle 80 % of `runs` published runs, each source held out of the fit."""

    low: float
    high: float
    runs: int


@cache
def error_bands() -> dict[str, ErrorBand]:
    """Return the shipped bands by accelerator generation and kind of model."""
    from ruamel.yaml import YAML

    text = (files("costmodel") / "describe" / "data" / "error_bands.yaml").read_text()
    return {key: ErrorBand(**band) for key, band in YAML(typ="safe", pure=True).load(text).items()}


class Estimate:
    """A priced job, or an array of them. Every figure comes from the lines of `bill`."""

    def __init__(self, job: Job, priced: Priced) -> None:
        self.job = job
        self.priced = priced

    @property
    def bill(self) -> Bill:
        """Time lines and memory lines."""
        return self.priced.bill

    @cached_property
    def step_time_s(self) -> Array:
        """Step time: the sum of exposed seconds. [s]"""
        return self.bill.step_time_s()

    @property
    def tokens_per_step(self) -> Array:
        """Tokens of the global batch. [-]"""
        return np.asarray(self.job.global_batch * self.job.seq_len)

    @property
    def tokens_per_s_per_gpu(self) -> Array:
        """Throughput of one GPU. [1/s]"""
        return np.asarray(self.tokens_per_step / self.step_time_s / self.job.layout.gpus)

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of the accelerator at the precision of the job's GEMMs. [FLOP/s]"""
        accelerator = self.job.cluster.accelerator
        return accelerator.peak_flops_per_s[PEAK_KEY[self.job.precision.matmul_dtype]]

    def model_flops(self, *, causal: bool = False) -> Array:
        """Model FLOPs of one step: full attention matrix (PaLM, Megatron), or half of it. [FLOP]"""
        return np.asarray(
            model_flops_per_token(self.job.model, self.job.seq_len, causal) * self.tokens_per_step
        )

    @property
    def model_tflops_per_gpu(self) -> Array:
        """Model TFLOP/s of one GPU, full-attention convention. [TFLOP/s]"""
        return np.asarray(self.model_flops() / self.step_time_s / self.job.layout.gpus / 1e12)

    @property
    def mfu(self) -> Array:
        """Model FLOPs utilisation, full attention matrix, of the dense peak at the GEMM precision. [-]"""
        return np.asarray(self.model_tflops_per_gpu * 1e12 / self.peak_flops_per_s)

    @property
    def mfu_causal(self) -> Array:
        """The same with causal attention counted half. [-]"""
        return np.asarray(self.mfu * self.model_flops(causal=True) / self.model_flops())

    @property
    def hfu(self) -> Array:
        """Hardware FLOPs utilisation: recomputed products counted too. [-]"""
        return np.asarray(self.mfu * (1.0 + self._recomputed_flops() / self.model_flops()))

    def _recomputed_flops(self) -> Array:
        """Matrix FLOPs that the step runs a second time, over all layers and ranks. [FLOP]"""
        placed = self.priced.placed
        pattern = np.asarray(self.job.model.kind_of_layer)
        again: Array = np.asarray(0.0)
        layer_kinds = [block for block in self.priced.blocks if block.role == "layer"]
        for index, block in enumerate(layer_kinds):
            layers = float(np.sum(pattern == index))
            for item in block.times.by_operator.values():
                op = item.operator
                flops = 2.0 * op.m * op.n * op.k * op.groups
                if op.attention is not None:
                    shape = op.attention
                    flops = (
                        2.0
                        * shape.calls
                        * shape.heads
                        * shape.seq_q
                        * shape.seq_k
                        * (shape.qk_head_dim + shape.v_head_dim)
                    )
                again = again + layers * item.recompute_share * flops
        layout = placed.layout
        ranks_per_stage = layout.tp * layout.cp * layout.dp
        return np.asarray(again * placed.micro_batches * ranks_per_stage)

    @cached_property
    def memory_bytes_per_gpu(self) -> Array:
        """Memory of the worst pipeline stage. [B]"""
        return self.bill.memory_bytes()

    @property
    def memory_capacity_bytes(self) -> float:
        """What the device really offers a program. [B]"""
        return self.job.cluster.accelerator.memory_bytes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the worst stage fits."""
        return np.asarray(self.memory_bytes_per_gpu <= self.memory_capacity_bytes)

    def gpu_hours(self, tokens: float) -> Array:
        """GPU-hours to train on so many tokens, nothing lost to failures. [h]"""
        return np.asarray(tokens / self.tokens_per_s_per_gpu / 3600.0)

    def days(self, tokens: float) -> Array:
        """Days to train on so many tokens, nothing lost to failures. [d]"""
        return np.asarray(self.gpu_hours(tokens) / self.job.layout.gpus / 24.0)

    def exposed_by(self, attribute: str) -> dict[str, Array]:
        """Add up exposed seconds by an attribute of the lines: axis, toll or phase. [s]"""
        groups: dict[str, list[Array]] = {}
        for line in self.bill.time_lines:
            groups.setdefault(getattr(line, attribute), []).append(line.exposed_seconds)
        return {name: broadcast_sum(parts) for name, parts in groups.items()}

    @property
    def error_band(self) -> ErrorBand | None:
        """Where 80 % of comparable published runs lie around such a prediction; None where there are too few."""
        kind = "moe" if self.job.model.num_experts else "dense"
        return error_bands().get(f"{self.job.cluster.accelerator.generation}-{kind}")

    @cached_property
    def warnings(self) -> list[str]:
        """Plain words about what is unusual or does not fit (one layout only)."""
        from costmodel.estimates.warnings import warnings_of

        return warnings_of(self)

    def explain(self, name: str = "") -> Explanation:
        """Open up lines of the bill: formula, numbers with units, steps, tier and source (one layout only).

        Parameters
        ----------
        name : str
            Name of a line, or the beginning of several (``"tp."``); all lines without.

        Returns
        -------
        explanation : Explanation
            Prints as text, and shows as tables in a notebook.

        Raises
        ------
        CostModelError
            If no line is called so.
        """
        from costmodel.estimates.explain import explain

        return explain(self, name)

    @property
    def plot(self) -> EstimatePlots:
        """Figures of one layout: ``est.plot.time()``, ``.memory()``, ``.pipeline()`` …"""
        from costmodel.reporting.plots.faces import EstimatePlots

        return EstimatePlots(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts, as `--format json` prints it."""
        from costmodel.estimates.record import estimate_record

        return estimate_record(self)

    def to_frame(self, form: str = "long") -> pd.DataFrame:
        """Return the bill as a frame: `long` has a row a line, `wide` a row a layout."""
        from costmodel.estimates.frame import long_frame, wide_frame

        return long_frame(self) if form == "long" else wide_frame(self)

    def _repr_html_(self) -> str:
        from costmodel.reporting.tables import estimate_html

        return estimate_html(self)

    def __repr__(self) -> str:
        if self.step_time_s.shape:
            return f"Estimate of {self.step_time_s.size} layouts of {self.job.model.name}"
        return (
            f"Estimate({self.job.model.name} on {float(self.job.layout.gpus):.0f} GPUs of {self.job.cluster.name}: "
            f"{float(self.step_time_s):.4g} s a step, MFU {float(self.mfu):.1%}, "
            f"{float(self.memory_bytes_per_gpu) / 2**30:.1f} GiB a GPU, {'fits' if self.fits else 'does not fit'})"
        )


def estimate_job(job: Job, *, every_stage: bool | None = None) -> Estimate:
    """Price a checked job."""
    single = job.layout.shape == ()
    return Estimate(job, price(job, every_stage=single if every_stage is None else every_stage))


def estimate(
    *,
    model: str | Model,
    cluster: str | Cluster = DEFAULT_CLUSTER,
    gpus: ArrayLike,
    layout: str | None = None,
    global_batch: ArrayLike,
    seq_len: ArrayLike,
    precision: str = "bf16",
    recipe: str | Recipe = DEFAULT_RECIPE,
    switches: Mapping[str, Any] | None = None,
    axis_order: str | Sequence[str] = DEFAULT_ORDER,
    tokens: float | None = None,
    **degrees: Any,
) -> Estimate:
    """Price one training step of a job.

    Parameters
    ----------
    model : str or Model
        Preset, path of a model file or of a HuggingFace ``config.json``, or a `Model`.
    cluster : str or Cluster
        Shipped cluster, path of a profile, or a `Cluster`.
    gpus : array_like of int
        GPUs of the job. [-]
    layout : str, optional
        Degrees as text, ``"tp8 cp1 pp16 vp2"``; or as keywords below.
    global_batch : array_like of int
        Sequences a step. [-]
    seq_len : array_like of int
        Tokens a sequence. [-]
    precision : str
        Of the GEMMs: bf16, fp16, fp8-delayed, fp8-current, fp8-block, mxfp8, mxfp4, nvfp4.
    recipe : str or Recipe
        Framework preset.
    switches : mapping, optional
        Single switches of the recipe to change.
    axis_order : str or sequence of str
        Order of the axes on the machine, innermost first.
    tokens : float, optional
        Tokens of the whole run, for days and GPU-hours.
    **degrees
        tp, cp, pp, vp, ep, etp, micro_batch, zero_stage, shard_group, recompute, schedule,
        sequence_parallel, dp; numbers, names, or arrays that broadcast.

    Returns
    -------
    Estimate
        With arrays among the arguments, every figure is an array.

    Raises
    ------
    CostModelError
        One line that names the field, the value and what is allowed.
    """
    job = make_job(
        model=model,
        cluster=cluster,
        gpus=gpus,
        layout=layout,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        recipe=recipe,
        switches=switches,
        axis_order=axis_order,
        tokens=tokens,
        **degrees,
    )
    return estimate_job(job)
