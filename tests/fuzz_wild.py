"""Kinds of input that no slip of the hand makes: documents of any shape, profiles of no machine, files that are none.

`tests/fuzz.py` changes good files here and there; these are drawn whole. Every maker takes a generator of random
numbers and gives a command line, what lies in its folder, and which names there are no plain files.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from costmodel.cli import root
from costmodel.describe.jobs.fields import JOB_FIELDS, PLAN_FIELDS, RUN_FIELDS

REPOSITORY = Path(__file__).parents[1]

ODD_TEXTS = (
    *(
        "",
        " ",
        "\t",
        "~",
        "null",
        "NaN",
        "-Infinity",
        "0x1p-3",
        "1e",
        "1__0",
        "٣",
        "Ⅷ",
        "½",
        "1e5000",
        "-0.0",
    ),
    *(
        "8 000",
        "8'000",
        "8,000",
        "8.000,5",
        "1/2",
        "2**8",
        "8GPUs",
        "1 TB/s/s",
        "TB/s",
        "--",
        "-",
        "-h",
        "--help",
    ),
    *(
        "tp8,pp4",
        "tp-8",
        "tp8 tp4",
        "tp8pp4cp2dp2ep2vp2",
        "TP8 PP4",
        "tp1e3",
        "tp²",
        "tp",
        "all",
        "auto",
        "*",
        "?",
    ),
    *(
        "\u202egpj",
        "\ufeffbf16",
        "a\u0300",
        "\U0001f600",
        "\x00",
        "\x7f",
        "\r\n",
        "$(id)",
        "`id`",
        "%n%n",
        "${HOME}",
    ),
    *(
        "/",
        ".",
        "..",
        "~",
        "~root",
        "/proc/self/mem",
        "/dev/null",
        "con",
        "file:///etc/passwd",
        "http://[::1",
    ),
    *("x" * 300, "é" * 5000, "a.b.c.d", "a=b", "a=", "=b", "a=b=c", "dp_overlap=none", "dp_overlap", "set"),
)
ODD_NUMBERS = (
    *(
        0,
        1,
        -1,
        2,
        3,
        5,
        7,
        8,
        13,
        64,
        72,
        1000,
        4096,
        131072,
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        10**19,
        10**308,
        10**400,
    ),
    *(
        0.0,
        -0.0,
        0.1,
        0.5,
        1.5,
        8.0,
        1e-9,
        5e-324,
        1e-300,
        1e15,
        1e300,
        1.7e308,
        math.inf,
        -math.inf,
        math.nan,
    ),
)
"""One object for what is no number, so that two draws of a seed are equal."""


class Wild(NamedTuple):
    """A command line, its files, what is no plain file (name and kind), and keywords of a call in place of it."""

    arguments: list[str]
    files: dict[str, bytes]
    odd: tuple[tuple[str, str], ...] = ()
    keywords: dict[str, Any] | None = None


# --- documents of any shape ----------------------------------------------------------------------


def any_value(rng: random.Random, depth: int = 3) -> Any:
    """Return a value of any type that YAML and JSON have."""
    how = rng.randrange(10 if depth else 7)
    if how <= 2:
        return rng.choice(ODD_NUMBERS)
    if how <= 4:
        return rng.choice(ODD_TEXTS)
    if how == 5:
        return rng.choice((True, False, None))
    if how == 6:
        return rng.choice(("2020-01-01", "12:30:45", b"\xff".hex(), "0b11", "1_000"))
    if how == 7:
        return [any_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {_key(rng): any_value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _key(rng: random.Random) -> str:
    return str(rng.choice(rng.choice((ODD_TEXTS, NAMES, NAMES, ODD_NUMBERS))))


NAMES = tuple(
    dict.fromkeys(
        [name for field in (*JOB_FIELDS, *PLAN_FIELDS, *RUN_FIELDS) for name in (field.name, *field.aliases)]
    )
)
GOOD: dict[str, tuple[Any, ...]] = {
    "model": ("llama3-8b", "mixtral-8x7b", "dense-1b", "gpt-oss-20b"),
    "cluster": (
        "dgx-h100-ndr",
        "hgx-b200-ndr",
        "tpu-v5p-pod",
        "dgx-a100-hdr",
        "mi300x-roce400",
        "gb200-nvl72-xdr",
    ),
    "gpus": (8, 16, 64, "8", "0x10"),
    "global_batch": (16, 64, "1k"),
    "seq_len": (2048, "4k", 4096),
    "layout": ("tp2", "tp2 pp2", "tp2pp2", "pp4 vp2", "ep8", "tp2 cp2"),
    "precision": ("bf16", "fp8", "mxfp8", "nvfp4", "fp16", "fp32"),
    "recipe": ("megatron-core", "torchtitan", "nemo", "deepspeed", "maxtext", "huggingface"),
    "schedule": ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe", "breadth"),
    "recompute": ("none", "full", "selective"),
    "optimizer": ("adamw", "muon", "sgd", "adafactor", "adamw-8bit"),
    "tokens": ("1T", 1e12, "1e12"),
}
SCALARS = ("zero_stage", "tp", "cp", "pp", "vp", "ep", "etp", "micro_batch", "shard_group")


def _said(rng: random.Random, value: Any) -> str:
    """Return a value as somebody's YAML, plain or in JSON's form."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.strip('"') if rng.random() < 0.5 else text


