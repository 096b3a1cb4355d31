"""The job that each row of `published/runs.csv` is read as, as it was last accepted: recipe, machine, layout, switches.

Nothing fitted stands in it. A change that is meant is recorded by ``python tests/unit/test_recorded_rows.py``.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.trust import published_runs
from costmodel.trust.published_runs import job_of_row, memory_kind_of_row, read_rows

TABLE = Path(__file__).parents[1] / "published" / "runs.csv"
RECORDED = Path(__file__).with_name("recorded_rows.jsonl")
BASE = {
    "id": "a",
    "source": "some",
    "framework": "nemo",
    "year": "2024",
    "layers": "32",
    "hidden": "4096",
    "ffn": "14336",
    "heads": "32",
    "kv_heads": "8",
    "vocab": "128256",
    "seq_len": "8192",
    "accelerator": "h100-sxm-80gb",
    "gpus": "64",
    "gpus_per_node": "8",
    "nvlink_domain": "8",
    "nic_gbit_per_gpu": "400",
    "network": "ib",
    "precision": "bf16",
    "tp": "2",
    "pp": "4",
    "mbs": "1",
    "gbs": "128",
}
EXPERTS = {"num_experts": "8", "top_k": "2", "expert_ffn": "14336", "ffn": ""}
# What few rows of the table say, or none.
MORE = {
    "years": [
        {"framework": f, "year": y}
        for f in ("megatron-lm", "nemo", "deepspeed", "maxtext")
        for y in ("2018", "2020", "2021", "2022", "2023", "2024", "2025", "2026")
    ],
    "unknown": [{"framework": "ours", "tp": "1", "pp": "1", "zero_stage": z} for z in ("", "1", "2", "3")]
    + [{"framework": "ours", "tp": "2", "pp": "1", "zero_stage": "3"}],
    "sequences": [
        {"framework": f, "tp": tp, "sp": sp}
        for f in ("maxtext", "paxml", "axlearn", "nemo")
        for tp in ("1", "2")
        for sp in ("", "true", "false")
    ],
    "machines": [
        {"accelerator": a, "gpus": g, "nic_gbit_per_gpu": n, "network": w}
        for a in (
            "a100-sxm-80gb",
            "h100-sxm-80gb",
            "b200-sxm-180gb",
            "v100-sxm2-32gb",
            "tpu-v5p",
            "trn2",
            "mi300x",
        )
        for g, n, w in (
            ("8", "", ""),
            ("64", "", ""),
            ("64", "200", "none"),
            ("64", "100", "roce"),
            ("4096", "", ""),
        )
    ],
    "nodes": [
        {"framework": f, "gpus_per_node": n, "nvlink_domain": n, "nic_gbit_per_gpu": "800"}
        for f in ("aleph-scaling", "nemo")
        for n in ("0", "4", "8")
    ],
    "experts": [
        {**EXPERTS, "framework": f, "year": y, "etp": e, "cuda_graphs": "true", "fused_kernels_note": n}
        for f, y in (("megatron-bridge", "2025"), ("megatron-lm", "2024"), ("megatron-lm", "2025"))
        for e in ("", "1")
        for n in (
            "",
            "te cuda graphs moe_router",
            "cuda graphs scope [attn; router]",
            "cuda graphs scope [moe_router]",
            "full_iteration graphs",
            "tokendrop",
            "deepep",
            "hybridep",
        )
    ],
    "precisions": [
        {"framework": f, "precision": p, "zero_stage": z}
        for f in ("deepspeed", "megatron-deepspeed", "nemo")
        for p in ("bf16", "fp16")
        for z in ("", "0", "1", "3")
    ],
    "recompute": [
        {"framework": f, "recompute": r, "recompute_detail": d}
        for f in ("maxtext", "nemo", "megatron-lm")
        for r in ("", "none", "selective", "full")
        for d in (
            "",
            "mlp",
            "moe",
            "mlp+moe",
            "core attn, norm",
            "keeps every product",
            "remat_policy=minimal",
            "mla_up_proj",
            "layernorm",
        )
    ],
    "offload": [
        {"offload": o, "recompute": r, "recompute_detail": d}
        for o in (
            "",
            "optimizer",
            "activations to host",
            "activations to host: decoder_layer_input",
            "activations of 4 layers to CPU",
            "activations of 16 layers to CPU",
        )
        for r in ("none", "full")
        for d in ("", "kept on the host")
    ],
    "kernels": [
        {"framework": f, "attention_kernel": k, "source": s, "reference": r}
        for f in ("nemo", "megatron-lm")
        for k in ("", "flash", "cudnn", "unfused")
        for s in ("some", "mlperf-v3.0")
        for r in ("", "ngc23.04", "n8_202412_x")
    ],
    "switches": [
        {c: v}
        for c in ("cuda_graphs", "ep_overlap", "dropout", "tp_overlap", "dp_overlap")
        for v in ("true", "false")
    ]
    + [
        {"framework": f, "grad_dtype": "bf16", "tp_overlap": "true"}
        for f in (
            "nemo",
            "torchtitan",
            "megatron-bridge",
            "megatron-lm",
            "paxml",
            "megascale",
            "zero-bubble",
            "internevo",
        )
    ]
    + [
        {"fused_kernels_note": n}
        for n in (
            "eager",
            "unfused rmsnorm",
            "fused rmsnorm",
            "eager fused rmsnorm",
            "fp8 attention",
            "fused grouped mlp",
            "op fuser grouped mlp",
            "node-limited",
            "liger not fused",
            "liger",
            "fused cross-entropy",
            *(f"cumulative step {n} of 13" for n in (1, 2, 3, 7, 8, 9, 10, 13)),
        )
    ]
    + [
        {"notes": n, **EXPERTS}
        for n in (
            "all overlap paths off",
            "fused rmsnorm off",
            "cp by all-to-all",
            "balanced fake gate",
            "natural routing",
            "capacity_factor 1.25",
            "capacity 2",
            "first and last stage hold one layer less",
        )
    ]
    + [{"optimizer_bytes_note": "fp32 gradients (4 B/param, unsharded)"}, {"pp_layout": "Et|t*31|L"}],
    "kinds": [
        {"memory_kind": k, "source": s}
        for k in ("", "stated", "max_reserved")
        for s in ("some", *sorted(published_runs._MEMORY_OF_DEVICE))
    ],
    "wrong": [
        {c: v}
        for c, v in (
            ("gpus", ""),
            ("tp", "two"),
            ("gbs", "inf"),
            ("mbs", "1.0"),
            ("recompute", "all"),
            ("precision", "bf17"),
            ("accelerator", "h1000"),
            ("hidden", "0"),
            ("layers", "0"),
            ("vp", "0"),
        )
    ],
}


def told(row):
    """Return a row's job in words, or why there is none."""
    try:
        job = job_of_row(row)
    except CostModelError as error:
        return [str(error)]
    model, recipe = job.model, job.recipe
    tiers = [
        f"{tier.name} {tier.size} x {tier.bandwidth_bytes_per_s / 1e9:.6g}" for tier in job.cluster.tiers
    ]
    layout = layout_text(job.layout)
    degrees = {
        knob: float(np.asarray(getattr(job.layout, knob)))
        for knob in (
            "tp",
            "cp",
            "pp",
            "vp",
            "ep",
            "etp",
            "micro_batch",
            "zero_stage",
            "shard_group",
            "schedule",
        )
    }
    return [
        f"{recipe.name} on {job.cluster.name}, {job.cluster.accelerator.name}: {', '.join(tiers)}; slice {job.slice}",
        f"{model.num_layers} x {model.hidden_size}, {job.global_batch} x {job.seq_len}, {job.precision.name}",
        f"{layout}; {' '.join(f'{value:g}' for value in degrees.values())}; "
        f"sp {float(np.asarray(job.layout.sequence_parallel)):g}; {job.pipeline_layout or 'even'}",
        ", ".join(f"{key}={value}" for key, value in sorted(published_runs._switches(row).items())),
        memory_kind_of_row(row),
    ]


def every():
    """Yield names of groups of rows, and the rows."""
    rows = read_rows(TABLE)
    for framework in sorted({row["framework"] for row in rows}):
        yield f"published {framework}", [row for row in rows if row["framework"] == framework]
    for name, changes in MORE.items():
        yield name, [{**BASE, **change} for change in changes]


GROUPS = dict(every())


def recorded():
    """Return what was accepted, by group."""
    lines = RECORDED.read_text().splitlines() if RECORDED.exists() else []
    return dict(map(json.loads, lines))


def brief(rows):
    """Return rows in words, what was said before left out."""
    found, seen = [], {}
    for row in rows:
        words = told(row)
        found.append(
            [word if seen.setdefault(word, len(found)) == len(found) else seen[word] for word in words]
        )
    return found


@pytest.mark.parametrize("name", GROUPS)
def test_rows_are_the_jobs_that_they_were(name):
    for row, now, before in zip(GROUPS[name], brief(GROUPS[name]), recorded()[name], strict=True):
        assert now == before, row


if __name__ == "__main__":
    RECORDED.write_text(
        "\n".join(json.dumps([name, brief(rows)], ensure_ascii=False) for name, rows in GROUPS.items()) + "\n"
    )
