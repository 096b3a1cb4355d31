"""What stands behind the page: texts read as flags are, links, guards, uploads, and processes that are ended."""

import asyncio
import os
import shlex
import sys
import threading
import time
import zlib
from base64 import urlsafe_b64encode
from multiprocessing import Pipe
from pathlib import Path

import pytest
from famous_jobs import FSDP_8B
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.app import serve as serving
from costmodel.app.answers import FIGURES as DRAWN
from costmodel.app.answers import bill_csv, explained, job_yaml, plan, view
from costmodel.app.asked import (
    SEARCH_FIELDS,
    WHOLE_RUN_FIELDS,
    Texts,
    command,
    field_of,
    job_keywords,
    plan_keywords,
    run_keywords,
    texts_of,
)
from costmodel.app.guard import COOKIE, Guard
from costmodel.app.limits import LIMITS, LimitError, StoppedError
from costmodel.app.link import FIGURES, FIRST, VIEWS, State, query_of, state_of
from costmodel.app.uploads import read_upload
from costmodel.app.workers import BrokenWorkerError, Worker, Workers, _told
from costmodel.base.errors import one_line
from costmodel.cli import main
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, names
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
        ({"gpus": "0"}, "gpus"),
        ({"model": "llama3-80b"}, "model"),
        ({"cluster": "dgx-h100-ndx"}, "cluster"),
        ({"recipe": "nemmo"}, "recipe"),
        ({"recompute": "some"}, "recompute"),
        ({"switches": "dp_overlap"}, "switches"),
        ({"axis_order": "tp cp"}, "axis_order"),
        ({"precision": "fp3"}, "precision"),
        ({"gpus": ""}, "gpus"),
        ({"tp": "3"}, "layout"),
    ],
)
def test_a_wrong_text_is_the_error_of_the_command_line_at_its_field(changed, blamed, capsys):
    job = Texts({**JOB, **changed})
    with pytest.raises(cm.CostModelError) as caught:
        cm.estimate(**job_keywords(job))
    assert main(shlex.split(command("estimate", job))[1:]) == 2
    assert capsys.readouterr().err.splitlines() == [one_line(f"Error: {caught.value}")]
    assert field_of(str(caught.value)) == blamed


def test_texts_of_values_read_back():
    given = {key: value for key, value in FSDP_8B.items() if key in FIELD}
    again = job_keywords(Texts(texts_of(given)))
    assert float(cm.estimate(**again).step_time_s) == float(cm.estimate(**FSDP_8B).step_time_s)


def test_a_text_without_end_is_refused():
    with pytest.raises(LimitError, match=r"^switches: expected at most 2,000 characters, got 5,000"):
        job_keywords(Texts({**JOB, "switches": "x" * 5000}))


# --- links ---------------------------------------------------------------------------------------

_TEXT = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() == text)
_JOBS = st.dictionaries(st.sampled_from(names(JOB_FIELDS)), _TEXT, max_size=6)


@settings(max_examples=100)
@given(
    first=_JOBS,
    second=_JOBS,
    search=st.dictionaries(st.sampled_from([field.name for field in SEARCH_FIELDS]), _TEXT, max_size=4),
    run=st.dictionaries(st.sampled_from(names(WHOLE_RUN_FIELDS)), _TEXT, max_size=3),
    shown=st.sampled_from(VIEWS),
    figure=st.sampled_from(FIGURES),
    b=st.booleans(),
    line=st.sampled_from(["", "tp.mlp.all_gather.forward"]),
    model=st.sampled_from(["", model_yaml(cm.load_model("llama3-8b"))]),
)
def test_a_link_restores_the_whole_state(first, second, search, run, shown, figure, b, line, model):
    state = State((Texts(first, model), Texts(second)), search, run, shown, figure, b, line)
    again = state_of(query_of(state) or "view=bill")
    assert again == state


def test_an_empty_address_shows_a_job_that_can_be_priced():
    assert state_of("") == FIRST
    assert view(FIRST).head.count('class="card"') == 4


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("view=bil", "link: view='bil' is unknown; did you mean 'bill'"),
        ("gpu=64", "link: 'gpu' is not a field; did you mean 'gpus'"),
        ("b.gpu=64", "link: 'gpu' is not a field"),
        ("plan.model=x", "link: 'model' is not a field"),
        ("job=c", "link: job='c' is unknown"),
        ("model_file=!!!", "link: model_file: is cut or changed"),
        ("model_file=eJwA", "link: model_file: is cut or changed"),
        ("x" * 20_000, "link: expected at most 16,000 characters, got 20,000"),
        ("&".join(f"a{i}=1" for i in range(500)), "link: expected at most 400 parts"),
    ],
)
def test_a_wrong_link_is_one_line(query, message):
    with pytest.raises(cm.CostModelError) as caught:
        state_of(query)
    assert str(caught.value).startswith(message)


