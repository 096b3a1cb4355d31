"""Malformed input at every door is one short line: no traceback, no second line, no infinite number, no endless wait.

`FUZZ=10000 pytest tests/cli/test_fuzz.py` tries as many of each kind as wanted, `FUZZ_SEED=WORD` others, `FUZZ_FILES=FOLDER`
real files besides those of `tests/data`; a failure names its number.
"""

import contextlib
import io
import json
import os
import random
import re
import signal
import traceback
from functools import cache, reduce
from pathlib import Path
from urllib.parse import urlencode

import pytest
import typer

import costmodel as cm
from costmodel.app import serve
from costmodel.app.state import FIGURES, VIEWS
from costmodel.app.tools import TOOLS
from costmodel.base.answer import to_json
from costmodel.cli import main, root

TESTS = Path(__file__).parents[1]
COUNT, SEED = int(os.environ.get("FUZZ", "30")), os.environ.get("FUZZ_SEED", "")
LIMIT_S = 5.0
JOB = {"model": "dense-1b", "gpus": 8, "global_batch": 16, "seq_len": 2048}
FLAGS = "-m dense-1b -n 8 --global-batch 16 --seq-len 2048"
NUMBERS = "0 -1 1 3 7 2147483648 -0.5 1e-300 1e300 nan inf -inf 32k 15T 0x10 1_000 ٣ 𝟠 8,16 1:8"
TEXTS = "x tp2 .. / ~ /dev/null * ${X $(date) ' \" \\ llama3-8b no-such-model h100 nemo deepspeed"
VALUES = (
    10**400,
    float("nan"),
    float("inf"),
    True,
    None,
    "",
    " ",
    "80 GiB",
    "-5 GB/s",
    "\x1b[31m",
    "a\nb",
    "y" * 5000,
)
NESTED = ([], {}, [[]], [0], ["tp", 2], {"value": -1}, {"a": {"b": []}}, [None, "x"], {1: 2}, ["all"] * 30)
ODD = (*VALUES, *NUMBERS.split(), *TEXTS.split(), *map(int, ["0", "-1", "1", "2", "3", "7"]), *NESTED)
GOOD = ["1", "2", "4", "1,2", "json", "csv", "o.json", "1GB", "10us", "5s", "1e9", "dense-1b", "f.yaml"]
CONFIG = (
    '{"model_type": "%s", "hidden_size": 1024, "moe_intermediate_size": 512, "num_hidden_layers": 8, "head_dim": 64,'
    '"num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 16, "num_experts_per_tok": 4, "vocab_size": 32000,'
    '"decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": 4096, "layer_types": ["full_attention"]}'
)
FAMILIES = "llama qwen3_moe mixtral deepseek_v3 gpt_oss gemma3 glm4_moe falcon gpt2 jamba nemotron_h qwen3_next unknown"
SCRIPT = """GPUS=8
ARGS=(--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048
    --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16)
if [ -n "$EXTRA" ]; then ARGS+=(--use-distributed-optimizer); fi
torchrun --nproc_per_node $GPUS --nnodes ${SLURM_NNODES:-1} pretrain_gpt.py "${ARGS[@]}"
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
"""
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "overlap_comm": true}, "bf16": {}}'
STEPS = "name,model,gpus,global_batch,seq_len,tp,step_time_s\na,llama3-8b,8,16,2048,2,0.5\nb,llama3-8b,8,32,2048,2,1\n"
KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "ts": 1,
    "dur": 10,
    "pid": 0,
    "tid": 7,
    "args": {"device": 0},
}


def real_files():
    folders = (TESTS / "data", *map(Path, filter(None, [os.environ.get("FUZZ_FILES")])))
    found = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in found if 0 < path.stat().st_size <= 100_000]


