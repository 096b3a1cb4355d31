"""Which layers lie on which stage: layout strings, and what embedding and head count for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from round_jobs import CLUSTER, MIB, MOE, SMALL, model_file, near

from costmodel.base.errors import LayoutError
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.short_form import short_form
from costmodel.physics.pipeline.chunks import Chunk, chunks_text, parse_chunks, require_chunks
from costmodel.physics.pipeline.stages import Split, plan_stages
from costmodel.step.placed_job import head_in_layers, stage_split
from costmodel.step.price import price

DEEPSEEK = "Et*4|(t*4|)*14tmL"
"""Megatron-Bridge recipes/deepseek/deepseek_v3.py, 16 chunks."""


def test_deepseek_string():
    chunks = parse_chunks(DEEPSEEK)
    assert chunks == (Chunk(1, 4, 0, 0), *[Chunk(0, 4, 0, 0)] * 14, Chunk(0, 1, 1, 1))
    require_chunks(chunks, layers=61, mtp=1, pp=4, vp=4)


def test_ways_to_write_the_same():
    for text, same in [
        ("Ett|ttL", "Et*2|t*2L"),
        ("E,t*2 | (tt|)*2 L", "Et*2|(t*2|)*2L"),
        ("Et|((t|)*2tt|)*2L", "Et|t|t|tt|t|t|tt|L"),
    ]:
        assert parse_chunks(text) == parse_chunks(same)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_text_and_back(layers):
    chunks = [Chunk(int(i == 0), n, 0, int(i == len(layers) - 1)) for i, n in enumerate(layers)]
    assert parse_chunks(chunks_text(chunks)) == tuple(chunks)


def test_what_is_no_layout():
    for text, says in [
        ("", "nothing"),
        ("Etx|L", "'x'"),
        ("E(t|L", "not closed"),
        ("Et)|L", "not opened"),
        ("*4tL", "repeats nothing"),
        ("Et*0|L", "repeats 0 times"),
        ("Et*99999999|L", "repeats 99999999 times"),
        ("E((((t*9)*9)*9)*999)*999|L", "repeats"),
    ]:
        with pytest.raises(LayoutError, match="pipeline_layout") as caught:
            parse_chunks(text)
        assert says in str(caught.value)


def test_what_does_not_hold_the_model():
    for text, says in [
        ("Et*4|t*4L", "2 chunks, pp·vp = 2·2 needs 4"),
        ("Et*4|t|t|t*3L", r"9 layers \(t\), the model needs 8"),
        ("Et*4|t|t|t*2mL", r"1 multi-token-prediction layers \(m\), the model needs 0"),
        ("t*4|Et|t|t*2L", "must begin with the embedding"),
        ("Et*4|t|tL|t*2L", r"2 losses \(L\), the model needs 1"),
    ]:
        with pytest.raises(LayoutError, match=says):
            require_chunks(parse_chunks(text), layers=8, mtp=0, pp=2, vp=2)


def test_chunks_go_round_the_ranks():
    """Rank 0 of DeepSeek's 4 x 4 chunks holds 16 layers and the embedding, rank 3 holds 12 + 1 + MTP and the head."""
    kinds = [0] * 3 + [1] * 58
    plan = plan_stages(kinds, 2, 4, Split(chunks=parse_chunks(DEEPSEEK)), every_stage=True)
    dense, expert = plan.layers
    assert dense.tolist() == [3, 0, 0, 0]
    assert expert.tolist() == [13, 16, 16, 14]
    assert plan.has_embedding.tolist() == [1, 0, 0, 0]
    assert plan.has_head.tolist() == [0, 0, 0, 1]


def test_chunks_under_folded_schedules():
    """DualPipe's ranks hold half of a stage and of its mirror image, a V the i-th chunk from either end."""
    chunks = parse_chunks("Et*4|t*2|t*2|tL")
    dual = plan_stages([0] * 9, 1, 4, Split(chunks=chunks), fold=1, every_stage=True)
    assert dual.layers[0].tolist() == [2.5, 2, 2, 2.5]
    assert dual.has_head.tolist() == [0.5, 0, 0, 0.5]
    folded = plan_stages([0] * 9, 1, 2, Split(chunks=chunks), fold=2, every_stage=True)
    assert folded.layers[0].tolist() == [5, 4]
    assert folded.has_embedding.tolist() == [1, 0]
    assert folded.has_head.tolist() == [1, 0]


