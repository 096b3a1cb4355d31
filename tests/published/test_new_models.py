"""Models of now, from a ``config.json`` to a plan, and what one of them was published to take."""

import json

import pytest
from new_models import config_file, new_models, priced
from pages import DOCS

import costmodel as cm
from costmodel.step.anatomy.params import num_active_params, num_params

# Name, billions of parameters, of active ones without an input table of their own as cards round them, H100 that hold it.
MODELS = [
    ("deepseek-v3.2", 671, 37, 1024),
    ("qwen3-next-80b-a3b", 80, 3.5, 64),
    ("nemotron-h-56b", 56, 55, 64),
    ("kimi-linear-48b-a3b", 49, 3, 64),
    ("minimax-m2", 229, 10, 256),
    ("glm-4.5", 355, 32, 512),
    ("gemma-3-27b", 27, 27, 64),
    ("olmo-3-32b", 32.2, 31.7, 64),
]
FIXED = {"cp": 1, "etp": 1, "vp": 1, "shard_group": 0, "recompute": "full"}


def judged(plan):
    """Hold the figures of a plan to what such models reach on H100."""
    best = plan.best
    assert bool(best.fits)
    # Large dense ones reach half of the peak, small experts on one node a fifth (Megatron-LM's and AutoModel's tables).
    assert 0.1 < float(best.mfu) < 0.6
    assert float(best.bill.step_time_s()) == pytest.approx(float(best.step_time_s), rel=1e-9)


@pytest.mark.parametrize(("name", "billions", "active", "gpus"), MODELS)
def test_from_its_config_to_a_plan(tmp_path, name, billions, active, gpus):
    plan = cm.plan(
        model=config_file(name, tmp_path),
        cluster="dgx-h100-ndr",
        gpus=gpus,
        global_batch=1024,
        seq_len=4096,
        fix=FIXED,
    )
    model = plan.best.job.model
    assert num_params(model) / 1e9 == pytest.approx(billions, rel=0.02)
    met = num_active_params(model) - model.vocab_size * model.hidden_size * (not model.tied_embeddings)
    assert met / 1e9 == pytest.approx(active, rel=0.05)
    judged(plan)


def test_windows_and_sinks():
    """gpt-oss: every other layer looks back on 128 tokens, and one logit a head stands beside the scores."""
    plan = cm.plan(
        model="gpt-oss-120b", cluster="dgx-h100-ndr", gpus=64, global_batch=1024, seq_len=4096, fix=FIXED
    )
    judged(plan)
    core = {
        line.name.split(".")[1]: float(line.each_s)
        for line in plan.best.bill.time_lines
        if line.name.endswith("attention.core.forward")
    }
    assert core["moe-window"] < 0.5 * core["moe"]


def test_a_vision_language_model_is_priced_without_its_tower(tmp_path):
    text = {"model_type": "qwen3_vl_text", "num_hidden_layers": 36, "hidden_size": 4096, "head_dim": 128}
    text |= {"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288}
    tower = {"depth": 27, "hidden_size": 1152}
    path = tmp_path / "config.json"
    content = {
        "model_type": "qwen3_vl",
        "text_config": {**text, "vocab_size": 151936},
        "vision_config": tower,
    }
    path.write_text(json.dumps(content))
    assert any("vision_config" in said and "left out" in said for said in cm.read(path).warnings)
    judged(
        cm.plan(model=str(path), cluster="dgx-h100-ndr", gpus=16, global_batch=256, seq_len=4096, fix=FIXED)
    )


RUNS = [(entry["name"], entry["config"], run) for entry in new_models() for run in entry.get("published", ())]


@pytest.mark.parametrize(("name", "config", "run"), RUNS)
def test_published_throughput(tmp_path, name, config, run):
    """Within a sixth of what was published.

    OLMo's figure has restarts and checkpoints in it, a step has none. AutoModel's gpt-oss is 21 % faster than ours:
    its experts' clamps are not Megatron's eager ones, and no timing of its own kernels is published.
    """
    rate = float(priced(config_file(config, tmp_path), run["job"]).tokens_per_s_per_gpu)
    ratio = rate / run["tokens_per_s_per_gpu"]
    low, high = {"OLMo": (1.0, 1.35), "gpt-oss": (0.78, 1.17)}.get(name.split()[0], (1 / 1.17, 1.17))
    assert low < ratio < high


def test_ten_models_have_a_row():
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    assert len(new_models()) >= 10
    for entry in new_models():
        assert f"| {entry['name']} | {entry['what']} |" in page
    assert all(run["reference"] in page for _, _, run in RUNS)
