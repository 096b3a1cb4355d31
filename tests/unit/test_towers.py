"""Encoders of images and audio: parameters of published towers, their work by hand, and what cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.models.huggingface import read_hf_config
from costmodel.describe.models.sizes import _rows, tower_of
from costmodel.estimates.pipeline_run import billed_pipeline_s, simulated_pipeline_s
from costmodel.step.anatomy.params import params_by_component
from costmodel.step.price import price

PUBLISHED = read_mapping(Path(__file__).with_name("towers.yaml"), example="tiny: {}")
TEXT = {"num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 512, "vocab_size": 1000}
TINY = {
    "model_type": "qwen2_5_vl",
    **{**TEXT, "hidden_size": 256, "num_key_value_heads": 4},
    "vision_config": {
        **{
            "model_type": "qwen2_5_vl",
            "depth": 4,
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_heads": 8,
        },
        **{"patch_size": 14, "out_hidden_size": 256, "window_size": 112, "fullatt_block_indexes": [3]},
    },
}
JOB = {"cluster": "h100", "gpus": 8, "global_batch": 64, "seq_len": 1024}


def read(config, **vision):
    """The model of a config, with some keys of its tower changed."""
    return read_hf_config({**config, "vision_config": {**config["vision_config"], **vision}}).model


def test_parameters_of_published_towers_are_exact():
    for name, row in PUBLISHED.items():
        tower = tower_of(row, row["hidden_size"], name)
        text = {**TEXT, "model_type": "llama", "hidden_size": row["hidden_size"], "name": "x"}
        model = read_hf_config(text).model.model_copy(update={"tower": tower})
        own = sum(count for part, count in params_by_component(model).items() if part.startswith(tower.name))
        assert (name, own) == (name, row["params"])
        if "tokens" in row:
            assert (name, [tower.tokens, tower.merge]) == (name, row["tokens"])
    kinds = {row.get("vision_config", row.get("audio_config"))["model_type"] for row in PUBLISHED.values()}
    assert kinds <= _rows("towers.yaml").keys()
    assert {row["model_type"] for row in PUBLISHED.values()} >= _rows("towers.yaml")["_joined"].keys() - {
        "internvl_chat"
    }


def test_a_tower_is_left_out_until_images_are_named_and_then_stands_on_the_first_stage():
    model = read(TINY)
    assert any(
        "without images_per_sample only the language model is priced" in note
        for note in read_hf_config(TINY).notes
    )
    plain = cm.estimate(model=model, **JOB)
    assert not [line for line in plain.bill.time_lines if "vision" in line.name]
    four = {"pp": 4, "images_per_sample": 2, "image_tokens": 64, **JOB}
    est = cm.estimate(model=model, **four)
    held = {line.name: np.asarray(line.bytes) for line in est.bill.memory_lines}
    on_stages = held["activation.vision.dense.attention"]
    assert on_stages[0] > 0
    assert not on_stages[1:].any()
    # Three layers with windows and one without, for each of 32 micro-batches.
    counts = {
        line.name: float(line.count)
        for line in est.bill.time_lines
        if line.name.endswith("attention.qkv.forward")
    }
    assert counts["compute.vision.dense-window.attention.qkv.forward"] == 3 * 32
    assert counts["compute.vision.dense.attention.qkv.forward"] == 32
    assert float(est.step_time_s) > float(cm.estimate(model=model, pp=4, **JOB).step_time_s)


def test_an_image_of_a_fixed_size_is_as_many_tokens_as_its_patches_are_merged_to():
    """Gemma 3: 896 / 14 = 64 patches a side, of which 16 become a token."""
    row = next(row for row in PUBLISHED.values() if row.get("tokens") == [4096, 16])
    text = {**TEXT, "model_type": "llama", "hidden_size": row["hidden_size"], "name": "x"}
    model = read_hf_config(text).model.model_copy(update={"tower": tower_of(row, row["hidden_size"], "x")})
    est = cm.estimate(model=model, images_per_sample=2, **JOB)
    assert est.job.images.tokens == 256
    assert float(est.step_time_s) == float(
        cm.estimate(model=model, images_per_sample=2, image_tokens=256, **JOB).step_time_s
    )


def test_work_of_a_tower_by_hand():
    """Two images of 64 tokens, 256 patches each, in windows of 64: all matrices once, and two products of scores."""
    model = read(TINY)
    plain, est = (
        cm.estimate(model=model, **JOB, **more) for more in ({}, {"images_per_sample": 2, "image_tokens": 64})
    )
    layer = 128 * 3 * 128 + 128 * 128 + 3 * 128 * 192
    matrices = 256 * (4 * layer + 3 * 2 * 14 * 14 * 128) + 64 * (512 * 512 + 512 * 256)
    scores = 256 * 2 * 2 * 128 * (3 * 64 + 256)
    flops = 3 * (2 * matrices + scores)
    assert float(est.model_flops() - plain.model_flops()) == pytest.approx(64 * 2 * flops, rel=1e-12)
    by_name = {
        f"{block.label}{item.operator.name}": item.operator
        for block in est.priced.step.blocks
        if block.role == "tower"
        for item in block.by_operator.values()
    }
    qkv, core = (
        by_name["vision.dense-window.attention.qkv"],
        by_name["vision.dense-window.attention.core"].attention,
    )
    assert [float(size) for size in (qkv.m, qkv.n, qkv.k)] == [512, 384, 128]
    assert [float(size) for size in (core.heads, core.seq_q, core.seq_k, core.keys_share)] == [
        16,
        256,
        256,
        0.25,
    ]
    assert float(by_name["vision.ends.embedding.projector"].m) == 128
    two = cm.estimate(model=model, images_per_sample=2, image_tokens=64, micro_batch=2, **JOB)
    block = next(block for block in two.priced.step.blocks if block.label == "vision.dense.")
    assert float(block.by_operator["attention.qkv"].operator.m) == 1024
    # Tensor parallelism cuts heads where it divides them, and context parallelism cuts no image.
    for tp, cp, heads in ((8, 1, 1.0), (2, 2, 4.0)):
        cut = cm.estimate(model=model, tp=tp, cp=cp, images_per_sample=2, image_tokens=64, **JOB)
        block = next(block for block in cut.priced.step.blocks if block.label == "vision.dense.")
        assert float(block.by_operator["attention.core"].operator.attention.heads) == 2 * heads
    odd = cm.estimate(model=read(TINY, num_heads=1), tp=2, images_per_sample=2, image_tokens=64, **JOB)
    assert not [line for line in odd.bill.time_lines if line.name.startswith("tp.vision")]


def test_a_pipeline_with_a_tower_takes_what_its_simulation_takes():
    job = {**JOB, "model": read(TINY), "gpus": 16, "images_per_sample": 2, "image_tokens": 256}
    for more in (
        *({"pp": 4}, {"pp": 4, "schedule": "zb-h1"}, {"pp": 2, "schedule": "dualpipe"}),
        *({"pp": 2, "vp": 2}, {"pp": 2, "vp": 2, "schedule": "zb-v"}),
    ):
        est = cm.estimate(**job, **more)
        billed_s = billed_pipeline_s(price(est.job, every_stage=True).bill)
        assert simulated_pipeline_s(est.priced) == pytest.approx(billed_s, rel=0.03), more


def test_a_tower_can_have_a_stage_of_its_own():
    """Embedding and tower on the first of three stages, layers on the others: the step is shorter by the tower's wait."""
    job = {
        **JOB,
        "gpus": 12,
        "pp": 3,
        "tp": 1,
        "global_batch": 64,
        "images_per_sample": 2,
        "image_tokens": 64,
    }
    model = read(TINY, depth=16)
    together, apart = (
        cm.estimate(**job, model=model, pipeline_layout=layout) for layout in ("Et|tt|tL", "E|tt|ttL")
    )
    for est, layers in ((together, [1, 2, 1]), (apart, [0, 2, 2])):
        held = {block.role: block.num_on_stage.tolist() for block in est.priced.step.blocks if block.kind}
        assert (held["tower"], held["layer"]) == ([1, 0, 0], layers)
    assert float(apart.step_time_s) < float(together.step_time_s)