def test_representatives_of_written_chunks_are_the_distinct_stages():
    plan = plan_stages([0] * 61, 1, 16, Split(mtp_layers=1, chunks=parse_chunks(DEEPSEEK)))
    assert plan.index.tolist() == [0, 1, 15]
    # Stages 1 to 14 hold the same; the last of them has one behind it.
    assert plan.behind.tolist() == [15, 1, 0]
    assert plan.layers[0].tolist() == [4, 4, 2]


@pytest.mark.parametrize(
    ("embedding", "head", "held"),
    [(0, 0, [3, 2, 3, 2]), (1, 1, [2, 3, 3, 2]), (0, 2, [3, 3, 3, 1]), (1, 2.5, [3, 3, 4, 0])],
)
def test_places_of_embedding_and_head(embedding, head, held):
    """10 layers on 4 stages; the first and the last hold as many less as embedding and head count for."""
    plan = plan_stages([0] * 10, 1, 4, Split(embedding, head), every_stage=True)
    assert plan.layers[0].tolist() == held


def test_head_in_layers():
    """By work: vocabulary over what a layer has a column, two or three matrices of the MLP; else by multiply-adds."""

    def job(**model):
        path = model_file({**SMALL, **model})
        by_work = {"recipe": "megatron-core", "switches": {"head_by_work": True}}
        return make_job(model=path, cluster=str(CLUSTER), gpus=1, global_batch=1, seq_len=1024, **by_work)

    for gated, matrices in ((True, 3), (False, 2)):
        assert stage_split(job(gated_mlp=gated)).head == near(32000 / (4 * 1024 + matrices * 4096))
    # Two of eight experts of 1.5 Mi, attention of 3 Mi, router, two norms, and 1 Mi of scores and values.
    active = 2 * 1.5 * MIB + 3 * MIB + 8 * 1024 + 2 * 1024 + MIB
    assert head_in_layers(job(**MOE)) == near(32000 * 1024 / active)


def test_splits_as_arrays_equal_scalars():
    pp, head = np.array([2.0, 4.0, 4.0]), np.array([0.0, 1.0, 2.0])
    many = plan_stages([0] * 10, 1, pp, Split(0.0, head, mtp_layers=1))
    for at in range(3):
        one = plan_stages([0] * 10, 1, pp[at], Split(0.0, head[at], mtp_layers=1))
        width = one.index.size
        assert many.index[at, :width].tolist() == one.index.tolist()
        assert many.layers[0][at, :width].tolist() == one.layers[0].tolist()


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2), st.floats(0, 3), st.integers(0, 2))
def test_every_layer_lies_on_one_stage(layers, pp, embedding, head, mtp):
    plan = plan_stages([0] * layers, 1, pp, Split(embedding, head, mtp), every_stage=True)
    assert plan.layers[0].sum() == layers + mtp
    assert plan.has_head.sum() == plan.has_embedding.sum() == 1


def test_who_names_no_layout_of_a_model_that_predicts_more_deals_by_work():
    job = {"model": "deepseek-v3", "cluster": "h800-cx7", "gpus": 256, "global_batch": 1024, "seq_len": 4096}
    job |= {"layout": "pp4 ep64", "precision": "fp8-block"}
    dealt = {
        at: float(price(make_job(**job, **({"pipeline_layout": at} if at else {}))).bill.step_time_s())
        for at in ("", "balanced", "even")
    }
    assert dealt[""] == dealt["balanced"] < dealt["even"]
    assert short_form(make_job(**job, pipeline_layout="even"))["pipeline_layout"] == "even"
    assert not make_job(**{**job, "model": "llama3-8b", "layout": "pp4"}).balanced_stages


def test_a_job_with_a_written_layout():
    """The last of four ranks holds 12 + 1 layers of 61, MTP and both heads; evenly dealt it holds 15 and more time."""
    job = {"model": "deepseek-v3", "cluster": "h800-cx7", "gpus": 256, "global_batch": 1024, "seq_len": 4096}
    job |= {"layout": "pp4 vp4 ep64", "precision": "fp8-block"}
    even, given_one = (make_job(**job, pipeline_layout=dealt) for dealt in ("even", DEEPSEEK))
    assert sum(float(held.sum()) for held in price(given_one, every_stage=True).placed.stages.layers) == 62
    assert float(price(given_one).bill.step_time_s()) < float(price(even).bill.step_time_s())
    with pytest.raises(LayoutError, match="needs 8"):
        make_job(**{**job, "layout": "pp4 vp2 ep64"}, pipeline_layout=DEEPSEEK)
