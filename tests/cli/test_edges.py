"""What a stranger stumbled over: open layouts, headlines far from the median, files named twice, flags that are not there."""

import json

import numpy as np
import pytest

import costmodel as cm
from costmodel.cli import main

SMALL = {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 8, "seq_len": 2048}
DENSE = "-m llama3-8b -n 8 --global-batch 8 --seq-len 2048"
MOE = {
    "model": "mixtral-8x7b",
    "gpus": 64,
    "layout": "tp4 pp2 ep8",
    "global_batch": 256,
    "seq_len": 8192,
    "tokens": 1e12,
}


def said(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    return capsys.readouterr()


def test_the_headline_is_the_median_for_dense_models_and_experts_alike():
    """By constants fitted to medians; a little less where messages that hide in full can only hide less."""
    for job in (MOE, {**MOE, "model": "llama3-8b", "layout": "tp2"}):
        est = cm.estimate(**job).with_samples(200)
        drawn = est.samples
        place = float(np.mean(drawn.step_time_s < float(est.step_time_s)))
        assert 0.4 <= place <= 0.6
        assert est.range_s == pytest.approx(np.quantile(drawn.step_time_s, (0.1, 0.9)))
        record = est.to_dict()["uncertainty"]
        assert record["headline_place"] == pytest.approx(place)
        wide = est.columns("wide")
        assert wide["headline_place"] == [pytest.approx(place)]
        for figure in ("days", "dollars"):
            assert wide[f"{figure}_p50"] == [np.quantile(drawn.figures[figure], 0.5)]
        band = dict(est.grids()[0].rows)["error band"]
        assert f"{np.quantile(drawn.step_time_s, 0.1):.3g}" in band
        assert "the headline is near" not in band


def test_the_days_of_a_run_and_a_comparison_are_medians_too():
    run = cm.run(**MOE, samples=2000)
    place = float(np.mean(run.sampled.calendar_s < run.calendar_s))
    assert run.to_dict()["headline_place"] == pytest.approx(place)
    assert 0.4 <= place <= 0.6
    table = run.columns()
    assert table["expected"][table["figure"].index("headline_place")] == pytest.approx(place)
    assert "of the runs drawn" not in dict(run.grids()[0].rows)["calendar time"]
    both = cm.runs(run, run, labels=["a", "b"])
    assert both.columns()["headline_place"] == [run.headline_place] * 2
    assert "  vs. the median" not in [row[0] for row in both.grids()[0].rows]
    compared = cm.compare(run.est, run.est)
    first = compared.spent[0]
    assert first.low < 1.0 < first.middle < first.high
    drawn = run.est.sample().step_time_s  # as an estimate draws them
    assert first.headline_place == pytest.approx(float(np.mean(drawn < run.step_time_s)))
    assert first.middle == pytest.approx(float(np.median(drawn)) / run.step_time_s)


def test_what_is_to_be_known_of_some_jobs_of_a_comparison_is_said_of_them(capsys):
    """ZeRO-2 holds whole gradients over micro-batches; what is known of all is no difference."""
    line = "compare llama3-8b 64xH100 --tp 2 --vary zero=1,2,3"
    warning = "Warning: zero_stage=2: zero 2 holds whole gradients here"
    assert warning in said(capsys, *line.split()).out
    assert warning in " ".join(said(capsys, *line.split(), "--details").out.split())
    assert "Warning" not in said(capsys, *line.replace("1,2,3", "1,3").split()).out
    assert repr(cm.compare(*cm.vary(["tp=2,4"], **SMALL).values())).startswith("Comparison(B is ")


def test_a_model_of_so_many_tokens_is_not_made_for_more(tmp_path):
    job = {"model": "llama3-8b", "gpus": 8}
    long = cm.generate(**job, prompt_len=1e5, response_len=32_000)
    assert long.warnings == ["sequences of 132,000 tokens are longer than the 131,072 of llama3-8b"]
    assert cm.generate(**job, prompt_len=1e5, response_len=31_072).warnings == []
    est = cm.estimate(**job, layout="cp8", seq_len=262_144, global_batch=1)
    assert "seq_len 262,144 is longer than the 131,072 that llama3-8b is made for" in est.warnings
    script = tmp_path / "train.sh"
    script.write_text(
        "\n".join(
            [
                "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --bf16 \\",
                "--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 32000",
            ]
        )
    )
    assert cm.generate(script, "8xH100", prompt_len=64, response_len=64).served.model.num_layers == 4


def test_a_list_of_modules_is_a_text_in_python_too():
    est = cm.estimate(**SMALL, recompute="selective", switches={"selective_modules": "layernorm,mlp"})
    assert est.job.recipe.memory.selective_modules == ("layernorm", "mlp")


def test_a_job_beside_itself_is_two_jobs(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text(
        json.dumps({"model": "llama3-8b", "gpus": 8, "tp": 4, "global_batch": 8, "seq_len": 2048})
    )
    name = str(file)
    assert f"{name} (2) takes as long as {name}." in said(capsys, "compare", name, name).out


@pytest.mark.parametrize("kind", ["megatron", "fsdp", "lora", "qlora"])
def test_what_a_recipe_is_called_otherwise_leads_to_an_answer(capsys, kind):
    error = said(capsys, "estimate", *DENSE.split(), "-r", kind, code=2).err
    flags = (
        error.partition("with any recipe: ")[2].split()
        if "lora" in kind
        else ["-r", error.partition("did you mean '")[2].partition("'")[0]]
    )
    assert " a step, " in said(capsys, "estimate", *DENSE.split(), "--tp", "2", *flags).out


def test_the_textbooks_bubble_stands_beside_the_bills():
    job = {"model": "llama3-70b", "gpus": 64, "global_batch": 128, "seq_len": 8192}
    (line,) = cm.estimate(**job, layout="tp8 pp4").explain("pp.bubble")
    # 64 / 32 = 2 replicas, so 64 micro-batches: 3 / 64 = 4.7 %, of 67 parts 3 = 4.5 %.
    assert "= (4 - 1) / 64 = 4.7% of what a rank computes, 4.5% of a step" in line.textbook
    assert line.textbook in " ".join(repr(cm.estimate(**job, layout="tp8 pp4").explain("pp.bubble")).split())
    found = cm.estimate(**job, layout="tp8 pp4 vp2").explain("pp.bubble")
    assert "= (4 - 1) / (2 * 64) = 2.3% of what a rank computes" in found[0].textbook
    assert found[0].textbook in (found.grids()[0].note or "")
    (line,) = cm.estimate(**job, layout="tp8 pp4", schedule="zb-h1").explain("pp.bubble")
    assert line.textbook == ""  # no textbook has one for it
    assert all(one.textbook == "" for one in cm.estimate(**job, layout="tp8 pp4").explain("pp.send_recv"))