def test_images_of_unlike_size_keep_ranks_waiting():
    """Sums of 16 images a rank vary by a quarter of the spread; scores by the mean of squares."""
    job = {"model": read(TINY), "images_per_sample": 2, "image_tokens": 64, **JOB}
    alike, unlike = cm.estimate(**job), cm.estimate(**job, image_spread=0.8)
    line = next(line for line in unlike.bill.time_lines if line.name == "packing.images")
    slowest = 1.4236  # expected maximum of eight normal numbers
    works = sum(
        float(count * (block.forward_s + block.backward_s))
        for block, count in zip(unlike.priced.step.blocks, unlike.priced.step.counts, strict=True)
        if block.role == "tower"
    )
    assert float(line.seconds) == pytest.approx(works * slowest * 0.8 / 4.0, rel=2e-3)
    full = [
        next(b for b in est.priced.step.blocks if b.label == "vision.dense.")
        .by_operator["attention.core"]
        .operator
        for est in (alike, unlike)
    ]
    assert float(full[1].attention.keys_share) == pytest.approx(1.64 * float(full[0].attention.keys_share))


def test_a_frozen_tower_runs_forward_alone():
    """No gradients, no states of the optimizer, no saved activations: a third of the FLOPs; adapters freeze it too."""
    job = {"model": read(TINY), "images_per_sample": 2, "image_tokens": 64, **JOB}
    plain, trained = cm.estimate(model=read(TINY), **JOB), cm.estimate(**job)
    for more in ({"frozen": "tower"}, {"lora_rank": 8}):
        est = cm.estimate(**job, **more)
        ours = [line for line in est.bill.time_lines if "vision" in line.name]
        assert {line.phase for line in ours} == {"forward"}
        assert not [line for line in est.bill.memory_lines if line.name.startswith("activation.vision")]
    frozen = cm.estimate(**job, frozen="tower")
    assert float(frozen.model_flops() - plain.model_flops()) == pytest.approx(
        float(trained.model_flops() - plain.model_flops()) / 3, rel=1e-9
    )
    states = [
        next(
            float(np.max(line.bytes))
            for line in est.bill.memory_lines
            if line.name == "state.dense.optimizer.moments"
        )
        for est in (plain, frozen, trained)
    ]
    assert states[0] == states[1] < states[2]


