"""What stands behind the page: texts read as flags are, links, views, dropped files, and a server for this machine."""

import ctypes
import json
import re
import resource
import shlex
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.app import serve
from costmodel.app.answers import bill_csv, explained, job_yaml, plan, view, with_file
from costmodel.app.state import FIGURES, VIEWS, State, _packed, query_of, state_of
from costmodel.app.texts import (
    SEARCH_FIELDS,
    WHOLE_RUN_FIELDS,
    Texts,
    command,
    field_of,
    job_keywords,
    plan_keywords,
    read_upload,
    run_keywords,
)
from costmodel.base.errors import one_line
from costmodel.base.units import format_bytes, format_seconds
from costmodel.cli import main
from costmodel.cli.output import with_flags
from costmodel.describe.jobs.fields import JOB_FIELDS, names
from costmodel.describe.jobs.short_form import command_text
from costmodel.interop.answer import model_yaml

JOB = {
    "model": "llama3-70b",
    "cluster": "dgx-h100-ndr",
    "gpus": "64",
    "tp": "4",
    "pp": "4",
    "vp": "5",
    "global_batch": "128",
    "seq_len": "8k",
    "recipe": "nemo",
    "switches": "dp_overlap=none tp_overlap=pipelined",
    "axis_order": "tp cp pp dp",
    "sequence_parallel": "false",
    "tokens": "1T",
}
LOGS = Path(__file__).parents[1] / "data" / "nccl_logs"


# --- texts ---------------------------------------------------------------------------------------


def test_texts_price_what_the_command_that_is_shown_prices(capsys):
    est = cm.estimate(**job_keywords(Texts(JOB)))
    line = command("estimate", Texts(JOB), ("--format", "json"))
    assert main(shlex.split(line)[1:]) == 0
    assert f'"step_time_s": {float(est.step_time_s)!r}' in capsys.readouterr().out


def test_a_command_has_every_digit_of_a_number():
    job = cm.estimate("llama3-8b", "8xH100", tp=2, tokens=1234567890125.0).job
    assert command_text(job).endswith("--tokens 1234567890125.0")


def test_the_command_of_a_plan_has_its_constraints_and_none_of_the_layout(capsys):
    search = {"fix": "pp=1 recompute=none", "tp": "1,2", "choose": "false", "sequence_parallel": "true"}
    job = Texts({"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8192", "tp": "4"})
    line = command("plan", job, search=search)
    assert "--tp 1,2" in line
    assert "--fix pp=1 --fix recompute=none" in line
    assert "--no-choose" in line
    assert "-t 4" not in line
    assert "--tp 4" not in line
    assert main([*shlex.split(line)[1:], "--format", "json"]) == 0
    found = cm.plan(**plan_keywords(job, search))
    assert f'"fastest_step_time_s": {float(found.fastest.step_time_s)!r}' in capsys.readouterr().out


def test_days_of_the_headline_are_without_failures_and_one_range_is_said():
    job = Texts({**JOB, "tokens": "1T"})
    head = re.sub("<[^>]+>", "", view(State(jobs=(job, Texts())))["head"])
    assert re.search(r"days · \$[\d,]+, no failures", head)
    est = cm.estimate(**job_keywords(job))
    low, high = (format_seconds(end, 3) for end in est.range_s)
    sure = view(State(jobs=(job, Texts()), view="sure"))
    for text in (sure["head"], sure["body"]):
        assert f"{low} to {high}, " in text
    assert "What the uncertain factors alone make of it: " in sure["body"]


def test_open_fields_are_those_of_the_planners_layout_where_it_chose_one():
    job = {"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8192"}
    planned = view(State(jobs=(Texts(job), Texts())))["planned"]
    best = cm.estimate(**job).job.layout
    assert int(planned["dp"]) == best.dp
    assert cm.estimate(**{**job, **planned}).job.layout == best
    assert view(State(jobs=(Texts({**job, "tp": "2"}), Texts())))["planned"] == {}


