"""A job and its bill, with the figures that people ask for first."""

from __future__ import annotations

from collections import defaultdict
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.answer import figure, plain
from costmodel.base.errors import CostModelError, shown
from costmodel.base.words import with_device_name
from costmodel.base.yaml_files import read_mapping
from costmodel.bill.lines import Bill, TimeLine, broadcast_sum, sum_exposed
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.jobs.job import Job
from costmodel.describe.odds import RISK, odds
from costmodel.describe.recipe import is_fitted
from costmodel.step.anatomy.adapters import job_flops_per_token
from costmodel.step.price import Priced

Array = NDArray[np.float64]


class ErrorBand(NamedTuple):
    """Measured over predicted: the middle 80 % of `runs` published runs, their family of sources left out of the fit.

    `of` says which runs: a generation and a kind of model, `any` generation where there are too few, `unfitted`
    where the recipe has no constant of its own or nobody published runs of the machine.
    """

    low: float
    high: float
    runs: int
    sources: int  # Families of sources that published them
    of: str = ""


class ErrorBands(NamedTuple):
    """The shipped bands of step time and of memory, and the accelerators that they are of."""

    time: dict[str, ErrorBand]
    memory: dict[str, ErrorBand]
    accelerators: frozenset[str]


@cache
def error_bands() -> ErrorBands:
    """Return the shipped bands by accelerator generation and kind of model."""
    path = files("costmodel") / "describe" / "data" / "error_bands.yaml"
    raw = read_mapping(path, example="time: {hopper-dense: {low: 0.9, high: 1.1, runs: 30, sources: 5}}")
    time, memory = (
        {key: ErrorBand(**band, of=key) for key, band in raw[of].items()} for of in ("time", "memory")
    )
    return ErrorBands(time, memory, frozenset(raw["accelerators"]))


LARGE = 2000
"""GPUs beyond which a band of step time is no narrower than that of published runs on as many: gaps were seen there that
grow neither with batch nor model."""