def test_what_unpacks_to_more_than_a_model_is_not_unpacked():
    bomb = urlsafe_b64encode(zlib.compress(b"\0" * 10_000_000, 9)).decode().rstrip("=")
    with pytest.raises(LimitError, match="model_file: expected at most 100,000 characters"):
        state_of(f"model_file={bomb}")


# --- views ---------------------------------------------------------------------------------------


def test_every_line_of_both_bills_is_a_button_and_opens():
    est = cm.estimate(**job_keywords(Texts(JOB)))
    for name, lines in (("bill", est.bill.time_lines), ("memory", est.bill.memory_lines)):
        html = view(State((Texts(JOB), Texts()), view=name)).body
        shown = [line.name for line in lines if f'data-line="{line.name}"' in html]
        charged = [line.name for line in lines if float(getattr(line, "seconds", 0)) > 0]
        assert set(charged) <= set(shown)
        assert len(shown) > 10
    html = explained(Texts(JOB), "pp.bubble")
    assert "stages" in html
    opened = view(State((Texts(JOB), Texts()), line="pp.bubble")).body
    assert opened.count('aria-expanded="true"') == 1
    assert html in opened


def test_an_unknown_line_opens_nothing_and_says_so_when_asked():
    assert 'aria-expanded="true"' not in view(State((Texts(JOB), Texts()), line="<script>")).body
    with pytest.raises(cm.CostModelError, match="line: '<script>' is not on this bill"):
        explained(Texts(JOB), "<script>")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(name):
    shown = view(State((Texts(JOB), Texts()), view="figures", figure=name))
    assert shown.figure["data"]
    assert shown.label == DRAWN[name][0]


def test_figures_are_those_of_the_command_line():
    known = {name.replace("_", "-") for name in cm.estimate(**FSDP_8B).plot.names()} - {
        "grids",
        "remarks",
        "html",
    }
    assert set(FIGURES) <= known


def test_what_a_job_does_not_have_is_said():
    shown = view(State((Texts({**JOB, "pp": "1", "vp": "1"}), Texts()), view="figures", figure="pipeline"))
    assert shown.figure is None
    assert "this job has none" in shown.body


def test_names_from_outside_stay_texts():
    evil = "<script>alert(1)</script>"
    model = model_yaml(cm.load_model("llama3-8b").model_copy(update={"name": evil}))
    shown = view(State((Texts({key: JOB[key] for key in JOB if key != "model"}, model), Texts())))
    assert evil not in shown.head + shown.body
    assert "&lt;script&gt;" in shown.head


def test_two_jobs_stand_side_by_side():
    state = State((Texts(JOB), Texts({**JOB, "tp": "8"})), view="compare")
    a, b = (cm.estimate(**job_keywords(job)) for job in state.jobs)
    slower = float(b.step_time_s) > float(a.step_time_s)
    assert ("slower a step than A" in view(state).body) == slower
    assert "There is no second job yet" in view(State((Texts(JOB), Texts()), view="compare")).body
    with pytest.raises(cm.CostModelError, match=r"^job B: gpus: expected a whole number"):
        view(State((Texts(JOB), Texts({**JOB, "gpus": "x"})), view="compare"))


def test_a_layout_of_a_plan_fits_into_the_form():
    job = Texts({"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8k", "tokens": "1T"})
    search = {"fix": "pp=1", "micro_batch": "1,2"}
    shown = plan(job, search, progress=lambda done, total: None)
    found = cm.plan(**plan_keywords(job, search))
    tried = [est for est, _ in found.trials()]
    assert tried
    for texts, est in zip(shown.layouts, [*found.top(10), *tried], strict=True):
        again = cm.estimate(**job_keywords(Texts({"model": "llama3-8b", **texts})))
        assert float(again.step_time_s) == float(est.step_time_s)
    assert shown.figure["data"]
    assert 'data-use="0"' in shown.body