def _some_job(rng: random.Random) -> dict[str, Any]:
    """Return a job that is right but for some values."""
    job = {name: rng.choice(GOOD[name]) for name in ("model", "gpus", "global_batch", "seq_len")}
    for name in rng.sample(list(GOOD), rng.randrange(4)):
        job[name] = rng.choice(GOOD[name])
    for name in rng.sample(SCALARS, rng.randrange(4)):
        job[name] = rng.choice((1, 2, 4, 8, 3))
    for _ in range(rng.choice((0, 0, 1, 2))):
        job[rng.choice(NAMES)] = any_value(rng)
    return job


def job_of_any_shape(rng: random.Random) -> Wild:
    """Return a job file whose values are of any type, some keys twice, in one of the forms that YAML has."""
    job = _some_job(rng)
    if rng.random() < 0.2:
        text = json.dumps(job)
    else:
        lines = [f"{name}: {_said(rng, value)}" for name, value in job.items()]
        lines += [rng.choice(lines)] if rng.random() < 0.1 else []
        rng.shuffle(lines)
        text = "\n".join(
            [*(["---"] if rng.random() < 0.2 else []), *lines, *(["..."] if rng.random() < 0.1 else [])]
        )
    text = rng.choice(("", "", "", "# a comment\n", "%YAML 1.1\n---\n", "- ")) + text
    use = rng.choice(
        (
            ["estimate", "f.yaml"],
            ["estimate", "f.yaml", "--format", "json"],
            ["estimate", "f.yaml", "--format", "csv"],
            ["explain", "f.yaml"],
            ["mesh", "f.yaml"],
            ["read", "f.yaml"],
            ["roofline", "f.yaml"],
            ["run", "f.yaml", "--tokens", "1e11", "--format", "json"],
            ["compare", "f.yaml", "f.yaml"],
            ["sweep", "f.yaml", "-q"],
        )
    )
    return Wild(use, {"f.yaml": text.encode("utf-8", "surrogatepass")})


def document_of_any_shape(rng: random.Random) -> Wild:
    """Return a document that is nothing we know, read by every command that reads one."""
    value = (
        any_value(rng, 5) if rng.random() < 0.8 else functools.reduce(lambda inner, _: [inner], range(900), 0)
    )
    text = json.dumps(value)
    name = rng.choice(
        ("f.yaml", "config.json", "f.toml", "f.csv", "f.log", "train.sh", "f.json", "f", "f.txt", "f.sbatch")
    )
    data = text.encode(rng.choice(("utf-8", "utf-8", "utf-16", "utf-32", "cp1252", "utf-7")), "replace")
    if rng.random() < 0.15:
        data = rng.randbytes(rng.randrange(400))
    return Wild(_reader(rng, name), {name: data})


