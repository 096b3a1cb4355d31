"""What pages say of measurements, on made-up answers of round numbers; `reports_by_hand.yaml` holds the tables.

Each was looked at when it was written. One that is meant to change is written by
``python tests/unit/test_reports_by_hand.py``.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Of

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from costmodel.base.errors import CostModelError
from costmodel.base.grid import Grid, columns
from costmodel.describe.hardware.hardware import load_link
from costmodel.physics.network.fabric import Fabric
from costmodel.reporting import (
    calibration,
    comparison,
    hardware,
    imports,
    own_runs,
    profiles,
    recipes,
    runs,
    sensitivity,
    step_times,
    steps,
    training_runs,
    validation,
    watch,
)
from costmodel.reporting import mesh as meshes
from costmodel.reporting.html import page
from costmodel.trust.calibration import fabric_fit
from costmodel.trust.site_fit import FactorMove, RunFit
from costmodel.trust.validation import GROUPINGS

FILE = Path(__file__).with_name("reports_by_hand.yaml")


# --- profiles of real steps ----------------------------------------------------------------------


def a_class(name, count, busy, exposed):
    return Of(name=name, count=count, busy_s=busy, exposed_s=exposed)


def a_stream(number, overlap, mostly="matmul"):
    return Of(stream=number, count=1234, busy_s=0.5, mostly=mostly, overlap_s=overlap)


def a_group(name, bill, trace, why=""):
    return Of(
        group=name,
        bill_s=bill,
        trace_s=trace,
        difference_s=bill - trace,
        bill_exposed_s=bill / 2,
        trace_exposed_s=trace / 4,
        bill_count=1000.0,
        trace_count=2500.0,
        why=why,
    )


def beside(scales, **changes):
    said = {
        "groups": [
            a_group("attention", 0.2, 0.25, "why so"),
            a_group("odd", 0.1, 0.0),
            a_group("none", 0.0, 0.125, "b"),
        ],
        "bill_step_s": 0.9,
        "trace_step_s": 1.0,
        "job": "a job",
        "window": Of(scales=scales, layers=3.0, of_layers=1200.0),
    }
    return Of(**{**said, **changes})


def a_step(name):
    return Of(name=name, time_s=0.1, count=4321, idle_s=0.02, exposed_communication_s=0.03)


def a_profile(**changes):
    said = {
        "kind": "PyTorch profiler",
        "gpu": "H100",
        "device": 1,
        "devices": (0, 1, 3),
        "window_s": 1.0,
        "count": 12345,
        "busy_s": 0.8,
        "idle_s": 0.25,
        "gaps_s": np.array([0.1, 0.15]),
        "communication_s": 0.4,
        "exposed_communication_s": 0.1,
        "classes": [a_class("matmul", 12000, 0.6, 0.5), a_class("nccl", 345, 0.2, 0.1)],
        "copies": [a_class("copies", 12, 0.04, 0.01)],
        "streams": [
            a_stream(7, {20: 0.2, 21: 0.1}),
            a_stream(20, {7: 0.2}, "nccl"),
            a_stream(21, {}, "copies"),
        ],
        "steps": [a_step(f"step {i}") for i in range(14)],
        "told_by": "ranges",
        "families": [Of(family="x" * 91, does="unknown", count=1500, busy_s=0.1)]
        + [Of(family=f"f{i}", does="unknown", count=1, busy_s=0.0) for i in range(13)]
        + [Of(family="gemm", does="matmul", count=9, busy_s=0.1)],
        "beside": None,
        "learnt": None,
    }
    return Of(**{**said, **changes})


LEARNT = Of(
    measured=[
        Of(
            move=Of(scales="matmul", prior_center=0.0, prior_spread=0.05, center=np.log(1.1), spread=0.02),
            seen=np.log(1.2),
            scale=0.03,
        )
    ]
)
BARE = {
    "gpu": "",
    "devices": (0,),
    "device": 0,
    "gaps_s": np.array([]),
    "communication_s": 0.0,
    "exposed_communication_s": 0.0,
    "busy_s": 0.0,
    "told_by": "",
    "families": [Of(family="y" * 90, does="unknown", count=2, busy_s=0.5)],
    "copies": [],
    "streams": [a_stream(7, {})],
    "learnt": Of(measured=[]),
}


# --- fits ----------------------------------------------------------------------------------------


def moved(name, prior, center, spread):
    return FactorMove(name, "time", 0.0, prior, center, spread)


def own_fit(run, what, measured, before, left_out, after, why=""):
    return RunFit(run, what, measured, before, left_out, after, 0.0, why)


MOVES = (moved("matmul.hopper.16-bit", 0.1, 0.05, 0.02), moved("layout.hopper-dense", 0.08, 0.0, 0.04))


def own(fits, moves=MOVES, **changes):
    said = {
        "moves": moves,
        "fits": fits,
        "runs": [Of(times=None, name="a")],
        "errors": {"before": 0.1, "left_out": 0.05, "after": 0.02},
        "moved": Of(asked=0.1, taken=0.06, site=0.08, row=0.12),
    }
    return Of(**{**said, **changes})


FITS = (
    own_fit("a", "time", 2.0, 1.8, 1.9, 1.95),
    own_fit("b", "memory", 2.0**34, 1.2 * 2.0**34, 1.1 * 2.0**34, 2.0**34),
    own_fit("c", "time", 4.0, 2.0, 2.5, 3.0, "is another job"),
)


def some_times(left=()):
    log = Of(name="train.log", format=Of(title="Megatron-LM"), steps=1234, repeated=56)
    return Of(
        log=log,
        step_time_s=1.5,
        error=0.0012,
        spread=0.034,
        steady=np.array([True] * 1100),
        memory_bytes={"max_reserved": 2.0**35},
        left_out=left,
        notes=("two ranks print",),
    )


LEFT = (
    Of(reason="first lines", lines=1200, detail="1 to 1200"),
    Of(reason="slow", lines=3, detail="7, 8, 9"),
)


def a_measured(name, time, memory):
    return Of(
        name=name,
        estimate=Of(step_time_s=np.asarray(1.0)),
        model_memory_bytes=2.0**34,
        time_s=time,
        memory_bytes=memory,
    )


def a_part(name, share, factor, plausible=True):
    return Of(part=name, share=share, factor=factor, error_left=0.034, plausible=plausible)


def a_watch(state, **changes):
    said = {
        "state": state,
        "band": Of(low_s=0.9, middle_s=1.0, high_s=1.2),
        "times": Of(log=Of(name="train.log")),
        "step_time_s": 1.5,
        "off": 0.5,
        "last_step": 12345,
        "since_step": 12000,
        "since_s": 1.7e9,
        "steps_left": 50000.0,
        "extra_days": 1.234,
        "extra_dollars": 5678.9,
        "paid_spare_nodes": 2,
    }
    return Of(**{**said, **changes})


class Checked:
    """A table of runs, summed up."""

    judged = pd.DataFrame(
        {
            "id": ["a", "b", "c", "d"],
            "model": ["m"] * 4,
            "gpus": [8.0, 16.0, 32.0, 64.0],
            "parallelism": ["tp2", "pp2", "dp", "ep"],
            "measured_step_time_s": [1.0, 2.0, 3.0, 4.0],
            "predicted_step_time_s": [1.1, 1.5, np.nan, 4.0],
            "time_error": [0.1, -0.25, np.nan, 0.0],
        }
    )

    def __init__(self, **changes):
        self._changes = changes

    def summary(self, by="all", of="time"):
        count = self._changes.get("memories", 5) if of == "memory" else 10
        figures = {"median_%": 1.25, "mean_%": 2.5, "p90_%": 5.0, "bias_%": -0.75}
        few = {**dict.fromkeys(figures, float("nan")), "runs": 0, "skipped": 3}
        return pd.DataFrame(
            [{by: f"{of} x", "runs": count, "skipped": 1, **figures}, {by: f"{of} y", **few}][
                : 1 + (by != "all")
            ]
        )

    def noise_floor(self):
        rows = [{"pairs": "releases", "count": 12.0, "median_%": 3.25, "p90_%": float("nan")}]
        return pd.DataFrame(rows if self._changes.get("noise", True) else [])

    def out_of_memory(self):
        return {
            "rows": 100.0,
            "oom_rows": self._changes.get("ooms", 10.0),
            "right": 0.9,
            "precision": 0.8,
            "recall": 0.7,
        }

    def sweeps(self):
        rows = [
            {
                "source": "s",
                "model": "m",
                "gpus": 64,
                "global_batch": 512,
                "layouts": 9,
                "spearman": one,
                "regret": other,
            }
            for one, other in ((0.9, 0.0), (0.7, 0.05), (0.5, 0.1))
        ]
        return pd.DataFrame(rows if self._changes.get("swept", True) else [])

    def pair_order(self):
        return 0.875


def a_cluster_fit(held=True):
    known = fabric_fit.Constants(Fabric(rate_factor=0.9))
    base = replace(load_link("nvlink4", size=8), base_latency_s=5e-6, efficiency=0.8, fabric=known)
    tier = replace(base, base_latency_s=7e-6)
    told = {"base_latency_s": Of(spread=0.05, told=0.9), "rate_factor": Of(spread=0.5, told=0.104)}
    fitted = Of(fabric=Fabric(rate_factor=0.5), tier=tier, confidence=told, points=24, residual=0.034)
    points = pd.DataFrame(
        {
            "run": ["one", "one", "two"],
            "size": [5e3, 2e4, 9.99e4],
            "error": [0.1, 0.3, 0.2],
            "signed": [0.1, -0.3, 0.2],
            "plain": [0.5, 0.7, np.nan],
        }
    )
    out = points.iloc[:1].assign(error=0.4) if held else points.iloc[:0]
    line = Of(run="one", alpha_s=5e-6, bandwidth_bytes_per_s=1e11, crossover_bytes=5e5, relative_error=0.123)
    names = [Of(name="one", size_bytes=[1, 2]), Of(name="two", size_bytes=[1])]
    return Of(tiers={0: fitted}, points=points, held_out=out, runs=names, lines=[line]), Of(tiers=(base,))


PAGE = Of(
    kind="cluster",
    name="c",
    cluster=Of(
        title="A cluster",
        accelerator=Of(name="h100"),
        tiers=[
            Of(
                name="node",
                link="nvlink4",
                size=1024,
                bandwidth_bytes_per_s=4.5e11,
                oversubscription=1.5,
                efficiency=0.825,
                latency_s=1.25e-6,
            )
        ],
    ),
    numbers=[Of(key="power", value="700 W", source="sheet", title="A sheet")],
)


def a_recipe(source):
    rows = [
        {"switch": "a", "value": 1, "default": 1, "choices": "0, 1", "meaning": "is a"},
        {"switch": "b", "value": "x", "default": "y", "choices": "x, y", "meaning": "is b"},
    ]
    record = {"name": "r", "description": "a recipe", "source": source, "switches": rows}
    return Of(to_dict=lambda: record)


def an_import(**changes):
    said = {
        "job": {"gpus": 64, "tokens": 1e12, "switches": {"a": "b", "c": True}, "global_batch": 4096},
        "model": {
            "name": "m",
            "hidden_size": 4096,
            "sliding": 0,
            "tied": False,
            "priced": "",
            "note": None,
            "x": (),
        },
        "sweeps": [{"collective": "all_reduce", "ranks": 8, "sizes": [1, 2, 3], "time_s": [1, 2, 3]}],
        "notes": ["one", "two"],
        "missing": ["cluster", "gpus"],
    }
    return {**said, **changes}


def mesh_rows():
    def row(dim, link, factor, groups, members):
        return Of(
            dim=dim,
            link=link,
            factor=factor,
            groups=groups,
            comm="all-reduce",
            bandwidth_bytes_per_s=4.5e11,
            members=members,
        )

    return [
        row("tp", "node", 8, 1024, (8,)),
        row("cp", "", 1, 1, ()),
        row("shard", "net", 4096, 2, (2, 4096)),
        row("pp", "net", 2, 4, (1, 2)),
    ]


def mesh_bill():
    def line(axis, group, size, toll="communication"):
        return Of(
            axis=axis, group=group, toll=toll, bytes=np.asarray(size), seconds=0.5, exposed_seconds=0.125
        )

    lines = [
        line("tp", "tp", 2.0**30),
        line("tp", "tp", 2.0**30),
        line("dp", "grad", 2.0**31),
        line("dp", "else", 2.0**20, "compute"),
    ]
    return Of(job=Of(cluster=Of(tiers=[Of(name="node"), Of(name="net")])), bill=Of(time_lines=lines))


def answers():
    """Yield a name and the tables or sentences of it."""
    yield "profile", profiles.profile_grids(a_profile())
    full = a_profile(
        beside=beside(True), learnt=LEARNT, told_by="repetition", steps=[a_step("s")] * 12, families=[]
    )
    yield "profile beside a bill", profiles.profile_grids(full)
    yield (
        "profile of little",
        profiles.profile_grids(a_profile(**BARE, beside=beside(False, trace_step_s=0.0))),
    )
    yield "remarks of a profile", profiles.profile_remarks(a_profile())
    many = beside(True, groups=[a_group(f"g{i}", 0.2, 0.1, "so") for i in range(8)])
    yield (
        "remarks of a profile beside a bill",
        profiles.profile_remarks(
            a_profile(beside=many, **{k: BARE[k] for k in ("devices", "device", "told_by")})
        ),
    )
    yield "remarks of a whole step", profiles.profile_remarks(a_profile(beside=beside(False)), most=1)
    yield "recipe", [recipes.recipe_grid(a_recipe("a page")), recipes.recipe_grid(a_recipe(""))]
    yield "own runs", own_runs.runs_grids(own(FITS))
    yield "remarks of own runs", own_runs.runs_remarks(own(FITS, runs=[Of(times=some_times(LEFT), name="a")]))
    yield "remarks of memories", own_runs.runs_remarks(own(FITS[1:2]))
    yield (
        "remarks of close memories",
        own_runs.runs_remarks(own((own_fit("b", "memory", 1.0, 1.07, 1.0, 1.0),))),
    )
    yield "remarks of no factor", own_runs.runs_remarks(own(FITS[2:], moves=()))
    for name, move in {
        "little": (0.0004, 0.0004),
        "alike": (0.1, 0.096),
        "apart": (-0.1, 0.0),
        "edge": (0.0005, 0.0),
    }.items():
        yield (
            f"moves {name}",
            own_runs.moved_text(own((), moved=Of(asked=move[0], taken=move[1], site=0.08, row=0.12))),
        )
    yield "moves none", own_runs.moved_text(own((), moved=None))
    yield "step times", step_times.step_time_grids(some_times(LEFT))
    yield "step times of all lines", step_times.step_time_grids(some_times())
    yield (
        "remarks of a log",
        [*step_times.log_remarks("a", some_times(LEFT)), *step_times.log_remarks("b", some_times())],
    )
    parts = [a_part("matmul", 0.4, 1.25), a_part("constant", np.nan, 0.05, False)]
    two = [a_measured("a", 1.25, np.nan), a_measured("b", 0.8, 2.0**35)]
    yield "steps", steps.step_grids(two, parts)
    yield "one step", steps.step_grids(two[:1], parts)
    yield "one step that nothing explains", steps.step_grids(two[1:], parts[1:])
    kernels = [
        Of(section="matmul", name="bf16", points=12, before=before, held_out_error=0.034)
        for before in (0.1, np.nan)
    ]
    yield "kernels", [steps.kernel_grid(kernels, "h100")]
    ratios = ([], [1.29, 0.78], [1.3], [1 / 1.3], [1.5, 1.6, 1.7], [0.5])
    yield "far off", [said for ratio in ratios for said in (steps.far_off_remark(ratio) or ["nothing"])]
    overheads = [
        Of(parts=parts[:1], overhead_s=1.0),
        Of(parts=parts, overhead_s=0.0),
        Of(parts=parts, overhead_s=-0.02),
    ]
    yield "overheads", [said for one in overheads for said in (steps.overhead_remark(one) or ["nothing"])]
    free = {
        "extra_dollars": None,
        "paid_spare_nodes": 0,
        "extra_days": -0.5,
        "since_s": np.nan,
        "step_time_s": 0.6,
        "off": -0.4,
    }
    blind = {"steps_left": None, "extra_days": None}
    looks = [
        a_watch("inside"),
        a_watch("unknown"),
        a_watch("slower"),
        a_watch("faster", **free),
        a_watch("slower", **blind),
    ]
    yield "watch", [grid for seen in looks for grid in watch.watch_grids(seen)]
    yield "watched", [watch.watch_line(seen) for seen in looks]
    yield "still", [watch.watch_line(a_watch("slower", extra_days=0.0, paid_spare_nodes=1))]
    yield "validation", validation.validation_grids(Checked(), worst=2)
    bare = Checked(noise=False, memories=0, ooms=0.0, swept=False)
    yield "validation of little", validation.validation_grids(bare)
    yield "fit", calibration.fit_grids(*a_cluster_fit())
    yield "fit without rows left out", calibration.fit_grids(*a_cluster_fit(held=False))
    yield "cluster", hardware.page_grids(PAGE)
    yield "device", hardware.page_grids(Of(**{**vars(PAGE), "cluster": None}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imports, "record", lambda found: found.answer)
        for name, changes in {
            "": {},
            " of nothing": {"job": {}, "model": {}, "sweeps": [], "notes": [], "missing": []},
            " that is whole": {"missing": []},
        }.items():
            yield (
                f"import{name}",
                imports.import_grids(Of(answer=an_import(**changes), framework="", kind="hf")),
            )
        yield (
            "import of a framework",
            imports.import_grids(Of(answer=an_import(), framework="nemo", kind="hf"))[:1],
        )
    yield (
        "mesh",
        [
            meshes.mesh_grid(mesh_rows()),
            meshes.mesh_grid(mesh_rows(), mesh_bill()),
            meshes.mesh_grid(mesh_rows()[:1], mesh_bill()),
        ],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "off_middle", lambda run: run)
        rows = [*runs._off_middle(["", "far"]), *runs._off_middle(["", ""])]
    yield "beside the median", [" | ".join(row) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        yield from runs_of(patch)
    with pytest.MonkeyPatch.context() as patch:
        yield from compared(patch)
    yield from differences()
    yield from effects()
    with pytest.MonkeyPatch.context() as patch:
        for name, html in parts_of_page(patch):
            yield f"page: {name}", re.sub(r"(?<=>)(?=<[^/])", "\n", html).split("\n")
    prices = [
        Of(price_usd_per_gpu_hour=2.5, price_note="given"),
        Of(price_usd_per_gpu_hour=None, price_note="no price"),
    ]
    yield "prices", [runs._price(one) for one in prices]


# --- whole runs and jobs side by side ------------------------------------------------------------


def a_run(**changes):
    lines = [
        Of(axis="compute", toll="compute", exposed_seconds=0.6),
        Of(axis="dp", toll="communication", exposed_seconds=0.3),
        Of(axis="resilience", toll="other", exposed_seconds=0.1),
    ]
    est = Of(
        job=Of(model=Of(name="m"), cluster=Of(name="c")),
        mfu=0.4,
        bill=Of(time_lines=lines),
        warnings=["odd"],
        fits=True,
        fits_probability=0.74,
    )
    within = {
        "dollars": Of(limit=1e6, margin=2.5e5, probability=0.875),
        "days": Of(limit=20.0, margin=-0.5, probability=0.25),
    }
    spread = {"days": (9.0, 10.0, 12.25), "energy_kwh": (9e5, 1e6, 2e6), "dollars": (1e5, 2e5, 3e5)}
    said = {
        "est": est,
        "reliability": Of(
            name="rsc-1",
            planned_stops_per_day=0.5,
            checkpointing="async",
            step_time_error=0.05,
            failure_rate_error=0.7,
            downtime_error=0.1,
        ),
        "checkpoint": Of(size_bytes=2.0**40, write_s=90.0, pause_s=5.0),
        "mean_time_between_failures_s": 9000.0,
        "interruptions": 1234.0,
        "failures_per_s": 1e-4,
        "planned_stops": 5.0,
        "intervals_s": {"young": 600.0, "daly": 900.0},
        "interval_s": 7200.0,
        "dollars": 750000.0,
        "price_usd_per_gpu_hour": 2.0,
        "price_note": "given",
        "is_planned": False,
        "days": 20.5,
        "tokens": 1e12,
        "steps": 36000,
        "gpus": 1000.0,
        "step_time_s": 1.0,
        "effective_training_time_ratio": 0.9,
        "gpu_hours": 12500.0,
        "spare_gpu_hours": 250.0,
        "spare_nodes": 1,
        "pays_spares": False,
        "energy_kwh": 4.5e6,
        "gpu_power_w": 1100.0,
        "pue": 1.25,
        "energy_at_tdp_kwh": 4.5e5,
        "within": lambda: within,
        "lost_gpu_hours": lambda: {
            "lost_steps": 500.0,
            "restart": 1500.0,
            "stragglers": 9e9,
            "jitter_of": 9e9,
        },
        "spread": lambda *_: spread,
        "samples": 1000,
        "seed": 3,
        "step_samples": Of(factors=range(12)),
        "headline_place": 0.5,
    }
    return Of(**{**said, **changes})


def runs_of(patch):
    """Yield tables and sentences of whole runs."""
    patch.setattr(training_runs, "job_text", lambda est: "the job")
    patch.setattr(training_runs, "memory_text", lambda est: "the memory")
    patch.setattr(
        training_runs, "off_middle", lambda run: "far from the median of them" if run.is_planned else ""
    )
    calm = {
        "failures_per_s": 0.0,
        "dollars": None,
        "price_note": "nobody knows",
        "is_planned": True,
        "spare_nodes": 0,
        "within": dict,
        "reliability": Of(
            **{**vars(a_run().reliability), "planned_stops_per_day": 0.0, "step_time_error": None}
        ),
    }
    yield "whole run", training_runs.run_grids(a_run())
    yield "whole run without failures", training_runs.run_grids(a_run(**calm))[:1]
    yield "how sure of a step", training_runs.run_grids(a_run(**calm))[2:]
    yield (
        "whole run that pays its spares",
        [Grid("", (), [training_runs.run_grids(a_run(pays_spares=True))[0].rows[4]])],
    )
    surer = Of(**{**vars(a_run().est), "fits_probability": 0.75})
    none = Of(**{**vars(a_run().est), "fits": False, "warnings": []})
    for name, run in {
        "hardly fits": a_run(),
        "of a plan hardly fits": a_run(is_planned=True),
        "fits": a_run(est=surer),
        "does not fit": a_run(est=none),
    }.items():
        yield f"a run that {name}", training_runs.run_remarks(run)


def compared(patch):
    """Yield what is said of jobs beside the first."""
    patch.setattr(comparison, "_stages_moved", lambda before, after: "")

    def line(toll, *values, bill="time"):
        return Of(bill=bill, toll=toll, difference=lambda job, v=values: v[job] - v[0])

    lines = [
        line("compute", 0.5, 0.4, 0.9, 0.5),
        line("compute", 0.1, 0.1, 0.2, 0.1),
        line("bubble", 0.1, 0.4, 0.0, 0.1),
        line("communication", 0.3, 0.1, 0.4, 0.3),
        line("optimizer", 0.0, 0.0, 0.01, 0.0),
        line("state", 1e9, 9e9, 1e9, 1e9, bill="memory"),
    ]
    times = (1.0, 0.8, 1.5, 1.0)
    odds = [
        Of(low=low, high=high, probability=chance)
        for low, high, chance in ((1, 1, 0), (0.75, 0.85, 0.9), (1.2, 1.9, 0.05), (1.0, 1.2, 0.5))
    ]
    found = Of(
        estimates=[Of(step_time_s=time) for time in times],
        labels=("a", "b", "c", "d"),
        lines=lines,
        odds=odds,
    )
    yield "jobs side by side", comparison.compare_remarks(found)
    sure = [Of(low=1.0, high=1.0 + 1e-10, probability=1.0)] * 4
    yield "jobs that nothing is unsure of", comparison.compare_remarks(Of(**{**vars(found), "odds": sure}))
    patch.undo()
    patch.setattr(comparison, "slowest_stage", lambda est: est.slowest)

    def staged(pp, slowest, fullest):
        return Of(job=Of(layout=Of(pp=pp)), slowest=slowest, worst_stage=fullest)

    two = staged(4, 1, 0)
    yield (
        "stages",
        [
            comparison._stages_moved(two, other) or "nothing"
            for other in (
                two,
                staged(4, 2, 0),
                staged(4, 1, 3),
                staged(4, 2, 3),
                staged(8, 2, 3),
                staged(1, 0, 0),
            )
        ],
    )
    yield "rows of stages", [" | ".join(row) for row in comparison._stage_rows([two, staged(1, 0, 0)])]
    yield "rows of no stages", comparison._stage_rows([staged(1, 0, 0)])


def effects():
    """Yield what numbers and switches are worth: of three numbers one moves nothing, of three switches two."""

    def effect(name, kind, less, more, memory=0.0, **changes):
        said = {
            "name": name,
            "kind": kind,
            "less": less,
            "more": more,
            "memory_more": memory,
            "reach": max(abs(less), abs(more)),
            "elasticity": (more - less) / 0.2,
            "memory_elasticity": memory / 0.1,
            "removed": "gone",
            "created": "come",
            "now": 1e12,
            "unit": "B/s",
            "value": 1e12,
            "other": "none",
        }
        return Of(**{**said, **changes})

    numbers = [
        effect("small", "rate", 0.01, -0.01),
        effect("large", "latency", -0.1, 0.2),
        effect("none", "rate", 0.0, 0.00005),
    ]
    found = Of(effects=numbers, total=lambda kind: {"rate": -0.9, "latency": 0.1}[kind], change=0.1)
    patched = {
        "_value": lambda effect: "now",
        "_switches_grid": lambda found, effects: Grid("s", (), [(one.name,) for one in effects]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, made in patched.items():
            patch.setattr(sensitivity, name, made)
        yield "worth of numbers", sensitivity.sensitivity_grids(found)[:1]
        yield "worth of all numbers", sensitivity.sensitivity_grids(found, every_one=True)[:1]
        yield "worth of one number", sensitivity.sensitivity_grids(found, top=1)[:1]
        turned = [
            effect("saves memory", "switch", 0.0, 0.3, -0.2),
            effect("saves time", "switch", 0.0, -0.1, 0.9),
            effect("saves nothing", "switch", 0.0, 0.4, 0.4),
            effect("does nothing", "switch", 0.0, 0.0),
        ]
        found.effects = [*numbers, *turned]
        yield "worth of switches", [sensitivity.sensitivity_grids(found, top=top)[1] for top in (1, 2, 3)]


def differences():
    """Yield what moved between bills."""

    def line(name, bill, *values):
        return Of(
            name=name,
            bill=bill,
            values=values,
            why=("", f"why {name}"),
            difference=lambda job: values[job] - values[0],
        )

    lines = [
        line("a", "time", 1.0, 0.5),
        line("b", "time", 0.0, 0.004),
        line("c", "time", 0.1, 0.104),
        line("d", "memory", 2.0**30, 2.0**31),
    ]
    moved = {"time": lines[:3], "memory": lines[3:]}
    found = Of(lines=lines, labels=("x", "y"), largest=lambda bill, job: moved[bill])
    yield (
        "differences",
        [comparison._difference_grid(found, bill, 1, every) for bill in moved for every in (False, True)][:3],
    )


# --- the page ------------------------------------------------------------------------------------


class Row(dict):
    """A line of the bill, as records have it."""


def an_est(**changes):
    where = Of(price_usd_per_gpu_hour=2.0, tiers=[])
    said_of_job = {
        "tokens": 1e12,
        "cluster": where,
        "recipe": Of(name="r & d"),
        "global_batch": 2048,
        "layout": Of(pp=2, gpus=16),
    }
    said = {
        "job": Of(**{**said_of_job, **changes.pop("job", {})}),
        "step_time_s": np.asarray(1.5),
        "mfu": np.asarray(0.4),
        "mfu_causal": np.asarray(0.35),
        "memory_bytes_per_gpu": np.asarray(2.0**35),
        "memory_capacity_bytes": 2.0**36,
        "fits": True,
        "fits_host": True,
        "fits_probability": np.asarray(0.875),
        "tokens_per_s_per_gpu": np.asarray(12345.6),
        "samples": None,
        "device_word": "GPU",
        "warnings": ["a < b", "c"],
        "days": lambda tokens: np.asarray(tokens / 1e11),
        "gpu_hours": lambda tokens: np.asarray(tokens / 1e9),
        "bill": Of(host_lines=("x",)),
        "model_flops": lambda: 3e15,
        "peak_flops_per_s": 1e15,
        "tokens_per_step": np.asarray(4096.0),
    }
    return Of(**{**said, **changes})


def parts_of_page(patch):
    """Yield the parts of a report's page, each made of stand-ins for its tables and figures."""

    def grid(name):
        return Grid(name, columns("A", "B >"), [("x", "1")])

    tables = page.tables
    for name in ("band_text", "job_text", "tolls_text"):
        patch.setattr(tables, name, lambda est, n=name: f"<{n}>")
    patch.setattr(tables, "spent_text", lambda samples: f", spent {samples}")
    patch.setattr(tables, "causes_grid", lambda samples: grid(f"causes {samples}"))
    patch.setattr(tables, "time_grid", lambda est, every_line: grid(f"time {every_line}"))
    patch.setattr(tables, "memory_grid", lambda est, every_line: grid(f"memory {every_line}"))
    patch.setattr(tables, "host_grid", lambda est: grid("host"))
    patch.setattr(page, "price_text", lambda cluster: "a price")
    patch.setattr(page, "job_title", lambda est: "m & n")
    for name in ("time", "memory", "compute", "communication"):
        patch.setattr(page.charts, f"{name}_chart", lambda est, n=name: f"chart {n}")
    patch.setattr(page.charts, "pipeline_chart", lambda est: ("chart pipeline", "a <note>"))
    patch.setattr(
        page.charts, "mesh_chart", lambda est: ("chart mesh", "a note") if est.bill.host_lines else None
    )
    patch.setattr(page.charts, "pareto_chart", lambda plan, est: "chart pareto")
    patch.setattr(page.charts, "tornado_chart", lambda found: "chart tornado")
    patch.setattr(page, "top_grid", lambda plan, count: grid(f"top {count}"))
    patch.setattr(page, "front_grid", lambda plan: grid("front"))
    patch.setattr(page, "rejected_grid", lambda plan: grid("rejected"))
    patch.setattr(page, "sensitivity_grids", lambda found: [grid("numbers"), grid("switches")])
    patch.setattr(page, "sensitivity_remarks", lambda found: ["a > b"])
    patch.setattr("costmodel.estimates.mesh.mesh_of", lambda est: "rows")
    patch.setattr("costmodel.reporting.mesh.mesh_grid", lambda rows, est: grid(f"mesh of {rows}"))
    patch.setattr(page, "run_grids", lambda run: (grid("whole"), grid("hours"), grid("spread")))
    patch.setattr(
        page,
        "run_of",
        lambda est, tokens: Of(finishing_dates=lambda start: {"p10": f"{start}+", "p90": "end"}),
    )
    record = {"gpus": 16, "switches": {"a": True, "b": "x"}, "model": "m"}
    patch.setattr(page, "input_record", lambda job: record)
    lines = [
        Row(name="tp", formula="a * b", exposed_seconds=0.5, seconds=1.0, tier="node", source="s"),
        Row(name="dp", formula="c", exposed_seconds=0.0, seconds=0.25, tier="", source="t"),
        Row(name="none", formula="d", exposed_seconds=0.0, seconds=0.0, tier="net", source="u"),
    ]
    patch.setattr(page, "time_records", lambda est: lines)
    patch.setattr(page, "source_record", lambda job: {"h100": {"peak": "a sheet"}})
    lone = an_est(
        job={"tokens": None, "layout": Of(pp=1, gpus=1)}, bill=Of(host_lines=()), fits=False, warnings=[]
    )
    unpriced = an_est(
        job={"cluster": Of(price_usd_per_gpu_hour=None)}, fits=False, fits_host=False, device_word="chip"
    )
    yield "headline", page.headline(an_est(), ", the planner's")
    yield "headline of a run without a price", page.headline(unpriced)
    yield "headline of one step", page.headline(lone)
    yield "warnings", page.warned(an_est()) + page.warned(lone)
    yield "run", page._whole_run(an_est(), "2026-12-01")
    yield "run of no day", page._whole_run(an_est()) + page._whole_run(lone)

    def refused(est, tokens):
        raise CostModelError("no <storage>")

    patch.setattr(page, "run_of", refused)
    yield "run that is refused", page._whole_run(an_est())
    yield "how sure", page._uncertain(an_est(samples="S")) + page._uncertain(an_est())
    yield "what if", page._sliders(an_est())
    figures = {}
    for est, whose in ((an_est(), ""), (lone, " of one GPU")):
        for name in ("_bills", "_pipeline", "_rooflines", "_mesh"):
            yield f"{name[1:]}{whose}", getattr(page, name)(est, figures)
    yield "plans", page._plans(Of(advice=lambda: ["do <it>"]), an_est(), figures)
    yield "sensitivity", page._sensitivity(None, figures)
    yield "figures", " ".join(f"{name}: {made}." for name, made in figures.items())
    yield "assumptions", page._assumptions(an_est())
    patch.setattr(page, "changed_switches", lambda est: ["a=true"])
    yield "job", str(page.job_record(an_est()))
    yield "script", page._script_json({"a": "</script><!--"})
    values = {knob: (1, 2) for knob in page.SLIDERS}
    cube = np.array([1.0, 2.0])
    shares = np.array([[0.5, np.nan]])
    made = Of(
        values=values,
        start=dict.fromkeys(values, 1),
        reasons=("why",),
        step_time_s=cube,
        memory_bytes=cube,
        shares=shares,
        reason=np.array([0, 1]),
        plain=np.array([True, False]),
    )
    patch.setattr(page.charts, "marker", lambda name: f"mark {name}")
    yield "grid", str(page.grid_record(made))