@cache
def good_files():
    """Good files by kind, each with its name and the commands that read it."""
    profiles = TESTS.parent / "hardware_profiles"
    hardware = ("hardware check FILE", "hardware show ./FILE", f"estimate {FLAGS} -c FILE")
    model = ("model show FILE", f"estimate {FLAGS} -m FILE", "read FILE --format json")
    job = json.dumps({**JOB, "layout": "tp2 pp2", "switches": {"dp_overlap": "none"}, "tokens": "1T"})
    grid = json.dumps({**JOB, "gpus": [8, 16], "tp": [1, 2], "pp": 1, "micro_batch": 1})
    reads = ("read FILE", "read FILE --gpus 8 --format json", "estimate FILE --gpus 8")
    runs = "\n".join((TESTS / "published" / "runs.csv").read_text().splitlines()[:5])
    return {
        "job": [("f.yaml", job, ("estimate FILE --format json", "read FILE", "mesh FILE", "run FILE"))],
        "config": [("config.json", CONFIG % name, model) for name in FAMILIES.split()],
        "profile": [
            ("f.yaml", (profiles / f"{name}.yaml").read_text(), hardware)
            for name in ("accelerators/l40s", "clusters/dgx-a100-hdr")
        ],
        "grid": [("f.yaml", grid, ("sweep FILE -q", "sweep FILE --format json"))],
        "script": [("train.sh", SCRIPT, reads), ("f.toml", TITAN, reads), ("ds.json", DEEPSPEED, reads)],
        "table": [("f.csv", runs, ("validate FILE",)), ("f.csv", STEPS, ("observed calibrate runs FILE",))],
        "trace": [("f.json", json.dumps({"traceEvents": [KERNEL] * 3}), ("profile FILE",))],
        "real": [(path.name, path.read_text(errors="replace"), ("read FILE",)) for path in real_files()],
    }


def places(value, way=()):
    yield way
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*way, key))


def with_odd_value(rng, text):
    document = json.loads(text)
    ways = [way for way in places(document) if way]
    if not ways:
        raise ValueError("a table without keys")
    *way, last = rng.choice(ways)
    holder = reduce(lambda value, key: value[key], way, document)
    if rng.random() < 0.15:
        del holder[last]
    else:
        holder[f"{last}s" if isinstance(holder, dict) and rng.random() < 0.2 else last] = rng.choice(ODD)
    return json.dumps(document, indent=1)


