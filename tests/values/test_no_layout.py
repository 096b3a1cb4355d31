"""Where nothing fits: what would, each really searched, what it costs, and what makes another model."""

import re
import shlex

import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.planning.entry import alternative
from costmodel.planning.no_layout import _other_batch, _tried, dividing_batch, lacking_factor
from costmodel.planning.request import make_question

LLAMA = {"model": "llama3-70b", "gpus": 8, "global_batch": 128, "seq_len": 8192}
ADAMS = {**LLAMA, "cluster": "dgx-a100-hdr", "gpus": 16}
SMALL = {"model": "llama3-8b", "cluster": "p4d-efa", "gpus": 4, "global_batch": 8, "seq_len": 32768}


def remedies(**asked):
    """The changes that a message names, with their step times in seconds, and whether each changes numerics."""
    with pytest.raises(cm.NoLayoutError) as caught:
        cm.plan(**asked)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) <= 300
    listed = said.partition("would do: ")[2]
    found = re.findall(r"(?:^|, )([^(]+) \(([\d.]+) s a step(, changes numerics)?\)", listed)
    return {change: (float(seconds), bool(numerics)) for change, seconds, numerics in found}


USUAL = {"model": "llama3-70b", "gpus": 8}


@pytest.mark.parametrize("asked", [LLAMA, ADAMS, SMALL, USUAL])
def test_each_remedy_lets_a_layout_in_at_the_time_that_its_plan_then_has(asked):
    """Switches searched; a batch that nobody named is that of the GPUs."""
    found = remedies(**asked)
    assert len(found) >= 2
    for change, (seconds, _) in found.items():
        words = shlex.split(change)
        flags = dict(zip(words[::2], words[1::2], strict=True)) if words[0].startswith("--") else {}
        switches = dict(word.split("=") for word in words[1::2] if "=" in word)
        changed = {"gpus": int(words[0])} if words[1] == "GPUs" else {"switches": switches}
        # The usual batch is that of the GPUs that are planned.
        assert ("with batch" in change) == (words[1] == "GPUs" and "global_batch" not in asked)
        if "--optimizer" in flags:
            changed["optimizer"] = flags["--optimizer"]
        best = cm.plan(**{**asked, **changed}).best
        assert "with batch" not in change or float(words[-1]) == best.job.global_batch
        assert float(f"{float(best.step_time_s):.3g}") == pytest.approx(seconds, rel=1e-9)


def test_estimate_and_plan_say_one_sentence_with_what_keeps_memory_free():
    with pytest.raises(cm.NoLayoutError) as caught:
        cm.plan(**USUAL)
    said = str(caught.value).removeprefix("plan: ")
    assert alternative(USUAL).refusal == said
    need, of, keeper, free = re.search(
        r"needs ([\d.]+) GiB of ([\d.]+) GiB \((\w+) keeps ([\d.]+) GiB free\)", said
    ).groups()
    assert keeper == "risk"
    assert float(need) > float(of)
    device = cm.estimate(**USUAL).memory_capacity_bytes / 2**30
    assert float(of) + float(free) == pytest.approx(device, abs=0.1)
    for keeper, limit in (("headroom", {"headroom": 0.2}), ("max_memory", {"max_memory": "40GiB"})):
        with pytest.raises(cm.NoLayoutError, match=f"{keeper} keeps"):
            cm.plan(**USUAL, **limit)


def test_what_changes_the_model_is_marked():
    """Megatron-LM has Adam's states in bf16, not in 8 bits: an optimizer that its emitter refuses is no remedy."""
    found = remedies(**ADAMS)
    marked = {change for change, (_, numerics) in found.items() if numerics}
    assert marked == {"--optimizer adamw-bf16"}
    assert not marked & {"--set offload_optimizer=true"}


def test_the_least_number_of_gpus_is_named():
    found = remedies(**LLAMA)
    (more,) = (int(change.split()[0]) for change in found if change.endswith("GPUs"))
    assert more == 24  # 16 do not, and 32 are more than it takes
    with pytest.raises(cm.NoLayoutError):
        cm.plan(**{**LLAMA, "gpus": more - 8})


def test_more_gpus_are_offered_where_much_else_would_do():
    """Long lists of switches do not crowd them out."""
    assert "160 GPUs" in remedies(model="llama3-405b", gpus=80, global_batch=1024, seq_len=8192)


def test_what_gpus_and_batch_do_not_share():
    for gpus, batch, lacking, near_batch in [
        (72, 1024, 9, 1008),
        (72, 1026, 1, 1008),  # 1,026 = 2 · 27 · 19
        (96, 1024, 3, 1056),
        (24, 1000, 3, 1008),
        (40, 1000, 1, 1000),
        (12, 16, 3, 12),
    ]:
        assert lacking_factor(gpus, batch) == lacking
        assert dividing_batch(gpus, batch) == near_batch


def test_another_batch_is_offered_only_where_replicas_cannot_be_as_many(monkeypatch):
    """1,026 has the nines of 72 GPUs, though 1,008 is nearer to a multiple; 1,024 lacks them."""
    monkeypatch.setattr("costmodel.planning.no_layout.feasible", lambda question: {})
    said = {}
    for batch in (1024, 1026, 1008):
        question = make_question(**{**LLAMA, "gpus": 72, "global_batch": batch})
        said[batch] = [one.change for one in _other_batch(question, question.jobs[0])]
    assert said == {1024: ["global_batch = 1008 instead of 1024"], 1026: [], 1008: []}


