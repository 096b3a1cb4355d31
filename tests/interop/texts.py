"""Texts read as files of a kind, for the tests of this folder."""

import costmodel as cm
from costmodel.interop import megatron_job
from costmodel.interop.framework import Imported
from costmodel.interop.keys import Flags
from costmodel.interop.reading import read_file
from costmodel.interop.text_file import TextFile


def read_as(kind: str, text: str, name: str = "", **given: object) -> Imported:
    """Read a text as a file of a kind, by its own name if it has one."""
    return read_file(TextFile(text, name or kind), kind, **given)


def read_flags(text: str, recipe: str = "megatron-core") -> Imported:
    """Read Megatron-LM's flags, alone or behind a command without variables."""
    return megatron_job.read_flags(Flags(text), {"recipe": recipe}).answer()


def assert_same_bill(ours: cm.Estimate, theirs: cm.Estimate) -> None:
    """Hold every line of time, the step and the memory of two estimates to each other."""
    a, b = (
        {line.name: (float(line.seconds), float(line.exposed_seconds)) for line in est.bill.time_lines}
        for est in (ours, theirs)
    )
    assert a == b
    assert float(ours.memory_bytes_per_gpu) == float(theirs.memory_bytes_per_gpu)
    assert float(ours.step_time_s) == float(theirs.step_time_s)
