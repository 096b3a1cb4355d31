"""Packed documents, by hand: attention inside each, ranks that wait, tokens of epochs; round machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_jobs import SMALL, attention_us, each_us, line, near, price

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.packing import Packing
from costmodel.physics.run.stragglers import expected_maximum_normal

T = 1024


def core(est):
    """Microseconds of attention each way."""
    return each_us(est, "compute.attention.core")


def test_attention_is_a_sum_of_squares():
    """Documents of 256 meet 128 keys on average instead of 512; spread by 1, twice as many; one document, all."""
    for mean, spread, met in ((256, 0.0, 128), (256, 1.0, 256), (1024, 0.0, 512), (512, 3.0, 512)):
        est = price(packed_len=mean, packed_spread=spread)
        assert core(est) == near(
            {
                "compute.attention.core.forward": attention_us(8, 4, T, T, met, 128),
                "compute.attention.core.backward": attention_us(8, 4, T, T, met, 128, backward=True),
            }
        )
    # Everything else is of all tokens.
    packed, plain = (each_us(price(**more), "compute.mlp") for more in ({"packed_len": 256}, {}))
    assert packed == near(plain)


def test_a_window_inside_documents():
    """Of documents of 256, a window of 128 meets 128 (1 - 1/4)."""
    est = price({**SMALL, "sliding_window": 128}, packed_len=256)
    met = est.priced.step.blocks[0].by_operator["attention.core"].operator.attention
    assert float(met.keys_share * met.seq_k) == near(96)


def test_ranks_wait_for_the_longest_documents():
    """Four ranks of two sequences: 8 documents of 256 each, that vary by the root of (1.25^4 - 1) / 8."""
    est = price(gpus=4, global_batch=8, packed_len=256, packed_spread=0.5)
    each = core(est)
    attention = 4 * 2 * (each["compute.attention.core.forward"] + each["compute.attention.core.backward"])
    excess = float(expected_maximum_normal(4)) * np.sqrt((1.25**4 - 1) / 8)
    assert 1e6 * float(line(est, "packing.imbalance").each_s) == near(attention * excess)
    # A layer that runs again is waited for again.
    again = price(gpus=4, global_batch=8, packed_len=256, packed_spread=0.5, recompute="full")
    attention += 4 * 2 * each["compute.attention.core.forward"]
    assert 1e6 * float(line(again, "packing.imbalance").each_s) == near(attention * excess)
    # No rank does more than sequences of one document: here 1,024 over 820 of those of length and spread.
    bound = price(gpus=4, global_batch=4, packed_len=800, packed_spread=0.158)
    excess = T / (800 * (1 + 0.158**2)) - 1
    each = core(bound)
    attention = 4 * (each["compute.attention.core.forward"] + each["compute.attention.core.backward"])
    assert 1e6 * float(line(bound, "packing.imbalance").each_s) <= attention * excess * (1 + 1e-9)


def test_nobody_waits_for_documents_of_one_length():
    for more in ({"packed_len": 256}, {}):
        est = price(gpus=4, global_batch=4, **more)
        assert not [one for one in est.bill.time_lines if one.name.startswith("packing")]
    alone = price(packed_len=256, packed_spread=1.0)
    assert float(line(alone, "packing.imbalance").each_s) == near(0)


def test_context_ranks_have_an_equal_part():
    """Two context ranks, each with half of every document: half of the scores, in two steps of the ring."""
    est = price(gpus=2, layout="cp2", packed_len=256)
    one = 2.0 * 8 * 512 * 64 * 2 * 128 / 50e6
    hbm = 2.0 * 2 * 128 * (8 * 512 + 4 * 512) / 1e6
    assert core(est)["compute.attention.core.forward"] == near(2 * (4 + float(np.cbrt(one**3 + hbm**3))))


def test_model_flops_are_those_of_the_documents():
    packed, plain = (float(price(**more).model_flops()) / T for more in ({"packed_len": 256}, {}))
    assert plain - packed == near(4 * 3 * 2 * 8 * 256 * (1024 - 256))


def test_tokens_of_epochs():
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 4096}
    est = cm.estimate(**job, dataset_samples="52k", epochs=3, packed_len=512)
    assert est.job.tokens == 52_000 * 3 * 512
    assert cm.estimate(**job, dataset_samples=1000).job.tokens == 1000 * 4096
    plan = cm.plan(**job, packed_len=512, packed_spread=1.5, fix={"pp": 1, "cp": 1, "vp": 1})
    assert plan.best.job.packing.mean == 512


def test_what_is_wrong_is_one_line():
    for fields, said in [
        ({"packed_len": 2048}, "packed_len: 2,048 tokens of a document are more than seq_len 1,024"),
        ({"packed_spread": 1.0}, "packed_spread: needs packed_len"),
        ({"packed_len": -1}, "packed_len"),
        ({"epochs": 2}, "epochs: needs dataset_samples"),
        ({"dataset_samples": 10, "tokens": 1e6}, "tokens: follow from dataset_samples and epochs"),
    ]:
        with pytest.raises(CostModelError) as error:
            price(**fields)
        assert said in str(error.value)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(16, 2000), min_size=3, max_size=30),
)
def test_the_closed_form_is_the_sum_over_documents(lengths):
    """The scores of documents of some lengths, and those of the mean and spread that they have."""
    total, mean = sum(lengths), float(np.mean(lengths))
    spread = float(np.std(lengths)) / mean
    span = float(Packing(mean, spread).span(np.asarray(float(total))))
    assert total * span == pytest.approx(sum(length**2 for length in lengths), rel=1e-9)
