"""The page of `costmodel estimate --html` in a real browser: opens offline, moves, and says what `estimate` says."""

import json
import re
import shlex

import pytest

from costmodel.cli import main

JOB = """\
model: deepseek-v3-671b
cluster: h800-cx7
gpus: 2048
layout: tp1 pp16 ep64
schedule: dualpipe
global_batch: 15360
seq_len: 4096
precision: fp8-block
recipe: hai-llm
optimizer: lion
recompute: selective
tokens: 14.8e12
"""
WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def report(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    assert main(["estimate", str(folder / "job.yaml"), "--html", str(folder / "report.html"), "-q"]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module", params=WIDTHS)
def opened_page(request, browser, report):
    context = browser.new_context(viewport={"width": request.param, "height": 900}, offline=True)
    opened = context.new_page()
    opened.told = []
    opened.on("console", lambda message: opened.told.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: opened.told.append(str(error)))
    opened.on(
        "request", lambda request: opened.told.append(request.url) if request.url.startswith("http") else None
    )
    opened.goto(report.as_uri())
    opened.wait_for_selector("#chart-time > svg")
    yield opened
    context.close()


@pytest.fixture
def page(opened_page):
    opened_page.locator("#slider-reset").click()
    return opened_page


def shown(page):
    """Return step time and memory behind the sliders' texts, as the page holds them. [s, B]"""
    data = page.locator("#answer").evaluate("(node) => [node.dataset.step, node.dataset.memory]")
    return [float(value) if value else None for value in data]


def move(page, knob, value):
    """Move a slider to a value, as a pointer does."""
    values = page.evaluate(
        "(name) => JSON.parse(document.getElementById('data').textContent)"
        ".grid.knobs.find((knob) => knob.name === name).values",
        knob,
    )
    page.locator(f"#knob-{knob}").fill(str(values.index(value)))


def priced(page, capsys):
    """Price the command that the page shows, and return step time and memory."""
    command = shlex.split(page.locator("#slider-command").inner_text())
    assert main([*command[1:], "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    return record["step_time_s"], record["memory_bytes_per_gpu"]


def test_opens_without_errors_and_without_a_network(page):
    page.wait_for_timeout(300)

    assert page.told == []
    assert "deepseek-v3-671b on 2,048" in page.locator("h1").inner_text()


def test_draws_every_figure(page):
    charts = page.locator(".chart")
    names = [charts.nth(i).get_attribute("id") for i in range(charts.count())]

    assert {
        "chart-time",
        "chart-memory",
        "chart-pipeline",
        "chart-compute_roofline",
        "chart-communication_roofline",
        "chart-pareto",
        "chart-tornado",
        "chart-slider",
    } == set(names)
    for i in range(charts.count()):
        assert charts.nth(i).locator("> svg").count() > 0
        assert charts.nth(i).get_attribute("aria-label")


def test_nothing_is_wider_than_the_window(page):
    width = page.viewport_size["width"]

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("h1", "#headline", "#knobs", "#answer", "#chart-time"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= width, name
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('main p, main td, main label, main summary')]"
        ".map((node) => parseFloat(getComputedStyle(node).fontSize)))"
    )
    assert smallest >= 12


def test_a_moved_slider_says_what_estimate_says(page, capsys):
    before = shown(page)
    move(page, "tp", 2)
    move(page, "gpus", 1024)
    step, memory = shown(page)

    assert (step, memory) != tuple(before)
    assert (step, memory) == pytest.approx(priced(page, capsys), rel=1e-6)
    told = page.locator("#slider-step").inner_text()
    assert float(told.split()[0]) == pytest.approx(step, rel=1e-3)
    parts = page.locator("#chart-slider li").all_inner_texts()
    spent = [
        float(value) * {"s": 1.0, "ms": 1e-3}[unit]
        for text in parts
        for value, unit in re.findall(r": ([0-9.]+) (m?s),", text)
    ]
    assert sum(spent) == pytest.approx(step, rel=2e-3)


def test_sliders_move_by_keyboard(page, capsys):
    page.locator("#knob-pp").focus()
    page.keyboard.press("ArrowLeft")

    assert page.locator("#value-pp").inner_text() == "8"
    assert page.locator("#knob-pp").get_attribute("aria-valuetext") == "8"
    # Away from the job's own pipeline a slider shows closed forms, an estimate its simulation.
    step, memory = priced(page, capsys)
    assert shown(page)[0] == pytest.approx(step, rel=0.01)
    assert shown(page)[1] == pytest.approx(memory, rel=1e-6)
    page.keyboard.press("Home")
    assert page.locator("#value-pp").inner_text() == "1"
    page.locator("#slider-reset").focus()
    page.keyboard.press("Enter")
    assert page.locator("#value-pp").inner_text() == "16"


def test_figures_answer_the_pointer(page):
    bar = page.locator("#chart-time svg svg rect").first
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    assert "waited for" in page.locator(".chart-tip:visible").text_content()


def test_the_summary_prints_on_one_page(browser, report):
    # A4 less 12 mm on each side, in pixels of a 96th of an inch.
    context = browser.new_context(viewport={"width": 703, "height": 1032}, offline=True)
    opened = context.new_page()
    opened.goto(report.as_uri())
    opened.wait_for_selector("#chart-time > svg")
    opened.emulate_media(media="print")
    ends = opened.evaluate("document.querySelector('.printed').getBoundingClientRect().bottom + scrollY")
    starts = opened.evaluate("document.querySelector('#try').getBoundingClientRect().top + scrollY")
    breaks = opened.evaluate("getComputedStyle(document.querySelector('#run')).breakBefore")
    wide = opened.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert 0 < starts < ends <= 1032
    assert breaks == "page"
    assert wide <= 703
