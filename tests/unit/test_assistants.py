"""Tools for assistants, asked by the SDK's own client over stdin and stdout."""

import asyncio
import json
import os
import shlex
import sys

import pytest

import costmodel as cm
from costmodel.app.tools import TOOLS, estimate, run
from costmodel.cli import main
from costmodel.describe.jobs.fields import JOB_FIELDS, PLAN_FIELDS, names

JOB = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": "8k", "layout": "tp4"}
PRICED = {**JOB, "seq_len": 8192}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 31,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
}


def asked(*questions, stop_after=None):
    """Ask a server of its own one question after another, and return its answers; the first are the tools' names."""
    mcp = pytest.importorskip("mcp", reason="mcp is not installed (extra mcp)")
    from mcp.client.stdio import stdio_client

    told = []

    async def noted(done, total, message):
        told.append((done, total))

    async def talk():
        how = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "costmodel", "serve", "--mcp"], env=dict(os.environ)
        )
        async with stdio_client(how) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
            answers = [(await session.list_tools()).tools]
            for name, given in questions:
                call = session.call_tool(name, given, progress_callback=noted)
                if stop_after is not None and name == "plan":
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(call, stop_after)
                    continue
                answers.append(await call)
            return answers

    return asyncio.run(talk()), told


def text(answer):
    return answer.content[0].text


@pytest.fixture(scope="module")
def talk():
    return asked(
        ("estimate", JOB),
        ("plan", {**{key: JOB[key] for key in JOB if key != "layout"}, "tp": [1, 2, 4], "fix": {"pp": 1}}),
        ("explain", {**JOB, "line": "compute.mlp.fc1.forward"}),
        ("compare", {"first": JOB, "second": {"tp": 2}}),
        ("estimate", {**JOB, "model": None, "file": json.dumps(CONFIG)}),
    )


def test_the_tools_are_listed_in_schemas_that_are_cheap_to_send(talk):
    tools = {tool.name: tool for tool in talk[0][0]}
    assert (
        set(tools)
        == {"list", "estimate", "plan", "run", "compare", "explain"}
        == {tool.name for tool in TOOLS}
    )
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert sum(len(json.dumps(tool.input_schema)) + len(tool.description) for tool in tools.values()) <= 8_000
    known = {*names(JOB_FIELDS), *names(PLAN_FIELDS), "days", "dollars", "file", "file_name", "line"}
    for name in ("estimate", "plan", "run", "explain"):
        assert set(tools[name].input_schema["properties"]) <= known


