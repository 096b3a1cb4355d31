"""Packed sequences: ranks with longer documents take longer over attention, and the others wait for them."""

from __future__ import annotations

import numpy as np

from costmodel.bill.lines import TimeLine, time_line
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step.critical_stage import Step


def time_lines(step: Step) -> list[TimeLine]:
    r"""Return what data-parallel ranks wait for the one with the most scores.

    A rank's scores are a sum over its documents of squared lengths. Of N lognormal ones, whose standard deviation is c
    times their mean, that sum varies by :math:`\sqrt{((1 + c^2)^4 - 1) / N}` of itself; the slowest of n ranks has the
    expected maximum of n normals of it, and no rank has more than sequences of one document. That the tokens of a
    sequence are given makes it a little less, which is not counted. Context ranks have an equal part of every document
    (NVIDIA/TransformerEngine attention/context_parallel.py, `thd` format), so that nothing waits there.
    """
    placed, packing = step.placed, step.placed.packing
    if not packing.mean or not packing.spread:
        return []
    core_s = np.asarray(0.0)
    for block, count in zip(step.blocks, step.counts, strict=True):
        for item in block.of_role("core"):
            core_s = core_s + count * (item.forward_s + item.backward_s + item.recompute_s)
    dp = np.asarray(placed.layout.dp)
    return [
        time_line(
            "packing.imbalance",
            axis="dp",
            category="overhead",
            phase="step",
            count=1.0,
            formula="documents = sequences * seq_len / mean; "
            "excess = slowest * sqrt(((1 + spread ** 2) ** 4 - 1) / documents); "
            "core_s * min(excess, seq_len / span - 1)",
            terms={
                "core_s": core_s,
                "slowest": expected_maximum_normal(dp),
                "spread": packing.spread,
                "mean": packing.mean,
                "sequences": placed.global_batch / dp,
                "seq_len": placed.seq_len,
                "span": placed.shard.span,
            },
            source="sum of squared lengths of lognormal documents; expected maximum of independent ranks",
        )
    ]
