"""Model and machine without their names in Python: the same answer as by keyword, and one line where they are wrong."""

import json

import pytest

import costmodel as cm

BATCH = {"global_batch": 64, "seq_len": 8192}
NAMED = {"model": "llama3-8b", "cluster": "H100", "gpus": 8}


def test_words_are_the_keywords():
    est = cm.estimate(**NAMED, **BATCH, tp=2)
    assert est.job.cluster.accelerator.name == "h100-sxm-80gb"
    for words in (
        ("llama3-8b", "8xH100"),
        ("8xH100", "llama3-8b"),
        (cm.load_model("llama3-8b"), "8xH100"),
    ):
        assert cm.estimate(*words, **BATCH, tp=2).to_dict() == est.to_dict(), words
    for cluster in ("dgx-h100-ndr", cm.load_cluster("dgx-h100-ndr")):
        assert cm.estimate("llama3-8b", cluster, gpus=8, tp=2, **BATCH).to_dict() == est.to_dict()
    assert cm.estimate("llama3-8b", "8xA100", tp=2, **BATCH).step_time_s > 2 * est.step_time_s
    many = cm.estimate("llama3-8b", "8xH100", tp=[2, 4], **BATCH)
    assert many.step_time_s[0] == est.step_time_s

    fixed = {**BATCH, "tp": 2, "pp": 1, "recompute": "none"}
    assert cm.plan("llama3-8b", "8xH100", **fixed).to_dict() == cm.plan(**NAMED, **fixed).to_dict()
    run = {**BATCH, "tp": 2, "tokens": "1e12"}
    assert cm.run("llama3-8b", "8xH100", **run).to_dict() == cm.run(**NAMED, **run).to_dict()
    assert cm.generate("llama3-8b", "8xH100").to_dict() == cm.generate(**NAMED).to_dict()


def test_a_job_file_stands_in_place_of_a_model(tmp_path):
    job, script = tmp_path / "job.yaml", tmp_path / "train.sh"
    said = {**NAMED, **BATCH, "tp": 2}
    job.write_text(json.dumps(said))
    over = cm.estimate(str(job), "16xA100", tp=4)
    assert over.to_dict() == cm.estimate(**{**said, "cluster": "a100", "gpus": 16, "tp": 4}).to_dict()
    assert cm.run(job, tokens=1e12).to_dict() == cm.run(**said, tokens=1e12).to_dict()
    assert cm.plan(job, pp=1).to_dict() == cm.plan(job=job, pp=1).to_dict()
    assert cm.generate(job).to_dict() == cm.generate(**NAMED).to_dict()
    script.write_text("torchrun pretrain_gpt.py\n")
    with pytest.raises(cm.CostModelError, match=r"train\.sh: starts no training"):
        cm.estimate(script, "8xH100")


@pytest.mark.parametrize("call", [cm.estimate, cm.plan, cm.run, cm.generate])
def test_wrong_words_are_one_line(call):
    for words, keywords, sentence in (
        (("llama3-8b", "8xH1000"), {}, "unknown cluster 'H1000': did you mean"),
        (("llama3-8b", "nowhere"), {"gpus": 8}, "unknown cluster 'nowhere'"),
        (("llama3-8b", "64H100"), {}, "machine: expected GPUs such as 256xH100, got '64H100'"),
        (("llama3-8b", 8), {}, "machine: expected GPUs such as 256xH100, or a cluster, got 8"),
        (("8xH100", "16xH100"), {}, "machine: expected one such as 256xH100, got '8xH100 16xH100'"),
        (("llama3-8b", "8xH100"), {"gpus": 16}, "gpus is given twice, as '8' and as 16"),
        (("llama3-8b", "8xH100"), {"model": "llama3-70b"}, "model is given twice, as 'llama3-8b' and as"),
    ):
        batch = {} if call is cm.generate else BATCH
        with pytest.raises(cm.CostModelError) as error:
            call(*words, **keywords, **batch)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