def test_what_the_user_decided_is_not_turned():
    """Offloading was refused; stages of sharding that Megatron has not are no remedy, those of the user are."""
    assert not [one for one in remedies(**LLAMA, switches={"offload_optimizer": False}) if "offload" in one]
    plain = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192}
    fixed = {"tp": 1, "pp": 1, "cp": 1, "recompute": "none"}
    found = list(remedies(**plain, **fixed))
    assert not [one for one in found if "zero" in one]
    assert re.match(r"(tp|pp|cp|recompute) = \w+ instead of ", found[0])


def test_the_named_value_that_costs_least_to_release_comes_first():
    """Of all that a job file names, not the first that lets a layout in."""
    named = {"micro_batch": 2, "tp": 1, "cp": 1, "pp": 1, "zero_stage": 3, "recompute": "none"}
    job = {"model": "llama2-13b", "cluster": "dgx-a100-hdr", "gpus": 32, "global_batch": 256, "seq_len": 4096}
    found = list(remedies(**job, **named, recipe="deepspeed").items())
    assert found[0][0] == "micro_batch = 1 instead of 2"
    assert " instead of " in found[1][0]
    assert found[0][1][0] < found[1][1][0]


def test_experts_of_two_dispatchers():
    """The leanest layout may be of the other dispatcher's space."""
    with pytest.raises(cm.NoLayoutError, match="no layout fits: the leanest"):
        cm.plan(model="deepseek-v3", gpus=64, global_batch=128, seq_len=4096)


TIGHT = {"model": "llama3-70b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}


def test_the_limit_that_bites_is_the_one_to_move():
    """The leanest is of the device's size: it fits to the byte with what the message says."""
    for limits, bites in [
        ({"max_memory": "20GB"}, "max_memory"),
        ({"headroom": 0.9}, "headroom"),
        ({"max_memory": "20GB", "headroom": 0.6}, "max_memory"),  # 0.4 · 79.2 GiB = 31.7 GiB are left
        ({"max_memory": "30GB", "headroom": 0.9}, "headroom"),  # 7.92 GiB are
    ]:
        with pytest.raises(cm.NoLayoutError) as caught:
            cm.plan(**TIGHT, **limits)
        said = re.search(
            r"of ([\d.]+) GiB, which (\w+) allows; (\w+) = ([\d.]+)( GiB|%) would do$", str(caught.value)
        )
        device = cm.load_cluster("dgx-h100-ndr").accelerator.memory_bytes
        limit = 20e9 if bites == "max_memory" else device * 0.1
        assert float(said[1]) == pytest.approx(limit / 2**30, rel=3e-3)
        assert said[2] == said[3] == bites
        least = float(re.search(r"needs ([\d.]+) GiB of", str(caught.value))[1])
        told = float(said[4]) if bites == "max_memory" else (1 - float(said[4]) / 100) * device / 2**30
        assert told == pytest.approx(least, rel=3e-3)
        limits[bites] = f"{least * 1.01:.4f} GiB" if bites == "max_memory" else float(said[4]) / 100 - 0.01
        other = {"headroom": 0.0} if bites == "max_memory" else {"max_memory": None}
        best = cm.plan(**TIGHT, **{**limits, **other}, choose=False).fastest
        assert float(best.memory_bytes_per_gpu) <= least * 2**30 * 1.02


def test_that_nothing_fits_is_an_answer_but_none_that_a_program_can_go_on_with(capsys, tmp_path):
    """As a job that does not fit is; what no degree divides is wrong input."""
    flags = ["plan", "-m", "llama3-70b", "-n", "8", "--global-batch", "128", "--seq-len", "8192"]
    for line in (flags, ["generate", "llama3-70b", "1xH100"]):
        assert main(line) == 0
        out, err = capsys.readouterr()
        assert (out[:10], len(out.splitlines()), err) == ("No layout ", 1, "")
    assert main(flags) == 0
    assert "would do: --set offload_optimizer=true (" in capsys.readouterr().out
    file = str(tmp_path / "best.yaml")
    for more in (
        "--check",
        "--emit job",
        "--format json",
        "--format csv",
        f"--save {tmp_path}/x",
        f"--out {file}",
    ):
        assert main([*flags, *more.split()]) == 3, more
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), more
    assert not [*tmp_path.iterdir()]
    assert main(["plan", "llama3-8b", "8xH100", "--tp", "3"]) == 2


def test_a_remedy_is_planned_with_what_it_turned():
    """The state on the host makes room; a plan of the remedy turns neither it nor what the user named."""
    question = make_question(**{**LLAMA, "switches": {"cross_entropy": "chunked"}})
    remedy = _tried(question, question.jobs[0], {"offload_optimizer": True}, "", numerics=False)
    assert remedy.change == "--set offload_optimizer=true"
    assert remedy.question.user_switches == {"cross_entropy", "offload_optimizer"}
    assert remedy.question.jobs[0].switches["offload_optimizer"] is True


TITAN = """[model]
name = "llama3"
flavor = "70B"
[training]
batch_size = 8
seq_len = 8192
tensor_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


def test_more_gpus_have_the_batch_that_the_file_gives_them(tmp_path):
    """Eight sequences for each replica of eight GPUs: 24 GPUs have 24, but not where a flag says how many."""
    titan, ours = tmp_path / "llama.toml", tmp_path / "job.yaml"
    titan.write_text(TITAN)
    ours.write_text("model: llama3-70b\nglobal_batch: 64\nseq_len: 8192\n")
    for file, given in ((titan, {}), (titan, {"global_batch": 16}), (ours, {"global_batch": 16})):
        found = remedies(job=str(file), cluster="h100", gpus=8, **given)
        (more,) = (change for change in found if "GPUs" in change)
        count = int(more.split()[0])
        assert more == (f"{count} GPUs" if given else f"{count} GPUs with batch {count}")
        then = cm.plan(job=str(file), cluster="h100", gpus=count, **given)
        assert found[more][0] == pytest.approx(float(then.best.step_time_s), rel=5e-3)
