"""The page of `costmodel app` in a real browser: by keyboard, narrow and wide, dark and light, among strangers."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

import costmodel as cm
from costmodel.app.asked import Texts, job_keywords
from costmodel.app.link import FIGURES, VIEWS
from costmodel.base.units import format_seconds
from costmodel.cli import main
from costmodel.interop.answer import model_yaml

pytest.importorskip("nicegui", reason="nicegui is not installed (extra app)")
expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

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
}
OTHER = {f"b.{name}": text for name, text in {**JOB, "tp": "8", "vp": "2"}.items()}
TITLES = ("Time", "Memory", "How sure", "Figures", "Plan", "Whole run", "Compare", "Export")
SECONDS = 30_000
expect.set_options(timeout=SECONDS)
SHORT = {"model": "llama3-8b", "gpus": "16", "global_batch": "64", "seq_len": "8k"}
LONG = {"plan.framework": "any", **JOB, "model": "deepseek-v3-671b", "gpus": "2048", "global_batch": "15360"}
"""A plan that takes some ten seconds."""


class Server:
    """The page, served by a process of its own."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "costmodel", "app", "--port", "0", *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self.process.stderr.readline().strip()

    def end(self):
        self.process.terminate()
        return self.process.communicate(timeout=30)[1]


@pytest.fixture(scope="module")
def server():
    found = Server()
    assert found.address.startswith("http://127.0.0.1:")
    yield found
    assert "Traceback" not in found.end()


@pytest.fixture
def visit(browser, server):
    """Return what opens the page for another visitor, and hold that nothing went wrong in his browser."""
    contexts, told = [], []

    def opened(query=None, width=1400, scheme="light", address=server.address):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        own = urlsplit(address).netloc
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda m: told.append(m.text) if m.type == "error" else None)
        page.on(
            "request",
            lambda asked: (
                told.append(asked.url)
                if urlsplit(asked.url).scheme in ("http", "https", "ws", "wss")
                and urlsplit(asked.url).netloc != own
                else None
            ),
        )
        page.goto(address + ("" if query is None else f"?{urlencode(query)}"))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert told == []


def headline(page):
    return page.locator(".app-head h1")


def field(page, name):
    return page.get_by_label(name, exact=True)


def answered(page, text):
    expect(headline(page)).to_contain_text(text, timeout=SECONDS)


def shown_step(page):
    return page.locator(".app-head .card .big").first.inner_text()


def step_of(est):
    return format_seconds(float(est.step_time_s), 4)


def turn(page, title):
    page.get_by_role("tab", name=title).click()


# --- what is shown -------------------------------------------------------------------------------


