"""DeepSeek-V3's published profile beside the bill of the same layers, group by group.

    python tools/pages/profile_table.py     writes the table into docs/profiles.md
    python tools/pages/profile_table.py TRACE   prints the classes of the trace itself, as tests/data has them

The profile is deepseek-ai/profile-data, train.json @ 4496024 (DeepSeek, 2025): a forward and a backward chunk of
DualPipe, four layers with experts each, H800, EP64, TP1, 4,096 tokens, balanced routing, no pipeline messages.
`tests/data/profiles/deepseek-v3-h800.csv` holds what `costmodel observed profile` adds it up to: counts and times, no names.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import pages

import costmodel as cm
from costmodel.trust.profiles.against_bill import AgainstBill, ClassTime, profile_against_bill

DATA = Path(__file__).parents[2] / "tests" / "data" / "profiles" / "deepseek-v3-h800.csv"
WINDOW_S, IDLE_S = 0.129012, 0.000497
"""From the first kernel to the end of the last, and the time in it in which nothing runs. [s]"""
FAMILIES = {"FlashAttention-3 forward", "DeepEP dispatch", "DeepGEMM"}
JOB = {
    "model": "deepseek-v3",
    "cluster": "h800-cx7",
    "gpus": 2048,
    "layout": "tp1 pp16 ep64",
    "schedule": "dualpipe",
    "global_batch": 15360,
    "seq_len": 4096,
    "precision": "fp8-block",
    "recipe": "hai-llm",
    "recompute": "selective",
    "pipeline_layout": "balanced",
    "switches": {"moe_balance": "balanced"},
}
ON_TWO_STREAMS = ("matmul.backward_weight", "quantise_and_permute")
"""Groups some of whose kernels run beside others that compute: their time is that in which they are all that does."""
COMMUNICATION = ("dispatch", "combine", "exchange_wait")
NO_KERNELS = ("waiting",)
"""On the bill gaps between kernels of the compute stream, which this profile itself told; here idle time of all streams."""


class Row(NamedTuple):
    """A group on both sides. [s]"""

    group: str
    bill_s: float
    trace_s: float
    bill_exposed_s: float
    trace_exposed_s: float

    @property
    def off(self) -> float:
        """Bill over trace, less one."""
        return self.bill_s / self.trace_s - 1.0


def classes() -> list[ClassTime]:
    """Return what the profile adds up to."""
    with DATA.open() as file:
        return [
            ClassTime(
                row["class"],
                float(row["kernels"]),
                float(row["busy_us"]) / 1e6,
                float(row["exposed_us"]) / 1e6,
            )
            for row in csv.DictReader(file)
        ]


def against_bill() -> AgainstBill:
    """Lay the profile beside the bill."""
    return profile_against_bill(cm.estimate(**JOB), classes(), FAMILIES, step_s=WINDOW_S, idle_s=IDLE_S)


def rows() -> dict[str, Row]:
    """Return the groups that stand on both sides, and the sum of those that compute."""
    found = {}
    for one in against_bill().groups:
        trace_s = one.trace_exposed_s if one.group in ON_TWO_STREAMS else one.trace_s
        if one.bill_s and trace_s and one.group not in NO_KERNELS:
            found[one.group] = Row(one.group, one.bill_s, trace_s, one.bill_exposed_s, one.trace_exposed_s)
    computing = [row for name, row in found.items() if name not in COMMUNICATION]
    sums = (sum(values) for values in zip(*(row[1:] for row in computing), strict=True))
    found["all that computes"] = Row("all that computes", *sums)
    laid = against_bill()
    steps = (laid.bill_step_s, laid.trace_step_s)
    found["window"] = Row("window", *steps, *steps)
    return found


def table() -> str:
    """Return the rows as Markdown."""
    lines = ["| group | bill | profile | off | bill waits | profile waits |", "|---|---|---|---|---|---|"]
    for row in rows().values():
        numbers = [f"{1e3 * value:.2f} ms" for value in row[1:]]
        cells = (row.group, *numbers[:2], f"{row.off:+.1%}", *numbers[2:])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Write the table, or print the classes of a trace."""
    traces = [text for text in sys.argv[1:] if not text.startswith("--")]
    if not traces:
        return pages.settle(pages.fill(pages.read_pages(), {"profile": table()}))
    print("class,kernels,busy_us,exposed_us")
    found = cm.profile(traces[0])
    steps = len(found.steps)
    for one in (*found.classes, *found.copies):
        sums = (one.count, one.busy_s * 1e6, one.exposed_s * 1e6)
        print(one.name, *(f"{value / steps:.0f}" for value in sums), sep=",")
    return 0


if __name__ == "__main__":
    sys.exit(main())