def plain(said):
    """Return tables and sentences as texts."""
    if not isinstance(said, Grid):
        return said
    titles = [column.title + (" >" if column.number else "") for column in said.columns]
    rows = [" | ".join(map(str, row)) for row in said.rows]
    told = {
        "title": said.title,
        "columns": " | ".join(titles),
        "rows": rows,
        "sums": sorted(said.strong),
        "note": said.note,
    }
    return {name: value for name, value in told.items() if value}


def found():
    return {name: [plain(one) for one in said] for name, said in answers()}


def test_a_page_holds_its_parts_in_order_and_tells_after_each(monkeypatch):
    parts = ("warned", "_whole_run", "_uncertain", "_sliders", "_assumptions")
    for name in parts:
        monkeypatch.setattr(page, name, lambda est, *_, n=name: f"({n})")
    monkeypatch.setattr(page, "headline", lambda est, whose: f"(headline{whose})")
    for name in ("_bills", "_pipeline", "_rooflines", "_mesh"):
        monkeypatch.setattr(page, name, lambda est, figures, n=name: figures.update({n: 1}) or f"({n})")
    monkeypatch.setattr(page, "_plans", lambda plan, est, figures: f"({plan})")
    monkeypatch.setattr(page, "_sensitivity", lambda found, figures: f"({found})")
    stand_ins = {
        "plotly_library": lambda: "LIBRARY",
        "command_text": lambda job: "costmodel a & b",
        "job_title": lambda est: "m & n",
        "slider_grid": lambda est: "grid",
        "grid_record": lambda grid: grid,
        "job_record": lambda est: "record",
        "_asset": lambda name: {
            "page.html": "<!--title-->|<!--version-->|<!--made-->|<!--style-->|<!--body-->|<!--script-->|<!--data-->|"
            "<!--library-->"
        }.get(name, f"[{name} GPU]"),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(page, name, stand_in)
    asked, ticks = [], []
    est = an_est(require_single=asked.append, device_word="chip")
    made = page.report_page(est, plan="plan", found="worth", is_planned=True, tick=lambda: ticks.append(1))
    title, version, said, style, body, script, data, library = made.split("|")
    assert asked == ["report"]
    assert len(ticks) == 5
    assert (title, version, library) == ("m &amp; n: 1.500 s a step", page.__version__, "LIBRARY")
    assert said.startswith(page.__version__)
    assert said.endswith("the same on the command line: <code>costmodel a &amp; b</code>")
    assert (style, script) == ("[page.css GPU]", "[page.js chip]")
    assert body.splitlines() == [
        f"(headline{page.tables.PLANNED})",
        "(warned)",
        "(_whole_run)",
        f'<p class="printed">costmodel {said}</p>',
        *(f"({name})" for name in ("_uncertain", "_sliders", "_bills", "_pipeline", "_rooflines", "_mesh")),
        "(plan)",
        "(worth)",
        "(_assumptions)",
    ]
    figures = dict.fromkeys(("_bills", "_pipeline", "_rooflines", "_mesh"), 1)
    assert json.loads(data) == {"figures": figures, "grid": "grid", "job": "record"}
    bare = page.report_page(est).split("|")[4].splitlines()
    assert bare[0] == "(headline)"
    assert "(plan)" not in bare
    assert len(bare) == 11


KNOWN = {} if __name__ == "__main__" else YAML(typ="safe", pure=True).load(FILE.read_text())


def test_pages_say_what_they_are_told():
    said = found()
    assert list(said) == list(KNOWN)
    for name, told in KNOWN.items():
        assert said[name] == told, name
    assert len(GROUPINGS) > 1


if __name__ == "__main__":
    writer = YAML(typ="safe", pure=True)
    writer.width, writer.default_flow_style, writer.allow_unicode = 115, False, True
    writer.sort_base_mapping_type_on_output = False
    with FILE.open("w") as opened:
        opened.write("# What pages say of made-up answers: see test_reports_by_hand.py.\n")
        writer.dump(found(), opened)
