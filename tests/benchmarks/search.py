"""Layouts priced per second and core in a small and a large space, peak memory, a naive loop, a month drawn 10,000 times.

Run as ``python tests/benchmarks/search.py``.

Not a test: nothing is asserted about time.
"""

import json
import resource
import time

import numpy as np

import costmodel as cm
from costmodel.base.allocator import keep_freed_memory
from costmodel.describe.jobs.fields import KNOBS
from costmodel.planning.plan import Plan
from costmodel.planning.request import make_question
from costmodel.planning.search import priced_parts, rows_of

ASKED = {"model": "gpt3-175b", "cluster": "dgx-a100-hdr", "gpus": 4096, "global_batch": 1536, "seq_len": 2048}
LARGE = {
    "model": "llama3-405b",
    "cluster": "h100-ndr",
    "gpus": 16384,
    "global_batch": 2048,
    "seq_len": 131072,
}
"""A search whose arrays outweigh what a bill costs however few layouts it has."""
WHOLE_SPACE = {"framework": "any", "headroom": 0.0}
REPEATS = 5
LOOP = 200


def seconds(call):
    """Return processor seconds of a call, and its result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def main() -> None:
    """Print the figures as JSON, with memory kept as the command `plan` does."""
    keep_freed_memory()
    question = make_question(**ASKED, **WHOLE_SPACE)
    cold_s, found = seconds(lambda: Plan.search(question))
    warm_s = min(seconds(lambda: Plan.search(question))[0] for _ in range(REPEATS))
    pricing_s = min(seconds(lambda: sum(1 for _ in priced_parts(question)))[0] for _ in range(REPEATS))
    part = next(iter(priced_parts(question)))
    possible = np.flatnonzero(part.slab.possible)
    chosen = np.random.default_rng(0).choice(possible, LOOP, replace=False)
    rows = rows_of(part, chosen, np.zeros(LOOP))
    job = question.jobs[0]

    def loop() -> None:
        for at in range(LOOP):
            cm.estimate(
                model=job.model,
                cluster=job.cluster,
                gpus=ASKED["gpus"],
                global_batch=ASKED["global_batch"],
                seq_len=ASKED["seq_len"],
                recipe=job.recipe,
                **{knob: rows[knob][at] for knob in KNOBS},
            )

    loop_s, _ = seconds(loop)
    month = {**ASKED, "layout": "tp8 pp8", "tokens": 300e9, "samples": 10_000}
    month_s, _ = seconds(lambda: cm.run(**month))
    once_s = min(seconds(lambda: cm.estimate(layout="tp8 pp8", **ASKED))[0] for _ in range(REPEATS))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    large = make_question(**LARGE, **WHOLE_SPACE)
    large_priced = Plan.search(large).num_priced
    large_s = min(seconds(lambda: Plan.search(large))[0] for _ in range(REPEATS))
    print(
        json.dumps(
            {
                "layouts_considered": found.num_considered,
                "layouts_priced": found.num_priced,
                "search_cold_s": round(cold_s, 3),
                "search_warm_s": round(warm_s, 3),
                "search_layouts_per_s_per_core": round(found.num_priced / warm_s),
                "pricing_layouts_per_s_per_core": round(found.num_priced / pricing_s),
                "estimate_latency_s": round(once_s, 5),
                "run_of_10000_samples_s": round(month_s, 3),
                "scalar_loop_layouts_per_s": round(LOOP / loop_s),
                "speed_over_scalar_loop": round(found.num_priced / warm_s * loop_s / LOOP),
                "peak_memory_bytes": peak_bytes,
                "large_layouts_priced": large_priced,
                "large_search_warm_s": round(large_s, 3),
                "large_search_layouts_per_s_per_core": round(large_priced / large_s),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
