"""Fit the constants of inference engines to published decode timings, and say how far the model is off.

``python tools/fit/fit_engines.py TABLE [--write]``: TABLE is a CSV with a row a measured point and the columns
source, engine, engine_version, accelerator, gpus, model, family, precision, tp, ep, dp, mode, input_len, output_len (tokens),
concurrency, batch_running, itl_ms, output_tok_s_total and notes. No such table is part of this repository. Host
time of a step and of a sequence, time of a kernel, latency of an all-reduce, and what prefills take beyond theirs,
per engine and generation of accelerators; every logarithm is drawn towards the pooled one, and every (source,
engine, GPU, model) counts alike, however many rows it has.
Whole steps of reinforcement learning are never looked at.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import poisson

import costmodel as cm
from costmodel.describe.models.model import Model, make_model
from costmodel.generation import memory
from costmodel.generation.decode import decode_step
from costmodel.generation.deployment import Deployment, Engine, Split, engine_of, number_format

Array = NDArray[np.float64]

CLUSTERS = {
    "h100-sxm-80gb": "dgx-h100-ndr",
    "h200-sxm-141gb": "dgx-h200-ndr",
    "b200": "hgx-b200-ndr",
    "b300": "hgx-b300-xdr",
    "gb200": "gb200-nvl72-ndr",
}
PROMPTS = {"chat": 250.0, "gpqa": 250.0, "fim": 1500.0}
"""Tokens of prompts where the source names a data set only. Assumed."""
LENGTHS_DRAWN = {"inferencex": 0.9}
"""Mean over nominal length where lengths are drawn from 80 to 100 % of it."""
SCALE, INFERRED_SCALE = 0.15, 0.5
"""Logarithmic errors of a point, and of one whose running batch is not printed but follows from the memory. [-]"""
MOST_RUNNING = 2048.0
"""``max_batch_size`` of TensorRT-LLM's benchmark, a rank of attention data parallelism. [-]"""
QWEN35 = {
    "name": "qwen3.5-397b-a17b", "num_layers": 60, "hidden_size": 4096, "vocab_size": 248320, "attention": "gqa",
    "num_heads": 32, "num_kv_heads": 2, "head_dim": 256, "qk_norm": True, "attention_gate": True,
    "attention_pattern": "dddf" * 15, "num_experts": 512, "top_k": 10, "expert_ffn_size": 1024,
    "shared_expert_ffn_size": 1024, "shared_expert_gate": True, "norm": "rmsnorm", "position": "rope", "gated_mlp": True,
    "mixers": {"d": {"kind": "gated-delta", "key_heads": 16, "value_heads": 64, "key_head_dim": 128,
                     "value_head_dim": 128, "conv_kernel": 4}},
}  # fmt: skip


class Point(NamedTuple):
    """A measured point as the model sees it."""

    source: str
    engine: str
    gpu: str
    model: str
    precision: str
    served: Deployment
    split: Split
    batch: float
    context: float
    prompt: float
    response: float
    itl_s: float
    rate: float
    """Tokens a second and GPU; 0 where not printed."""
    stalled: bool
    """The source's own p90 is far above its median: hosts that stopped; scored, not fitted."""
    what: str
    """``itl``: mean time between tokens; ``typical``: its median; ``rate``: batch over tokens a second."""
    scale: float
    """Logarithmic error beyond which a point counts by its root. [-]"""


@cache
def _model(name: str) -> Model:
    return make_model(QWEN35) if name == QWEN35["name"] else cm.load_model(name)


@cache
def _cluster(name: str) -> Any:
    return cm.load_cluster(CLUSTERS[name])


def _model_name(name: str) -> str:
    short = name.split("/")[-1].lower()
    for start, ours in (
        ("deepseek-", "deepseek-v3"),
        ("llama-3.1-8b", "llama3-8b"),
        ("llama-3.1-70b", "llama3-70b"),
    ):
        if short.startswith(start):
            return ours
    return "qwen3-30b-a3b" if "30b-a3b" in short else short


def left_out(row: dict[str, str]) -> str:
    """Return why a row cannot be scored; empty where it can."""
    if row["accelerator"] == "gb200" and int(row["gpus"]) > 8:
        return "prefill and decode on GPUs of their own: those that decode are not printed"
    if row["engine"] == "trtllm" and row["model"].endswith("DeepSeek-R1") and row["itl_ms"]:
        return "multi-token prediction: half the time of the same setting's DeepSeek-V3 row"
    return ""


