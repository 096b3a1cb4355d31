"""What is known of frameworks whose code is not published: what their papers say they divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.interop.assertions.record import Arguments, Table, rows

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job


def arguments(job: Job) -> Arguments:
    """Return what papers speak of, under our own names."""
    model = job.model
    return {
        "tp": job.layout.tp,
        "cp": job.layout.cp,
        "seq_len": job.seq_len,
        "num_kv_heads": float(model.num_heads if model.attention == "mla" else model.num_kv_heads),
    }


PUBLISHED = Table(
    (
        *rows(
            "papers",
            "as published",
            (
                "arXiv:2407.21783, section 3.3.2",
                "cp > 1 and seq_len % (2 * cp) != 0",
                "the two parts of the sequence that each rank of {cp} takes do not divide {seq_len}",
            ),
            (
                "arXiv:2305.13245, section 2.2",
                "num_kv_heads % tp != 0 and tp % num_kv_heads != 0",
                "{tp} neither divides {num_kv_heads} nor repeats them evenly",
            ),
        ),
    ),
    arguments,
    lambda text: {},
)
"""Rules of Llama 3's, DeepSeek's and other in-house frameworks, as far as papers tell."""
