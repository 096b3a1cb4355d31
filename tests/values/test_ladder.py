"""Recomputed modules as a ladder: their order by hand, what a question leaves free, and published layouts in the space."""

from itertools import pairwise

import pytest

import costmodel as cm
from costmodel.planning.request import make_question
from costmodel.planning.tuning import adjacent_rungs, recompute_ladder

DEEPSEEK = {
    "model": "deepseek-v3",
    "cluster": "gb200-nvl72-ndr",
    "gpus": 256,
    "global_batch": 4096,
    "seq_len": 4096,
    "recipe": "megatron-bridge-2606",
    "precision": "mxfp8",
}
DENSE = {"model": "llama3-70b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 128, "seq_len": 8192}


def modules(question):
    return [rung.switches["selective_modules"] for rung in recompute_ladder(question, question.jobs[0])]


def test_rungs_are_nested_and_stand_in_the_order_of_seconds_a_byte():
    lists = modules(make_question(**DEEPSEEK))
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(lists))
    last = lists[-1]
    # What norms and activations cost is their traffic, what up-projections of latents cost is a small product for many bytes;
    # attention has no weights to share the work with, and whole experts run every product again.
    assert last.index("mla_up_proj") < last.index("core_attn") < last.index("moe")
    # A dense model has neither latents nor experts: nothing of theirs frees memory.
    dense = modules(make_question(**DENSE))
    assert set(dense[-1]) == {"layernorm", "mlp", "core_attn"}
    assert dense[0] == ("layernorm",)


def test_what_the_user_named_is_no_rung():
    assert modules(make_question(**DENSE, switches={"selective_modules": ("mlp",)})) == []
    assert modules(make_question(**DENSE, recompute="none")) == []
    assert modules(make_question(**DENSE, recipe="torchtitan")) == []
    assert modules(make_question(**DENSE, recompute="selective"))


def test_neighbours_of_a_rung():
    question = make_question(**DENSE)
    ladder = recompute_ladder(question, question.jobs[0])
    assert adjacent_rungs(ladder, ()) == ladder[:1]
    assert adjacent_rungs(ladder, ladder[:1]) == ladder[1:2]
    assert adjacent_rungs(ladder, (ladder[1],)) == (ladder[0], ladder[2])
    assert adjacent_rungs(ladder, ladder[-1:]) == (ladder[-2],)


def test_published_layouts_are_within_a_few_per_cent_of_the_best():
    for asked, layout, stages in [
        # NVIDIA-NeMo/Megatron-Bridge docs/performance-summary, 26.06: layouts of its own runs, with its stages and modules.
        (DEEPSEEK, "tp1 pp4 vp4 ep64", "Et*4|(t*4|)*14tmL"),
        (
            {
                **DEEPSEEK,
                "cluster": "dgx-h100-ndr",
                "gpus": 1024,
                "global_batch": 8192,
                "precision": "fp8-block",
            },
            "tp2 pp8 vp4 ep64",
            "Et*3|(tt|)*29m|L",
        ),
    ]:
        best = cm.plan(**asked).fastest
        switches = {"selective_modules": ("mla_up_proj",)}
        published = cm.estimate(
            **asked, layout=layout, recompute="selective", switches=switches, pipeline_layout=stages
        )
        assert bool(published.fits)
        assert float(published.step_time_s) < 1.05 * float(best.step_time_s)
        # The recipe's own list of modules keeps so much that the best without a ladder is slower.
        plain = cm.plan(**asked, switches={"selective_modules": ("core_attn",)}).fastest
        assert float(best.step_time_s) < 0.98 * float(plain.step_time_s)


def test_rungs_are_tried_where_no_layout_fits_without():
    """NVIDIA's layout of DeepSeek-V3 on GB200 (Megatron-Bridge 26.06) keeps too much unless it recomputes more than attention."""
    asked = {**DEEPSEEK, "micro_batch": 1, "tp": 1, "cp": 1, "pp": 4, "vp": 4, "ep": 64}
    found = cm.plan(**asked)
    assert found.best.fits_probability >= 0.9
    # With more memory the layout would do without what the rung recomputes.
    assert found.memory_gain == pytest.approx(
        1 - float(found.tally.fastest_s[0] / found.best.step_time_s), abs=1e-3
    )
    assert 0.0 < found.memory_gain < 0.1
    with pytest.raises(cm.NoLayoutError, match=r"the leanest .* needs 171 GiB"):
        cm.plan(**asked, choose=False)
