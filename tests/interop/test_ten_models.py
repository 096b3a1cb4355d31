"""The best plan of ten models for every framework: written, it passes the framework's assertions and reads back the same."""

import json
from dataclasses import replace
from math import ceil

import pytest
from texts import assert_same_bill

import costmodel as cm
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.layout_text import job_numbers
from costmodel.estimates.estimate import estimate_job
from costmodel.interop.assertions.tables import broken
from costmodel.interop.framework import FrameworkConfigError
from costmodel.step.price import chunks_of

SUFFIX = {"megatron": ".sh", "torchtitan": ".py", "deepspeed": ".json", "nemo": ".txt"}
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


def same_job(ours, text, cluster, path):
    """Read a configuration as a file, nothing beside it but the cluster, hold every field to the job, and return its price."""
    path.write_text(text, encoding="utf-8")
    back = cm.read(str(path))
    assert back.missing == ("cluster",)
    assert back.ignored == ()
    assert back.warnings == ()
    priced = cm.estimate(**back.estimate_keywords(cluster=cluster))
    theirs = priced.job
    numbers, read_numbers = job_numbers(ours), job_numbers(theirs)
    lost = {
        name: (value, read_numbers[name]) for name, value in numbers.items() if value != read_numbers[name]
    }
    if chunks_of(ours):
        lost.pop("vp", None)
    if ours.layout.tp == 1:
        lost.pop("sequence_parallel", None)
    assert lost == {}
    assert theirs.recipe.name == ours.recipe.name
    assert (theirs.precision.name, theirs.optimizer.name) == (ours.precision.name, ours.optimizer.name)
    assert tuple(theirs.axis_order) == tuple(ours.axis_order)
    assert ceil(theirs.tokens / (theirs.global_batch * theirs.seq_len)) == 1000
    differ = [name for name, value in ours.switches.items() if theirs.switches[name] != value]
    assert [name for name in differ if f"{name} = " not in text] == []
    mine, yours = (model.model_dump(exclude={"name", "source"}) for model in (ours.model, theirs.model))
    differ = {name: (mine[name], yours[name]) for name in mine if mine[name] != yours[name]}
    # A length that nobody says is written as one that suffices; no layer has a dense MLP of no width.
    # torchtitan's registry has the base of the rotation and the norms for itself.
    own = {"rope_theta", "norm_epsilon"} if "model_registry" in text else set()
    assert differ.keys() <= {"context_length", "ffn_size"} | own
    assert (
        not mine["context_length"]
        or own
        or yours["context_length"] == max(mine["context_length"], ours.seq_len)
    )
    return priced


def best(framework, model):
    cluster, gpus, batch, seq = MODELS[model]
    asked = {"cluster": cluster, "gpus": gpus, "global_batch": batch, "seq_len": seq}
    asked["tokens"] = 1000 * batch * seq - 1
    narrow = {"tp": "1,2,4,8", "micro_batch": "1,2", "cp": "1,2", "num_candidates": 1}
    if framework in ("accelerate", "axolotl"):
        narrow["recompute"] = "full"
    recipe = FRAMEWORKS[framework].recipe
    return cm.plan(model=model, framework=framework, recipe=recipe, **asked, **narrow).best


# Every model under every other framework, and each framework with half of the models.
@pytest.mark.parametrize(
    ("framework", "model"),
    [
        (framework, model)
        for i, framework in enumerate(FRAMEWORKS)
        for j, model in enumerate(MODELS)
        if (i + j) % 2
    ],
)
def test_best_plans_start_and_read_back_the_same(framework, model, tmp_path):
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
    assert broken(framework, found.job) == []
    assert "left to you" in text
    job = found.job
    if chunks := chunks_of(job):
        # What is written says each chunk; priced so, layers of several kinds lie where they will.
        job = replace(job, pipeline_layout=chunks, balanced_stages=False)
    back = same_job(found.job, text, MODELS[model][0], tmp_path / f"job{SUFFIX.get(framework, '.yaml')}")
    assert_same_bill(estimate_job(job), back)


CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_job_of_a_config_json_comes_back_whole(framework, tmp_path):
    config = tmp_path / "mine" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    asked = {"cluster": H100, "gpus": 8, "global_batch": 64, "seq_len": 4096, "tokens": 64 * 4096 * 1000}
    found = cm.plan(
        model=str(config), framework=framework, tp="1,2", micro_batch="1", num_candidates=1, **asked
    ).best
    text = cm.emit(found, framework)
    same_job(found.job, text, H100, tmp_path / f"job{SUFFIX.get(framework, '.yaml')}")
    assert FRAMEWORKS[framework].release in text
    # A dense model has no routing, a run that ends no steps to choose, and nothing here is without its value.
    for gone in (
        "routing",
        "--train-iters,",
        "train.train_iters,",
        "training.steps,",
        "num_epochs",
        "of its config.json",
    ):
        assert gone not in text