def _reader(rng: random.Random, name: str) -> list[str]:
    """Return a command that reads a file."""
    job = ["-n", "8", "--global-batch", "16", "--seq-len", "2048"]
    return rng.choice(
        (
            ["estimate", name],
            ["read", name],
            ["read", name, "--gpus", "8", "--format", "json"],
            ["model", "show", name],
            ["model", "show", f"./{name}"],
            ["hardware", "check", name],
            ["hardware", "show", f"./{name}"],
            ["estimate", "-m", f"./{name}", *job],
            ["estimate", "-m", "dense-1b", "-c", f"./{name}", *job],
            ["estimate", "-m", "dense-1b", "--recipe", f"./{name}", *job],
            ["recipe", "show", f"./{name}"],
            ["validate", name],
            ["sweep", name],
            ["sweep", "grid.yaml", "--resume", name],
            ["calibrate", "fabric", name],
            ["calibrate", "kernels", name],
            ["calibrate", "steps", f"{name}=5s"],
            ["calibrate", "runs", name],
            ["profile", name],
            ["compare", name, name],
            ["run", name, "--tokens", "1e9"],
            ["trace", name],
            ["plan", name, "--tp", "1", "--pp", "1"],
        )
    )


# --- machines that nobody has built --------------------------------------------------------------


ABSURD = (
    *(
        "0",
        "-1",
        "1e300",
        "1e-300",
        ".nan",
        ".inf",
        "1e400",
        "99999999999999999999",
        "0.5",
        "2",
        "1e15",
        "[]",
    ),
    *(
        "9" * 400,
        "1000000 PB/s",
        "1 ns",
        "1 B",
        "true",
        "1 mm",
        "1e-30 TB/s",
        "null",
        "[1, 2]",
        "-0",
        "1e9 GiB",
    ),
)
_NUMBER = re.compile(r"(?<=[:\[{,] )-?\d[\d.e+-]*( [A-Za-z/]+)?")


@functools.cache
def _profiles() -> tuple[tuple[str, str], ...]:
    """Return shipped profiles by name and text."""
    folder = REPOSITORY / "hardware_profiles"
    return tuple((path.stem, path.read_text()) for path in sorted(folder.glob("*/*.yaml")))


def absurd_profile(rng: random.Random) -> Wild:
    """Return a shipped profile in which some numbers are absurd."""
    name, text = rng.choice(_profiles())
    lines = text.split("\n")
    numbered = [
        index for index, line in enumerate(lines) if re.search(r"[:\[{,]\s*-?\d", line) and "source" in line
    ]
    numbered = numbered or [index for index, line in enumerate(lines) if re.search(r":\s*-?\d", line)]
    for index in rng.sample(numbered, min(len(numbered), rng.randint(1, 3))):
        absurd = rng.choice(ABSURD)
        lines[index] = _NUMBER.sub(absurd, lines[index], count=1)
    job = [
        "-m",
        rng.choice(("dense-1b", "mixtral-8x7b")),
        "-n",
        "8",
        "--global-batch",
        "16",
        "--seq-len",
        "2048",
    ]
    use = rng.choice(
        (
            ["hardware", "check", f"{name}.yaml"],
            ["hardware", "show", f"./{name}.yaml"],
            ["estimate", "-c", f"./{name}.yaml", *job],
            ["estimate", "-c", f"./{name}.yaml", *job, "--layout", "tp2 pp2", "--format", "json"],
            ["mesh", "-c", f"./{name}.yaml", "-n", "64", "-l", "tp8 pp4"],
            [
                "collective",
                "all-reduce",
                "--size",
                "1GB",
                "-n",
                "16",
                "-c",
                f"./{name}.yaml",
                "--format",
                "json",
            ],
            ["run", "-c", f"./{name}.yaml", *job, "-l", "tp2", "--tokens", "1e10"],
        )
    )
    return Wild(use, {f"{name}.yaml": "\n".join(lines).encode()})


# --- what is no file -----------------------------------------------------------------------------

KINDS_OF_PLACE = (
    "folder",
    "fifo",
    "loop",
    "dangling",
    "unreadable",
    "zero",
    "null",
    "full",
    "empty",
    "random",
    "self",
)