def test_an_exported_job_is_the_job(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(job_yaml(Texts(JOB)))
    assert main(["estimate", str(tmp_path / "a.yaml"), "--csv", str(tmp_path / "bill.csv"), "-q"]) == 0
    assert (tmp_path / "bill.csv").read_text() == bill_csv(Texts(JOB))


def test_a_job_with_a_model_of_its_own_is_exported_beside_its_model(tmp_path, capsys):
    model = model_yaml(cm.load_model("llama3-8b").model_copy(update={"name": "mine", "num_layers": 30}))
    job = Texts({"gpus": "8", "tp": "4", "global_batch": "64", "seq_len": "8k"}, model)
    (tmp_path / "model.yaml").write_text(model)
    (tmp_path / "a.yaml").write_text(job_yaml(job))
    est = cm.estimate(**job_keywords(job))
    assert main(["estimate", str(tmp_path / "a.yaml"), "--format", "json"]) == 0
    assert f'"step_time_s": {float(est.step_time_s)!r}' in capsys.readouterr().out
    assert command("estimate", job).startswith("costmodel estimate -m model.yaml -n 8")


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
    found = read_upload(
        "job.yaml", b"model: llama3-8b\ngpus: 64\nlayout: tp2\nset: {dp_overlap: none}\nseq_len: 32k\n"
    )
    assert found.job.fields == {
        "gpus": "64",
        "tp": "2",
        "seq_len": "32768",
        "switches": "dp_overlap=none",
        "model": "llama3-8b",
    }
    assert found.remarks == ("The file does not say: global_batch.",)


def test_a_launch_script_fills_the_form_and_its_neighbours_are_not_read():
    found = read_upload("train.sh", SCRIPT.encode())
    assert (found.kind, found.job.fields["gpus"], found.job.fields["tp"]) == ("megatron", "64", "2")
    assert "source /etc/passwd: not read: what it sets is unknown" in found.remarks
    est = cm.estimate(**job_keywords(found.job))
    assert est.job.model.num_layers == 32


def test_a_model_comes_with_its_file_unless_it_is_a_preset():
    found = read_upload("config.json", CONFIG.encode())
    assert found.kind == "hf"
    assert "num_layers: 31" in found.job.model
    preset = model_yaml(cm.load_model("llama3-8b"))
    assert read_upload("x.yaml", preset.encode()).job == Texts({"model": "llama3-8b"})
    assert read_upload("x.yaml", found.job.model.encode()).job.model == found.job.model


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"\x00\x01\x02\xff" * 100, "a.yaml: "),
        ("a.yaml", b"\xc3\x28" * 100, "a.yaml: is not a text"),
        ("a.yaml", b"", "a.yaml: is empty"),
        ("a.yaml", b" \n" * 50, "a.yaml: is empty"),
        (
            "a.yaml",
            b"x" * (LIMITS.upload_bytes + 1),
            "a.yaml: expected at most 1,000,000 bytes, got 1,000,001",
        ),
        ("a.yaml", BOMB.encode(), "a.yaml: expected values that do not hold themselves, or each other"),
        ("a.yaml", b"a: " + b"[" * 3000, "a.yaml: expected valid YAML; it is nested too deeply"),
        ("a.json", b'{"a":' * 3000, "a.json: expected valid YAML; it is nested too deeply"),
        ("a.html", b"<html><script>alert(1)</script></html>", "a.html: expected keys with values"),
        ("../../etc/<script>alert(1)</script>", b"x", "script>: expected keys with values"),
        ("..\\..\\boot.ini", b"x", "boot.ini: expected keys with values"),
        ("\x1b[31mred\x07.yaml", b"x", "red.yaml: expected keys"),
        ("", b"x", "file: expected keys"),
        ("a.yaml", b"model: llama3-8b\ngpu: 8", "a.yaml: 'gpu' is not a field of a job; did you mean 'gpus'"),
        (
            "a.yaml",
            b"base_model: x\nsequence_len: 9\nmicro_batch_size: 1\ndeepspeed: /etc/passwd\n",
            "a.yaml: ",
        ),
    ],
)
def test_a_wrong_file_is_one_line(name, content, message):
    with pytest.raises(cm.CostModelError) as caught:
        read_upload(name, content)
    assert str(caught.value).startswith(message)
    assert "\x1b" not in str(caught.value)


def test_a_log_is_no_job():
    log = sorted(LOGS.glob("*.log"))[0]
    with pytest.raises(cm.CostModelError, match="holds measurements, not a job"):
        read_upload(log.name, log.read_bytes())


# --- processes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker():
    found = Worker()
    yield found
    found.end()


def test_a_worker_answers_as_the_function_does(worker):
    shown = worker.ask(view, (FIRST,), most_s=60)
    assert shown == view(FIRST)
    with pytest.raises(cm.CostModelError, match=r"^gpus: expected a whole number"):
        worker.ask(view, (FIRST.with_job(Texts({**JOB, "gpus": "x"})),), most_s=60)