def test_estimate_answers_as_estimate(talk, capsys):
    answer, est = talk[0][1], cm.estimate(**PRICED)
    assert not answer.is_error
    found = answer.structured_content
    assert found["step_time_s"] == float(est.step_time_s)
    assert found["memory_bytes_per_gpu"] == float(est.memory_bytes_per_gpu)
    assert found["exposed_seconds"]["compute.mlp.fc1"] == pytest.approx(
        sum(
            float(one.exposed_seconds)
            for one in est.bill.time_lines
            if one.name.startswith("compute.mlp.fc1.")
        ),
        rel=1e-3,
    )
    assert "a step" in text(answer)
    assert "Assumed: cluster=dgx-h100-ndr, recipe=megatron-core, precision=bf16." in text(answer)
    assert main([*shlex.split(found["command"])[1:], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == float(est.step_time_s)


def test_what_nobody_names_is_as_on_the_command_line(capsys):
    """The usual batch is assumed and said; no layout is named and replicas do not fit: the planner's best."""
    said = estimate({"model": "llama3-8b", "cluster": "H100", "gpus": 8})
    assert main(["estimate", "llama3-8b", "8xH100", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == said.record["step_time_s"]
    assert "global_batch=512, seq_len=8192." in said.text
    assert "Layout: the planner's best" in said.text


def test_a_whole_run_answers_as_run():
    said = run({**JOB, "tokens": "1T", "spare_nodes": 1})
    found = cm.run(**PRICED, tokens=1e12, spare_nodes=1)
    assert said.record["days"] == found.days
    assert said.record["dollars"] == found.dollars
    assert "--spare-nodes" in said.record["command"]
    assert f"{found.days:.1f} days" in said.text.splitlines()[0]


def test_plan_answers_as_plan_and_tells_how_far_it_is(talk):
    answer, told = talk[0][2], talk[1]
    found = cm.plan(**{key: PRICED[key] for key in PRICED if key != "layout"}, tp=[1, 2, 4], fix={"pp": 1})
    assert not answer.is_error
    assert answer.structured_content["top"][0]["step_time_s"] == float(found.best.step_time_s)
    assert found.advice()[0] in text(answer)
    assert "costmodel plan" in answer.structured_content["command"]
    assert all(0 < done <= total for done, total in told)


def test_explain_opens_a_line(talk):
    line = talk[0][3].structured_content
    assert line["name"] == "compute.mlp.fc1.forward"
    assert line["total"] == pytest.approx(
        float(cm.estimate(**PRICED).explain(line["name"])[0].total), rel=1e-12
    )


def test_compare_takes_what_is_otherwise(talk):
    one, two = talk[0][4].structured_content["jobs"]
    assert one["step_time_s"] == float(cm.estimate(**PRICED).step_time_s)
    assert two["step_time_s"] == float(cm.estimate(**{**PRICED, "layout": "tp2"}).step_time_s)
    assert "than first" in text(talk[0][4])


def test_a_model_is_handed_over_as_text(talk):
    assert not talk[0][5].is_error, text(talk[0][5])
    assert talk[0][5].structured_content["step_time_s"] < float(cm.estimate(**PRICED).step_time_s)


WRONG = {
    "unknown field": ("estimate", {**JOB, "gpu": 8}, "job: 'gpu' is not a field; did you mean 'gpus'"),
    "wrong value": (
        "estimate",
        {**JOB, "gpus": "x"},
        "gpus: expected a whole number from 1 to 10,000,000, got 'x'",
    ),
    "missing": ("estimate", {"model": "llama3-8b"}, "estimate: gpus missing"),
    "a path": ("estimate", {**JOB, "model": "/etc/passwd.json"}, "model: '/etc/passwd.json' would be a file"),
    "a file of a path": ("estimate", {"file": "model: ./x.yaml\ngpus: 8", **JOB, "model": None}, "model: "),
    "binary": ("estimate", {**JOB, "file": "\x00\x01"}, "file: "),
    "large": ("estimate", {**JOB, "file": "a: 1\n" * 300_000}, "file: expected at most 250,000 characters"),
    "nested": ("estimate", {**JOB, "switches": {"a": {"b": [1]}}}, "switches: 'a' is unknown"),
    "no line": ("explain", JOB, "line: missing; give the name of a line"),
    "unknown line": ("explain", {**JOB, "line": "zz"}, "line: 'zz' is not on this bill"),
    "many lines": ("explain", {**JOB, "line": "c"}, "line: "),
    "one job": ("compare", {"first": JOB}, "compare: expected first and second"),
    "no layout": ("plan", {**JOB, "layout": None, "max_memory_bytes": "1GiB"}, ""),
    "unknown tool": ("estimates", JOB, "no tool is called 'estimates'; did you mean 'estimate'"),
}


def test_what_is_wrong_is_one_line_and_the_next_is_answered():
    answers, _ = asked(*((name, given) for name, given, _ in WRONG.values()), ("estimate", JOB))
    for kind, answer in zip(WRONG, answers[1:], strict=False):
        assert answer.is_error, kind
        assert text(answer).startswith(WRONG[kind][2]), kind
        assert len(text(answer)) <= 300, kind
        assert "\n" not in text(answer), kind
    assert not answers[-1].is_error


def test_a_tool_prices_one_layout():
    for lists in (
        {"recompute": [0]},
        {"zero_stage": [0]},
        {"tp": [2]},
        {"gpus": [8, 16]},
        {"micro_batch": [1, 2]},
    ):
        with pytest.raises(cm.CostModelError, match=r"expected one layout, got [12]; give no lists"):
            estimate({"model": "dense-1b", "gpus": 8, "global_batch": 16, "seq_len": 2048, **lists})


def test_a_search_that_is_given_up_makes_room_for_others():
    long = {
        "model": "deepseek-v3-671b",
        "cluster": "h800-cx7",
        "gpus": 2048,
        "global_batch": 15360,
        "seq_len": "4k",
    }
    searches = [("plan", {**long, "framework": "any"})] * 3
    answers, _ = asked(*searches, ("estimate", JOB), stop_after=1.0)
    assert not answers[-1].is_error
