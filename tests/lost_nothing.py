"""Kill sweeps, tear their files, fill the disk at every kind of output; print what was lost.

    python tests/lost_nothing.py                                  # 30 kills, 30 torn or foreign lines, 20 offsets
    python tests/lost_nothing.py --kills 3 --lines 5 --offsets 4  # what CI runs

A kill is SIGKILL at a random moment of a sweep with ``--resume``, with one worker or two. A line is torn, put in
or changed by a stranger in a file of finished points. A full disk is a limit on the size of every file of a
process, at an offset that lies inside what it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

GRID = """model: [llama3-8b, dense-1b]
cluster: [dgx-h100-ndr, hgx-b200-ndr]
gpus: [8, 16, 32]
layout: tp2
global_batch: 64
seq_len: 2048
"""
POINTS = 12
JOB = ["-m", "llama3-8b", "-n", "8", "--global-batch", "16", "--seq-len", "2048", "-l", "tp2"]


class Tried(NamedTuple):
    """What was done, how often, and what went wrong."""

    what: str
    times: int
    wrong: list[str]
    note: str = ""


def command(arguments: list[str], folder: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run the program in a folder."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "costmodel", *arguments],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=600,
        **options,
    )


def sweep_line(workers: int = 1) -> list[str]:
    """Return the sweep that is tried."""
    return ["sweep", "grid.yaml", "--resume", "kept.jsonl", "--format", "json", "--workers", str(workers)]


def finished(path: Path) -> dict[int, str]:
    """Return the whole lines of finished points, by their number."""
    found = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "chunk" in record:
            found[record["chunk"]] = json.dumps(record["rows"])
    return found


def clean(folder: Path) -> dict[str, bytes]:
    """Make the grid, and return what a sweep that nobody disturbs prints and keeps."""
    (folder / "grid.yaml").write_text(GRID)
    done = command(sweep_line(), folder)
    assert done.returncode == 0, done.stderr
    return {"rows": done.stdout, "kept": (folder / "kept.jsonl").read_bytes()}


def kills(times: int, rng: random.Random, folder: Path, right: dict[str, bytes]) -> Tried:
    """Kill sweeps at random moments and go on with them until each is done."""
    kept, wrong, had = folder / "kept.jsonl", [], 0
    kept.unlink(missing_ok=True)
    for number in range(times):
        before = finished(kept)
        if len(before) == POINTS:
            kept.unlink()
            before = {}
        process = subprocess.Popen(
            [sys.executable, "-m", "costmodel", *sweep_line(rng.choice([1, 2]))],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Most of the time goes to starting: half of the kills wait until points come in.
        deadline = time.monotonic() + 60
        if rng.random() < 0.7:
            while (
                len(finished(kept)) <= len(before) and process.poll() is None and time.monotonic() < deadline
            ):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1))
        else:
            time.sleep(rng.uniform(0, 1.5))
        process.kill()
        process.wait()
        after = finished(kept)
        had += len(after) - len(before)
        if not before.items() <= after.items():
            wrong.append(f"kill {number}: {len(before)} points became {len(after)}")
    done = command(sweep_line(), folder)
    if done.stdout != right["rows"]:
        wrong.append(f"rows after the kills differ: {done.stderr[-200:]!r}")
    if leftovers := [p.name for p in folder.iterdir() if p.name not in ("grid.yaml", "kept.jsonl")]:
        wrong.append(f"left behind: {leftovers}")
    return Tried("SIGKILL of a sweep", times, wrong, f"{had} points kept between them")


def damaged(rng: random.Random, lines: list[bytes]) -> tuple[str, list[bytes], int]:
    """Damage a file of finished points; return what was done, its lines, and how many points that may cost."""
    lines = list(lines)
    at = rng.randrange(1, len(lines))
    how = rng.choice(
        ["torn end", "torn", "glued", "foreign", "bytes", "rows", "number", "other point", "empty", "head"]
    )
    if how == "torn end":
        lines[-1] = lines[-1][: rng.randrange(1, len(lines[-1]))]
        return how, lines, 1
    if how == "torn":
        lines[at] = lines[at][: rng.randrange(1, len(lines[at]))]
        return how, lines, 1
    if how == "glued":
        cut = rng.randrange(1, len(lines[at]))
        lines[at - 1 : at + 1] = [lines[at - 1][:cut] + lines[at]]
        return how, lines, 2
    if how == "foreign":
        return (
            how,
            [
                *lines[:at],
                rng.choice([b"hello", b"[]", b'{"chunk": 0, "rows": []}', b"5", b"{}"]),
                *lines[at:],
            ],
            0,
        )
    if how == "bytes":
        spot = rng.randrange(len(lines[at]))
        lines[at] = lines[at][:spot] + bytes([rng.choice([0, 7, 255])]) + lines[at][spot + 1 :]
        return how, lines, 1
    if how == "empty":
        return how, [*lines[:at], b"", b"  ", *lines[at:]], 0
    if how == "head":
        lines[0] = lines[0][: rng.randrange(1, len(lines[0]))]
        return how, lines, 0
    record = json.loads(lines[at])
    if how == "rows":
        record["rows"] = rng.choice([[], [{"model": "x"}], 3, None])
    elif how == "number":
        record["rows"][0]["step_time_s"] *= 2
    else:
        record["chunk"] = (record["chunk"] + 1) % POINTS
    lines[at] = json.dumps(record).encode()
    return how, lines, 1


def torn_lines(times: int, rng: random.Random, folder: Path, right: dict[str, bytes]) -> Tried:
    """Damage the file of a finished sweep and run it again."""
    kept, wrong, lost, kinds = folder / "kept.jsonl", [], 0, set()
    for number in range(times):
        how, lines, most = damaged(rng, right["kept"].rstrip(b"\n").split(b"\n"))
        kinds.add(how)
        kept.write_bytes(b"\n".join(lines) + (b"" if how == "torn end" else b"\n"))
        done = command(sweep_line(), folder)
        again = len(kept.read_bytes().split(b"\n")) - len(lines) - (how != "torn end")
        lost += max(again, 0)
        if done.returncode or done.stdout != right["rows"]:
            wrong.append(f"{number} {how}: {done.stderr[-300:].decode()}")
        if again > most:
            wrong.append(f"{number} {how}: {again} points planned again")
        if how != "empty" and b"left out" not in done.stderr:
            wrong.append(f"{number} {how}: nothing said")
    return Tried(
        "torn or foreign line", times, wrong, f"{lost} points planned again; {', '.join(sorted(kinds))}"
    )


def outputs(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Return command lines that write a file, and its name."""
    more = {
        "JSON": (["estimate", *JOB, "--out", "out.json", "--force"], "out.json"),
        "CSV": (["estimate", *JOB, "--csv", "out.csv", "--force"], "out.csv"),
        "trace": (["trace", *JOB, "--out", "trace.json", "--force"], "trace.json"),
        "job file": (["plan", *JOB[:8], "--emit", "job", "--out", "job.yaml", "--force"], "job.yaml"),
        "page": (
            ["report", *JOB, "--no-plan", "--no-sensitivity", "--html", "page.html", "--force"],
            "page.html",
        ),
    }
    for ending in ("svg", "png", "pdf"):
        more[ending] = (["estimate", *JOB, "--plot", f"p.{ending}", "--force"], f"p.{ending}")
    return more