def test_what_takes_too_long_is_ended_and_the_next_is_answered(worker):
    start = time.monotonic()
    with pytest.raises(LimitError, match="takes longer than 1 s"):
        worker.ask(time.sleep, (300,), most_s=1.0)
    assert time.monotonic() - start < 60
    assert worker.ask(abs, (-2,), most_s=60) == 2


def test_what_is_stopped_is_ended(worker):
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(StoppedError):
        worker.ask(time.sleep, (300,), most_s=200, stop=stop)
    assert worker.ask(abs, (-3,), most_s=60) == 3


def test_a_process_that_dies_and_a_bug_are_said_and_survived(worker):
    with pytest.raises(BrokenWorkerError, match="has ended"):
        worker.ask(os._exit, (3,), most_s=60)
    with pytest.raises(BrokenWorkerError, match="bug of the program"):
        worker.ask(int, ("x",), most_s=60)
    assert worker.ask(abs, (-4,), most_s=60) == 4


def test_memory_is_bounded(worker):
    with pytest.raises(LimitError, match="more memory"):
        worker.ask(bytearray, (LIMITS.memory_bytes * 4,), most_s=60)


def test_a_worker_opens_no_file_but_the_program_s(worker, tmp_path):
    (tmp_path / "secret").write_text("s3cret")
    for function, told in (
        (Path.read_text, (tmp_path / "secret",)),
        (Path.write_text, (tmp_path / "new", "x")),
        (os.listdir, (str(tmp_path),)),
        (os.system, ("true",)),
    ):
        with pytest.raises(BrokenWorkerError):
            worker.ask(function, told, most_s=60)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("field", ["model", "cluster"])
def test_a_path_is_refused_whether_there_is_a_file_or_not(worker, tmp_path, field):
    (tmp_path / "there.yaml").write_text("num_layers: 2")
    said = []
    for name in ("there.yaml", "other.yaml"):
        with pytest.raises(cm.CostModelError) as caught:
            worker.ask(view, (FIRST.with_job(Texts({**JOB, field: str(tmp_path / name)})),), most_s=60)
        said.append(str(caught.value).replace(name, "NAME"))
        assert field_of(str(caught.value)) == field
    assert said[0] == said[1]
    assert "would be a file of this machine, which is not read here" in said[0]


