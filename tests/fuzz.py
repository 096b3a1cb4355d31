"""Throw malformed input at every door of the program and report what a user should never see.

    python tests/fuzz.py --inputs 100000 --seed 1          # any seed; CI runs a few hundred of fixed ones
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import costmodel as cm
from costmodel.cli import main
from costmodel.describe.jobs.fields import JOB_FIELDS

sys.path.insert(0, str(Path(__file__).parent / "unit"))
from trace_files import step_events

sys.path.insert(0, str(Path(__file__).parent))
import fuzz_more
import fuzz_wild

LIMIT_S = 5.0
WAIT_S = 120
"""Of the clock; only what does not compute comes near it."""
CORPUS = [str(Path(__file__).parent / "data")]
"""Folders of real files to change."""
LONGEST_MESSAGE = 300


class Input(NamedTuple):
    """A command line and the files it reads; names that are no plain files, and keywords of a call in place of it."""

    kind: str
    arguments: list[str]
    files: dict[str, bytes]
    odd: tuple[tuple[str, str], ...] = ()
    keywords: dict[str, Any] | None = None


class Finding(NamedTuple):
    """What went wrong, and where in the program."""

    what: str
    where: str


# Values that people and programs give by mistake.
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "8",
    "16",
    "64",
    "1e3",
    "1e308",
    "1e400",
    "-0",
    "0.5",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e-300",
    "1e-320",
    "99999999999999999999",
    "32k",
    "15T",
    "4G",
    "0x10",
    "1_000",
    "１",
    "²",
    "true",
    "null",
    "~",
    "",
    "9" * 400,
    "",
    " ",
    "1,2",
    "[1]",
    "8 8",
]
TEXTS = [
    *(
        [
            "bf16",
            "fp8",
            "mxfp4",
            "int8",
            "none",
            "full",
            "selective",
            "tp8pp4",
            "tp1",
            "xx",
            "*",
            "../x",
            "/dev/null",
            "ring",
            "all-reduce",
        ]
    ),
    "tp8 cp1 pp16 vp4",
    "a" * 5000,
    "\x1b[31mred\x1b]0;title\x07",
    "line\nbreak",
    "ünï",
    "=HYPERLINK(1)",
    "<!--<script>",
    "{}",
    "[]",
    "%s{0}",
]
VALUES = [*NUMBERS, *TEXTS]
YAML_VALUES = [
    *(
        "1",
        "0",
        "-1",
        "2.5",
        ".nan",
        ".inf",
        "-.inf",
        "1e400",
        "true",
        "null",
        "~",
        "text",
        "[]",
        "{}",
        "[1]",
        "[[1]]",
    ),
    *(
        "{a: 1}",
        "2020-13-45",
        "._",
        "!!bool maybe",
        "!!float abc",
        "&a [*a]",
        "*b",
        "'",
        '"',
        ": ",
        "- ",
        "? ",
        "0o17",
    ),
    *("0x1F", "1_0", "<<: 1", "!!python/object:os.system x", "@", "`", "%", "9e999", "9" * 400, "[" * 1200),
    "{a: [1, 2, {b: [c]}]}",
]
JSON_VALUES = [
    "0",
    "-1",
    "1e9",
    "1e400",
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    "2.5",
    "[1]",
    "[null]",
    "NaN",
    '"\\n"',
    "9" * 400,
]

JOB = """model: llama3-8b
cluster: dgx-h100-ndr
gpus: 8
layout: tp2
micro_batch: 1
global_batch: 16
seq_len: 2048
recipe: megatron-core
switches: {dp_overlap: none}
"""
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
}
SCRIPT = """#!/bin/bash
TP=2
export LAYERS=${LAYERS:-8}
ARGS="--num-layers $LAYERS --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048
 --micro-batch-size 1 --global-batch-size $((8 * 2)) --tensor-model-parallel-size $TP --vocab-size 32000 --bf16
 --swiglu --normalization RMSNorm --position-embedding-type rope --moe-layer-freq 2 --num-experts 4"
torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS --use-distributed-optimizer
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
"""
DEEPSPEED = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
}
NCCL = """# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 1 on host device  0 [0x1] NVIDIA H100 80GB HBM3
#                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    30.00   34.95   61.17      0    30.10   34.84   60.96      0
   134217728      33554432     float     sum      -1   600.00  223.70  391.47      0   601.00  223.32  390.82      0
# Avg bus bandwidth    : 226.1
"""
ACCELERATOR = """schema_version: 1
profile: accelerator
name: mine
inherit: h100-sxm-80gb
memory_bandwidth: {value: 3.0 TB/s, source: datasheet}
tdp: {value: 650 W, source: datasheet}
memory: {value: 79 GiB, source: datasheet}
sources:
  datasheet: {title: a sheet}
"""
CLUSTER = """schema_version: 1
profile: cluster
name: mine
inherit: dgx-h100-ndr
price_usd_per_gpu_hour: {value: 2.5, source: offer}
price_date: 2026-01-01
pue: {value: 1.2, source: offer}
sources:
  offer: {title: a letter}
"""
MODEL = """name: mine
num_layers: 8
hidden_size: 1024
num_heads: 16
num_kv_heads: 4
ffn_size: 4096
vocab_size: 32000
gated_mlp: true
"""
GRID = """model: [llama3-8b]
gpus: [8]
global_batch: 16
seq_len: 2048
tp: [1, 2]
"""
BASE = ["-m", "llama3-8b", "-n", "8", "--global-batch", "16", "--seq-len", "2048"]


PLAUSIBLE = {
    **dict.fromkeys(("tp", "cp", "pp", "dp", "micro_batch", "zero_stage"), ("1", "2")),
    **{
        "layout": ("tp2", "pp2", "tp2pp2"),
        "recompute": ("none", "full", "selective"),
        "schedule": ("1f1b", "gpipe"),
    },
    **{
        "seq_len": ("4k", "2048"),
        "recipe": ("torchtitan", "nemo"),
        "cluster": ("dgx-h100-ndr",),
        "tokens": ("1T",),
    },
    **{
        "precision": ("fp8", "bf16"),
        "gpus": ("8", "16"),
        "global_batch": ("32",),
        "model": ("llama3-8b", "dense-1b"),
    },
}


def _flag(rng: random.Random) -> list[str]:
    field = rng.choice([field for field in JOB_FIELDS if field.flags])
    good = PLAUSIBLE.get(field.name, ())
    value = rng.choice(good) if good and rng.random() < 0.8 else rng.choice(VALUES)
    return [rng.choice([flag for flag in (*field.flags, field.short) if flag]), value]


def _flags(rng: random.Random, most: int = 4) -> list[str]:
    return [word for _ in range(rng.randint(1, most)) for word in _flag(rng)]


def _job_flags(rng: random.Random) -> Input:
    command = rng.choice(["estimate"] * 6 + ["explain", "mesh", "compare", "roofline", "trace"])
    more = {"compare": ["--vary", f"tp={rng.choice(VALUES)}"]}.get(command, [])
    form = ["--format", rng.choice(["json", "csv", "table"])] if command == "estimate" else []
    switch = ["--set", f"{rng.choice(SWITCHES)}={rng.choice(VALUES)}"] if rng.random() < 0.3 else []
    base = BASE if command != "mesh" else ["-n", "8"]
    return Input("flags", [command, *base, *more, *form, *switch, *_flags(rng)], {})


SWITCHES = [
    *(
        "dp_overlap",
        "tp_overlap",
        "ep_overlap",
        "cp_method",
        "moe_dispatcher",
        "moe_balance",
        "moe_imbalance",
    ),
    *(
        "communicator_bytes",
        "context_bytes",
        "bucket_elements",
        "launch_s",
        "kernel_gap_s",
        "cuda_graphs",
        "attention_kernel",
    ),
    *("selective_modules", "offload_optimizer", "loss_chunks", "compiled"),
]


def _mutate(rng: random.Random, text: str, values: list[str]) -> str:
    """Change a file as a slip of the hand or another program would, at one to three places."""
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        how = rng.randrange(8)
        if how <= 3 and re.search(r"[:=] *\S", lines[at]):
            lines[at] = re.sub(r"([:=] *)\S.*$", lambda m: m[1] + rng.choice(values), lines[at], count=1)
        elif how == 4:
            del lines[at]
        elif how == 5:
            lines.insert(at, rng.choice(lines))
        elif how == 6 and lines[at]:
            spot = rng.randrange(len(lines[at]))
            lines[at] = lines[at][:spot] + rng.choice("[]{}:'\"#&*!|>\t\x00\x1b-,²$`\\") + lines[at][spot:]
        else:
            words = re.findall(r"\S+", lines[at])
            if words:
                lines[at] = lines[at].replace(rng.choice(words), rng.choice(values), 1)
        text = "\n".join(lines)
    return text


def _encoded(rng: random.Random, text: str) -> bytes:
    """Encode, and now and then cut, put bytes in, or add what Windows adds."""
    data = text.encode("utf-8", "replace")
    how = rng.randrange(40)
    if how == 0:
        return data[: rng.randrange(len(data) + 1)]
    if how == 1:
        return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")
    if how == 2:
        spot = rng.randrange(len(data) + 1)
        return data[:spot] + bytes(rng.randrange(256) for _ in range(4)) + data[spot:]
    return text.encode("utf-16") if how == 3 else data


def _json_text(rng: random.Random, record: dict[str, Any]) -> str:
    text = json.dumps(record, indent=1)
    return _mutate(rng, text, [value + "," for value in JSON_VALUES])


def _from(
    rng: random.Random, kind: str, name: str, text: str, values: list[str], uses: list[list[str]]
) -> Input:
    body = _mutate(rng, text, values)
    return Input(kind, rng.choice(uses), {name: _encoded(rng, body)})


def _job(rng: random.Random) -> Input:
    uses = [
        ["estimate", "f.yaml"],
        ["estimate", "f.yaml", "--format", "json"],
        ["read", "f.yaml"],
        ["mesh", "f.yaml"],
    ]
    return _from(rng, "job", "f.yaml", JOB, YAML_VALUES, uses)


def _model(rng: random.Random) -> Input:
    uses = [["model", "show", "f.yaml"], ["estimate", "-m", "f.yaml", *BASE[2:]], ["read", "f.yaml"]]
    return _from(rng, "model", "f.yaml", MODEL, YAML_VALUES, uses)


def _profile(rng: random.Random) -> Input:
    text = rng.choice([ACCELERATOR, CLUSTER])
    uses = [
        ["hardware", "check", "f.yaml"],
        ["hardware", "show", "./f.yaml"],
        ["estimate", "-c", "f.yaml", *BASE],
    ]
    return _from(rng, "profile", "f.yaml", text, YAML_VALUES, uses)


def _grid(rng: random.Random) -> Input:
    return _from(
        rng,
        "grid",
        "f.yaml",
        GRID,
        YAML_VALUES,
        [["sweep", "f.yaml", "-q"], ["sweep", "f.yaml", "--format", "json"]],
    )


def _config(rng: random.Random) -> Input:
    record = {**CONFIG, "model_type": rng.choice(FAMILIES)}
    if rng.random() < 0.3:
        record[rng.choice(ODD_KEYS)] = rng.choice([0, -1, None, [], {}, "x", 1e9, True, [0, 1], ""])
    uses = [
        ["model", "show", "config.json"],
        ["read", "config.json"],
        ["read", "config.json", "--format", "json"],
        ["estimate", "-m", "config.json", *BASE[2:]],
    ]
    body = _json_text(rng, record) if rng.random() < 0.8 else json.dumps(record)
    return Input("config", rng.choice(uses), {"config.json": _encoded(rng, body)})


FAMILIES = [
    *(
        "llama",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "mixtral",
        "deepseek_v3",
        "deepseek_v2",
        "gpt_oss",
        "gemma2",
        "gemma3",
    ),
    *(
        "gemma3_text",
        "phi3",
        "glm4_moe",
        "olmo2",
        "cohere",
        "falcon",
        "gpt2",
        "gpt_neox",
        "bloom",
        "mistral",
        "minimax",
    ),
    *("jamba", "nemotron_h", "qwen3_next", "kimi_k2", "llama4", "mamba2", "unknown"),
]
ODD_KEYS = [
    *(
        "layer_types",
        "sliding_window",
        "sliding_window_pattern",
        "mlp_only_layers",
        "no_rope_layers",
        "n_shared_experts",
    ),
    *(
        "first_k_dense_replace",
        "attention_chunk_size",
        "moe_layer_freq",
        "num_hidden_layers",
        "hidden_size",
        "n_group",
    ),
    *(
        "topk_group",
        "q_lora_rank",
        "kv_lora_rank",
        "model_type",
        "text_config",
        "rope_scaling",
        "quantization_config",
    ),
    *("auto_map", "architectures", "num_nextn_predict_layers", "full_attention_interval"),
]


def _script(rng: random.Random) -> Input:
    uses = [
        ["read", "train.sh"],
        ["read", "train.sh", "--gpus", "8"],
        ["estimate", "train.sh", "--gpus", "8"],
    ]
    values = [
        *VALUES,
        "$((1/0))",
        "${X",
        "$(date)",
        "`ls`",
        "\\",
        "'",
        '"',
        "source f",
        "[1]*99999999",
        "([1]*3+[0])*2",
    ]
    return _from(rng, "script", "train.sh", SCRIPT, values, uses)


def _titan(rng: random.Random) -> Input:
    values = [value.replace("\n", " ") for value in [*JSON_VALUES, '"tp"', "{a = 1}", "[[1]]", "1979-05-27"]]
    return _from(
        rng, "torchtitan", "f.toml", TITAN, values, [["read", "f.toml"], ["read", "f.toml", "--gpus", "8"]]
    )


def _deepspeed(rng: random.Random) -> Input:
    uses = [["read", "ds.json"], ["read", "ds.json", "--gpus", "8", "-m", "llama3-8b", "--seq-len", "2048"]]
    return Input("deepspeed", rng.choice(uses), {"ds.json": _encoded(rng, _json_text(rng, DEEPSPEED))})


def _nccl(rng: random.Random) -> Input:
    uses = [["read", "f.log"], ["calibrate", "fabric", "f.log"], ["read", "f.log", "--format", "json"]]
    return _from(rng, "nccl", "f.log", NCCL, VALUES, uses)


def _runs(rng: random.Random) -> Input:
    global _RUNS
    if not _RUNS:
        lines = (Path(__file__).parent / "published" / "runs.csv").read_text().splitlines()
        _RUNS = [lines[0], *lines[1:6]]
    values = [*NUMBERS, "text", '"', '""', ";", "h100-sxm-80gb"]
    rows = [line.split(",") for line in _RUNS]
    for _ in range(rng.randint(1, 3)):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice(values)
    return Input(
        "runs",
        ["validate", "runs.csv"],
        {"runs.csv": _encoded(rng, "\n".join(",".join(row) for row in rows))},
    )


_RUNS: list[str] = []


def _others(rng: random.Random) -> Input:
    value, number = rng.choice(VALUES), rng.choice(NUMBERS)
    lines = [
        [
            "collective",
            rng.choice(["all-reduce", "all_gather", "all_to_all", "moe-dispatch", value]),
            "--size",
            number,
            "--ranks",
            "16",
        ],
        ["collective", "all-reduce", "--size", "1MB", "--ranks", number, "--concurrent", rng.choice(NUMBERS)],
        ["collective", "moe-dispatch", "--size", "1MB", "--ranks", "16", "--imbalance", number],
        ["budget", "--budget", number, "--days", rng.choice(NUMBERS)],
        [
            "budget",
            "--budget",
            "1e6",
            "--mfu",
            number,
            "--price",
            rng.choice(NUMBERS),
            "--serve-tokens",
            rng.choice(NUMBERS),
        ],
        ["budget", "--gpus", number, "--days", "30", "--context", rng.choice(NUMBERS), "--format", "json"],
        ["run", *BASE, "--tokens", number, "--format", rng.choice(["json", "table"])],
        [
            "run",
            *BASE,
            "--tokens",
            "1e9",
            rng.choice(["--spare-nodes", "--pue", "--price", "--failures-per-node-day"]),
            number,
        ],
        ["sensitivity", *BASE, "--by", number],
        ["mesh", "-n", number, "-l", value],
        ["hardware", "show", value],
        ["hardware", "list", value],
        ["model", "show", value],
        ["recipe", "show", value],
        [
            "plan",
            *BASE,
            rng.choice(
                ["--tp", "--cp", "--micro-batch", "--headroom", "--max-memory", "--top", "--objective"]
            ),
            value,
        ],
        [
            "plan",
            "-m",
            "llama3-8b",
            "-n",
            rng.choice(["4", "8"]),
            "--global-batch",
            number,
            "--seq-len",
            "2048",
        ],
        ["trace", *BASE, "--pp", "2", "--out", rng.choice(["t.json", value, ""])],
        ["estimate", *BASE, "--out", rng.choice(["o.json", "o.csv", value, "no/where.json"])],
        [value, *BASE],
        ["estimate", value],
    ]
    return Input("others", rng.choice(lines), {})


def _trace(rng: random.Random) -> Input:
    uses = [["profile", "f.json"], ["profile", "f.json", "--format", "json"]]
    uses += [["profile", "f.json", "-m", "llama3-8b", "-n", "8", "--global-batch", "8", "--seq-len", "4096"]]
    text = _mutate(
        rng, json.dumps({"traceEvents": step_events(200, 1)}, indent=1), [f"{one}," for one in JSON_VALUES]
    )
    data = _encoded(rng, text)
    if rng.random() < 0.3:
        data = gzip.compress(data, mtime=0)
        data = data[: rng.randrange(len(data))] if rng.random() < 0.5 else data
    return Input("trace", rng.choice(uses), {"f.json": data})


KINDS: dict[str, tuple[int, Callable[[random.Random], Input]]] = {
    "flags": (14, _job_flags),
    "job": (10, _job),
    "model": (10, _model),
    "profile": (10, _profile),
    "grid": (4, _grid),
    "config": (16, _config),
    "script": (10, _script),
    "torchtitan": (8, _titan),
    "deepspeed": (8, _deepspeed),
    "nccl": (8, _nccl),
    "runs": (2, _runs),
    "trace": (4, _trace),
    "others": (10, _others),
}
"""Weight and maker of each kind of input."""


def _wild(kind: str, make: Callable[[random.Random], fuzz_wild.Wild]) -> Callable[[random.Random], Input]:
    return lambda rng: Input(kind, *make(rng))


KINDS |= {
    name: (weight, _wild(name, make))
    for name, weight, make in (*fuzz_wild.wild_kinds(CORPUS), *fuzz_more.more_kinds())
}


def make_input(seed: int, number: int, kind: str | None = None) -> Input:
    """Return input `number` of a seed; the same always."""
    rng = random.Random(f"{seed}/{number}")
    names = list(KINDS)
    chosen = kind or rng.choices(names, weights=[KINDS[name][0] for name in names])[0]
    return KINDS[chosen][1](rng)


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
    for name, how in given.odd:
        fuzz_wild.make_place(Path(name), how)
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
            and not all(line.startswith(("Warning", "Note")) for line in lines[:-1])
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
    try:
        if given.arguments[0] in ("compare", "roofline"):
            est = cm.estimate(**keywords)
            answer = cm.compare(est, est) if given.arguments[0] == "compare" else cm.roofline(est)
        else:
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
    if "json" in given.arguments and printed.strip():
        numbers = list(_numbers(json.loads(printed)))
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
    CORPUS.extend(asked.corpus)
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