def test_the_command_of_a_whole_run_has_what_is_said_beside_the_job(capsys):
    beside = {"reliability": "rsc-1", "spare_nodes": "2", "repair_s": "6h"}
    job = Texts({**JOB, "tokens": "1T", "price_usd_per_gpu_hour": "1.5"})
    line = command("run", job, run=beside)
    assert "--tokens 1T --price 1.5" in line
    assert line.endswith("--reliability rsc-1 --repair 6h --spare-nodes 2")
    assert main([*shlex.split(line)[1:], "--format", "json"]) == 0
    run = cm.run(**run_keywords(job, beside))
    assert f'"days": {run.days!r}' in capsys.readouterr().out
    state = State(jobs=(job, Texts()), run=beside, view="run")
    assert state_of(query_of(state)) == state
    with pytest.raises(cm.CostModelError, match=r"^spare_nodes: expected a whole number"):
        view(State(jobs=(job, Texts()), run={"spare_nodes": "-1"}, view="run"))
    with pytest.raises(cm.CostModelError, match="is not a field"):
        state_of("run.gpus=8")


@pytest.mark.parametrize(
    ("changed", "blamed"),
    [
        ({"gpus": "63x"}, "gpus"),
        ({"cluster": "dgx-h100-ndx"}, "cluster"),
        ({"switches": "dp_overlap"}, "switches"),
        ({"gpus": ""}, "gpus"),
        ({"tp": "3"}, "layout"),
    ],
)
def test_a_wrong_text_is_the_error_of_the_command_line_at_its_field(changed, blamed, capsys):
    job = Texts({**JOB, **changed})
    with pytest.raises(cm.CostModelError) as caught:
        cm.estimate(**job_keywords(job))
    assert main(shlex.split(command("estimate", job))[1:]) == 2
    assert capsys.readouterr().err.splitlines() == [one_line(f"Error: {with_flags(str(caught.value))}")]
    assert field_of(str(caught.value)) == blamed


# --- links ---------------------------------------------------------------------------------------

_TEXT = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() == text)
_JOBS = st.dictionaries(st.sampled_from(names(JOB_FIELDS)), _TEXT, max_size=6)


@settings(max_examples=30)
@given(
    first=_JOBS,
    second=_JOBS,
    search=st.dictionaries(st.sampled_from([field.name for field in SEARCH_FIELDS]), _TEXT, max_size=4),
    run=st.dictionaries(st.sampled_from(names(WHOLE_RUN_FIELDS)), _TEXT, max_size=3),
    shown=st.sampled_from(list(VIEWS)),
    figure=st.sampled_from(list(FIGURES)),
    b=st.booleans(),
    line=st.sampled_from(["", "tp.mlp.all_gather.forward"]),
    model=st.sampled_from(["", model_yaml(cm.load_model("llama3-8b"))]),
)
def test_a_link_restores_the_whole_state(first, second, search, run, shown, figure, b, line, model):
    state = State((Texts(first, model), Texts(second)), search, run, shown, figure, b, line)
    again = state_of(query_of(state) or "view=overview")
    assert again == state


