"""Layouts that are priced together, as a search does, have line by line what each has alone."""

import numpy as np
import pytest
from round_jobs import CLUSTER, LATENT, MOE, QUIET, SMALL, model_file

from costmodel.describe.jobs.job import make_job
from costmodel.estimates.estimate import estimate_job
from costmodel.physics.network.gradient_compression import METHODS
from costmodel.physics.pipeline.schedules import schedule_code

ONE, CHUNKS, NONE = (float(schedule_code(name)) for name in ("1f1b", "interleaved", "none"))
GPUS = 16
# One rank of everything; no stages; two of unlike ends; stages of two chunks; all axes at once.
LAYOUTS = {
    "tp": [1, 2, 1, 1, 2],
    "cp": [1, 1, 1, 2, 2],
    "pp": [1, 1, 4, 2, 2],
    "vp": [1, 1, 1, 2, 1],
    "schedule": [NONE, NONE, ONE, CHUNKS, ONE],
    "micro_batch": [1, 2, 1, 1, 2],
    "zero_stage": [0, 1, 1, 0, 0],
    "recompute": [0, 1, 2, 0, 1],
    "sequence_parallel": [0, 1, 0, 0, 1],
}
EXPERTS = {**LAYOUTS, "ep": [4, 2, 4, 8, 2], "etp": [1, 2, 1, 1, 1]}
SHARDED = {**LAYOUTS, "pp": [1, 1, 1, 1, 2], "vp": [1] * 5, "schedule": [NONE] * 4 + [ONE]}
SHARDED |= {"zero_stage": [3, 3, 3, 2, 1], "shard_group": [0, 4, 8, 0, 0]}
MTP = {**SMALL, "mtp_layers": 1}
SHARED = {**MOE, "shared_expert_ffn_size": 512, "ffn_size": 4096, "first_dense_layers": 1}

JOBS = {
    **{name: (SMALL, LAYOUTS, {"gradient_compression": name}) for name in METHODS},
    "experts-powersgd": (MOE, EXPERTS, {"gradient_compression": "powersgd"}),
    "experts-deep-ep": (MOE, EXPERTS, {"moe_dispatcher": "deep-ep"}),
    "experts-gathered": (SHARED, EXPERTS, {"moe_dispatcher": "all-gather", "ep_overlap": True}),
    "experts-hybrid": (MOE, EXPERTS, {"moe_dispatcher": "hybrid-ep"}),
    "latent": (LATENT, LAYOUTS, {"cp_method": "all-gather"}),
    "ring": (SMALL, LAYOUTS, {"cp_method": "ring", "tp_overlap": "pipelined"}),
    "ulysses": (SMALL, LAYOUTS, {"cp_method": "ulysses"}),
    "further-heads": (MTP, LAYOUTS, {"pp_overlap": True}),
    "sharded": (SMALL, SHARDED, {"dp_overlap": "every-layer", "hsdp_overlap": True}),
    "sharded-in-turn": (SMALL, SHARDED, {"fsdp_across_layers": False, "overlap_contention": 0.0}),
    "away": (SMALL, LAYOUTS, {"offload_optimizer": True}),
    "parameters-away": (SMALL, SHARDED, {"offload_parameters": True}),
    "usual": (SMALL, LAYOUTS, None),
}


def lines_of(job):
    """Every number of a bill's lines by their name; what a line lacks is nothing."""
    est = estimate_job(job, every_stage=False)
    found = {"memory": est.memory_bytes_per_gpu, "step": est.step_time_s}
    for one in est.bill.time_lines:
        numbers = {field: getattr(one, field) for field in ("seconds", "exposed_seconds", "bytes")}
        numbers["count"] = np.where(numbers["seconds"] > 0.0, one.count, 0.0)
        for field, value in numbers.items():
            key = f"{one.name}.{field}"
            found[key] = found.get(key, 0.0) + np.asarray(value, dtype=np.float64)
    return found


@pytest.mark.parametrize("name", JOBS)
def test_layouts_together(name):
    model, layouts, switches = JOBS[name]
    asked = {"model": model_file(model), "cluster": str(CLUSTER), "recipe": "megatron-core", "gpus": GPUS}
    asked |= {"global_batch": 64, "seq_len": 1024}
    asked["switches"] = {} if switches is None else {**QUIET, **switches}
    count = len(layouts["tp"])
    together = lines_of(
        make_job(
            **asked, **{key: np.asarray(each, dtype=float) for key, each in layouts.items()}, check=False
        )
    )
    for at in range(count):
        alone = lines_of(
            make_job(**asked, **{key: float(each[at]) for key, each in layouts.items()}, check=False)
        )
        for key in together.keys() | alone.keys():
            expected = np.broadcast_to(together.get(key, 0.0), (count,))[at]
            assert alone.get(key, 0.0) == pytest.approx(expected, rel=1e-9, abs=1e-15), (at, key)
