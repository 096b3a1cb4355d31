"""Throw malformed input at every door of the program and report what a user should never see.

    python tests/fuzz.py --inputs 100000 --seed 1          # any seed; CI runs some hundred of a fixed one
    python tests/fuzz.py --inputs 1000 --kind job          # one kind
    python tests/fuzz.py --seed 1 --only 4711              # one input again, with its traceback
    python tests/fuzz.py --corpus FOLDER                   # real files to change, beside those of tests/data

An answer has exit code 0 or 3; wrong input has 2 and one line on stderr of at most 300 characters. A finding is
anything else: a traceback, another code, a longer or a second line, control characters, an infinite or missing
number in what was printed, more than `LIMIT_S` seconds of CPU time, or `WAIT_S` of waiting for what never comes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import io
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import typer

import costmodel as cm
from costmodel.app import serve
from costmodel.app.state import FIGURES, VIEWS
from costmodel.app.tools import TOOLS
from costmodel.base.answer import to_json
from costmodel.cli import main, root

sys.path.insert(0, str(Path(__file__).parent / "unit"))
from trace_files import step_events

HERE = Path(__file__).parent
LIMIT_S = 5.0
WAIT_S = 120
"""Of the clock; only what does not compute comes near it."""
CORPUS = [HERE / "data"]
"""Folders of real files to change."""
LONGEST_MESSAGE = 300
JOB = {"model": "dense-1b", "gpus": 8, "global_batch": 16, "seq_len": 2048}
FLAGS = ["-m", "dense-1b", "-n", "8", "--global-batch", "16", "--seq-len", "2048"]

ODD: list[Any] = [
    *(
        0,
        -1,
        1,
        2,
        3,
        7,
        2**31,
        10**400,
        -0.5,
        0.1,
        1e9,
        1e-300,
        1e300,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
    ),
    *(
        "",
        " ",
        "x",
        "tp2",
        "8,16",
        "1:8",
        "32k",
        "1e3",
        "15T",
        "80 GiB",
        "-5 GB/s",
        "1 us",
        "0x10",
        "1_000",
        "٣",
        "𝟠",
    ),
    *(
        "nan",
        "-inf",
        "\x1b[31m",
        "a\nb",
        "..",
        "/",
        "~",
        "/dev/null",
        "*",
        "${X",
        "$(date)",
        "`ls`",
        "'",
        '"',
        "\\",
    ),
    *(
        "llama3-8b",
        "no-such-model",
        "h100",
        "nemo",
        "deepspeed",
        "y" * 5000,
        [],
        {},
        [[]],
        [0],
        ["tp", 2],
        {"value": -1},
    ),
    *({"a": {"b": []}}, [None, "x"], {1: 2}, ["all"] * 30),
]
"""Values that people and programs give by mistake."""


class Input(NamedTuple):
    """A command line and the files that it reads, or in its place a call with keywords."""

    kind: str
    arguments: list[str]
    files: dict[str, bytes]
    keywords: dict[str, Any] | None = None


class Finding(NamedTuple):
    """What went wrong, and where in the program."""

    what: str
    where: str


class Seed(NamedTuple):
    """A good file, and the commands that read it; `FILE` in a command is its name."""

    name: str
    text: str
    uses: tuple[str, ...]


def _json(value: Any) -> str:
    return json.dumps(value, indent=1)


def _profile(kind: str, name: str) -> str:
    return (HERE.parent / "hardware_profiles" / kind / f"{name}.yaml").read_text()


JOB_TEXT = " ".join(FLAGS)
READS = ("read FILE", "read FILE --gpus 8 --format json", "estimate FILE --gpus 8")
MODEL = {
    "source": "made up",
    "num_layers": 8,
    "hidden_size": 1024,
    "num_heads": 16,
    "num_kv_heads": 4,
    "ffn_size": 4096,
}
CONFIG = {
    "model_type": "qwen3_moe",
    **{"hidden_size": 1024, "moe_intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16},
    **{
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "vocab_size": 32000,
    },
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": 4096, "sliding_window": None},
    **{
        "layer_types": ["full_attention"] * 8,
        "rope_scaling": None,
        "architectures": ["X"],
        "q_lora_rank": None,
    },
}
FAMILIES = (
    *(
        "llama",
        "qwen2",
        "qwen3",
        "mixtral",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
        "gemma2",
        "gemma3",
        "phi3",
    ),
    *("glm4_moe", "olmo2", "cohere", "falcon", "gpt2", "gpt_neox", "bloom", "minimax", "jamba", "nemotron_h"),
    *("qwen3_next", "kimi_k2", "llama4", "mamba2", "unknown"),
)
SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-1}
ARGS=(
    --num-layers 8 --hidden-size 1024 --num-attention-heads 16
    --seq-length 2048 --max-position-embeddings 2048
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1
    --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16
)
if [ -n "$EXTRA" ]; then
    ARGS+=(--use-distributed-optimizer)
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "${ARGS[@]}"
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 16
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
"""
NCCL = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 8388608 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid 1 on host device  0 [0x00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    30.00   34.95   61.17      0    30.00   34.95   61.17      0
     8388608       2097152     float     sum      -1    90.00   93.21  163.11      0    90.00   93.21  163.11      0
"""
STEPS = "name,model,gpus,global_batch,seq_len,tp,step_time_s\na,llama3-8b,8,16,2048,2,0.5\nb,llama3-8b,8,32,2048,2,1\n"
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
}


@functools.cache
def seeds() -> dict[str, tuple[Seed, ...]]:
    """Return good files by kind."""
    published = (HERE / "published" / "runs.csv").read_text().splitlines()
    model_uses = (
        "model show FILE",
        "model show FILE --format json",
        f"estimate {JOB_TEXT} -m FILE",
        "read FILE",
    )
    hardware_uses = ("hardware check FILE", "hardware show ./FILE", f"estimate {JOB_TEXT} -c FILE")
    job = {
        **JOB,
        "layout": "tp2 pp2",
        "recipe": "megatron-core",
        "switches": {"dp_overlap": "none"},
        "tokens": "1T",
    }
    grid = {**JOB, "gpus": [8, 16], "tp": [1, 2], "pp": 1, "micro_batch": 1}
    return {
        "job": (
            Seed(
                "f.yaml",
                _json(job),
                ("estimate FILE", "estimate FILE --format json", "read FILE", "mesh FILE", "run FILE"),
            ),
        ),
        "model": (Seed("f.yaml", _json({**MODEL, "vocab_size": 32000, "gated_mlp": True}), model_uses),),
        "config": tuple(
            Seed("config.json", _json({**CONFIG, "model_type": name}), model_uses) for name in FAMILIES
        ),
        "profile": (
            Seed("f.yaml", _profile("accelerators", "l40s"), hardware_uses),
            Seed("f.yaml", _profile("clusters", "dgx-a100-hdr"), hardware_uses),
        ),
        "grid": (Seed("f.yaml", _json(grid), ("sweep FILE -q", "sweep FILE --format json")),),
        "script": (Seed("train.sh", SCRIPT, READS),),
        "torchtitan": (Seed("f.toml", TITAN, READS),),
        "deepspeed": (
            Seed(
                "ds.json", _json(DEEPSPEED), ("read FILE", "read FILE --gpus 8 -m llama3-8b --seq-len 2048")
            ),
        ),
        "nccl": (Seed("f.log", NCCL, ("read FILE", "calibrate fabric FILE", "read FILE --format json")),),
        "table": (
            Seed("f.csv", "\n".join(published[:5]), ("validate FILE",)),
            Seed("f.csv", STEPS, ("calibrate runs FILE",)),
        ),
        "trace": (
            Seed(
                "f.json",
                _json({"traceEvents": step_events(60, 1)}),
                ("profile FILE", f"profile FILE {JOB_TEXT} --format json"),
            ),
        ),
    }


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a document."""
    yield way
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*way, key))


