"""The two jobs that every report is looked at for, as their papers describe them."""

from functools import cache

import costmodel as cm

LLAMA3_405B = {
    "model": "llama3-405b",
    "cluster": "llama3-roce",
    "gpus": 16384,
    "layout": "tp8 cp1 pp16 vp4",
    "zero_stage": 2,
    "axis_order": "tp cp pp dp",
    "schedule": "interleaved",
    "seq_len": 8192,
    "global_batch": 2048,
    "micro_batch": 1,
    "recipe": "llama3",
}
DEEPSEEK_V3 = {
    "model": "deepseek-v3",
    "cluster": "h800-cx7",
    "gpus": 2048,
    "layout": "tp1 pp16 ep64",
    "micro_batch": 1,
    "schedule": "dualpipe",
    "global_batch": 15360,
    "seq_len": 4096,
    "precision": "fp8-block",
    "recipe": "hai-llm",
    "recompute": "selective",
}
FSDP_8B = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 64,
    "layout": "tp2 cp2",
    "zero_stage": 3,
    "seq_len": 8192,
    "global_batch": 64,
    "recipe": "torchtitan",
    "recompute": "full",
}
JOBS = {"llama3-405b": LLAMA3_405B, "deepseek-v3": DEEPSEEK_V3, "fsdp": FSDP_8B}


@cache
def famous(name):
    """Price one of the jobs, once."""
    return cm.estimate(**JOBS[name])
