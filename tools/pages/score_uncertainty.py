"""How well stated probabilities hold on published runs: step time by class, memory, and sweeps of layouts.

    python tools/pages/score_uncertainty.py RUNS.csv [--curve CURVE.csv]

Each run is priced at samples of its uncertain factors; where the measured step lies among them is its place, between 0
and 1. Constants of recipes are fitted without the run's family of sources; `strict` are intervals whose spreads are too.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from costmodel.base.errors import CostModelError
from costmodel.describe.factors import draw, factor_name, factors, factors_of, job_class
from costmodel.estimates.estimate import estimate_job
from costmodel.estimates.priced_job import error_bands
from costmodel.planning.uncertain import Odds, sweep_scales
from costmodel.step.price import price
from costmodel.trust.published_runs import job_of_row, read_rows
from costmodel.trust.validation import validate

sys.path.append(str(Path(__file__).parents[1] / "fit"))
from factor_runs import interval_reach, known_variance, layout_parts, slopes
from fit_factors import Runs, residual_runs, unexplained

SAMPLES = 1000
LEAST_RUNS, LEAST_LAYOUTS = 30, 6
SWEEP = ["source", "model", "gpus", "global_batch"]
KNOBS = ("tp", "pp", "cp", "ep", "zero_stage", "recompute")


def priced_samples(rows, seed: int = 0) -> pd.DataFrame:
    """Price every run at common samples: log step time over nominal, an array each; how surely it fits, as shown and sampled."""
    found = {}
    for row in rows:
        try:
            job = job_of_row(row)
        except CostModelError:
            continue
        drawn = draw(factors_of(job), SAMPLES, seed=seed)
        nominal = price(job).bill
        bill = price(replace(job, factors=drawn)).bill
        step_s = np.broadcast_to(bill.step_time_s(), (SAMPLES,))
        held = np.broadcast_to(bill.memory_bytes(), (SAMPLES,))
        own = drawn[factor_name("layout", job_class(job))]
        found[row["id"]] = {
            "time": np.log(step_s / float(nominal.step_time_s())),
            "shared": np.log(step_s / float(nominal.step_time_s()) / own),
            "fits": float(estimate_job(job).fits_probability),
            "fits_share": float(
                np.mean(
                    held <= drawn[factor_name("room", job.recipe.name)] * job.cluster.accelerator.memory_bytes
                )
            ),
            "class": job_class(job),
        }
    return pd.DataFrame.from_dict(found, orient="index")


def by_generation(frame: pd.DataFrame) -> pd.Series:
    """Return the class of runs as today's bands name it."""
    from costmodel.describe.hardware.hardware import load_accelerator

    kind = np.where(frame.num_experts > 0, "moe", "dense")
    return frame.accelerator.map(lambda name: load_accelerator(name).generation) + "-" + kind


def coverage(runs: pd.DataFrame, samples: pd.DataFrame, strict: pd.Series) -> pd.DataFrame:
    """Return a row a class: runs, share inside 80 %, median width of the interval and of today's band."""
    runs = runs.assign(of=by_generation(runs))
    quantiles = np.stack([np.quantile(one, [0.1, 0.9]) for one in samples.time[runs.index]])
    inside = (runs.residual.to_numpy() >= quantiles[:, 0]) & (runs.residual.to_numpy() <= quantiles[:, 1])
    runs = runs.assign(
        inside=inside, width=np.exp(quantiles[:, 1]) - np.exp(quantiles[:, 0]), strict=strict[runs.index]
    )
    rows = []
    for name, group in runs.groupby("of"):
        band = error_bands().time.get(str(name))
        if len(group) >= LEAST_RUNS:
            rows.append(
                {
                    "class": name,
                    "runs": len(group),
                    "families": group.source_family.nunique(),
                    "inside_80_%": 100.0 * group.inside.mean(),
                    "strict_80_%": 100.0 * group.strict.mean(),
                    "width_%": 100.0 * group.width.median(),
                    "band_today_%": 100.0 * (band.high - band.low) if band else np.nan,
                }
            )
    return pd.DataFrame(rows)


def strictly_inside(runs: Runs) -> pd.Series:
    """Tell which runs lie in intervals whose class spreads were derived without their family too."""
    spreads = {
        name: one.spread for name, one in factors().items() if one.role.name not in ("unexplained", "layout")
    }
    tail = factors()["unexplained.other"].tail
    inside = {}
    of = by_generation(runs.time)
    for family, group in runs.time.groupby("source_family"):
        rest = runs.time[runs.time.source_family != family]
        said = unexplained(runs._replace(time=rest), spreads, tail)
        known = known_variance(group, spreads)
        for name in of[group.index].unique():
            key = name if f"unexplained.{name}" in said else "other"
            left = said[f"unexplained.{key}"]
            of_layouts = said["layout"].spread * left.spread
            some = group[of[group.index] == name]
            both = np.hypot(of_layouts, left.spread)
            share = (of_layouts / both) ** 2 if both else 0.5
            reach = interval_reach(known[some.index].to_numpy(float), share, both, tail)
            inside |= dict(zip(some.index, some.residual.abs() <= reach, strict=True))
    return pd.Series(inside)