def split_of(row: dict[str, str]) -> Split:
    """Return the GPUs of a row; some sources print EP times TP for their number."""
    gpus, tp, ep, dp = (int(row[key]) for key in ("gpus", "tp", "ep", "dp"))
    if ep > 1 and gpus == ep * ep:
        gpus, tp, dp = ep, (1 if dp > 1 else ep), (ep if dp > 1 else 1)
    elif dp > 1:
        tp = max(gpus // dp, 1)
    return Split(tp=float(tp), pp=1.0, ep=float(tp * dp if dp > 1 else ep), dp=float(dp))


def read_points(path: Path) -> list[Point]:
    """Return the points of a table that can be scored, each once: lists of one source repeat a run with fewer digits."""
    points: dict[tuple[Any, ...], Point] = {}
    with path.open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            if not left_out(row):
                for point in _points(row):
                    seconds = (f"{value:.3g}" for value in (point.itl_s, point.rate))
                    points[(*point[:5], *point.split, *point[7:11], *seconds, point.what)] = point
    return list(points.values())


def _points(row: dict[str, str]) -> Iterable[Point]:
    name = _model_name(row["model"])
    model, cluster, split = _model(name), _cluster(row["accelerator"]), split_of(row)
    stored = {"fp4": "nvfp4"}.get(row["precision"], row["precision"])
    if name.startswith("gpt-oss"):
        stored = "mxfp4"
    if not model.num_experts:
        split = split._replace(ep=1.0)
    # TensorRT-LLM keeps the cache in 8 bits where weights are.
    cache_bytes = 1.0 if row["engine"] == "trtllm" and stored != "bf16" else 2.0
    served = Deployment(
        model, cluster, number_format(stored), engine_of(row["engine"], "any"), cache_bytes=cache_bytes
    )
    scale = LENGTHS_DRAWN.get(row["family"], 1.0)
    engine = row["engine"]
    release = tuple(int(part) for part in row["engine_version"].split(".")[:2] if part.isdigit())
    if engine == "vllm" and release < VLLM_SINCE:
        engine = "vllm-sync"
    prompt = float(row["input_len"] or 0) or next(v for k, v in PROMPTS.items() if k in row["mode"])
    response = float(row["output_len"])
    batch = float(row["batch_running"] or row["concurrency"])
    context = scale * (prompt + response / 2.0)
    if row["mode"].startswith("offline"):
        fits = float(memory.largest_batch(served, split, context))
        batch = min(batch, fits, MOST_RUNNING * float(split.dp))
    point = Point(
        row["source"], engine, row["accelerator"], name, stored, served, split, batch, context,
        scale * prompt, scale * response, float(row["itl_ms"] or 0) * 1e-3,
        float(row["output_tok_s_total"] or 0) / float(split.gpus), "stalls" in row["notes"], "itl",
        INFERRED_SCALE if row["mode"].startswith("offline") else SCALE,
    )  # fmt: skip
    if not point.itl_s:
        yield point._replace(what="rate")
    elif row["mode"].startswith("serve, closed"):
        yield point
    else:
        # Printed is the median: prompts come at random, and the median step bears a whole number of them.
        prompts = float(poisson.median(batch / response))
        bears = {"response": batch / prompts} if prompts else {"prompt": 0.0}
        yield point._replace(what="typical", **bears)
        yield point._replace(what="rate", itl_s=0.0)


ENGINES_TABLE = Path(cm.__file__).parent / "generation" / "engines.csv"
TABLES = {
    "inter-token latency by engine and GPU": (
        "engine",
        "gpu",
    ),
    "inter-token latency by source": ("source",),
    "inter-token latency": (),
    "step by rate (offline, and mean rates beside medians)": ("source", "gpu"),
    "step by rate, all": (),
}
FITTED = ("step_s", "sequence_s", "kernel_s", "all_reduce_s", "exchange_s", "prefill_factor")
START = {
    "step_s": 1.5e-3,
    "sequence_s": 40e-6,
    "kernel_s": 3e-6,
    "all_reduce_s": 7e-6,
    "exchange_s": 20e-6,
    "prefill_factor": 1.2,
}
STIFFNESS = 0.25
"""Standard deviation of the logarithm of a cell's constant around the pooled one: of 0.15, 0.2, 0.25 and 0.4, tried once by
hand, the one whose errors were least (p90) with sources left out. [-]"""


LOOSE = np.asarray([0.6, 0.6, 0.6, 0.6, 0.4, 0.4])
"""The same of the pooled constants around `START`, which is what single kernels and hosts are known to take. [-]"""


OVERLAP = ("sglang", "trtllm", "vllm")
"""Engines whose host works on the sequences of one step while the GPU works on another: SGLang's and TensorRT-LLM's
schedulers, and vLLM's since 0.14 (vllm-project/vllm PR 27614)."""
VLLM_SINCE = (0, 14)


class Parts(NamedTuple):
    """Seconds of a point that no fitted constant touches, and what each of them multiplies."""

    fixed: Array
    slopes: Array


def parts_of(points: Sequence[Point]) -> Parts:
    """Price the points once at constants of zero and one."""
    fixed, slopes = [], []
    for point in points:
        zero = dict.fromkeys(FITTED, 0.0) | {"prefill_factor": 1.0}
        base = _seconds(point, zero)
        slope = []
        for name in FITTED:
            unit = START[name] if name != "prefill_factor" else 1.0
            moved = _seconds(point, zero | {name: zero[name] + unit})
            slope.append((moved - base) / unit)
        fixed.append(base - slope[-1])
        slopes.append(slope)
    return Parts(np.asarray(fixed), np.asarray(slopes))


def _seconds(point: Point, constants: dict[str, float]) -> float:
    spans = point.served.engine.all_reduce_gpus
    engine = Engine("any", "any", **constants, all_reduce_gpus=spans, overlaps=False, spread=0.0, basis="")
    served = replace(point.served, engine=engine)
    bill = decode_step(
        served, point.split, point.batch, point.context, prompt=point.prompt, response=point.response
    )
    return float(bill.step_time_s())


def measured_s(point: Point) -> float:
    """Return the inter-token latency, or the time of a step that a rate stands for. [s]"""
    return point.itl_s or point.batch / (point.rate * float(point.split.gpus))


def cell_of(point: Point) -> tuple[str, str]:
    """Return what has constants of its own."""
    return point.engine, _cluster(point.gpu).accelerator.generation


def fit(points: Sequence[Point], parts: Parts) -> dict[tuple[str, str], dict[str, float]]:
    """Return constants by engine and generation, and those of ``any``."""
    cells = sorted({cell_of(point) for point in points})
    at = np.asarray([cells.index(cell_of(point)) for point in points])
    groups = Counter((p.source, p.engine, p.gpu, p.model) for p in points)
    weight = np.asarray([groups[(p.source, p.engine, p.gpu, p.model)] for p in points]) ** -0.5
    weight *= np.sqrt(len(points) / np.sum(weight**2))
    truth, scale = np.log([measured_s(point) for point in points]), np.asarray([p.scale for p in points])
    number = len(FITTED)

    def residuals(x: Array) -> Array:
        pooled, own = x[:number], x[number:].reshape(len(cells), number)
        constants = np.exp(pooled + own)[at]
        made = np.log(_made(points, parts, constants))
        return np.concatenate(
            [_soft(made - truth, scale) * weight, (own / STIFFNESS).ravel(), (pooled - first) / LOOSE]
        )

    first = np.log([START[name] for name in FITTED])
    start = np.concatenate([first, np.zeros(len(cells) * number)])
    x = least_squares(residuals, start).x
    pooled, own = x[:number], x[number:].reshape(len(cells), number)
    found = {cell: dict(zip(FITTED, np.exp(pooled + own[i]), strict=True)) for i, cell in enumerate(cells)}
    return found | {("any", "any"): dict(zip(FITTED, np.exp(pooled), strict=True))}


def _soft(error: Array, scale: Array) -> Array:
    """Return errors in units of `scale`, large ones counted by their root."""
    z = error / scale
    return np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z * z) - 1.0))