def test_the_first_view_draws_all_of_the_step_and_of_the_memory_of_each_stage():
    """Llama 3 70B over four stages of 64 H100: parts add up, and the capacity is a line across the bars."""
    job = {**JOB, "tp": "1", "pp": "4", "gpus": "64", "zero_stage": "3"}
    est = cm.estimate(**job_keywords(Texts(job)))
    shown = view(State((Texts(job), Texts())))
    time, memory = (panel["marks"] for panel in shown["figure"]["panels"])
    ends = np.cumsum([mark["lengths"][0] for mark in time])
    assert [mark["starts"][0] for mark in time] == pytest.approx([0.0, *ends[:-1]], rel=1e-3)
    assert ends[-1] == pytest.approx(float(est.step_time_s), rel=1e-4)
    stacks = zip(*(mark["lengths"] for mark in memory if mark["kind"] == "bars"), strict=True)
    held = est.bill.memory_per_stage_bytes()
    assert [sum(stack) * 2**30 for stack in stacks] == pytest.approx(held, rel=1e-3)
    assert memory[-1]["x"] == pytest.approx([est.memory_capacity_bytes / 2**30] * 2, rel=1e-4)
    # The picture's numbers are its label, for those who do not see it.
    step, by_stage = shown["label"].split(" Memory of a GPU by stage: ")
    shares = [float(share) for share in re.findall(r"\(([\d.]+)%\)", step)]
    assert shares == pytest.approx([100 * mark["lengths"][0] / ends[-1] for mark in time], abs=0.06)
    assert by_stage.startswith(f"{', '.join(format_bytes(float(size)) for size in held)}; of the fullest: ")
    *parts, _ = memory
    sizes = [format_bytes(float(part["lengths"][np.argmax(held)]) * 2**30) for part in parts]
    assert [part["label"].endswith(f" {size}") for part, size in zip(parts, sizes, strict=True)] == [True] * 6
    assert all(part["label"] in by_stage for part in parts)


def test_a_wrong_link_is_one_line():
    for query, message in {
        "view=bil": "link: view='bil' is unknown; did you mean 'bill'",
        "gpu=64": "link: 'gpu' is not a field; did you mean 'gpus'",
        "b.gpu=64": "link: 'gpu' is not a field",
        "plan.model=x": "link: 'model' is not a field",
        "job=c": "link: job='c' is unknown",
        "model_file=!!!": "link: model_file: is cut or changed",
        "model_file=eJwA": "link: model_file: is cut or changed",
        f"model_file={_packed('0' * 10_000_000)}": "link: model_file: is cut or changed",
    }.items():
        with pytest.raises(cm.CostModelError) as caught:
            state_of(query)
        assert str(caught.value).startswith(message)


# --- views ---------------------------------------------------------------------------------------


def test_every_line_of_both_bills_is_a_button_and_opens():
    est = cm.estimate(**job_keywords(Texts(JOB)))
    for name, lines in (("bill", est.bill.time_lines), ("memory", est.bill.memory_lines)):
        html = view(State((Texts(JOB), Texts()), view=name))["body"]
        shown = [line.name for line in lines if f'data-line="{line.name}"' in html]
        charged = [line.name for line in lines if float(getattr(line, "seconds", 0)) > 0]
        assert set(charged) <= set(shown)
        assert len(shown) > 10
    html = explained(Texts(JOB), "pp.bubble")
    assert "stages" in html
    opened = view(State((Texts(JOB), Texts()), view="bill", line="pp.bubble"))["body"]
    assert opened.count('aria-expanded="true"') == 1
    assert html in opened


def test_every_figure_is_drawn():
    job = Texts(
        {"model": "llama3-8b", "gpus": "8", "tp": "2", "pp": "2", "global_batch": "8", "seq_len": "4k"}
    )
    for name in FIGURES:
        shown = view(State((job, Texts()), view="figures", figure=name))
        assert shown["figure"]["panels"]
        assert shown["label"] == FIGURES[name]
    flat = Texts({**job.fields, "pp": "1"})
    assert "this job has none" in view(State((flat, Texts()), view="figures", figure="pipeline"))["body"]


def test_names_from_outside_stay_texts():
    evil = "<script>alert(1)</script>"
    model = model_yaml(cm.load_model("llama3-8b").model_copy(update={"name": evil}))
    shown = view(State((Texts({key: JOB[key] for key in JOB if key != "model"}, model), Texts())))
    assert evil not in shown["head"] + shown["body"]
    assert "&lt;script&gt;" in shown["head"]