def slipped(rng, text):
    """Change a text as an editor's slip does."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    line = lines[at]
    place = rng.randrange(len(line) + 1)
    lines[at : at + 1] = rng.choice(
        (
            [],
            [line, line],
            [re.sub(r"-?\d+(\.\d+)?", lambda _: str(rng.choice(ODD)), line, count=1)],
            [line[:place] + str(rng.choice(ODD))],
            [line[:place] + rng.choice("[]{}()\"'$\\#:,=&*!|>%@`\t\x00é") + line[place:]],
        )
    )
    return "\n".join(lines)


def changed_file(rng, kind):
    """A command line, and the file that it reads with a slip or two."""
    name, text, uses = rng.choice(good_files()[kind])
    for _ in range(rng.choice((1, 1, 2, 3))):
        with contextlib.suppress(ValueError):
            text = with_odd_value(rng, text) if text[:1] == "{" and rng.random() < 0.7 else slipped(rng, text)
    data = text.encode("utf-8", "replace")
    torn = (text.encode("utf-16", "replace"), data[: rng.randrange(len(data) + 1)], rng.randbytes(200))
    Path(name).write_bytes(rng.choice((*[data] * 20, *torn)))
    return rng.choice(uses).replace("FILE", name).split()


@cache
def commands():
    """Every command with its flags, and whether each takes a value; no server, and nothing that waits for a job."""
    found = []

    def walk(words, command):
        context = command.make_context(" ".join(words), [], resilient_parsing=True)
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                if name not in ("serve", "measure", "watch"):
                    walk((*words, name), command.get_command(context, name))
        else:
            options = [
                one for one in command.params if one.param_type_name == "option" and "--html" not in one.opts
            ]
            found.append(
                (
                    words,
                    [(flag, not one.is_flag) for one in options for flag in (*one.opts, *one.secondary_opts)],
                )
            )

    walk((), typer.main.get_command(root))
    return found


def odd_flags(rng):
    """A command with any of its flags, in any order, some twice."""
    Path("f.yaml").write_text("model: dense-1b\ngpus: 8\n")
    words, flags = rng.choice(commands())
    line = [*words, *(FLAGS.split() if "--global-batch" in dict(flags) else ())]
    line += ["--tp", "1", "--pp", "1", "--micro-batch", "1"] * (words == ("plan",)) + ["f.yaml"] * (
        words[0] == "validate"
    )
    for flag, takes_value in rng.choices(flags, k=rng.choice((1, 2, 4))):
        line += [flag, str(rng.choice(GOOD if rng.random() < 0.7 else ODD))] if takes_value else [flag]
    line += rng.choices(
        ("all-reduce", "dense-1b", "h100-sxm-80gb", "f.yaml", str(rng.choice(ODD))), k=rng.randrange(2)
    )
    return [word.replace("\x00", "") for word in line]


CALLS = {
    "estimate": JOB,
    "run": {**JOB, "tp": 2, "tokens": "1e10", "samples": 20},
    "mesh": {"gpus": 8, "layout": "tp2"},
    "collective": {"name": "all-reduce", "size_bytes": "1GB", "ranks": 16},
    "budget": {"dollars": 1e6},
    "load_model": {"name": "dense-1b"},
    "load_cluster": {"name_or_path": "dgx-h100-ndr"},
}
KEYWORDS = ["tp", "pp", "cp", "ep", "layout", "switches", "precision", "recompute", "zero_stage", "days"]


def odd_call(rng):
    """What the package, the page or a tool for assistants is asked with values of any type, as a function."""
    odd = {rng.choice(KEYWORDS): rng.choice(ODD) for _ in range(rng.randint(1, 2))}
    door = rng.choice(("python", "page", "tool"))
    if door == "page":
        state = {
            **JOB,
            **odd,
            rng.choice(("b.gpus", "run.days", "view", "line", "x")): rng.choice((*ODD, *VIEWS, *FIGURES)),
        }
        question = rng.choice(("answer", "warnings", "line", "job", "csv", "model"))
        return lambda: served(serve.answer(question, urlencode(state, errors="replace")))
    if door == "tool":
        tool = rng.choice([tool for tool in TOOLS if not tool.is_long])
        keywords = {"first": JOB, "second": odd} if tool.name == "compare" else {**JOB, **odd}
        return lambda: to_json(tool.ask(keywords).record) and None
    name = rng.choice(list(CALLS))
    keywords = {**CALLS[name], **(odd if name in ("estimate", "run", "mesh") else {})}
    keywords[rng.choice(list(keywords))] = rng.choice(ODD)

    def call():
        answer = getattr(cm, name)(**keywords)
        if isinstance(answer, cm.Answer) and not getattr(answer, "shape", ()):
            json.dumps(answer.to_dict(), allow_nan=False)

    return call


def served(record):
    assert "this is a bug" not in record.get("error", "")
    json.dumps(record, allow_nan=False)


def problem(run, line=()):
    """Return what a user should not have seen of a call, or nothing."""
    out, err = io.StringIO(), io.StringIO()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run()
    except cm.CostModelError as error:
        code = 2
        err.write(f"Error: {error}")
    except (Exception, SystemExit) as error:
        return "".join(traceback.format_exception(error)[-3:])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    said, printed = err.getvalue(), out.getvalue()
    if code not in (None, 0, 2, 3):
        return f"exit code {code}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said + printed):
        return "control characters"
    if code == 2:
        *others, last = said.strip("\n").split("\n")
        before = ("Warning", "Note", "Assumed", *(("Error",) if line[:2] == ["hardware", "check"] else ()))
        if not all(one.startswith(before) for one in others) and line[:2] != ["hardware", "check"]:
            return f"more than one line: {said}"
        return "" if len(last + printed) > 0 and len(last) <= 300 else f"nothing, or too long: {last}"
    finite = (
        line[:1]
        and line[0] in ("estimate", "run", "budget", "collective", "mesh")
        and not re.search("nan|inf", str(line))
    )
    return (
        f"no number in {printed}"
        if finite and re.search(r"(?<![\w.-])(nan|inf)(?![\w-])|NaN|Infinity", printed)
        else ""
    )


@pytest.mark.parametrize("kind", [*good_files(), "flags", "call"])
def test_what_is_malformed_is_one_short_line(kind, tmp_path, monkeypatch):
    def too_long(*_):
        raise TimeoutError(f"over {LIMIT_S} s of processor time")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGVTALRM, too_long)
    try:
        for number in range(COUNT):
            rng = random.Random(f"{SEED}{kind}/{number}")
            if kind == "call":
                found = problem(odd_call(rng))
            else:
                line = odd_flags(rng) if kind == "flags" else changed_file(rng, kind)
                found = problem(lambda line=line: main(line), line)
            assert not found, (number, found)
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_the_net_finds_what_it_is_for():
    def saying(text, code):
        return lambda: print(text, end="", file=__import__("sys").stderr) or code

    assert not problem(saying("Error: x\n", 2))
    for text, code in (("Error: x\ny\n", 2), ("Error: " + "x" * 400, 2), ("", 2), ("\x1b[31m", 0), ("", 1)):
        assert problem(saying(text, code))
    assert "ZeroDivisionError" in problem(lambda: 1 / 0)
    assert problem(lambda: print("nan"), ["estimate"])
