"""The page of `costmodel serve` in a real browser: as it is typed, by keyboard, narrow and wide, dark and light."""

import re
import shlex
import subprocess
import sys
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

import costmodel as cm
from costmodel.app.state import FIGURES, VIEWS
from costmodel.app.texts import Texts, job_keywords
from costmodel.base.units import format_seconds
from costmodel.cli import main

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
SHORT = {"model": "llama3-8b", "gpus": "16", "global_batch": "64", "seq_len": "8k"}
LONG = {"plan.framework": "any", **JOB, "model": "deepseek-v3-671b", "gpus": "2048", "global_batch": "15360"}
"""A plan that takes some ten seconds."""
SECONDS = 60_000
expect.set_options(timeout=SECONDS)


@pytest.fixture(scope="module")
def address():
    command = [sys.executable, "-m", "costmodel", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found = server.stderr.readline().strip()
    assert found.startswith("http://127.0.0.1:")
    yield found
    server.terminate()
    assert "Traceback" not in server.communicate(timeout=30)[1]


@pytest.fixture
def visit(browser, address):
    """Return what opens the page, and hold that nothing went wrong and nothing was loaded from elsewhere."""
    contexts, told = [], []

    def opened(query=None, width=1400, scheme="light"):
        size = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True))
        page = contexts[-1].new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda m: told.append(m.text) if m.type == "error" else None)
        page.on(
            "request", lambda r: None if r.url.startswith(("data:", "blob:", address)) else told.append(r.url)
        )
        page.goto(address + ("" if query is None else f"?{urlencode(query)}"))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert told == []


def field(page, name):
    return page.get_by_label(name, exact=True)


def answered(page, text):
    expect(page.locator("#head h1")).to_contain_text(text)


def shown_step(page):
    return page.locator("#head .numbers .big")


def step_of(est):
    return format_seconds(float(est.step_time_s), 4)


def turn(page, title):
    page.get_by_role("tab", name=title).click()


def query(page):
    return {name: texts[0] for name, texts in parse_qs(urlsplit(page.url).query).items()}


def focused(page):
    return page.evaluate(
        "(document.activeElement.getAttribute('aria-label') || document.activeElement.dataset.line"
        " || document.activeElement.innerText || document.activeElement.id || '').trim()"
    )