def test_two_jobs_stand_side_by_side():
    state = State((Texts(JOB), Texts({**JOB, "tp": "8"})), view="compare")
    a, b = (cm.estimate(**job_keywords(job)) for job in state.jobs)
    slower = float(b.step_time_s) > float(a.step_time_s)
    assert ("slower a step than A" in view(state)["body"]) == slower
    assert "There is no second job yet" in view(State((Texts(JOB), Texts()), view="compare"))["body"]
    with pytest.raises(cm.CostModelError, match=r"^job B: gpus: expected a whole number"):
        view(State((Texts(JOB), Texts({**JOB, "gpus": "x"})), view="compare"))


def test_a_layout_of_a_plan_becomes_the_job_of_a_link():
    job = Texts({"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8k", "tokens": "1T"})
    search = {"fix": "pp=1", "micro_batch": "1,2"}
    told = []
    shown = plan(State((Texts(), job), search, second=True), progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1]
    found = cm.plan(**plan_keywords(job, search))
    tried = [est for est, _ in found.trials()]
    assert tried
    for query, est in zip(shown["layouts"], [*tried, *found.top(10)], strict=True):
        state = state_of(query)
        assert (state.second, state.search, state.view) == (True, search, "overview")
        assert float(cm.estimate(**job_keywords(state.job)).step_time_s) == float(est.step_time_s)
    assert shown["figure"]["panels"]
    assert 'data-use="0"' in shown["body"]


def test_an_exported_job_is_the_job(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(job_yaml(Texts(JOB)))
    assert main(["estimate", str(tmp_path / "a.yaml"), "--csv", str(tmp_path / "bill.csv"), "-q"]) == 0
    assert (tmp_path / "bill.csv").read_text() == bill_csv(Texts(JOB))


# --- files that are dropped ----------------------------------------------------------------------

SCRIPT = """#!/bin/bash
source /etc/passwd
GPT_ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu
 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
 --normalization RMSNorm --position-embedding-type rope --vocab-size 128256
 --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 --bf16
 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py $GPT_ARGS
"""
CONFIG = (
    '{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 31, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5}'
)
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)


def test_a_job_file_fills_the_form():
    found, _ = read_upload(
        "job.yaml", b"model: llama3-8b\ngpus: 64\nlayout: tp2\nset: {dp_overlap: none}\nseq_len: 32k\n"
    )
    assert found.fields == {
        "gpus": "64",
        "tp": "2",
        "seq_len": "32768",
        "switches": "dp_overlap=none",
        "model": "llama3-8b",
    }


def test_a_launch_script_fills_the_form_and_its_neighbours_are_not_read():
    job, found = read_upload("train.sh", SCRIPT.encode())
    assert (found.kind, job.fields["gpus"], job.fields["tp"]) == ("megatron", "64", "2")
    assert "source /etc/passwd: not read: what it sets is unknown" in found.remarks
    est = cm.estimate(**job_keywords(job))
    assert est.job.model.num_layers == 32


def test_a_model_comes_with_its_file_unless_it_is_a_preset():
    job, found = read_upload("config.json", CONFIG.encode())
    assert found.kind == "hf"
    assert "num_layers: 31" in job.model
    preset = model_yaml(cm.load_model("llama3-8b"))
    assert read_upload("x.yaml", preset.encode())[0] == Texts({"model": "llama3-8b"})
    assert read_upload("x.yaml", job.model.encode())[0].model == job.model


def test_a_dropped_file_keeps_what_it_does_not_say():
    state, said = with_file(
        State((Texts(JOB), Texts())), "job.yaml", b"model: llama3-8b\ngpus: 32\nlayout: tp2"
    )
    kept = {"cluster": "dgx-h100-ndr"}
    assert state.job.named() == {"model": "llama3-8b", "gpus": "32", "tp": "2", **kept}
    assert said.startswith("Read as job.")
    state, _ = with_file(State((Texts(JOB), Texts())), "config.json", CONFIG.encode())
    assert state.job.named() == {key: text for key, text in JOB.items() if key != "model"}
    assert "num_layers: 31" in state.job.model


