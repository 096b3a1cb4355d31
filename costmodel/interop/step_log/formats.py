"""What frameworks print of a step, one record a way of printing it, and what they print of memory.

The table is the reader: a record says by which words a line is known, where its numbers stand, in what
unit, and which file of the framework prints it. Rates become seconds once a job says how many tokens or
samples a step has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_NUMBER = r"([\d.]+(?:[eE][+-]?\d+)?)"


@dataclass(frozen=True)
class StepFormat:
    """One way in which a framework prints its steps.

    Attributes
    ----------
    name, title : str
        Key of the table, and the framework as people call it.
    mark : str
        Words that every such line has: looked for before anything else.
    value : re.Pattern
        Its groups, added up, are the value in `unit`.
    unit : str
        ``ms`` or ``s`` a step, ``tokens/s/GPU`` or ``samples/s``: a key of `UNITS`.
    number : re.Pattern, optional
        Number of the step in the first group that takes part, in the second one the steps of the whole run;
        none where a line has no number.
    batch : re.Pattern, optional
        Sequences of the step, where the line says so.
    skipped : re.Pattern, optional
        Steps since the line before whose update was skipped, as after an overflow of the loss scale.
    source : str
        Who prints it, and where.
    """

    name: str
    title: str
    mark: str
    value: re.Pattern[str]
    unit: str
    number: re.Pattern[str] | None
    batch: re.Pattern[str] | None
    skipped: re.Pattern[str] | None
    source: str


UNITS = {
    "ms": "value * 1e-3",
    "s": "value",
    "tokens/s/GPU": "tokens_per_step / (value * gpus)",
    "samples/s": "global_batch / value",
}
"""Seconds of a step from what is printed, over terms of the job."""

FORMATS: tuple[StepFormat, ...] = (
    StepFormat(
        "megatron-lm",
        "Megatron-LM",
        "elapsed",
        re.compile(rf"elapsed[ _]time[ _]per[ _]iteration(?: \(ms\):|_ms=)\s*{_NUMBER}"),
        "ms",
        re.compile(r"\biteration[ =]\s*(\d+)/\s*(\d+)?"),
        re.compile(r"global batch size:\s*(\d+)"),
        re.compile(r"number of skipped iterations:\s*(\d+)"),
        "NVIDIA/Megatron-LM megatron/training/training.py, training_log; Megatron-Bridge, Megatron-DeepSpeed and Primus "
        "print the same",
    ),
    StepFormat(
        "nemo",
        "NeMo",
        "train_step_timing in s",
        re.compile(rf"train_step_timing in s\"?\s*[:=]\s*{_NUMBER}"),
        "s",
        re.compile(r"\biteration (\d+)/(\d+)|global_step\"?\s*[:=]\s*(\d+)"),
        re.compile(r"global_batch_size\"?\s*[:=]\s*(\d+)"),
        None,
        "NVIDIA/NeMo nemo/lightning/pytorch/callbacks/progress_printer.py, and the progress bars of Lightning before it",
    ),
    StepFormat(
        "torchtitan",
        "torchtitan",
        "ps:",
        re.compile(r"\bmemory:.*\b(?:tps|wps):\s*([\d.]+)"),
        "tokens/s/GPU",
        re.compile(r"(?<!validate )\bstep:\s*(\d+)"),
        None,
        None,
        "pytorch/torchtitan torchtitan/components/metrics.py, MetricsProcessor.log",
    ),
    StepFormat(
        "deepspeed-pipeline",
        "DeepSpeed's pipeline engine",
        "iter time (s):",
        re.compile(rf"iter time \(s\):\s*{_NUMBER}"),
        "s",
        re.compile(r"\bsteps?:\s*(\d+)(?:\s*/\s*(\d+))?"),
        None,
        None,
        "deepspeedai/DeepSpeed deepspeed/runtime/pipe/engine.py, train_batch",
    ),
    StepFormat(
        "deepspeed",
        "DeepSpeed",
        "CurrSamplesPerSec=",
        re.compile(rf"CurrSamplesPerSec={_NUMBER}"),
        "samples/s",
        re.compile(r"\bglobal_step=(\d+)"),
        None,
        None,
        "deepspeedai/DeepSpeed deepspeed/utils/timer.py, ThroughputTimer.stop",
    ),
    StepFormat(
        "megatron-bridge",
        "Megatron-Bridge",
        "Step Time :",
        re.compile(rf"Step Time :\s*{_NUMBER}\s*s"),
        "s",
        None,
        None,
        None,
        "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/training/utils/train_utils.py, training_log",
    ),
    StepFormat(
        "deepspeed-timers",
        "DeepSpeed's wall_clock_breakdown",
        "time (ms) | fwd:",
        re.compile(rf"time \(ms\) \| fwd: {_NUMBER} \| bwd: {_NUMBER} .*\| step: {_NUMBER}"),
        "ms",
        None,
        None,
        None,
        "deepspeedai/DeepSpeed deepspeed/runtime/engine.py, step: forward, backward and optimizer of a global step",
    ),
)
"""In the order in which they are trusted where one log has several: those that time a whole step come first."""


class MemoryFormat(NamedTuple):
    """One way in which peak memory is printed: what it counts, in bytes of `unit`."""

    mark: str
    value: re.Pattern[str]
    kind: str
    unit_bytes: float
    source: str


_MIB, _GIB, _GB = 2.0**20, 2.0**30, 1e9

MEMORY_FORMATS: tuple[MemoryFormat, ...] = (
    MemoryFormat(
        "max allocated:",
        re.compile(rf"max allocated: {_NUMBER}"),
        "max_allocated",
        _MIB,
        "NVIDIA/Megatron-LM megatron/training/utils.py, report_memory: bytes / 1024 / 1024",
    ),
    MemoryFormat(
        "max reserved:",
        re.compile(rf"max reserved: {_NUMBER}"),
        "max_reserved",
        _MIB,
        "NVIDIA/Megatron-LM megatron/training/utils.py, report_memory",
    ),
    MemoryFormat(
        "mem-max-allocated-gigabytes:",
        re.compile(rf"mem-max-allocated-gigabytes: {_NUMBER}"),
        "max_allocated",
        _GB,
        "NVIDIA-NeMo/Megatron-Bridge training/utils/train_utils.py, report_memory: bytes / 1e9",
    ),
    MemoryFormat(
        "mem-max-reserved-gigabytes:",
        re.compile(rf"mem-max-reserved-gigabytes: {_NUMBER}"),
        "max_reserved",
        _GB,
        "NVIDIA-NeMo/Megatron-Bridge training/utils/train_utils.py, report_memory",
    ),
    MemoryFormat(
        "memory:",
        re.compile(rf"\bmemory:\s*{_NUMBER}GiB\("),
        "max_reserved",
        _GIB,
        "pytorch/torchtitan torchtitan/components/metrics.py: reserved_bytes.all.peak / 1024^3",
    ),
    MemoryFormat(
        "MaxMemAllocated=",
        re.compile(rf"MaxMemAllocated={_NUMBER}GB"),
        "max_allocated",
        _GIB,
        "deepspeedai/DeepSpeed deepspeed/utils/timer.py: bytes / 1024^3",
    ),
    MemoryFormat(
        "Max_MA",
        re.compile(rf"Max_MA {_NUMBER} GB"),
        "max_allocated",
        _GIB,
        "deepspeedai/DeepSpeed deepspeed/runtime/utils.py, see_memory_usage: bytes / 1024^3",
    ),
)
"""Peaks of one rank each; the largest of a log is the busiest rank's, if all ranks print."""


class LogEvent(NamedTuple):
    """Something between two steps that makes the next one slow."""

    bit: int
    name: str
    pattern: re.Pattern[str]


EVENTS: tuple[LogEvent, ...] = (
    LogEvent(
        1,
        "a checkpoint",
        re.compile(r"\bsav(?:ed|ing)\b.{0,60}?\bcheckpoint|\bcheckpoint.{0,40}?\bsaved\b", re.I),
    ),
    LogEvent(
        2,
        "an evaluation",
        re.compile(r"\bvalidat(?:e|ion)\b.{0,30}?(?:loss|step|iteration)|\bevaluat(?:e|ing|ion)\b", re.I),
    ),
)
SKIPPED = 4
"""Bit of a step whose update was skipped."""