def test_the_page_says_what_estimate_says_and_follows_what_is_typed(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    est = cm.estimate(**job_keywords(Texts(JOB)))
    assert shown_step(page) == step_of(est)
    field(page, "tp").fill("8")
    expect(page.locator(".app-head > div > header p")).to_contain_text("tp8")
    est = cm.estimate(**job_keywords(Texts({**JOB, "tp": "8"})))
    assert shown_step(page) == step_of(est)


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_or_too_pale_in_any_view(visit, width, scheme):
    page = visit({**JOB, **OTHER, "tokens": "1T"}, width, scheme)
    answered(page, "llama3-70b on 64")
    for title in TITLES:
        turn(page, title)
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, title
        pale, small = page.evaluate(READABLE)
        assert pale == [], title
        assert small == [], title


READABLE = """() => {
  const parts = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.9) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [], small = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || !box.height) continue;
    if (node.closest(".js-plotly-plot, svg, :disabled, [aria-disabled=true], .q-icon, i")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parts(style.color)), light(ground(node))].sort((x, y) => y - x);
    const said = node.textContent.trim().slice(0, 30);
    if ((a + 0.05) / (b + 0.05) < 4.5) pale.push(`${said}: ${style.color}`);
    if (parseFloat(style.fontSize) < 11) small.push(`${said}: ${style.fontSize}`);
  }
  return [pale, small];
}"""
"""Texts whose contrast is below 4.5, and texts below 11 px."""


def test_every_figure_is_drawn_and_said(visit):
    page = visit({**JOB, "view": "figures"})
    for name in FIGURES:
        page.goto(f"{page.url.split('?')[0]}?{urlencode({**JOB, 'view': 'figures', 'figure': name})}")
        drawn = page.locator(".app-figure")
        drawn.locator(".main-svg").first.wait_for()
        assert drawn.get_attribute("aria-label")


def test_each_view_names_a_command_that_answers_the_same(visit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = visit({**JOB, **OTHER, "tokens": "1T", "run.reliability": "rsc-1"})
    answered(page, "llama3-70b on 64")
    told = page.locator(".app-command")
    step = shown_step(page)
    for title, mark in (
        ("Time", "--all-lines"),
        ("Memory", "--all-lines"),
        ("How sure", "--samples"),
        ("Figures", "--plot"),
        ("Whole run", "costmodel run"),
        ("Export", "--csv"),
    ):
        turn(page, title)
        expect(told).to_contain_text(mark)
        for line in told.inner_text().splitlines():
            if " report " not in line:
                assert main(shlex.split(line)[1:]) == 0, line
                assert step in capsys.readouterr().out or "--plot" in line
    turn(page, "Compare")
    expect(told).to_contain_text("compare")
    for name in ("a.yaml", "b.yaml"):
        with page.expect_download() as got:
            page.get_by_role("button", name=name).click()
        got.value.save_as(tmp_path / name)
    assert told.inner_text() == "costmodel compare a.yaml b.yaml"
    assert main(shlex.split(told.inner_text())[1:]) == 0
    said = capsys.readouterr().out
    sentence = page.locator(".app-answer p", has_text="a step than").inner_text()
    assert re.sub(r"\b[AB]\b", "", sentence).split(":")[1] in said


def test_exports_are_what_the_command_line_writes(visit, tmp_path):
    page = visit({**JOB, "view": "export"})
    answered(page, "llama3-70b on 64")
    for name, file in (
        ("Job (YAML)", "a.yaml"),
        ("Bill (CSV)", "bill.csv"),
        ("Report (one HTML page)", "report.html"),
    ):
        with page.expect_download(timeout=120_000) as got:
            page.get_by_role("button", name=name).click()
        got.value.save_as(tmp_path / file)
    est = cm.estimate(**job_keywords(Texts(JOB)))
    assert main(["estimate", str(tmp_path / "a.yaml"), "--out", str(tmp_path / "own.csv"), "-q"]) == 0
    assert (tmp_path / "own.csv").read_bytes() == (tmp_path / "bill.csv").read_bytes()
    assert step_of(est) in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_how_sure_says_what_the_samples_say(visit):
    page = visit({**JOB, "tokens": "1T", "view": "sure"})
    answered(page, "llama3-70b on 64")
    samples = cm.estimate(**job_keywords(Texts({**JOB, "tokens": "1T"}))).sample(200)
    row = page.locator("tr", has_text="step time").first
    expect(row).to_contain_text(format_seconds(samples.quantile(0.1)))
    expect(row).to_contain_text(format_seconds(samples.quantile(0.9)))
    expect(page.locator(".app-answer")).to_contain_text("What makes the width")


def test_a_whole_run_follows_tokens_and_price_and_says_what_is_missing(visit):
    """By keyboard: without tokens the field is blamed; with them days and dollars are those of `costmodel run`."""
    page = visit({**JOB, "view": "run"})
    expect(page.locator(".app-error")).to_contain_text("run: tokens missing")
    tab_to(page, lambda name: name == "tokens")
    page.keyboard.type("1T")
    expect(page.locator(".app-error")).to_be_empty()
    run = cm.run(**job_keywords(Texts(JOB)), tokens=1e12)
    answer = page.locator(".app-answer")
    expect(answer).to_contain_text(f"{run.days:,.1f} days")
    expect(answer).to_contain_text(f"${run.dollars:,.0f} at")
    tab_to(page, lambda name: name == "failures per node day")
    page.keyboard.type("0.05")
    worse = cm.run(**job_keywords(Texts(JOB)), tokens=1e12, failures_per_node_day=0.05)
    assert f"{worse.days:,.1f}" != f"{run.days:,.1f}"
    expect(answer).to_contain_text(f"{worse.days:,.1f} days")
    expect(page.locator(".app-command")).to_contain_text("--tokens 1T --failures-per-node-day 0.05")
    assert parse_qs(urlsplit(page.url).query)["run.failures_per_node_day"] == ["0.05"]
    field(page, "spare nodes").fill("-1")
    expect(page.locator(".app-error")).to_contain_text("spare_nodes: expected a whole number")
    expect(field(page, "spare nodes")).to_have_attribute("aria-invalid", "true")


def test_the_layouts_to_try_stand_first_and_can_be_taken(visit):
    page = visit({**SHORT, "view": "plan"})
    answered(page, "llama3-8b on 16")
    page.get_by_role("button", name="Find the best layout").focus()
    page.keyboard.press("Enter")
    tried = page.get_by_role("region", name="Try these")
    expect(tried).to_be_visible(timeout=120_000)
    found = cm.plan(model="llama3-8b", gpus=16, global_batch=64, seq_len="8k")
    trials = found.trials()
    expect(tried.locator("tbody tr")).to_have_count(len(trials))
    for _, trial in trials:
        expect(tried).to_contain_text(
            " / ".join(format_seconds(end, 3) for end in (trial.low_s, trial.middle_s, trial.high_s))
        )
    box, best = tried.bounding_box(), page.get_by_role("region", name="Best by").first.bounding_box()
    assert box["y"] < best["y"]
    tab_to(page, lambda name: name == "Use trial 1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Time")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".app-head .card .big").first).to_have_text(step_of(trials[0][0]))