def _with_odd_value(rng: random.Random, text: str) -> str:
    """Replace a value of a JSON document by an odd one, or add a key."""
    document = json.loads(text)
    *way, last = rng.choice([way for way in _places(document) if way])
    holder = functools.reduce(lambda value, key: value[key], way, document)
    if isinstance(holder, dict) and rng.random() < 0.2:
        holder[rng.choice(("", "x", "tp", "value", "num_layers", str(last) + "s"))] = rng.choice(ODD)
    elif rng.random() < 0.15:
        del holder[last]
    else:
        holder[last] = rng.choice(ODD)
    return _json(document)


def _changed(rng: random.Random, text: str) -> str:
    """Change a text as an editor's slip does."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    match rng.randrange(7):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines[at], lines[0] = lines[0], lines[at]
        case 3:
            lines = lines[: at + 1]
        case 4:
            words = re.split(r"(\W+)", lines[at])
            words[rng.randrange(len(words))] = str(rng.choice(ODD))
            lines[at] = "".join(words)
        case 5:
            lines[at] = re.sub(r"-?\d+(\.\d+)?", lambda _: str(rng.choice(ODD)), lines[at], count=1)
        case _:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + rng.choice("[]{}()\"'$\\#:,=&*!|>%@`\t\x00é") + lines[at][place:]
    return "\n".join(lines)


def _encoded(rng: random.Random, text: str) -> bytes:
    """Return a text as bytes, now and then in another encoding, packed, torn or not text at all."""
    data = text.encode("utf-8", "replace")
    return rng.choice(
        (
            *[data] * 20,
            text.encode("utf-16", "replace"),
            b"\xef\xbb\xbf" + data,
            gzip.compress(data, mtime=0),
            data[: rng.randrange(len(data) + 1)],
            rng.randbytes(200),
        )
    )


def _file(rng: random.Random, kind: str) -> Input:
    seed = rng.choice(seeds()[kind])
    text = seed.text
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        is_document = text.startswith("{") and rng.random() < 0.7
        with contextlib.suppress(ValueError):
            text = _with_odd_value(rng, text) if is_document else _changed(rng, text)
    return Input(
        kind, rng.choice(seed.uses).replace("FILE", seed.name).split(), {seed.name: _encoded(rng, text)}
    )


def _real_file(rng: random.Random) -> Input:
    """A real file with some of its bytes changed, under its own name."""
    name, data = rng.choice(_corpus(tuple(CORPUS)))
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        odd = str(rng.choice(ODD)).encode("utf-8", "replace")[:50]
        changed[at : at + rng.choice((0, 1, len(odd)))] = odd
    return Input("real", ["read", name], {name: bytes(changed)})


@functools.cache
def _corpus(folders: tuple[Path, ...]) -> list[tuple[str, bytes]]:
    """Return the files of some folders by name, up to 100 kB each."""
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    found = [(path.name, path.read_bytes()) for path in paths if path.stat().st_size <= 100_000]
    return [(re.sub(r"[^\w.-]", "_", name), data) for name, data in found if data]


_LEFT_OUT = ("serve", "measure", "watch")
"""The server, what wants a GPU, and what waits for a job; and --html, a page of several seconds."""


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
        options = [
            param
            for param in command.params
            if param.param_type_name != "argument" and "--html" not in param.opts
        ]
        flags = [(flag, not one.is_flag) for one in options for flag in (*one.opts, *one.secondary_opts)]
        arguments = sum(param.param_type_name == "argument" for param in command.params)
        found.append((words, tuple(sorted(flags)), arguments))

    walk((), typer.main.get_command(root))
    return tuple(found)


GOOD = (
    "1",
    "2",
    "4",
    "1,2",
    "json",
    "csv",
    "o.json",
    "1GB",
    "10us",
    "5s",
    "1e9",
    "step_time < 7 s",
    "dense-1b",
    "f.yaml",
)


def _flags(rng: random.Random) -> Input:
    """A command with any of its flags, in any order, some twice."""
    words, flags, arguments = rng.choice(_commands())
    line = list(words)
    if any(flag == "--global-batch" for flag, _ in flags) and rng.random() < 0.9:
        line += FLAGS
    if words in (("plan",), ("sensitivity",)):
        line += ["--tp", "1", "--pp", "1", "--micro-batch", "1"] if words == ("plan",) else ["--tp", "2"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        flag, takes_value = rng.choice(flags)
        line.append(flag)
        if takes_value:
            line.append(str(rng.choice(GOOD if rng.random() < 0.7 else ODD))[:6000])
    for _ in range(rng.randrange(arguments + 1)):
        line.append(rng.choice(("all-reduce", "dense-1b", "h100-sxm-80gb", "f.yaml", str(rng.choice(ODD)))))
    if words[0] == "validate" and "f.yaml" not in line:
        line.append("f.yaml")  # without one it prices everything that was published, as it should
    line = [word.replace("\x00", "") for word in line]
    return Input("flags", line, {"f.yaml": b"model: dense-1b\ngpus: 8\n"})


CALLS: dict[str, dict[str, Any]] = {
    "estimate": JOB,
    "run": {**JOB, "tp": 2, "tokens": "1e10", "samples": 20},
    "mesh": {"gpus": 8, "layout": "tp2"},
    "collective": {"name": "all-reduce", "size_bytes": "1GB", "ranks": 16},
    "budget": {"dollars": 1e6},
    "load_model": {"name": "dense-1b"},
    "load_cluster": {"name_or_path": "dgx-h100-ndr"},
}
KEYWORDS = (
    "tp",
    "pp",
    "cp",
    "ep",
    "layout",
    "switches",
    "precision",
    "recompute",
    "zero_stage",
    "concurrent",
    "days",
    "mfu",
)


def _keywords(rng: random.Random) -> Input:
    """A call of the public functions with keywords of any type."""
    call = rng.choice(list(CALLS))
    keywords = dict(CALLS[call])
    for _ in range(rng.randint(1, 2)):
        others = KEYWORDS if call in ("estimate", "run", "mesh") else ()
        keywords[rng.choice((*keywords, *others))] = rng.choice(ODD)
    return Input("keywords", [call], {}, keywords)


QUERY = {
    "model": "dense-1b",
    "cluster": "dgx-h100-ndr",
    "gpus": "8",
    "global_batch": "16",
    "seq_len": "2k",
    "tp": "2",
}
PAGE = ("answer", "warnings", "line", "job", "csv", "model", "read")
FIELDS = (
    *QUERY,
    *KEYWORDS,
    "b.gpus",
    "plan.tp",
    "run.days",
    "run.tokens",
    "view",
    "figure",
    "line",
    "job",
    "model_file",
    "x",
)


def _page(rng: random.Random) -> Input:
    """A request to the page: a question about a state with odd fields, or a file that is dropped."""
    state: dict[str, Any] = dict(QUERY)
    for _ in range(rng.randint(1, 3)):
        state[rng.choice(FIELDS)] = rng.choice((*ODD, *VIEWS, *FIGURES))
    query = urlencode(state, errors="replace") if rng.random() < 0.9 else str(rng.choice(ODD))
    dropped = _file(rng, rng.choice(("job", "config", "script", "torchtitan", "deepspeed"))).files
    return Input("page", ["page", rng.choice(PAGE), query], dropped, {})


def _tool(rng: random.Random) -> Input:
    """A request to a tool for assistants, with arguments of any type."""
    tool = rng.choice([tool for tool in TOOLS if not tool.is_long])
    keywords: dict[str, Any] = dict(JOB)
    fields = (*tool.schema["properties"], *tool.schema["properties"], *KEYWORDS, "x")
    for _ in range(rng.randint(0, 2)):
        keywords[rng.choice(fields)] = rng.choice(ODD)
    if tool.name == "compare":
        keywords = {"first": keywords, "second": rng.choice((*ODD, {"tp": 2}))}
    elif rng.random() < 0.3:
        name, data = rng.choice([*_file(rng, rng.choice(("job", "script", "deepspeed"))).files.items()])
        keywords |= {"file": data.decode(errors="replace"), "file_name": name}
    return Input("tool", [tool.name], {}, keywords)


KINDS = (*seeds(), "real", "flags", "keywords", "page", "tool")


def make_input(seed: int, number: int, kind: str | None = None) -> Input:
    """Return input `number` of a seed; the same always."""
    rng = random.Random(f"{seed}/{number}")
    chosen = kind or rng.choice(KINDS)
    own = {"real": _real_file, "flags": _flags, "keywords": _keywords, "page": _page, "tool": _tool}
    return own[chosen](rng) if chosen in own else _file(rng, chosen)


class TooLongError(Exception):
    """The limit on time has passed."""


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop), signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    signal.alarm(WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.alarm(0)
        signal.signal(signal.SIGVTALRM, before[0])
        signal.signal(signal.SIGALRM, before[1])


def findings(given: Input, *, show: bool = False) -> tuple[int, list[Finding]]:
    """Run an input in the current folder; return its exit code and what a user should not have seen."""
    for name, data in given.files.items():
        Path(name).write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    code, found = -1, []
    try:
        with _limit(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(given.arguments) if given.keywords is None else _call(given)
    except TooLongError:
        frames = traceback.extract_tb(sys.exc_info()[2])
        found.append(Finding("over the limit of time", _place(frames)))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:  # whatever it is, it is what the user would see
        if isinstance(error, KeyboardInterrupt):
            raise
        if show:
            traceback.print_exc()
        found.append(
            Finding(
                f"{type(error).__name__}: {str(error)[:80]}",
                _place(traceback.extract_tb(error.__traceback__)),
            )
        )
    said = err.getvalue()
    if show:
        print(out.getvalue()[-3000:], said, sep="\n")
    if code not in (-1, 0, 2, 3):
        found.append(Finding(f"exit code {code}", " ".join(given.arguments[:2])))
    if code == 2:
        lines = said.strip("\n").split("\n")
        several = given.arguments[:2] == ["hardware", "check"]
        if (
            len(lines) > 1
            and not several
            and not all(line.startswith(("Warning", "Note", "Assumed")) for line in lines[:-1])
        ):
            found.append(Finding("more than one line", lines[0][:60]))
        if max(map(len, lines)) > LONGEST_MESSAGE:
            found.append(Finding("a line of over 300 characters", lines[-1][:60]))
        if not (said + out.getvalue()).strip():
            found.append(Finding("nothing said", " ".join(given.arguments[:2])))
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said + out.getvalue()):
        found.append(Finding("control characters", " ".join(given.arguments[:2])))
    if code == 0:
        found += [Finding("no finite number", place) for place in _not_finite(given, out.getvalue())]
    return code, found


def _call(given: Input) -> int:
    """Call a function of the public face, print what it answers, and say its error as the command line would."""
    keywords = dict(given.keywords or {})
    if given.kind == "page":
        _, question, query = given.arguments
        name, content = next(iter(given.files.items()))
        dropped = f"{query}&name={name}", content
        record = serve.dropped(*dropped) if question == "read" else serve.answer(question, query)
        if "this is a bug" in record.get("error", ""):
            raise RuntimeError(sys.stderr.getvalue()[-300:] if isinstance(sys.stderr, io.StringIO) else "bug")
        json.dumps(record, allow_nan=False)
        return 0
    try:
        if given.kind == "tool":
            tool = next(tool for tool in TOOLS if tool.name == given.arguments[0])
            print(to_json(tool.ask(keywords).record))
            return 0
        answer = getattr(cm, given.arguments[0])(**keywords)
        if isinstance(answer, cm.Answer) and not getattr(answer, "shape", ()):
            print(json.dumps(answer.to_dict(), allow_nan=False))
    except cm.CostModelError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def _not_finite(given: Input, printed: str) -> Iterator[str]:
    if given.keywords is not None or given.arguments[0] not in (
        "estimate",
        "run",
        "budget",
        "collective",
        "mesh",
        "explain",
    ):
        return
    asks_help = any(word.startswith("--help") for word in given.arguments)
    if "--format json" in " ".join(given.arguments) and not asks_help and printed.strip():
        try:
            numbers = list(_numbers(json.loads(printed)))
        except ValueError:
            yield "no JSON from " + " ".join(given.arguments)[:200]
            return
        if not all(math.isfinite(number) for number in numbers):
            yield "json of " + given.arguments[0]
    elif re.search(r"(?<![\w.-])(nan|inf)(?![\w-])", printed) and not re.search(
        "nan|inf", " ".join(given.arguments)
    ):
        yield "text of " + given.arguments[0]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, (int, float)):
        yield float(value)


def _place(frames: traceback.StackSummary) -> str:
    """Return the innermost line of the program, and what it called."""
    ours = [frame for frame in frames if f"{os.sep}costmodel{os.sep}" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.lineno} {last.name}"


def fuzz(
    seed: int, numbers: range, kind: str | None = None
) -> tuple[Counter[tuple[str, int]], dict[Finding, list[int]]]:
    """Run inputs in a folder of their own; return exit codes by kind, and the findings with their inputs."""
    codes: Counter[tuple[str, int]] = Counter()
    found: dict[Finding, list[int]] = {}
    here = Path.cwd()
    for number in numbers:
        given = make_input(seed, number, kind)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                code, seen = findings(given)
            finally:
                os.chdir(here)
        codes[given.kind, code] += 1
        for one in seen:
            found.setdefault(one, []).append(number)
    return codes, found


def report() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", type=int)
    parser.add_argument("--corpus", action="append", default=[], metavar="FOLDER")
    asked = parser.parse_args()
    CORPUS.extend(map(Path, asked.corpus))
    if asked.only is not None:
        given = make_input(asked.seed, asked.only, asked.kind)
        print(given)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            print(findings(given, show=True))
        return 0
    codes, found = fuzz(asked.seed, range(asked.start, asked.start + asked.inputs), asked.kind)
    for kind in KINDS:
        by_code = {code: count for (of, code), count in sorted(codes.items()) if of == kind}
        if by_code:
            print(f"{kind:12s} {sum(by_code.values()):7,d}", by_code)
    for one, numbers in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(numbers):6d}  {one.where}: {one.what}  (input {numbers[0]})")
    print(f"{asked.inputs:,} inputs of seed {asked.seed}: {len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(report())