def full_disk(offsets: int, rng: random.Random, folder: Path, right: dict[str, bytes]) -> Iterator[Tried]:
    """Let the disk be full at offsets inside every kind of output."""

    def limited(size: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    tries: dict[str, Callable[[int], str]] = {}
    sizes: dict[str, int] = {}
    for name, (line, file) in outputs(folder).items():
        done = command(line, folder)
        if done.returncode:
            yield Tried(f"full disk: {name}", 0, [done.stderr.decode()[-300:]])
            continue
        sizes[name] = (folder / file).stat().st_size

        def write(size: int, line: list[str] = line, file: str = file) -> str:
            before, present = (folder / file).read_bytes(), set(os.listdir(folder))
            done = command(line, folder, preexec_fn=limited(size))
            if done.returncode != 2 or len(done.stderr.strip().splitlines()) != 1:
                return f"exit {done.returncode}: {done.stderr[-300:].decode()}"
            if (folder / file).read_bytes() != before:
                return "the file is another"
            return f"left: {set(os.listdir(folder)) - present}" if set(os.listdir(folder)) != present else ""

        tries[name] = write
    kept = folder / "kept.jsonl"
    sizes["resume file"] = len(right["kept"])

    def resume(size: int) -> str:
        kept.unlink(missing_ok=True)
        done = command(sweep_line(), folder, preexec_fn=limited(size))
        whole = finished(kept)
        if done.returncode != 2 or len(done.stderr.strip().splitlines()) != 1:
            return f"exit {done.returncode}: {done.stderr[-300:].decode()}"
        if not kept.read_bytes().endswith(b"\n") and kept.stat().st_size:
            return "half a line"
        again = command(sweep_line(), folder)
        if again.stdout != right["rows"] or not whole.items() <= finished(kept).items():
            return f"{len(whole)} points were kept; then {again.stderr[-200:]!r}"
        return ""

    tries["resume file"] = resume
    for name, attempt in tries.items():
        at = sorted(rng.sample(range(sizes[name]), offsets))
        wrong = [f"at byte {size}: {problem}" for size in at if (problem := attempt(size))]
        yield Tried(f"full disk: {name}", len(at), wrong, f"bytes {at[0]} to {at[-1]} of {sizes[name]}")


def two_at_once(folder: Path, right: dict[str, bytes]) -> Tried:
    """Start two sweeps on one file."""
    kept, wrong = folder / "kept.jsonl", []
    kept.unlink(missing_ok=True)
    line = [sys.executable, "-m", "costmodel", *sweep_line()]
    both = [
        subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=600)
        if process.returncode or out != right["rows"]:
            wrong.append(f"exit {process.returncode}: {err[-300:]!r}")
    lines = [json.loads(line).get("chunk") for line in kept.read_text().splitlines()]
    if len(lines) != POINTS + 1:
        wrong.append(f"{len(lines) - 1} lines for {POINTS} points")
    return Tried("two sweeps on one file", 1, wrong)


def everything(seed: int, times: tuple[int, int, int]) -> Iterator[Tried]:
    """Do all of it in a folder of its own."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        right = clean(folder)
        yield kills(times[0], rng, folder, right)
        yield torn_lines(times[1], rng, folder, right)
        yield two_at_once(folder, right)
        yield from full_disk(times[2], rng, folder, right)


def report() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--offsets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    bad = 0
    print(f"{'what':24s} {'tried':>6s} {'wrong':>6s}  note")
    for tried in everything(asked.seed, (asked.kills, asked.lines, asked.offsets)):
        print(f"{tried.what:24s} {tried.times:6d} {len(tried.wrong):6d}  {tried.note}", flush=True)
        for problem in tried.wrong:
            print(f"    {problem}")
        bad += len(tried.wrong)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(report())