def curve(runs: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the share of runs inside the middle 10 % to 90 %, all and by class of enough runs."""
    places = pd.Series(
        [np.mean(samples.time[name] <= value) for name, value in runs.residual.items()], index=runs.index
    )
    middle = (2.0 * places - 1.0).abs()
    levels = np.arange(0.1, 0.95, 0.1)
    of = by_generation(runs)
    table = {"stated": levels, "all": [(middle <= level).mean() for level in levels]}
    for name, group in middle.groupby(of):
        if len(group) >= LEAST_RUNS:
            table[str(name)] = [(group <= level).mean() for level in levels]
    return pd.DataFrame(table).round(4)


def fitting(priced: pd.DataFrame, stated_by: pd.Series) -> pd.DataFrame:
    """Return what share of jobs fitted, by the probability stated, of sources that say what did not."""
    both = priced.groupby("source").filter(lambda rows: rows.oom.any() and not rows.oom.all())
    stated = stated_by[both.index]
    bins = pd.cut(stated, [-0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.86, 0.94, 1.0])
    ran = ~both.oom.astype(bool)
    table = pd.DataFrame({"stated": stated, "ran": ran}).groupby(bins, observed=True).agg(["mean", "size"])
    return pd.DataFrame(
        {
            "runs": table["ran"]["size"],
            "stated_%": 100 * table["stated"]["mean"],
            "ran_%": 100 * table["ran"]["mean"],
        }
    )


def sweeps(runs: pd.DataFrame, samples: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return a row a sweep: whether the layouts to try, and the pick, held the best, and regret stated and real.

    What layouts differ by is that of other families of sources.
    """
    gpus = runs[runs.is_gpu]
    left_out = {
        family: layout_parts(gpus[gpus.source_family != family]) for family in set(runs.source_family)
    }
    generator = np.random.default_rng(seed)
    rows = []
    for key, group in runs.groupby(SWEEP):
        if len(group) < LEAST_LAYOUTS:
            continue
        parts = left_out[group.source_family.iloc[0]]
        logs = np.stack(samples.shared[group.index], axis=1)
        scales = sweep_scales(SAMPLES, seed)
        for knob in KNOBS:
            values = group.layout.str.extract(rf"(?:^| ){knob}([^ ]*)", expand=False).fillna("")
            codes, distinct = pd.factorize(values)
            logs = logs + scales * parts[knob] * generator.standard_normal((SAMPLES, len(distinct)))[:, codes]
        predicted = group.predicted_step_time_s.to_numpy(float)
        seen = predicted * np.exp(logs + scales * parts["run"] * generator.standard_normal(logs.shape))
        fits = np.ones(seen.shape, dtype=bool)
        found = Odds(np.arange(len(group)), seen, seen, fits, {}, tuple(range(len(group))))
        tried = found.chosen()
        measured = group.measured_step_time_s.to_numpy(float)
        pick = int(np.argmin(predicted))
        rows.append(
            {
                **dict(zip(SWEEP, key, strict=True)),
                "layouts": len(group),
                "tried": len(tried),
                "tried_hold_best": bool(np.argmin(measured) in tried),
                "three_fastest_hold_best": bool(np.argmin(measured) in np.argsort(predicted)[:3]),
                "pick_is_best": bool(np.argmin(measured) == pick),
                "stated_%": 100.0 * found.holds(tried),
                "real_regret_%": 100.0 * (measured[pick] / measured.min() - 1.0),
                "expected_regret_%": 100.0 * found.regret([pick]),
                "real_regret_of_tried_%": 100.0 * (measured[tried].min() / measured.min() - 1.0),
                "expected_regret_of_tried_%": 100.0 * found.regret_after(tried),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Print the tables, and write the calibration curve where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument(
        "--curve", type=Path, help="CSV of the calibration curve, for the notebook on validation"
    )
    options = parser.parse_args()
    rows = list(read_rows(options.runs))
    runs = residual_runs(validate(options.runs), slopes(rows))
    samples = priced_samples(rows)
    print(coverage(runs.time, samples, strictly_inside(runs)).round(1).to_string(index=False))
    made = curve(runs.time, samples)
    print(f"\n{(100 * made).round(1).to_string(index=False)}")
    for by in ("fits", "fits_share"):
        print(f"\n{by}\n{fitting(runs.priced, samples[by]).round(1).to_string()}")
    table = sweeps(runs.time, samples)
    print(f"\n{table.round(1).to_string(index=False)}\n")
    print(
        table.select_dtypes(["bool", "number"])
        .drop(columns=["gpus", "global_batch"])
        .mean()
        .round(3)
        .to_string()
    )
    if options.curve:
        made.to_csv(options.curve, index=False)


if __name__ == "__main__":
    main()