def test_a_wrong_file_is_one_line():
    for name, content, message in (
        ("a.yaml", b"\x00\x01\x02\xff" * 100, "a.yaml: "),
        ("a.yaml", b" \n" * 50, "a.yaml: is empty"),
        ("a.yaml", BOMB.encode(), "a.yaml: expected values that do not hold themselves, or each other"),
        ("a.json", b'{"a":' * 3000, "a.json: expected valid YAML; it is nested too deeply"),
        ("../../etc/<script>alert(1)</script>", b"x", "script>: expected keys with values"),
        ("\x1b[31mred\x07.yaml", b"x", "red.yaml: expected keys"),
        ("", b"x", "file: expected keys"),
        ("a.yaml", b"model: llama3-8b\ngpu: 8", "a.yaml: 'gpu' is not a field of a job; did you mean 'gpus'"),
    ):
        with pytest.raises(cm.CostModelError) as caught:
            read_upload(name, content)
        assert str(caught.value).startswith(message)


def test_a_log_is_no_job():
    log = sorted(LOGS.glob("*.log"))[0]
    with pytest.raises(cm.CostModelError, match="holds measurements, not a job"):
        read_upload(log.name, log.read_bytes())


# --- the server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address():
    server = serve.Server((serve.HOST, 0), serve.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{serve.HOST}:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def ask(address):
    def asked(path, body=None, **headers):
        """Return status, kind and text."""
        try:
            with urllib.request.urlopen(
                urllib.request.Request(address + path, body, headers), timeout=60
            ) as got:
                return got.status, got.headers.get_content_type(), got.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get_content_type(), error.read().decode()

    return asked


def test_every_field_has_its_input_and_the_page_its_files(ask):
    status, kind, page = ask("?gpus=8&view=plan")
    assert (status, kind) == (200, "text/html")
    for prefix, fields in (("", JOB_FIELDS), ("plan.", SEARCH_FIELDS), ("run.", WHOLE_RUN_FIELDS)):
        for name in names(fields):
            assert f'name="{prefix}{name}"' in page or name in ("layout", "dp")
    for name, kind in (("page.css", "css"), ("page.js", "javascript"), ("draw.js", "javascript")):
        assert ask(name)[:2] == (200, f"text/{kind}")
    for path in ("etc/passwd", "serve.py", "../serve.py", "_nicegui"):
        assert ask(path)[0] == 404
    assert "did you mean" in ask("?gpu=8")[2]


def test_a_question_is_answered_in_json_and_an_error_at_its_field(ask):
    found = json.loads(ask(f"answer?{urlencode(JOB)}")[2])
    assert "llama3-70b on 64" in found["head"]
    assert found["command"] == command("estimate", Texts(JOB))
    assert "does not fit" in json.loads(ask(f"warnings?{urlencode(JOB)}")[2])["html"]
    wrong = json.loads(ask(f"answer?{urlencode({**JOB, 'gpus': 'x'})}")[2])
    assert (wrong["field"], wrong["error"][:28]) == ("gpus", "gpus: expected a whole numbe")
    assert json.loads(ask(f"csv?{urlencode(JOB)}")[2])["text"] == bill_csv(Texts(JOB))


def test_a_search_tells_how_far_it_is_and_ends_with_its_answer(ask):
    job = {"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8k", "plan.fix": "pp=1"}
    lines = [json.loads(line) for line in ask(f"plan?{urlencode(job)}")[2].splitlines()]
    assert all(0 < line["done"] <= line["total"] for line in lines[:-1])
    assert " to try, of " in lines[-1]["body"]
    wrong = json.loads(ask(f"plan?{urlencode({**job, 'plan.fix': 'pp=7'})}")[2].splitlines()[-1])
    assert "error" in wrong


def test_a_search_ends_when_nobody_reads_it(address, monkeypatch):
    ended = threading.Event()

    def endless(state, progress):
        try:
            while True:
                progress(1, 2)
        except ConnectionError:
            ended.set()
            raise

    monkeypatch.setitem(serve._SEARCHES, "plan", endless)
    monkeypatch.setattr(serve, "_PROGRESS_EVERY_S", 0.0)
    with urllib.request.urlopen(f"{address}plan", timeout=60) as reply:
        assert reply.readline() == b'{"done": 1, "total": 2}\n'
    assert ended.wait(30)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_a_search_gives_its_memory_back(ask, monkeypatch):
    """100 MB in small parts, and one behind them that stays: a heap is cut at its end alone."""

    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    last = []

    def large(state, progress):
        parts = [b"x" * (50_000 + len(last)) for _ in range(2000)]
        last.append(b"x" * (50_000 + len(last)))
        return {"parts": len(parts)}

    monkeypatch.setitem(serve._SEARCHES, "plan", large)
    before = resident()
    for _ in range(2):
        assert json.loads(ask("plan")[2]) == {"parts": 2000}
    wait = threading.Event()
    for _ in range(50):  # the reply ends before its thread does
        if resident() - before < 40e6:
            break
        wait.wait(0.1)
    assert resident() - before < 40e6


def test_a_dropped_file_comes_back_as_a_state(ask):
    found = json.loads(ask(f"read?{urlencode({**JOB, 'name': 'j.yaml'})}", b"model: llama3-8b\ngpus: 32")[2])
    assert state_of(found["query"]).job.fields["gpus"] == "32"
    assert json.loads(ask("read?name=a.yaml", b" ")[2])["error"] == "a.yaml: is empty"
    assert "at most" in json.loads(ask("read?name=a.yaml", b"a: 1\n" * 300_000)[2])["error"]


def test_other_names_and_other_pages_are_refused(ask):
    assert ask("", Host="evil.example")[0] == 403
    assert ask("read?name=a.yaml", b"gpus: 8", Origin="http://evil.example")[0] == 403
    assert ask("answer", Host="localhost")[0] == 200


def status(address, method="GET", path="/", **headers):
    """Return the first line that the page answers to a request as it is written, headers with - for _."""
    host, port = urlsplit(address).netloc.split(":")
    lines = {"Host": f"{host}:{port}", **{name.replace("_", "-"): text for name, text in headers.items()}}
    sent = "".join(
        [f"{method} {path} HTTP/1.1\r\n", *(f"{key}: {text}\r\n" for key, text in lines.items()), "\r\n"]
    )
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(sent.encode())
        return int(line.makefile("rb").readline().split()[1])


def test_what_is_malformed_is_refused_and_what_other_sites_ask_too(address):
    assert status(address) == 200
    assert status(address, Host="[::1") == 400
    assert status(address, Host="localhost:80\x05") == 400
    assert status(address, Origin="http://[") == 400
    across = {"Sec_Fetch_Site": "cross-site"}
    assert status(address, **across, Sec_Fetch_Mode="no-cors") == 403
    # Somebody follows a link of another site.
    assert status(address, **across, Sec_Fetch_Mode="navigate") == 200
    assert status(address, "POST", "/read", **across, Sec_Fetch_Mode="navigate", Content_Length="0") == 403
    for length in ("-5", "1e3", str(10**12)):
        assert status(address, "POST", "/read", Content_Length=length) == 413, length


def test_a_request_that_does_not_end_is_given_up():
    class Hasty(serve.Handler):
        timeout = 0.2

    with serve.Server((serve.HOST, 0), Hasty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for text in (
            b"",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n",
            b"POST /read HTTP/1.1\r\nContent-Length: 9\r\n",
        ):
            with socket.create_connection((serve.HOST, server.server_port), timeout=10) as line:
                line.sendall(text)
                assert line.makefile("rb").read() == b"", text
        server.shutdown()
