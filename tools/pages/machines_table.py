"""Write the tables of Llama 3 70B on eight kinds of hardware: README.md has the short one, docs/machines.md the whole.

    python tools/pages/machines_table.py            # rewrite both
    python tools/pages/machines_table.py --check    # exit 1 if one is out of date

The same tokens a step on as many devices of each; everything is predicted, nothing is chosen by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from pages import DOCS, fill, read_pages, settle

from costmodel import plan
from costmodel.base.words import plural
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.layout_text import degrees_of, degrees_text, layout_text, value_text
from costmodel.planning.machines import TRILLION
from costmodel.planning.plan import Plan
from costmodel.whole_run.run import step_power_w

JOB = {"model": "llama3-70b", "gpus": 256, "global_batch": 512, "seq_len": 8192, "precision": "bf16"}
CLUSTERS = {
    "A100": "dgx-a100-hdr",
    "H100": "dgx-h100-ndr",
    "B200": "hgx-b200-ndr",
    "GB200 NVL72": "gb200-nvl72-ndr",
    "MI300X": "mi300x-roce400",
    "TPU v5p": "tpu-v5p",
    "TPU v6e": "tpu-v6e",
    "Trainium 2": "trn2-efa",
}


class Row(NamedTuple):
    """One kind of hardware and the best layout on it."""

    kind: str
    cluster: Cluster
    found: Plan

    @property
    def usd(self) -> float:
        """Rent for a trillion tokens while nothing fails. [USD]"""
        price = self.cluster.price_usd_per_gpu_hour
        assert price is not None, f"{self.cluster.name} has no price"
        return price * float(self.found.best.gpu_hours(TRILLION))

    def short(self) -> str:
        """Return the row of the README."""
        est, within = self.found.best, self.found.best.interval()
        held, room = (size / 2**30 for size in (float(est.memory_bytes_per_gpu), est.memory_capacity_bytes))
        layout = est.job.layout
        degrees = degrees_text(degrees_of(layout), always=("tp", "dp"))
        recompute = value_text("recompute", float(layout.recompute))
        again = "" if recompute == "none" else f", {recompute} recompute"
        plan_text = f"{degrees}, ZeRO-{float(layout.zero_stage):.0f}{again}"
        step = f"{float(est.step_time_s):.1f} s ({within.low:.1f}-{within.high:.1f})"
        figures = f"{float(est.mfu):.0%} | {held:.0f}/{room:.0f} GiB | ${self.usd / 1e6:.2f} M"
        return f"| {self.kind} | {plan_text} | {step} | {figures} |"

    def whole(self) -> str:
        """Return the row of the page."""
        est, within, cluster = self.found.best, self.found.best.interval(), self.cluster
        held, room = (size / 2**30 for size in (float(est.memory_bytes_per_gpu), est.memory_capacity_bytes))
        span = cluster.price_range_usd_per_gpu_hour
        price = f"${cluster.price_usd_per_gpu_hour:.2f} on {cluster.price_date}"
        lists = "" if span is None else f", lists from ${span[0]:.2f} to ${span[1]:.2f}"
        least, most = (self.usd * scale / float(est.step_time_s) / 1e6 for scale in (within.low, within.high))
        energy = float(est.gpu_hours(TRILLION)) * step_power_w(est) * cluster.pue / 1e6
        choices = "; ".join(str(choice) for choice in self.found.columns(1)["choices"] if choice)
        return (
            f"| {plural(float(est.job.layout.gpus), cluster.accelerator.called)} of `{cluster.name}` "
            f"| {est.job.recipe.name}{', ' + choices if choices else ''} | {layout_text(est.job.layout)}"
            f"{', slice ' + est.job.slice if est.job.slice else ''} | {float(est.step_time_s):.2f} s "
            f"({within.low:.2f} to {within.high:.2f}) | {float(est.mfu):.1%} | {held:.1f} of {room:.1f} GiB "
            f"| {float(est.days(TRILLION)):.1f} | {energy:,.0f} | ${self.usd / 1e6:.3f} M ({least:.3f} to {most:.3f}) "
            f"| {price}{lists} |"
        )


SHORT_HEAD = "| 256 of | best plan | step (p10-p90) | MFU | memory | 1 T tokens |\n|---|---|---|---|---|---|"
WHOLE_HEAD = (
    "| machine | recipe, and what the plan tuned | best plan | step (p10 to p90) | MFU of the dense bf16 peak | memory "
    "| days for a trillion tokens | MWh | dollars for a trillion tokens (p10 to p90) | price of an hour |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def page(rows: Sequence[Row]) -> str:
    """Return docs/machines.md."""
    commands = [row.found.commands(1)[0] for row in rows]
    return "\n".join(
        [
            "# Llama 3 70B on eight kinds of hardware",
            "",
            f"{JOB['gpus']} devices each, {JOB['global_batch']} sequences of {JOB['seq_len']:,} tokens a step, bf16. "
            "Everything is predicted, and written by `python tools/pages/machines_table.py`: the best plan of what "
            "the usual recipe of each starts. Days, energy and dollars are without failures (`costmodel run` has them); "
            "prices are lists on demand of the day that is named, and other days and contracts have others. p10 to p90 is "
            "how far the model may be off, not how prices spread. The same beside one another:",
            "",
            "```sh",
            "costmodel plan -m llama3-70b -n 256 --global-batch 512 --seq-len 8192 --tokens 1T \\",
            "    -c dgx-h100-ndr -c mi300x-roce400 -c tpu-v6e",
            "```",
            "",
            WHOLE_HEAD,
            *(row.whole() for row in rows),
            "",
            "Each alone:",
            "",
            *(f"* {row.kind}: `{command}`" for row, command in zip(rows, commands, strict=True)),
            "",
        ]
    )


def main() -> int:
    """Rewrite or check README.md and docs/machines.md."""
    rows = [
        Row(kind, load_cluster(name), plan(**JOB, cluster=name, tokens=TRILLION))
        for kind, name in CLUSTERS.items()
    ]
    texts = fill(read_pages(), {"machines": "\n".join([SHORT_HEAD, *(row.short() for row in rows)])})
    return settle({**texts, DOCS / "machines.md": page(rows)})


if __name__ == "__main__":
    sys.exit(main())