def make_place(path: Path, kind: str) -> None:
    """Put something that is no plain file, or no readable one, at a path."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("no/where")
    elif kind == "unreadable":
        path.write_text("model: llama3-8b\n")
        path.chmod(0)
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        path.symlink_to({"self": "/proc/self/environ", "random": "/dev/urandom"}.get(kind, f"/dev/{kind}"))


def odd_place(rng: random.Random) -> Wild:
    """Return a command that reads, or writes, what is no plain file."""
    kind = rng.choice(KINDS_OF_PLACE)
    name = rng.choice(("f.yaml", "config.json", "f.toml", "f.csv", "f.log", "train.sh", "f.json", "f"))
    if rng.random() < 0.6:
        return Wild(_reader(rng, name), {}, ((name, kind),))
    job = ["-m", "dense-1b", "-n", "8", "--global-batch", "16", "--seq-len", "2048"]
    out = rng.choice(("o.json", "o.csv", "o.svg", "o.html", "o.yaml", "o.parquet"))
    use = rng.choice(
        (
            ["estimate", *job, "--out", out],
            ["estimate", *job, "--csv", out, "--force"],
            ["estimate", *job, "--plot", "o.svg", "--force"],
            ["trace", *job, "--out", out, "--force"],
            ["sweep", "grid.yaml", "--csv", out, "--force", "-q"],
            ["sweep", "grid.yaml", "--resume", out, "-q"],
            ["mesh", "-n", "8", "--out", out],
            ["hardware", "list", "--profiles", out],
            ["estimate", *job, "--profiles", out],
            ["run", *job, "-l", "tp2", "--tokens", "1e9", "--out", out, "--force"],
        )
    )
    named = "o.svg" if "o.svg" in use else out
    grid = b"model: dense-1b\ngpus: [8]\nglobal_batch: 16\nseq_len: 2048\ntp: [1, 2]\n"
    return Wild(use, {"grid.yaml": grid}, ((named, kind),))


# --- any flags of any command --------------------------------------------------------------------

_LEFT_OUT = ("app", "mcp", "measure", "watch", "report")
"""Servers, what wants a GPU, what waits for a job, and the page of several seconds."""


@functools.cache
def _commands() -> tuple[tuple[tuple[str, ...], tuple[tuple[str, bool], ...], int], ...]:
    """Return every command with its flags (and whether each takes a value) and how many arguments it has."""
    found = []

    def walk(words: tuple[str, ...], command: Any) -> None:
        context = command.make_context(" ".join(words), [], resilient_parsing=True)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                if name not in _LEFT_OUT:
                    walk((*words, name), command.get_command(context, name))
            return
        flags = []
        arguments = 0
        for param in command.params:
            if param.param_type_name == "argument":
                arguments += 1
                continue
            flags += [(flag, not param.is_flag) for flag in (*param.opts, *param.secondary_opts)]
        found.append((words, tuple(sorted(flags)), arguments))

    walk((), typer.main.get_command(root))
    return tuple(found)


def any_flags(rng: random.Random) -> Wild:
    """Return a command with any of its flags, in any order, some twice."""
    words, flags, arguments = rng.choice(_commands())
    line = list(words)
    takes_job = any(flag == "--global-batch" for flag, _ in flags)
    if takes_job and rng.random() < 0.9:
        line += ["-m", "dense-1b", "-n", "8", "--global-batch", "16", "--seq-len", "2048"]
    if words in (("plan",), ("sensitivity",)):
        line += ["--tp", "1", "--pp", "1", "--micro-batch", "1"] if words == ("plan",) else ["--tp", "2"]
    for _ in range(rng.randint(1, 5)):
        flag, takes_value = rng.choice(flags)
        line.append(flag)
        if takes_value:
            line.append(_flag_value(rng, flag))
    for _ in range(rng.randrange(arguments + 1)):
        line.append(
            str(rng.choice(rng.choice((ODD_TEXTS, ("all-reduce", "dense-1b", "h100-sxm-80gb", "f.yaml")))))
        )
    if words[0] == "validate" and not {"f.yaml"} & set(line):
        line.append("f.yaml")  # without one it prices everything that was published, as it should
    return Wild([word for word in line if "\x00" not in word], {"f.yaml": b"model: dense-1b\ngpus: 8\n"})


def _flag_value(rng: random.Random, flag: str) -> str:
    name = flag.lstrip("-").replace("-", "_")
    name = {
        "zero": "zero_stage",
        "set": "switches",
        "s": "switches",
        "l": "layout",
        "c": "cluster",
        "r": "recipe",
    }.get(name, name)
    if name in GOOD and rng.random() < 0.6:
        return str(rng.choice(GOOD[name]))
    if name in SCALARS and rng.random() < 0.6:
        return rng.choice(("1", "2", "4", "1,2", "8"))
    if rng.random() < 0.3:
        return rng.choice(
            ("json", "csv", "table", "o.json", "o.svg", "time", "1GB", "10us", "5s", "1e9", "step_time < 7 s")
        )
    return str(rng.choice(rng.choice((ODD_TEXTS, ODD_NUMBERS))))[:6000]


# --- Python --------------------------------------------------------------------------------------

CALLS = (
    "estimate",
    "mesh",
    "collective",
    "budget",
    "run",
    "load_model",
    "load_cluster",
    "compare",
    "roofline",
)


def any_keywords(rng: random.Random) -> Wild:
    """Return a call of the public face with keywords of any type."""
    call = rng.choice(CALLS)
    if call in ("estimate", "run", "compare", "roofline", "mesh"):
        keywords = _some_job(rng)
        for name in rng.sample(list(keywords), min(2, len(keywords))):
            if rng.random() < 0.3:
                keywords[name] = any_value(rng, 2)
        if call == "run":
            keywords = {"tokens": "1e10", **keywords, "tp": 2, "samples": 20}
    elif call == "collective":
        keywords = {"name": "all-reduce", "size_bytes": "1GB", "ranks": 16}
        keywords[rng.choice(("name", "size_bytes", "ranks", "concurrent", "tier", "cluster", "top_k"))] = (
            any_value(rng, 2)
        )
    elif call == "budget":
        keywords = {"dollars": 1e6}
        keywords[
            rng.choice(
                ("dollars", "days", "gpus", "mfu", "price_usd_per_gpu_hour", "served_tokens", "context")
            )
        ] = any_value(rng, 2)
    else:
        keywords = {"name" if call == "load_model" else "name_or_path": any_value(rng, 2)}
    return Wild([call], {}, (), keywords)


# --- real files ----------------------------------------------------------------------------------


@functools.cache
def corpus(folders: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """Return the files of some folders, by name, up to 200 kB each."""
    paths = [path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return tuple((path.name, path.read_bytes()) for path in paths if path.stat().st_size <= 200_000)


def real_file(folders: Sequence[str]) -> Callable[[random.Random], Wild]:
    """Return what changes a real file at some places and has it read."""

    def make(rng: random.Random) -> Wild:
        name, data = rng.choice(corpus(tuple(folders)))
        changed = bytearray(data)
        for _ in range(rng.randint(1, 6)):
            _change(rng, changed)
        name = re.sub(r"[^\w.-]", "_", name)
        use = ["read", name] if rng.random() < 0.6 else _reader(rng, name)
        return Wild(use, {name: bytes(changed)})

    return make


def _change(rng: random.Random, data: bytearray) -> None:
    """Change a few bytes: cut, doubled, moved, replaced by another number or by noise."""
    if not data:
        return
    at = rng.randrange(len(data))
    how = rng.randrange(6)
    if how == 0:
        del data[at : at + rng.randint(1, 40)]
    elif how == 1:
        data[at:at] = data[at : at + rng.randint(1, 200)]
    elif how == 2:
        data[at] = rng.randrange(256)
    elif how == 3:
        numbers = list(re.finditer(rb"\d+(\.\d+)?", bytes(data)))
        if numbers:
            hit = rng.choice(numbers)
            data[hit.start() : hit.end()] = str(rng.choice(ODD_NUMBERS)).encode()
    elif how == 4:
        words = list(re.finditer(rb"[A-Za-z_]{3,}", bytes(data)))
        if words:
            one, other = rng.choice(words), rng.choice(words)
            data[one.start() : one.end()] = other[0]
    else:
        lines = bytes(data).split(b"\n")
        rng.shuffle(lines) if rng.random() < 0.2 else lines.pop(rng.randrange(len(lines)))
        data[:] = b"\n".join(lines)


def wild_kinds(folders: Sequence[str]) -> Iterator[tuple[str, int, Callable[[random.Random], Wild]]]:
    """Yield name, weight and maker of every kind."""
    yield "any job", 8, job_of_any_shape
    yield "any document", 8, document_of_any_shape
    yield "absurd profile", 8, absurd_profile
    yield "odd place", 6, odd_place
    yield "any flags", 14, any_flags
    yield "any keywords", 10, any_keywords
    yield "real file", 8, real_file(folders)
