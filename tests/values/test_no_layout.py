"""Where nothing fits: what would, each really searched, what it costs, and what makes another model."""

import re
import shlex

import pytest

import costmodel as cm
from costmodel.cli import main

LLAMA = {"model": "llama3-70b", "gpus": 8, "global_batch": 128, "seq_len": 8192}
SMALL = {"model": "llama3-8b", "cluster": "p4d-efa", "gpus": 4, "global_batch": 8, "seq_len": 32768}


def cures(**asked):
    """The changes that a message names, with their step times in seconds, and whether each changes numerics."""
    with pytest.raises(cm.NoLayoutError) as caught:
        cm.plan(**asked)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) <= 300
    listed = said.partition("would do: ")[2]
    found = re.findall(r"(?:^|, )([^(]+) \(([\d.]+) s a step(, changes numerics)?\)", listed)
    return {change: (float(seconds), bool(numerics)) for change, seconds, numerics in found}


@pytest.mark.parametrize("asked", [LLAMA, SMALL])
def test_each_cure_lets_a_layout_in_at_its_time(asked):
    found = cures(**asked)
    assert len(found) >= 2
    for change, (seconds, _) in found.items():
        words = shlex.split(change)
        flags = dict(zip(words[::2], words[1::2], strict=True)) if words[0].startswith("--") else {}
        switches = dict(word.split("=") for word in words[1::2] if "=" in word)
        changed = {"gpus": int(words[0])} if words[1] == "GPUs" else {"switches": switches}
        if "--optimizer" in flags:
            changed["optimizer"] = flags["--optimizer"]
        best = cm.plan(**{**asked, **changed}, choose=False).fastest
        assert float(f"{float(best.step_time_s):.3g}") == pytest.approx(seconds, rel=1e-9)


def test_what_changes_the_model_is_marked():
    found = cures(**SMALL)
    marked = {change for change, (_, numerics) in found.items() if numerics}
    assert marked == {change for change in found if "bf16" in change or "8bit" in change}
    assert marked
    assert not marked & {"--set offload_optimizer=true"}


def test_the_least_number_of_gpus_is_named():
    found = cures(**LLAMA)
    (more,) = (int(change.split()[0]) for change in found if change.endswith("GPUs"))
    with pytest.raises(cm.NoLayoutError):
        cm.plan(**{**LLAMA, "gpus": more // 2})


def test_what_the_user_decided_is_not_turned():
    """Offloading was refused; stages of sharding that Megatron has not are no cure, those of the user are."""
    assert not [one for one in cures(**LLAMA, switches={"offload_optimizer": False}) if "offload" in one]
    plain = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192}
    fixed = {"tp": 1, "pp": 1, "cp": 1, "recompute": "none"}
    found = list(cures(**plain, **fixed))
    assert not [one for one in found if "zero" in one]
    assert re.match(r"(tp|pp|cp|recompute) = \w+ instead of ", found[0])


def test_the_named_value_that_costs_least_to_release_comes_first():
    """Of all that a job file names, not the first that lets a layout in."""
    named = {"micro_batch": 2, "tp": 1, "cp": 1, "pp": 1, "zero_stage": 3, "recompute": "none"}
    job = {"model": "llama2-13b", "cluster": "dgx-a100-hdr", "gpus": 32, "global_batch": 256, "seq_len": 4096}
    found = list(cures(**job, **named, recipe="deepspeed").items())
    assert found[0][0] == "micro_batch = 1 instead of 2"
    assert " instead of " in found[1][0]
    assert found[0][1][0] < found[1][1][0]


def test_experts_of_two_dispatchers():
    """The leanest layout may be of the other dispatcher's space."""
    with pytest.raises(cm.NoLayoutError, match="no layout fits: the leanest"):
        cm.plan(model="deepseek-v3", gpus=64, global_batch=128, seq_len=4096)


def test_the_command_line_says_it_in_one_line(capsys):
    flags = ["-m", "llama3-70b", "-n", "8", "--global-batch", "128", "--seq-len", "8192"]
    assert main(["plan", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "would do: --set offload_optimizer=true (" in err
