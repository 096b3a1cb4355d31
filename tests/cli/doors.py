"""One job at every door: command line, page, tool for assistants, Python."""

import csv
import io
import json
import re
import threading
import urllib.request
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import costmodel as cm
from costmodel.app import serve
from costmodel.app.tools import TOOLS
from costmodel.base.units import format_seconds
from costmodel.cli import main

TOKENS = 1e12
TOOL = {tool.name: tool.ask for tool in TOOLS}


def called(*words):
    """Return the JSON, or the text, that a command prints; a refusal is an error with its line."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, words)])
    if code:
        raise cm.CostModelError(err.getvalue().strip())
    return json.loads(out.getvalue()) if "json" in words else out.getvalue()


@contextmanager
def page():
    """Start the page's server, and yield what asks it."""
    server = serve.Server((serve.HOST, 0), serve.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(question, body=None, **state):
        address = f"http://{serve.HOST}:{server.server_port}/{question}?{urlencode(state)}"
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=300) as reply:
            found = json.loads(reply.read().splitlines()[-1])
        if "error" in found:
            raise cm.CostModelError(found["error"])
        return found

    yield ask
    server.shutdown()
    server.server_close()


def dropped(file, named, ask):
    """Return the state of the page once a file is dropped on a form with GPUs and cluster, which stay."""
    query = ask("read", Path(file).read_bytes(), name=Path(file).name, **named)["query"]
    return {**dict(parse_qsl(query)), **named}


def step_on_page(state, ask):
    """Return the step time of a state of the page, the sum of its bill. [s]"""
    rows = csv.DictReader(io.StringIO(ask("csv", **state)["text"]))
    return sum(float(row["exposed_seconds"]) for row in rows if row["bill"] == "time"), None


def machine_of(word):
    """Return the fields that a word such as 256xH100 means."""
    gpus, _, cluster = word.partition("x")
    return {"gpus": int(gpus), "cluster": cluster}


def steps(file, machine, ask):
    """Return step time [s] and memory [B] of the job of a file by door; the page shows no sum of bytes."""
    named = machine_of(machine)
    asked = {"file": Path(file).read_text(), "file_name": Path(file).name, **named}

    def of(record):
        return record["step_time_s"], record["memory_bytes_per_gpu"]

    def of_est(est):
        return est.step_time_s, est.memory_bytes_per_gpu

    def of_page():
        return step_on_page(dropped(file, named, ask), ask)

    def of_report():
        title = re.search(
            r"<title>.*: (.*) a step", called("estimate", file, machine, *_SMALL, "--html", "-")
        )
        est = cm.estimate(file, machine)
        assert title[1] == format_seconds(est.step_time_s, 4), (title[1], est.step_time_s)
        return of_est(est)

    return {
        "estimate": lambda: of(called("estimate", file, machine, "--format", "json")),
        "run": lambda: of(called("run", file, machine, "--tokens", TOKENS, "--format", "json")),
        "compare": lambda: of(called("compare", file, file, machine, "--format", "json")["jobs"][0]),
        "report": of_report,
        "page": of_page,
        "tool": lambda: of(TOOL["estimate"](asked).record),
        "tool run": lambda: of(TOOL["run"]({**asked, "tokens": TOKENS}).record),
        "python": lambda: of_est(cm.estimate(file, machine)),
        "python run": lambda: of_est(cm.run(file, machine, tokens=TOKENS).est),
    }


_SMALL = ("--no-plan", "--no-sensitivity", "--samples", 20)


def plans(file, machine, ask):
    """Return step time [s] and memory [B] of the best layout of the job of a file by door."""
    named = machine_of(machine)
    asked = {"file": Path(file).read_text(), "file_name": Path(file).name, **named}

    def of(record):
        return record["top"][0]["step_time_s"], record["top"][0]["memory_bytes_per_gpu"]

    def of_page():
        best = ask("plan", **dropped(file, named, ask))["layouts"][0]
        return step_on_page(dict(parse_qsl(best)), ask)

    def of_python():
        best = cm.plan(file, machine).best
        return best.step_time_s, best.memory_bytes_per_gpu

    return {
        "plan": lambda: of(called("plan", file, machine, "--format", "json")),
        "page plan": of_page,
        "tool plan": lambda: of(TOOL["plan"](asked, progress=lambda done, total: None).record),
        "python plan": of_python,
    }


def answers(doors):
    """Return what each door answers: step time and memory, or its refusal."""
    found = {}
    for name, ask in doors.items():
        try:
            found[name] = tuple(None if value is None else float(value) for value in ask())
        except (cm.CostModelError, KeyError) as error:
            found[name] = str(error).removeprefix("Error: ")
    return found


def different(found):
    """Return the doors whose answer is not that of the first; all refusals are one answer."""
    first, *others = found
    if isinstance(found[first], str):
        return [name for name in others if not isinstance(found[name], str)]

    def same(one):
        return not isinstance(one, str) and all(
            value is None or abs(value / usual - 1) < 1e-9
            for value, usual in zip(one, found[first], strict=True)
        )

    return [name for name in others if not same(found[name])]