def test_a_folder_s_name_is_no_model(worker, tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    with pytest.raises(cm.CostModelError, match="is unknown"):
        worker.ask(view, (FIRST.with_job(Texts({**JOB, "model": str(tmp_path)})),), most_s=60)


def test_progress_is_told_and_a_plan_beyond_the_limit_is_refused(worker):
    told = []
    job = Texts({"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8k"})
    worker.ask(plan, (job, {}), most_s=120, progress=lambda *at: told.append(at))
    assert told
    assert all(0 < done <= total for done, total in told)


def test_a_plan_beyond_the_limit_is_refused_before_it_is_priced():
    ours, theirs = Pipe()
    tell = _told(theirs)
    tell(1, LIMITS.plan_layouts)
    assert ours.recv() == ("progress", 1, LIMITS.plan_layouts)
    with pytest.raises(LimitError, match="20,000,001 layouts to price, and 20,000,000 are the limit here"):
        tell(1, LIMITS.plan_layouts + 1)


def test_what_waits_is_bounded():
    crowd = Workers(1, queue=1, busy="come back later")
    stop = threading.Event()
    try:
        asked = [crowd.submit(time.sleep, 300, most_s=200, stop=stop) for _ in range(2)]
        with pytest.raises(LimitError, match="come back later"):
            crowd.submit(abs, -1, most_s=60)
        stop.set()
        assert all(isinstance(one.exception(60), StoppedError) for one in asked)
        assert crowd.submit(abs, -1, most_s=60).result() == 1
    finally:
        crowd.close()


# --- who gets in ---------------------------------------------------------------------------------


async def _page(scope, receive, send):
    """Answer 200 with the number of bytes that came."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"ALLOW")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(token="", method="GET", kind="http", query="", body=(b"",), **headers):
    """Send one request through the guard, and return status, headers and body."""
    pieces, sent = list(body), []

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    told = {"host": "127.0.0.1:8080", **{key.replace("_", "-"): value for key, value in headers.items()}}
    scope = {
        "type": kind,
        "method": method,
        "path": "/",
        "query_string": query.encode(),
        "headers": [(key.encode(), value.encode()) for key, value in told.items()],
    }
    asyncio.run(Guard(_page, token)(scope, receive, send))
    if kind == "websocket":
        return sent[0]["type"]
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])


def test_a_visitor_of_this_machine_gets_in_and_the_browser_is_told_to_load_nothing_else():
    status, headers, body = ask()
    assert (status, body) == (200, b"0")
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-frame-options"] == b"DENY"


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"])
def test_names_of_this_machine_are_known(host):
    assert ask(host=host)[0] == 200
    assert ask(host=host, method="POST", origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1.evil.example", "", "0.0.0.0:8080"])
def test_another_host_s_name_is_refused(host):
    assert ask(host=host)[0] == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", ""])
def test_another_site_may_not_ask(origin):
    given = {"origin": origin} if origin else {}
    assert ask(method="POST", **given)[0] == 403
    assert ask(kind="websocket", **given) == "websocket.close"


def test_a_body_is_bounded_whether_it_says_its_length_or_not():
    own = {"method": "POST", "origin": "http://127.0.0.1:8080"}
    most = LIMITS.upload_bytes
    assert ask(**own, content_length=str(most + 100_000))[0] == 413
    assert ask(**own, content_length="-1")[0] == 413
    assert ask(**own, body=(b"x" * most, b"x" * 100_000))[0] == 413
    assert ask(**own, body=(b"x" * most,))[2] == str(most).encode()


def test_without_the_token_nobody_gets_in_and_with_it_it_leaves_the_address():
    token = "a-secret-that-is-long-enough"
    for wrong in ("", f"token={token}x", "token=", f"tokens={token}"):
        assert ask(token, query=wrong)[0] == 403
    assert ask(token, query=f"token={token}", method="POST", origin="http://127.0.0.1:8080")[0] == 403
    assert ask(token, cookie=f"{COOKIE}={token}x")[0] == 403
    assert ask(token, cookie='"\x00;;=')[0] == 403
    assert ask(token, kind="websocket", origin="http://127.0.0.1:8080") == "websocket.close"
    status, headers, _ = ask(token, query=f"gpus=8&token={token}", host="node17:8080")
    assert (status, headers[b"location"]) == (303, b"/?gpus=8")
    cookie = headers[b"set-cookie"].decode()
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(token, cookie=cookie.partition(";")[0], host="node17:8080")[0] == 200


# --- starting ------------------------------------------------------------------------------------


def test_a_page_for_others_has_a_token_and_a_weak_one_is_refused(monkeypatch):
    assert len(serving._token()) >= 32
    assert serving._token() != serving._token()
    monkeypatch.setenv(serving.TOKEN_VARIABLE, "0123456789abcdef")
    assert serving._token() == "0123456789abcdef"
    for weak in ("short", "has a blank in it, long", "ünïcödé-ünïcödé-ünïcödé"):
        monkeypatch.setenv(serving.TOKEN_VARIABLE, weak)
        with pytest.raises(cm.CostModelError, match="COSTMODEL_APP_TOKEN: expected at least 16"):
            serving._token()


def test_a_port_that_is_taken_is_one_line():
    with serving._listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cm.CostModelError, match=f"cannot listen on 127.0.0.1 port {port}"):
            serving._listening("127.0.0.1", port)
    with pytest.raises(cm.CostModelError, match=r"cannot listen on no\.such\.host\.invalid port 1"):
        serving._listening("no.such.host.invalid", 1)


def test_without_the_extra_it_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert main(["app"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: the page needs NiceGUI and plotly: ")
    assert "[app]" in error
    assert error.count("\n") == 1


def test_a_layout_in_a_link_fills_the_inputs_of_its_degrees():
    state = state_of("model=llama3-8b&gpus=64&layout=tp8+pp4&b.layout=tp2&global_batch=64&seq_len=8192")
    assert (state.job.said()["tp"], state.job.said()["pp"]) == ("8", "4")
    assert "layout" not in state.job.said()
    assert state.jobs[1].said() == {"tp": "2"}
    # What is wrong stays as it was typed, for the answer to say so.
    for wrong in ("layout=tp8&tp=4", "layout=qp8"):
        assert "layout" in state_of(wrong).job.said()


def test_the_page_says_no_flag_where_it_has_a_field():
    head = view(State(jobs=(Texts({**FIRST.job.fields}), Texts()))).head
    assert "megatron-core is the default; the field recipe names another" in head
    assert "--recipe" not in head
