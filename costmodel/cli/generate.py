"""Inference: ``costmodel generate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.cli.command import command, merged_job
from costmodel.describe.jobs.fields import GENERATE_FIELDS, names


@command(
    """
    costmodel generate llama3-70b 8xH100 --prompt 128 --response 3000 --batch 256
    costmodel generate deepseek-v3-671b 16xH200 --precision fp8 --engine sglang -l "tp8 ep16 dp2"
    costmodel generate qwen3-235b-a22b 8xB200 --precision fp8 --format json
    """,
    fields=GENERATE_FIELDS,
)
def generate(given: Mapping[str, Any]) -> Any:
    """Price inference: time a token, tokens/s/GPU, the batch that fits, dollars per million tokens.

    Where no layout of a replica is named, the one that yields the most tokens a second is found. Of a job file it
    reads model, machine and price.
    """
    import costmodel as cm

    # A job file's layout is that of training.
    asked: dict[str, Any] = merged_job({**given, "layout": None}, complete=False) | {
        "layout": given.get("layout")
    }
    taken: Any = {name: asked.get(name) for name in names(GENERATE_FIELDS)}
    return cm.generate(**taken)
