"""The best plan of ten models for every framework: written, it passes the framework's assertions and reads back the same."""

from dataclasses import replace

import numpy as np
import pytest

import costmodel as cm
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.estimates.estimate import estimate_job
from costmodel.interop.assertions.tables import TABLES, broken
from costmodel.interop.deepspeed import import_deepspeed
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.megatron import import_megatron
from costmodel.interop.nemo import import_nemo
from costmodel.interop.read_trainer import read, read_accelerate
from costmodel.interop.text_file import TextFile
from costmodel.interop.torchtitan import import_torchtitan
from costmodel.step.price import chunks_of

H100, A100 = "dgx-h100-ndr", "dgx-a100-hdr"
MODELS = {
    "llama3-8b": (H100, 8, 64, 8192),
    "llama3-70b": (H100, 64, 128, 8192),
    "llama3-405b": (H100, 1024, 512, 8192),
    "llama2-7b": (A100, 64, 512, 4096),
    "qwen2.5-7b": (H100, 16, 64, 8192),
    "gpt3-175b": (A100, 512, 1536, 2048),
    "mixtral-8x7b": (H100, 64, 256, 4096),
    "gpt-oss-120b": (H100, 64, 256, 4096),
    "deepseek-v3-671b": (H100, 1024, 4096, 4096),
    "qwen3-235b-a22b": (H100, 256, 1024, 4096),
}
# torchtitan's registry has none of these; 61 layers with a prediction layer run in no pipeline of it and fit nowhere.
TITAN_LACKS = ("llama2-7b", "qwen2.5-7b", "gpt3-175b", "mixtral-8x7b")
# No expert parallelism there, and too large without.
TRAINERS_LACK = ("deepseek-v3-671b",)


def same_bill(ours, theirs):
    a = {line.name: (float(line.seconds), float(line.exposed_seconds)) for line in ours.bill.time_lines}
    b = {line.name: (float(line.seconds), float(line.exposed_seconds)) for line in theirs.bill.time_lines}
    assert a == b
    assert float(ours.memory_bytes_per_gpu) == float(theirs.memory_bytes_per_gpu)


def read_back(framework, text, job):
    """Read a configuration; what belongs to a script or a registry stands beside it."""
    beside = {"model": job.model.name, "gpus": int(job.layout.gpus), "global_batch": int(job.global_batch)}
    script = {**beside, "seq_len": int(job.seq_len), "micro_batch": int(job.layout.micro_batch)}
    if framework == "megatron":
        return import_megatron(text)
    if framework == "torchtitan":
        return import_torchtitan(text)
    if framework == "deepspeed":
        return import_deepspeed(text)
    if framework == "nemo":
        return import_nemo(text)
    if framework == "accelerate":
        return read_accelerate(TextFile(text, "accelerate.yaml"), script)
    return read(TextFile(text, "axolotl.yaml"), {})


def best(framework, model):
    cluster, gpus, batch, seq = MODELS[model]
    asked = {"cluster": cluster, "gpus": gpus, "global_batch": batch, "seq_len": seq}
    narrow = {"tp": "1,2,4,8", "micro_batch": "1,2", "cp": "1,2", "keep": 1}
    if framework in ("accelerate", "axolotl"):
        narrow["recompute"] = "full"
    recipe = FRAMEWORKS[framework].recipe
    return cm.plan(model=model, framework=framework, recipe=recipe, **asked, **narrow).best


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_best_plans_start_and_read_back_the_same(framework, model):
    if framework in ("accelerate", "axolotl") and model in TRAINERS_LACK:
        with pytest.raises(cm.NoLayoutError):
            best(framework, model)
        return
    found = best(framework, model)
    if framework == "torchtitan" and model in TITAN_LACKS:
        with pytest.raises(FrameworkConfigError, match="torchtitan has no model") as caught:
            cm.emit(found, framework)
        assert "\n" not in str(caught.value)
        return
    text = cm.emit(found, framework)
    assert broken(framework, found.job, text) == []
    assert "left to you" in text
    said, meant = TABLES[framework].written(text), TABLES[framework].arguments(found.job)
    for name, value in said.items():
        if name in meant:
            assert float(np.max(meant[name])) == float(value), name
    job = found.job
    if chunks := chunks_of(job):
        # What is written says each chunk; priced so, layers of several kinds lie where they will.
        job = replace(job, pipeline_layout=chunks, balanced_stages=False)
    back = read_back(framework, text, job)
    same_bill(estimate_job(job), cm.estimate(**back.estimate_keywords(cluster=MODELS[model][0])))