def test_what_cannot_be_encoded_is_one_line():
    for model, more, said in (
        ("llama3-8b", {"images_per_sample": 1}, "images_per_sample: llama3-8b has no tower that is known"),
        (
            read(TINY),
            {"images_per_sample": 1},
            r"image_tokens: the vision tower of .* takes images of any size",
        ),
        (
            read(TINY),
            {"images_per_sample": 20, "image_tokens": 64},
            "20 images of 64 tokens are more than seq_len",
        ),
        (read(TINY), {"image_tokens": 64}, "need images_per_sample"),
    ):
        with pytest.raises(CostModelError, match=said):
            cm.estimate(model=model, **JOB, **more)
    with pytest.raises(CostModelError, match=r"the tower of .* is not written; leave out images_per_sample"):
        cm.emit(cm.estimate(model=read(TINY), images_per_sample=2, image_tokens=64, **JOB), "megatron")
    # Sizes that cannot be are named by their keys; the language model has a price without them.
    for vision, said in (
        ({"spatial_merge_size": 0}, "spatial_merge_size: expected more than 0, got 0"),
        ({"patch_size": 0}, "patch_size: expected more than 0, got 0"),
        ({"num_heads": 17}, "num_heads: expected a divisor of the width 128, got 17"),
        ({"depth": None}, "vision_config: missing 'depth'"),
        ({"hidden_size": "128"}, "hidden_size: expected a whole number"),
        ({"window_size": -112}, "window_size: expected a whole number"),
    ):
        model = read(TINY, **vision)
        assert float(cm.estimate(model=model, **JOB).step_time_s) > 0
        with pytest.raises(CostModelError, match=said):
            cm.estimate(model=model, images_per_sample=1, image_tokens=64, **JOB)
    # No images, where that is one of several values, need no tower.
    none = cm.estimate(model=read(TINY), images_per_sample=0, image_tokens=64, **JOB)
    assert float(none.step_time_s) == float(cm.estimate(model=read(TINY), **JOB).step_time_s)
    # A tower without one of its sizes is left out, as one of an unknown kind is.
    assert read(TINY, depth=None).tower is None
    assert read(TINY, model_type="own_vit").tower is None
    job = {"model": "x", "images_per_sample": 2.0, "image_tokens": 64, "image_spread": 0.5}
    est = cm.estimate(**{**JOB, **job, "model": read(TINY)})
    assert {name: est.to_dict()["inputs"][name] for name in job if name != "model"} == {
        name: value for name, value in job.items() if name != "model"
    }


def test_a_tower_is_said_to_be_left_out_where_it_is(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY), encoding="utf-8")
    job = {**JOB, "image_tokens": 64}
    for images, said in ((0, True), (2, False)):
        notes = cm.estimate(str(file), **job, images_per_sample=images).assumptions
        assert any("is left out" in note for note in notes) is said
