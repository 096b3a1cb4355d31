"""Where tokens go: groups of experts, how even loads are, and in which format activations and gradients travel."""

import json

import numpy as np
import pytest
from round_jobs import MOE, each_us, model_file, near, price, product_us
from typer.testing import CliRunner

import costmodel as cm
from costmodel.base.errors import CostModelError, RecipeError
from costmodel.cli import root

# Loads of eight experts: two ranks of four hold 26 and 10, four of two 20, 6, 4, 6.
LOADS = [12, 8, 3, 3, 2, 2, 4, 2]
MEASURED = {"moe_balance": "random", "moe_loads": LOADS}


def busiest(est):
    return float(est.priced.placed.imbalance)


@pytest.mark.parametrize(("ep", "load"), [(1, 1.0), (2, 26 / 18), (4, 20 / 9), (8, 12 / 4.5)])
def test_measured_loads_are_those_of_the_experts_of_a_rank(ep, load):
    est = price(MOE, gpus=8, layout=f"ep{ep}", global_batch=8, switches=MEASURED)
    assert busiest(est) == near(load)
    # On top of it what is said of the rest.
    more = price(MOE, gpus=8, layout=f"ep{ep}", global_batch=8, switches={**MEASURED, "moe_imbalance": 1.5})
    assert busiest(more) == near(1.5 * load)


def test_measured_loads_of_many_layouts():
    ranks = np.asarray([1.0, 2.0, 4.0, 8.0])
    many = price(MOE, gpus=8, ep=ranks, global_batch=8, switches=MEASURED)
    assert many.priced.placed.imbalance.tolist() == near([1.0, 26 / 18, 20 / 9, 12 / 4.5])


def test_loads_that_do_not_go_together_are_refused():
    for switches, words in [
        ({"moe_loads": [0.0] * 8}, "tokens of some expert"),
        ({"moe_loads": [-1.0] * 8}, "moe_loads"),
        ({"moe_balance": "even"}, "moe_balance"),
    ]:
        with pytest.raises(RecipeError, match=words):
            price(MOE, gpus=2, layout="ep2", global_batch=2, switches=switches)


def test_as_many_loads_as_experts():
    with pytest.raises(CostModelError, match="a load for each of 8 experts, got 3"):
        price(MOE, gpus=2, layout="ep2", global_batch=2, switches={**MEASURED, "moe_loads": [1, 2, 3]})


BALANCES = {"random": {}, "balanced": {"moe_balance": "balanced"}, "measured": MEASURED}


@pytest.mark.parametrize("how", BALANCES)
def test_every_balance_is_asked_for_in_every_way(how, tmp_path):
    """In Python, in a job file and on the command line the same step comes out."""
    job = {
        "model": model_file(MOE),
        "cluster": "h100-ndr",
        "gpus": 8,
        "global_batch": 64,
        "seq_len": 2048,
        "ep": 8,
    }
    ours = cm.estimate(**job, switches=BALANCES[how])
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({**job, "switches": BALANCES[how]}))
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in job.items()]
    for name, value in BALANCES[how].items():
        flags.append(f"--set={name}={','.join(map(str, value)) if isinstance(value, list) else value}")
    for arguments in ([str(file)], flags):
        result = CliRunner().invoke(root, ["estimate", *arguments, "--format", "json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["step_time_s"] == near(float(ours.step_time_s))
    switches = ours.to_dict()["inputs"]["switches"]
    assert switches["moe_loads"] == (LOADS if how == "measured" else [])
    assert switches["moe_balance"] == ("balanced" if how == "balanced" else "random")


def test_tokens_that_come_to_their_slots_by_products():
    """256 tokens of each of 2 sequences, and 1.25 x 2 x 256 slots for them: products of 1,024 x 640 x 256, forward one
    each way; backward the dispatch has one, the combination, which holds the router's weights, two."""
    switches = {"dispatch_by_products": True, "moe_capacity_factor": 1.25}
    est = price(MOE, gpus=1, global_batch=2, micro_batch=2, seq_len=256, switches=switches)
    times = each_us(est, "compute.moe.permute", "compute.moe.unpermute")
    into = product_us(1024, 640, 256, groups=2)
    out = product_us(1024, 256, 640, groups=2)
    mask = product_us(256, 640, 1024, groups=2)
    assert times == near(
        {
            "compute.moe.permute.forward": into,
            "compute.moe.permute.backward": out,
            "compute.moe.unpermute.forward": out,
            "compute.moe.unpermute.backward_input": into,
            "compute.moe.unpermute.backward_weight": mask,
        }
    )


def test_forced_balance_is_balance_whatever_was_measured():
    forced = {**MEASURED, "moe_balance": "balanced"}
    assert busiest(price(MOE, gpus=8, layout="ep8", global_batch=8, switches=forced)) == 1.0


@pytest.mark.parametrize(("how", "words"), [("random", "random routing"), ("measured", "the measured loads")])
def test_what_uneven_loads_cost_is_said(how, words):
    job = {"gpus": 8, "layout": "ep8", "global_batch": 8, "seq_len": 256}
    est = price({**MOE, "expert_ffn_size": 8192}, switches={"moe_balance": "random", **BALANCES[how]}, **job)
    [said] = [warning for warning in est.warnings if "expert ranks" in warning]
    assert said.startswith(words)
    even = price({**MOE, "expert_ffn_size": 8192}, switches={"moe_balance": "balanced"}, **job)
    lost = float(est.step_time_s) / float(even.step_time_s) - 1
    assert f"({lost / (1 + lost):.1%} of the step)" in said
    assert not [warning for warning in even.warnings if "expert ranks" in warning]


def test_groups_of_shipped_models():
    for model, groups in [("deepseek-v3", (8, 4)), ("deepseek-v2", (8, 3)), ("qwen3-235b-a22b", (0, 0))]:
        found = cm.load_model(model)
        assert (found.expert_groups, found.groups_per_token) == groups


def test_bytes_of_every_exchange():
    """64 ranks in eight nodes, four of which a token reaches: 3.15 copies of 7,168 elements leave a node."""
    for recipe, precision, gradients, widths in [
        # DeepSeek-V3, section 3.3.3: both dispatches in fp8 with their scales, both combines in bf16.
        (
            "hai-llm",
            "fp8-block",
            None,
            {"dispatch.forward": 1.03, "combine.forward": 2, "combine.backward": 1.03},
        ),
        (
            "hai-llm",
            "fp8-block",
            False,
            {"dispatch.forward": 1.03, "combine.forward": 2, "combine.backward": 2},
        ),
        ("hai-llm", "bf16", None, {"dispatch.forward": 2, "combine.forward": 2, "combine.backward": 2}),
        (
            "megatron-bridge-2606",
            "fp8-block",
            None,
            {"dispatch.forward": 1.03, "combine.forward": 2, "combine.backward": 2},
        ),
    ]:
        switches = {} if gradients is None else {"moe_dispatches_gradients_in_fp8": gradients}
        est = cm.estimate(
            model="deepseek-v3",
            cluster="h800-cx7",
            gpus=512,
            layout="ep64",
            global_batch=512,
            seq_len=4096,
            precision=precision,
            recipe=recipe,
            switches=switches,
        )
        copies = 4 * (1 - (3 / 4) ** 8) * (1 - 1 / 8)
        sent = {
            line.name.removeprefix("ep.moe.moe."): float(line.bytes_each)
            for line in est.bill.time_lines
            if line.name.startswith("ep.moe.moe.") and "recompute" not in line.name
        }
        wanted = {**widths, "dispatch.backward": 2}
        assert sent == near({name: width * 7168 * 4096 * copies for name, width in wanted.items()})