# --- by keyboard ---------------------------------------------------------------------------------


def focused(page):
    return page.evaluate(
        "(document.activeElement.getAttribute('aria-label') || document.activeElement.dataset.line"
        " || document.activeElement.innerText || document.activeElement.id || '').trim()"
    )


def tab_to(page, is_there, most=150):
    """Press Tab until something has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if is_there(focused(page)):
            return
    pytest.fail(f"not reached by Tab; at {focused(page)!r}")


def test_all_of_it_can_be_used_by_keyboard(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the answer"
    tab_to(page, lambda name: name == "gpus")
    page.keyboard.press("Control+A")
    page.keyboard.type("128")
    answered(page, "llama3-70b on 128")
    tab_to(page, lambda name: name == "recompute")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    expect(page.locator(".app-command")).to_contain_text("--recompute")
    tab_to(page, lambda name: name == "Time")
    tab_to(page, lambda name: name == "pp.bubble", most=120)
    page.keyboard.press("Enter")
    expect(page.locator("tr.opened")).to_contain_text("source:")
    assert focused(page) == "pp.bubble"
    expect(page.locator(".app-command")).to_contain_text("costmodel explain")
    page.keyboard.press("Space")
    expect(page.locator("tr.opened")).to_have_count(0)
    page.keyboard.press("Shift+Tab")
    page.get_by_role("tab", name="Time").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Plan")).to_have_attribute("aria-selected", "true")
    tab_to(page, lambda name: name == "Find the best layout")
    page.keyboard.press("Enter")
    page.locator("[data-use]").first.wait_for(timeout=SECONDS)
    tab_to(page, lambda name: name == "Use layout 2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Time")).to_have_attribute("aria-selected", "true")


def test_every_input_has_a_name_and_its_help(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    page.get_by_text("More fields").click()
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input:not([type=file]):not([type=hidden]), button, [role=tab]")]
          .filter((node) => node.offsetParent && !(node.labels && [...node.labels].some((l) => l.innerText.trim()))
            && !node.getAttribute("aria-label") && !node.innerText.trim()).map((node) => node.outerHTML.slice(0, 200))"""
    )
    assert unnamed == []
    assert (
        field(page, "zero stage").get_attribute("title").startswith("What data parallelism shards: 0 nothing")
    )


