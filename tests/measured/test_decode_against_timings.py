"""Inter-token latency against published timings: mean ratios by engine, GPU, attention and batch, no row alone."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

import costmodel as cm
from costmodel.generation.decode import decode_step
from costmodel.generation.deployment import Deployment, Split, engine_of, number_format

ROWS = Path(__file__).with_name("decode_steps.csv")


def ratios():
    """Return predicted over measured seconds of a token of every row, beside the row."""
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            cluster = cm.load_cluster(row["cluster"])
            served = Deployment(
                cm.load_model(row["model"]),
                cluster,
                number_format(row["precision"]),
                engine_of(row["engine"], cluster.accelerator.generation),
                cache_bytes=float(row["cache_bytes"]),
            )
            split = Split(tp=float(row["tp"]), ep=float(row["ep"]), dp=float(row["dp"]))
            prompts = {name: float(row[name]) for name in ("prompt", "response")}
            bill = decode_step(served, split, float(row["batch"]), float(row["context"]), **prompts)
            yield float(bill.step_time_s()) * 1e3 / float(row["itl_ms"]), row


def test_mean_ratios_by_class():
    classes = defaultdict(list)
    for ratio, row in ratios():
        few = "few" if float(row["batch"]) <= 16 else "many"
        apart = "apart" if float(row["dp"]) > 1 else "together"
        for name in ("all", row["engine"], row["cluster"], row["precision"], few, apart):
            classes[name].append(np.log(ratio))
    for name, logs in classes.items():
        if len(logs) < 8:
            continue
        mean, within = float(np.exp(np.mean(logs))), 0.05 if name == "all" else 0.16
        assert abs(mean - 1.0) < within, (name, mean, len(logs))
    assert np.median(np.abs(np.expm1(classes["all"]))) < 0.12