class PricedJob:
    """A job, or an array of them, and its bill. Every figure comes from the lines of `bill`."""

    def __init__(self, job: Job, priced: Priced) -> None:
        self.job = job
        self.priced = priced

    @property
    def bill(self) -> Bill:
        """Time lines and memory lines."""
        return self.priced.bill

    @figure
    def step_time_s(self) -> Array:
        """Step time: the sum of exposed seconds. [s]"""
        return self._summed[0]

    @cached_property
    def _summed(self) -> tuple[Array, Array, Array]:
        """Seconds of a step, bytes of a GPU and bytes of a host, added up once."""
        return self.bill.step_time_s(), self.bill.memory_bytes(), self.bill.host_memory_bytes()

    @figure
    def tokens_per_step(self) -> Array:
        """Tokens of the global batch. [-]"""
        return np.asarray(self.job.global_batch * self.job.seq_len)

    @figure
    def tokens_per_s_per_gpu(self) -> Array:
        """Throughput of one GPU. [1/s]"""
        return np.asarray(self.tokens_per_step / self.step_time_s / self.job.layout.gpus)

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of the accelerator at the precision of the job's GEMMs. [FLOP/s]"""
        accelerator = self.job.cluster.accelerator
        return accelerator.peak_flops_per_s[PEAK_KEY[self.job.precision.matmul_dtype]]

    def model_flops(self, *, causal: bool = False) -> Array:
        """Model FLOPs of one step: full attention matrix (PaLM, Megatron), or half of it. [FLOP]

        Frozen weights count four times a token instead of six.
        """
        return self._model_flops[causal]

    @cached_property
    def _model_flops(self) -> dict[bool, Array]:
        """Model FLOPs by whether causal attention counts half: most figures ask for them."""
        return {
            causal: np.asarray(job_flops_per_token(self.job, causal=causal) * self.tokens_per_step)
            for causal in (False, True)
        }

    @figure
    def model_tflops_per_gpu(self) -> Array:
        """Model TFLOP/s of one GPU, full-attention convention. [TFLOP/s]"""
        return np.asarray(self.model_flops() / self.step_time_s / self.job.layout.gpus / 1e12)

    @figure
    def mfu(self) -> Array:
        """Model FLOPs utilisation, full attention matrix, of the dense peak at the GEMM precision. [-]"""
        return np.asarray(self.model_tflops_per_gpu * 1e12 / self.peak_flops_per_s)

    @figure
    def mfu_causal(self) -> Array:
        """The same with causal attention counted half. [-]"""
        return np.asarray(self.mfu * self.model_flops(causal=True) / self.model_flops())

    @figure
    def hfu(self) -> Array:
        """Hardware FLOPs utilisation: recomputed products counted too. [-]"""
        return np.asarray(self.mfu * (1.0 + self._recomputed_flops() / self.model_flops()))

    @figure
    def mfu_printed(self) -> Array | None:
        """The utilisation as the recipe's framework prints it; none where nobody says how it counts. [-]"""
        prints = self.job.recipe.prints
        if prints is None:
            return None
        return np.asarray({"full": self.mfu, "causal": self.mfu_causal, "hardware": self.hfu}[prints.mfu])

    def _recomputed_flops(self) -> Array:
        """Matrix FLOPs that the step runs a second time, over all layers and ranks. [FLOP]"""
        placed = self.priced.placed
        pattern = np.asarray(self.job.model.kind_of_layer)
        again: Array = np.asarray(0.0)
        layer_kinds = [block for block in self.priced.step.blocks if block.role == "layer"]
        for index, block in enumerate(layer_kinds):
            layers = float(np.sum(pattern == index))
            for item in block.by_operator.values():
                op = item.operator
                flops = 2.0 * op.m * op.n * op.k * op.groups
                if op.attention is not None:
                    shape = op.attention
                    scores = shape.calls * shape.heads * shape.seq_q * shape.seq_k
                    flops = 2.0 * scores * (shape.qk_head_dim + shape.v_head_dim)
                if op.scan is not None:
                    flops = item.passes[0].step("flops")
                again = again + layers * item.recompute_share * flops
        layout = placed.layout
        ranks_per_stage = layout.tp * layout.cp * layout.dp
        return np.asarray(again * placed.micro_batches * ranks_per_stage)

    @figure
    def memory_bytes_per_gpu(self) -> Array:
        """Memory of the worst pipeline stage. [B]"""
        return self._summed[1]

    @property
    def memory_capacity_bytes(self) -> float:
        """What the device really offers a program. [B]"""
        return self.job.cluster.accelerator.memory_bytes

    @figure
    def host_memory_bytes(self) -> Array:
        """Main memory of a host that what its GPUs send there takes, all of them on the worst stage. [B]"""
        return self._summed[2]

    @property
    def host_memory_capacity_bytes(self) -> float:
        """Main memory of a host. [B]"""
        return self.job.cluster.host.memory_bytes

    @figure
    def fits_gpu(self) -> NDArray[np.bool_]:
        """Whether the worst stage fits the GPU's memory."""
        room = self.job.factors.of("room", self.job.recipe.name)
        share = 1.0 if room is None else room
        return np.asarray(self.memory_bytes_per_gpu <= share * self.memory_capacity_bytes)

    @figure
    def fits_host(self) -> NDArray[np.bool_]:
        """Whether what the GPUs of a host keep there fits its memory."""
        return np.asarray(self.host_memory_bytes <= self.host_memory_capacity_bytes)

    @figure
    def fits(self) -> NDArray[np.bool_]:
        """Whether the worst stage fits, on the GPU and on the host."""
        return np.asarray(np.logical_and(self.fits_gpu, self.fits_host))

    @figure
    def fits_probability(self) -> Array:
        """How surely it fits GPU and host, by the odds that published runs give predicted memory. [-]

        `Samples.fits_share` differs by a few per cent: samples know the parts of the memory, the odds only its sum.
        """
        chances = odds().fits_with(self.job.recipe.name)
        return np.asarray(
            chances.probability(self.memory_bytes_per_gpu, self.memory_capacity_bytes)
            * chances.probability(self.host_memory_bytes, self.host_memory_capacity_bytes)
        )

    @figure
    def is_tight(self) -> NDArray[np.bool_]:
        """Whether it fits, but less surely than a plan asks for by default."""
        return np.asarray(np.logical_and(self.fits, self.fits_probability < 1.0 - RISK))

    def gpu_hours(self, tokens: float) -> Array:
        """GPU-hours to train on so many tokens, nothing lost to failures. [h]

        Where compressed gradients learn less a step, to the loss that these tokens reach with whole ones.
        """
        return np.asarray(self.job.steps_factor * tokens / self.tokens_per_s_per_gpu / 3600.0)

    def days(self, tokens: float) -> Array:
        """Days to train on so many tokens, nothing lost to failures. [d]"""
        return np.asarray(self.gpu_hours(tokens) / self.job.layout.gpus / 24.0)

    def exposed_by(self, attribute: str) -> dict[str, Any]:
        """Add up exposed seconds by an attribute of the lines: axis, category or phase. [s]"""
        if attribute not in ("axis", "category", "phase"):
            raise CostModelError(f"exposed_by: expected axis, category or phase, got {shown(attribute)}")
        groups = defaultdict[str, list[Array]](list)
        for line in self.bill.time_lines:
            groups[getattr(line, attribute)].append(line.exposed_seconds)
        return {name: plain(broadcast_sum(parts)) for name, parts in groups.items()}

    def hidden_by_axis(self) -> dict[str, Any]:
        """Return the share of communication that runs beside compute: of each axis that sends, and of all as ``all``. [-]"""
        groups = defaultdict[str, list[TimeLine]](list)
        for line in self.bill.time_lines:
            if line.category == "communication":
                for name in (line.axis, "all"):
                    groups[name].append(line)
        shares = {}
        for name, lines in groups.items():
            sent, waited = broadcast_sum(line.seconds for line in lines), sum_exposed(lines)
            if np.any(sent > 0.0):
                shares[name] = plain(1.0 - np.divide(waited, sent, out=np.ones_like(sent), where=sent > 0.0))
        return shares

    @property
    def error_band(self) -> ErrorBand | None:
        """Where 80 % of comparable published runs lie around such a step time; None where there are too few.

        Nor of a site with runs of its own, which say it better: samples follow them.
        """
        if self.job.belief.names:
            return None
        bands, accelerator = error_bands(), self.job.cluster.accelerator
        kind = "moe" if self.job.model.num_experts else "dense"
        fitted = is_fitted(self.job.recipe.name, accelerator.generation)
        known = fitted and accelerator.name in bands.accelerators
        others = "estimated" if accelerator.is_estimated else "unfitted"
        keys = [f"{accelerator.generation}-{kind}-unfitted", f"any-{kind}-{others}", f"any-{kind}-unfitted"]
        if known:
            keys.insert(0, f"{accelerator.generation}-{kind}")
        # A chip whose products nobody measured, nor a run on it, is no surer than others like that.
        if accelerator.is_estimated and accelerator.name not in bands.accelerators:
            keys.insert(0, f"any-{kind}-estimated")
        found = next((bands.time[key] for key in keys if key in bands.time), None)
        large = bands.time.get("any-large")
        if found is None or large is None or not np.any(self.job.layout.gpus > LARGE):
            return found
        return found._replace(low=min(found.low, large.low), high=max(found.high, large.high))

    @property
    def memory_error_band(self) -> ErrorBand:
        """Where 80 % of comparable published runs lie around such a peak memory."""
        bands = error_bands().memory
        kind = "moe" if self.job.model.num_experts else "dense"
        return bands.get(f"{self.job.cluster.accelerator.generation}-{kind}", bands["any"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that all figures broadcast to; empty for one layout."""
        job = self.job
        return np.broadcast_shapes(
            np.shape(self.step_time_s),
            job.layout.shape,
            job.global_batch.shape,
            job.seq_len.shape,
            np.shape(self.memory_bytes_per_gpu),
        )

    def require_single(self, what: str) -> None:
        """Refuse to describe many layouts as if they were one."""
        if self.shape:
            raise CostModelError(f"{what}: this estimate holds {self.shape} layouts; use to_frame('wide')")

    @property
    def worst_stage(self) -> int:
        """Number of the pipeline stage that needs most memory, from 0 (one layout only). [-]"""
        per_stage = self.bill.memory_per_stage_bytes()
        index = np.broadcast_to(self.priced.placed.stages.index, per_stage.shape)
        return int(index[int(np.argmax(per_stage))])

    @property
    def slowest_stage(self) -> int:
        """Number of the first pipeline stage whose blocks the bill counts, from 0 (one layout only). [-]"""
        placed, step = self.priced.placed, self.priced.step
        counts = {line.name: float(line.count) for line in self.bill.time_lines}
        micro_batches = float(placed.micro_batches)
        same = np.ones(placed.stages.index.shape, dtype=np.bool_)
        for block, lines in zip(step.blocks, step.block_lines, strict=True):
            same = same & np.isclose(block.runs_on_stage, counts[lines[0].name] / micro_batches)
        return int(placed.stages.index[int(np.argmax(same))])

    def __repr__(self) -> str:
        if np.shape(self.step_time_s):
            return f"Estimate of {np.size(self.step_time_s)} layouts of {self.job.model.name}"
        text = (
            f"Estimate({self.job.model.name} on {float(self.job.layout.gpus):.0f} GPUs of {self.job.cluster.name}: "
            f"{float(self.step_time_s):.4g} s a step, MFU {float(self.mfu):.1%}, "
            f"{float(self.memory_bytes_per_gpu) / 2**30:.1f} GiB a GPU, {'fits' if self.fits else 'does not fit'})"
        )
        return with_device_name(text, self.job.cluster.accelerator.called)