# --- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label", "text"),
    [
        ("gpus", "gpus", "63x"),
        ("model", "model", "llama3-80b"),
        ("cluster", "cluster", "/etc/passwd"),
        ("model", "model", "../../etc/hosts.json"),
        ("seq_len", "seq len", "<img src=x onerror=alert(1)>"),
        ("gpus", "gpus", ""),
    ],
)
def test_wrong_input_is_one_line_at_its_field(visit, capsys, name, label, text):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    field(page, label).fill(text)
    alert = page.locator(".app-error")
    expect(alert).not_to_be_empty()
    said = alert.inner_text()
    assert len(said) <= 300
    near = page.locator(f'label:has([aria-label="{label}"]), label', has=field(page, label)).first
    expect(near).to_contain_text(said[:40])
    expect(field(page, label)).to_have_attribute("aria-invalid", "true")
    if "/" not in text:
        line = page.locator(".app-command").inner_text()
        assert main(shlex.split(line)[1:]) == 2
        assert capsys.readouterr().err.splitlines()[0][:200].startswith(f"Error: {said}"[:200])
    field(page, label).fill(JOB[name])
    expect(alert).to_be_empty()
    expect(field(page, label)).to_have_attribute("aria-invalid", "false")


def test_a_link_that_is_wrong_says_what(visit):
    page = visit({"gpu": "64"})
    expect(page.locator(".app-error")).to_contain_text("link: 'gpu' is not a field; did you mean 'gpus'")


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)
WRONG_FILES = {
    "binary": ("model.yaml", bytes(range(256)) * 20, "model.yaml: "),
    "alias bomb": ("job.yaml", BOMB.encode(), "expected values that do not hold themselves"),
    "deep": ("job.json", b'{"a":' * 5000, "is nested too deeply"),
    "empty": ("job.yaml", b" ", "is empty"),
    "page": ("page.html", f"<html>{EVIL}</html>".encode(), "expected keys with values"),
    "script in its name": (f"{EVIL}.yaml", b"x", "expected keys with values"),
    "path as its name": ("../../../etc/passwd", b"x", "passwd: expected keys with values"),
    "path of a model": (
        "a.yaml",
        b"model: /etc/passwd.json\ngpus: 8\nglobal_batch: 8\nseq_len: 8",
        "is not read here",
    ),
    "path of a cluster": ("a.yaml", b"cluster: ./x.yaml\nmodel: llama3-8b\ngpus: 8", "is not read here"),
    "script in a value": (
        "a.yaml",
        f"model: '{EVIL}'\ngpus: 8\nglobal_batch: 8\nseq_len: 8".encode(),
        "is unknown",
    ),
    "log": ("nccl.log", b"# nThread 1 nGpus 8\n  8  2 float sum 1 1 1 1 0\n", "nccl.log: "),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_wrong_file_is_refused_in_one_line_and_the_page_lives(visit, kind):
    name, content, message = WRONG_FILES[kind]
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "text/plain", "buffer": content}
    )
    expect(page.locator(".app-error")).to_contain_text(message)
    assert len(page.locator(".app-error").inner_text()) <= 300
    field(page, "model").fill("llama3-8b")
    field(page, "cluster").fill("dgx-h100-ndr")
    field(page, "gpus").fill("16")
    for label, text in (("tp", "2"), ("pp", "1"), ("vp", "1"), ("global batch", "64"), ("seq len", "8k")):
        field(page, label).fill(text)
    answered(page, "llama3-8b on 16")


def test_a_huge_file_is_refused_by_browser_and_server(visit, server):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    page.locator("input[type=file]").set_input_files(
        {"name": "huge.yaml", "mimeType": "text/plain", "buffer": b"a: 1\n" * 300_000}
    )
    expect(page.locator(".app-error")).to_contain_text("expected one file of at most 1,000,000 bytes")
    assert _post(server.address, b"x" * 3_000_000) == 413