def predicted(
    points: Sequence[Point], parts: Parts, constants: dict[tuple[str, str], dict[str, float]]
) -> Array:
    """Return the seconds of a step of every point; cells without constants take the nearest pooled ones."""
    rows = []
    for point in points:
        engine, generation = cell_of(point)
        cell = constants.get((engine, generation)) or constants[("any", "any")]
        rows.append([cell[name] for name in FITTED])
    return _made(points, parts, np.asarray(rows))


def _made(points: Sequence[Point], parts: Parts, constants: Array) -> Array:
    """Return the seconds of every point at its constants."""
    each = parts.slopes * constants
    host_s = each[:, FITTED.index("sequence_s")]
    gpu_s = parts.fixed + np.sum(each, axis=1) - host_s - each[:, FITTED.index("step_s")]
    overlaps = np.asarray([point.engine in OVERLAP for point in points])
    return parts.fixed + np.sum(each, axis=1) - np.where(overlaps, np.minimum(host_s, gpu_s), 0.0)


def table(points: Sequence[Point], ratio: Array, keys: Sequence[str]) -> Iterable[str]:
    """Yield a line for each value of `keys`: points, median and p90 of the error, median ratio."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for point, value in zip(points, ratio, strict=True):
        groups.setdefault(tuple(str(getattr(point, key)) for key in keys), []).append(value)
    for key, values in sorted(groups.items()):
        error = np.abs(np.asarray(values) - 1.0)
        yield (
            f"{' '.join(key):50s} {len(values):4d}  median {np.median(error):6.1%}  p90 {np.quantile(error, 0.9):6.1%}"
            f"  ratio {np.median(values):.2f}"
        )


def spread_of(ratio: Array) -> float:
    """Return the deviation whose 80 % band holds 80 % of the ratios. [-]"""
    return float(np.quantile(np.abs(np.log(ratio)), 0.8) / 1.2816)


def fitted(
    points: Sequence[Point], parts: Parts, without: str = ""
) -> dict[tuple[str, str], dict[str, float]]:
    """Fit to points that do not stall and are not of a source."""
    keep = [i for i, point in enumerate(points) if not point.stalled and point.source != without]
    return fit([points[i] for i in keep], Parts(parts.fixed[keep], parts.slopes[keep]))


def write(
    points: Sequence[Point],
    ratio: Array,
    ratio_left_out: Array,
    constants: dict[tuple[str, str], dict[str, float]],
) -> None:
    """Write ``engines.csv``: cells, engines on chips without timings, and engines without any."""
    rows = []
    for engine in sorted({point.engine for point in points}):
        cells = {key: value for key, value in constants.items() if key[0] == engine}
        mean = {
            name: float(np.exp(np.mean([np.log(cell[name]) for cell in cells.values()]))) for name in FITTED
        }
        for (_, generation), cell in [*cells.items(), ((engine, "any"), mean)]:
            here = [i for i, p in enumerate(points) if cell_of(p) == (engine, generation)]
            basis = f"fitted to {engine} on {generation}"
            used = ratio[here]
            if generation == "any":
                here, basis = (
                    [i for i, p in enumerate(points) if p.engine == engine],
                    f"mean of {engine}'s generations",
                )
                used = ratio_left_out[here]
            rows.append((engine, generation, cell, here, spread_of(used), basis))
    everything = list(range(len(points)))
    rows.append(
        (
            "any",
            "any",
            constants[("any", "any")],
            everything,
            spread_of(ratio_left_out),
            "pooled over engines",
        )
    )
    with ENGINES_TABLE.open("w", encoding="utf-8", newline="") as target:
        out = csv.writer(target, lineterminator="\n")
        out.writerow(
            ["engine", *FITTED, "all_reduce_gpus", "overlaps", "spread", "points", "sources", "basis"]
        )
        for engine, generation, cell, here, spread, basis in rows:
            numbers = [f"{cell[name]:.3g}" for name in FITTED]
            sources = sorted({points[i].source for i in here})
            overlaps = "false" if engine == "vllm-sync" else "true"
            out.writerow(
                [
                    f"{engine} {generation}",
                    *numbers,
                    "inf" if engine == "trtllm" else "0",
                    overlaps,
                    f"{spread:.2f}",
                    len(here),
                    " ".join(sources),
                    basis,
                ]
            )


def main() -> None:
    """Fit, print, and write on demand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true", help="replace costmodel/generation/engines.csv")
    parser.add_argument("--worst", type=int, default=0, help="print so many of the points farthest off")
    given = parser.parse_args()
    points = read_points(given.table)
    parts, truth = parts_of(points), np.asarray([measured_s(point) for point in points])
    constants = fitted(points, parts)
    ratio = predicted(points, parts, constants) / truth
    left_out_ratio = np.empty(len(points))
    for source in {point.source for point in points}:
        rest = predicted(points, parts, fitted(points, parts, source)) / truth
        here = [i for i, point in enumerate(points) if point.source == source]
        left_out_ratio[here] = rest[here]
    for cell, values in constants.items():
        print(*cell, *(f"{name} {values[name]:.3g}" for name in FITTED))
    for title, keys in TABLES.items():
        chosen = [i for i, p in enumerate(points) if (p.what == "rate" and not p.itl_s) == ("rate" in title)]
        some = [points[i] for i in chosen]
        print(f"\n{title}", *table(some, ratio[chosen], keys), sep="\n")
        print("  with the source left out", *table(some, left_out_ratio[chosen], keys), sep="\n")
    for index in np.argsort(-np.abs(np.log(ratio)))[: given.worst]:
        p = points[index]
        print(
            p.engine,
            p.gpu,
            p.model,
            p.precision,
            *map(float, p.split),
            p.batch,
            p.prompt,
            p.response,
            f"{truth[index] * 1e3:.2f} {ratio[index]:.2f}",
        )
    if given.write:
        write(points, ratio, left_out_ratio, constants)


if __name__ == "__main__":
    main()