def tab_to(page, name, most=150):
    """Press Tab until what is called so has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    pytest.fail(f"not reached by Tab; at {focused(page)!r}")


def test_the_page_says_what_estimate_says_and_follows_what_is_typed(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    expect(shown_step(page)).to_have_text(step_of(cm.estimate(**job_keywords(Texts(JOB)))))
    field(page, "tp").fill("8")
    expect(page.locator("#head header p")).to_contain_text("tp8")
    expect(shown_step(page)).to_have_text(step_of(cm.estimate(**job_keywords(Texts({**JOB, "tp": "8"})))))
    expect(page.locator("#warnings li").first).to_be_visible()
    assert query(page)["tp"] == "8"


def test_the_first_view_is_drawn_and_finds_layouts_by_itself(visit):
    page = visit(SHORT)
    expect(page.locator("#figure svg").first).to_be_visible()
    expect(page.locator("#figure")).to_have_attribute(
        "aria-label", re.compile("A step of .* Memory of a GPU")
    )
    page.get_by_role("button", name="Use layout 1").click()
    expect(page.locator("#overview-said")).to_contain_text("Yours is as fast")
    expect(page.locator("#head .refused")).to_have_count(0)
    field(page, "zero stage").fill("0")
    field(page, "tp").fill("1")
    field(page, "pp").fill("1")
    field(page, "cp").fill("1")
    field(page, "vp").fill("1")
    expect(page.locator("#head .refused")).to_contain_text("DOES NOT FIT")
    field(page, "model by family").select_option("llama3-70b")
    answered(page, "llama3-70b on 16")


def test_an_open_layout_shows_what_the_planner_chose(visit):
    job = {"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8192"}
    page = visit(job)
    answered(page, "llama3-8b on 8")
    layout = cm.estimate(**job).job.layout
    for name in ("tp", "cp", "pp", "micro batch"):
        value = f"{float(getattr(layout, name.replace(' ', '_'))):g}"
        expect(field(page, name)).to_have_attribute("placeholder", value)
    field(page, "tp").fill("8")
    answered(page, "llama3-8b on 8")
    expect(field(page, "cp")).to_have_attribute("placeholder", "1")


def test_nothing_is_wider_than_the_window_or_too_pale(visit):
    for width, scheme in ((400, "light"), (1400, "dark")):
        page = visit({**JOB, **OTHER, "tokens": "1T"}, width, scheme)
        answered(page, "llama3-70b on 64")
        for view in VIEWS:
            page.locator(f"[data-view={view}]").click()
            expect(page.locator("#body, #figure > svg, #save-model").first).to_be_attached()
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
        ink, ground = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, ground)]
        assert abs(light[0] - light[1]) > 500


def test_every_figure_is_drawn_and_said(visit):
    page = visit({**JOB, "view": "figures"})
    for name, title in FIGURES.items():
        field(page, "Figure").select_option(name)
        expect(page.locator("#figure")).to_have_attribute("aria-label", title)
        expect(page.locator("#figure > svg").first).to_be_visible()


def test_each_view_names_a_command_that_answers_the_same(visit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = visit({**JOB, **OTHER, "tokens": "1T", "run.reliability": "rsc-1"})
    answered(page, "llama3-70b on 64")
    told, step = page.locator("#command"), shown_step(page).inner_text()
    for title, mark in (("Memory", "--all-lines"), ("How sure", "--samples"), ("Whole run", "costmodel run")):
        turn(page, title)
        expect(told).to_contain_text(mark)
        assert main(shlex.split(told.inner_text())[1:]) == 0
        assert step in capsys.readouterr().out
    turn(page, "Compare")
    expect(told).to_have_text("costmodel compare a.yaml b.yaml")
    for name in ("a.yaml", "b.yaml"):
        with page.expect_download() as got:
            page.get_by_role("button", name=name).click()
        got.value.save_as(tmp_path / name)
    assert main(shlex.split(told.inner_text())[1:]) == 0
    sentence = page.locator("#body p", has_text="a step than").inner_text()
    assert re.sub(r"\b[AB]\b", "", sentence).split(":")[1] in capsys.readouterr().out


def test_a_whole_run_follows_tokens_and_says_what_is_missing(visit):
    page = visit({**JOB, "view": "run"})
    expect(page.locator("#body")).to_contain_text("How far does it train?")
    field(page, "tp").fill("3")
    expect(page.locator("#error")).to_contain_text("layout:")
    field(page, "tp").fill("4")
    tab_to(page, "tokens")
    page.keyboard.type("1T")
    expect(page.locator("#error")).to_be_empty()
    field(page, "failures per node day").fill("0.05")
    run = cm.run(**job_keywords(Texts(JOB)), tokens=1e12, failures_per_node_day=0.05)
    expect(page.locator("#body")).to_contain_text(f"{run.days:,.1f} days")
    expect(page.locator("#command")).to_contain_text("--tokens 1T --failures-per-node-day 0.05")
    assert query(page)["run.failures_per_node_day"] == "0.05"
    field(page, "spare nodes").fill("-1")
    expect(page.locator("#error")).to_contain_text("spare_nodes: expected a whole number")
    expect(field(page, "spare nodes")).to_have_attribute("aria-invalid", "true")


def test_all_of_it_can_be_used_by_keyboard(visit):
    page = visit({**JOB, "view": "bill"})
    answered(page, "llama3-70b on 64")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the answer"
    tab_to(page, "gpus")
    page.keyboard.press("Control+A")
    page.keyboard.type("128")
    answered(page, "llama3-70b on 128")
    tab_to(page, "Time")
    tab_to(page, "pp.bubble")
    page.keyboard.press("Enter")
    expect(page.locator("tr.opened")).to_contain_text("source:")
    assert focused(page) == "pp.bubble"
    expect(page.locator("#command")).to_contain_text("costmodel explain")
    page.keyboard.press("Space")
    expect(page.locator("tr.opened")).to_have_count(0)
    page.get_by_role("tab", name="Time").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Plan")).to_have_attribute("aria-selected", "true")
    assert query(page)["view"] == "plan"


def test_every_input_has_a_name_and_its_help(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, [role=tab]")].filter((node) =>
             !(node.labels && node.labels.length) && !node.getAttribute("aria-label") && !node.textContent.trim()
           ).map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    title = page.locator("label", has=field(page, "zero stage")).get_attribute("title")
    assert title.startswith("What data parallelism shards: 0 nothing")
    offered = page.locator("#model-words option").evaluate_all("(all) => all.map((one) => one.value)")
    assert "llama3-70b" in offered


def test_a_job_is_copied_to_the_other_and_compared(visit):
    page = visit(JOB)
    answered(page, "llama3-70b on 64")
    page.get_by_role("button", name="Copy to the other").click()
    expect(page.locator("#dropped")).to_have_text("Job B is a copy of this one.")
    field(page, "tp").fill("8")
    turn(page, "Compare")
    expect(page.locator("#body")).to_contain_text("a step than A")
    assert (query(page)["tp"], query(page)["b.tp"]) == ("8", "4")


def test_a_plan_can_be_stopped_and_another_started(visit):
    page = visit({**LONG, "view": "plan"})
    go, halt = (
        page.get_by_role("button", name="Find the best layout"),
        page.get_by_role("button", name="Stop").first,
    )
    go.click()
    expect(page.locator("#plan-said")).to_contain_text(" of ")
    expect(page.locator("#plan-bar")).to_be_visible()
    expect(go).to_be_disabled()
    halt.click()
    expect(page.locator("#plan-said")).to_have_text("Stopped.")
    expect(go).to_be_enabled()
    for name, text in (("model", "llama3-8b"), ("gpus", "16"), ("global batch", "64")):
        field(page, name).fill(text)
    go.click()
    expect(page.locator("#plan-said")).to_have_text("Done.", timeout=120_000)


def test_the_layouts_to_try_stand_first_and_can_be_taken(visit):
    page = visit({**SHORT, "view": "plan"})
    answered(page, "llama3-8b on 16")
    page.get_by_role("button", name="Find the best layout").focus()
    page.keyboard.press("Enter")
    tried = page.get_by_role("region", name=re.compile("to try, of"))
    expect(tried).to_be_visible(timeout=120_000)
    trials = cm.plan(model="llama3-8b", gpus=16, global_batch=64, seq_len="8k").trials()
    expect(tried.locator("tbody tr")).to_have_count(len(trials))
    best = page.get_by_role("region", name="Best by").first
    assert tried.bounding_box()["y"] < best.bounding_box()["y"]
    expect(page.locator("#pareto > svg").first).to_be_visible()
    tab_to(page, "Use trial 1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Overview")).to_have_attribute("aria-selected", "true")
    expect(shown_step(page)).to_have_text(step_of(trials[0][0]))