def _post(address, body):
    origin = f"http://{urlsplit(address).netloc}"
    asked = urllib.request.Request(
        f"{address}_nicegui/client/x/upload/1", body, {"Origin": origin}, method="POST"
    )
    try:
        return urllib.request.urlopen(asked, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:  # refused before all was sent
        return 413


def test_good_files_fill_the_form(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    own = model_yaml(cm.load_model("llama3-8b").model_copy(update={"name": EVIL, "num_layers": 30}))
    files = page.locator("input[type=file]")
    files.set_input_files(
        {"name": "job.yaml", "mimeType": "text/plain", "buffer": b"model: llama3-8b\ngpus: 32\nlayout: tp2"}
    )
    answered(page, "llama3-8b on 32")
    assert field(page, "tp").input_value() == "2"
    assert field(page, "pp").input_value() == ""
    assert field(page, "global batch").input_value() == "128"
    files.set_input_files({"name": "model.yaml", "mimeType": "text/plain", "buffer": own.encode()})
    answered(page, f"{EVIL} on 32")
    expect(page.locator(".app-command")).to_contain_text("-m model.yaml")
    again = visit(parse(page.url))
    answered(again, f"{EVIL} on 32")
    assert shown_step(again) == shown_step(page)


def parse(address):
    return {name: texts[0] for name, texts in parse_qs(urlsplit(address).query).items()}


# --- links and other visitors --------------------------------------------------------------------


def test_a_link_restores_what_was_looked_at(visit):
    page = visit({**JOB, **OTHER})
    answered(page, "llama3-70b on 64")
    page.get_by_role("button", name="Job B").click()
    answered(page, "llama3-70b on 64")
    expect(field(page, "tp")).to_have_value("8")
    field(page, "micro batch").fill("2")
    page.wait_for_url(lambda address: parse(address).get("b.micro_batch") == "2")
    turn(page, "Plan")
    expect(page.get_by_role("tab", name="Plan")).to_have_attribute("aria-selected", "true")
    field(page, "max memory bytes").fill("60GiB")
    page.wait_for_timeout(600)
    turn(page, "Time")
    page.locator('[data-line="pp.bubble"]').click()
    page.locator("tr.opened").wait_for()
    again = visit(parse(page.url))
    again.locator("tr.opened").wait_for()
    assert again.url == page.url
    assert field(again, "tp").input_value() == "8"
    assert field(again, "micro batch").input_value() == "2"
    assert again.locator("tr.opened").inner_text() == page.locator("tr.opened").inner_text()
    assert shown_step(again) == shown_step(page)
    turn(again, "Plan")
    assert field(again, "max memory bytes").input_value() == "60GiB"


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_opens_each_view(visit, view):
    tokens = {"tokens": "1e12"} if view == "run" else {}
    page = visit({**JOB, **OTHER, **tokens, "view": view})
    expect(page.get_by_role("tab", name=TITLES[VIEWS.index(view)])).to_have_attribute("aria-selected", "true")
    if view != "compare":
        answered(page, "llama3-70b on 64")


def test_a_whole_run_without_tokens_says_what_is_missing(visit):
    page = visit({**JOB, "view": "run"})
    expect(page.get_by_role("alert").first).to_contain_text("tokens missing")


def test_visitors_see_nothing_of_each_other(visit):
    one, two = visit(JOB), visit({**JOB, "model": "llama3-8b", "vp": "2"})
    answered(one, "llama3-70b on 64")
    answered(two, "llama3-8b on 64")
    field(one, "gpus").fill("128")
    answered(one, "llama3-70b on 128")
    answered(two, "llama3-8b on 64")
    assert field(two, "gpus").input_value() == "64"


def test_ten_visitors_at_once_get_their_own_answers(visit):
    pages = [visit({**JOB, "global_batch": str(128 * (index + 1))}) for index in range(10)]
    for index, page in enumerate(pages):
        answered(page, "llama3-70b on 64")
        field(page, "micro batch").fill("2")
        est = cm.estimate(
            **job_keywords(Texts({**JOB, "global_batch": str(128 * (index + 1)), "micro_batch": "2"}))
        )
        expect(page.locator(".app-head .card .big").first).to_have_text(step_of(est))


# --- plans ---------------------------------------------------------------------------------------


def start_plan(page):
    turn(page, "Plan")
    page.get_by_role("button", name="Find the best layout").click()


def below(process):
    """Return the processes that one has started, and those that they have."""
    pairs = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            parent = stat.read_text().rpartition(")")[2].split()[1]
            pairs.append((int(stat.parent.name), int(parent)))
    found, last = set(), {process}
    while last:
        last = {child for child, parent in pairs if parent in last}
        found |= last
    return found


def start_held_plan(page, server):
    """Start a search, hold its process, so that no machine is fast enough to end it meanwhile, and return which."""
    before = below(server.process.pid)
    start_plan(page)
    deadline = time.monotonic() + 60
    while not (new := below(server.process.pid) - before):
        assert time.monotonic() < deadline, "no process was started for the search"
        page.wait_for_timeout(10)
    for process in new:
        os.kill(process, signal.SIGSTOP)
    return new


in_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")


@in_proc
def test_a_plan_can_be_stopped_and_another_started(visit):
    server = Server()
    try:
        page = visit(LONG, address=server.address)
        answered(page, "deepseek-v3-671b")
        held = start_held_plan(page, server)
        bar = page.get_by_role("progressbar", name="Layouts priced")
        expect(bar).to_be_visible()
        told = page.locator(".app-answer [role=status]").first
        while not re.search(r"[\d,]+ of [\d,]+", told.inner_text()):
            for process in held:
                os.kill(process, signal.SIGCONT)
            page.wait_for_timeout(20)
            for process in held:
                os.kill(process, signal.SIGSTOP)
            page.wait_for_timeout(100)
        page.get_by_role("button", name="Stop").first.click()
        expect(page.get_by_text("Stopped.").first).to_be_visible()
        expect(bar).not_to_be_visible()
        assert page.locator("[data-use]").count() == 0
        for label, text in (("model", "llama3-8b"), ("gpus", "8"), ("global batch", "64")):
            field(page, label).fill(text)
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Find the best layout").click()
        page.locator("[data-use]").first.wait_for()
        assert "Traceback" not in server.end()
    finally:
        server.process.kill()


def test_a_layout_of_a_plan_becomes_the_job(visit):
    job = {"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8k"}
    page = visit({**job, "view": "plan", "plan.fix": "pp=1"})
    answered(page, "llama3-8b on 8")
    start_plan(page)
    page.locator("[data-use]").first.click()
    best = cm.plan(**{**job, "seq_len": 8192}, fix={"pp": 1}).best
    expect(page.locator(".app-head .card .big").first).to_have_text(step_of(best))


def test_a_plan_of_nothing_says_why(visit):
    page = visit({**JOB, "gpus": "8", "plan.max_memory_bytes": "10GiB"})
    start_plan(page)
    expect(page.locator(".app-error")).not_to_be_empty()
    assert len(page.locator(".app-error").inner_text()) <= 300


@in_proc
def test_a_third_plan_at_once_is_refused_and_answers_go_on(visit):
    server = Server()
    try:
        pages = [visit(LONG, address=server.address) for _ in range(3)]
        for page in pages:
            answered(page, "deepseek-v3-671b")
        start_held_plan(pages[0], server)
        start_held_plan(pages[1], server)
        start_plan(pages[2])
        expect(pages[2].locator(".app-error")).to_contain_text(
            "2 searches are running, which is the limit here"
        )
        field(pages[2], "model").fill("llama3-70b")
        field(pages[2], "gpus").fill("64")
        answered(pages[2], "llama3-70b on 64")
        for page in pages[:2]:
            page.get_by_role("button", name="Stop").first.click()
            expect(page.get_by_text("Stopped.").first).to_be_visible()
        assert "Traceback" not in server.end()
    finally:
        server.process.kill()


# --- who gets in ---------------------------------------------------------------------------------


def status(address, **headers):
    asked = urllib.request.Request(
        address, headers={key.replace("_", "-"): value for key, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_no_path_of_the_machine_is_served(server):
    for path in (
        "etc/passwd",
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "_nicegui/auto/static/etc/passwd",
        "docs",
        "openapi.json",
    ):
        code, body = status(server.address + path)
        assert code == 404, path
        assert b"root:" not in body


def test_another_host_s_name_and_another_site_are_refused(server):
    assert status(server.address, Host="evil.example")[0] == 400
    assert status(server.address, Origin="http://evil.example")[0] == 403


def test_a_page_for_others_asks_for_its_token(browser, visit):
    token = "a-token-of-the-tests-that-is-long"
    other = Server("--host", "0.0.0.0", COSTMODEL_APP_TOKEN=token)
    try:
        assert other.address.endswith(f"?token={token}")
        here = f"http://127.0.0.1:{urlsplit(other.address).port}/"
        assert status(here)[0] == 403
        assert status(f"{here}?token={token}x")[0] == 403
        page = visit({**JOB, "token": token}, address=here)
        answered(page, "llama3-70b on 64")
        assert token not in page.url
        field(page, "gpus").fill("128")
        answered(page, "llama3-70b on 128")
        assert json.dumps(page.evaluate("document.cookie")) == '""'
    finally:
        told = other.end()
    assert "Traceback" not in told
