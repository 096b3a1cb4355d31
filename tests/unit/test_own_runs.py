"""`calibrate runs` and `--site`: factors learn from measured runs, bands narrow where these speak, and only there."""

import json
from dataclasses import replace

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError, DataError
from costmodel.cli import main
from costmodel.describe.factors import Factors, factors, job_class
from costmodel.describe.site import load_site, site_text
from costmodel.reporting.calibration import moved_text, runs_grids, runs_remarks
from costmodel.trust import site_fit
from costmodel.trust.own_runs import read_runs
from costmodel.trust.published_runs import seen_by_kind
from costmodel.trust.site_fit import RunFit, fit_site, row_scale

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 128, "seq_len": 8192}
LAYOUTS = ("tp2", "tp4", "tp2 pp2", "pp4", "tp8", "cp2")


def estimates():
    return {layout: cm.estimate(**JOB, layout=layout) for layout in LAYOUTS}


def measured_with(values):
    """Return what steps on a network would take if factors had these values, as own runs."""
    jobs = [{"layout": one} for one in ("tp16", "tp8", "tp16 pp2")]
    jobs += [{"layout": one, "zero": 3} for one in ("tp1", "tp2", "tp4")]
    made = [cm.estimate(**{**JOB, "global_batch": 64, "seq_len": 4096}, **job) for job in jobs]
    return {str(job): (est, float(repriced(est, values))) for job, est in zip(jobs, made, strict=True)}


def repriced(est, values):
    from dataclasses import replace

    from costmodel.estimates.estimate import estimate_job

    return estimate_job(replace(est.job, factors=Factors(values))).step_time_s


def moved(found):
    return {move.name: move for move in found.moves}


def test_a_site_that_is_a_tenth_slower_is_found_and_predicted():
    runs = {layout: (est, 1.1 * float(est.step_time_s)) for layout, est in estimates().items()}
    three = dict(list(runs.items())[:3])
    found = cm.calibrate.runs(three)

    unexplained = moved(found)["unexplained.hopper-dense"]
    assert 0.05 < unexplained.center < 0.1
    assert unexplained.spread < unexplained.prior_spread
    for layout in LAYOUTS[3:]:
        est, time_s = runs[layout]
        told = cm.estimate(**JOB, layout=layout, site=found.site)
        assert abs(float(told.step_time_s) / time_s - 1) < 0.035
        shipped, own = est.interval(), told.interval()
        assert own.high / own.low < 0.97 * shipped.high / shipped.low
        assert own.low < time_s < own.high
    assert found.errors["before"] == pytest.approx(1 - 1 / 1.1)
    assert found.errors["left_out"] < 0.04


def test_errors_are_of_predictions_over_what_was_measured():
    """8 s where 10 were measured are 20 % too few; 60 of 80 GB a quarter."""
    est = cm.estimate(**JOB, layout="tp2")
    fits = (
        RunFit("a", "time", 10.0, 8.0, 9.0, 11.0, 0.0, ""),
        RunFit("a", "memory", 80e9, 60e9, 64e9, 76e9, 0.0, ""),
    )
    found = replace(cm.calibrate.runs({"a": (est, float(est.step_time_s))}), fits=fits)
    time, memory = (row[3:6] for row in runs_grids(found)[1].rows)
    assert (time, memory) == (["-20.0%", "-10.0%", "+10.0%"], ["-25.0%", "-20.0%", "-5.0%"])
    said = "Memory predicted over measured: -25.0% as shipped, -20.0% of each from all others, -5.0% with all"
    assert any(text.startswith(said) for text in runs_remarks(found))


def test_the_factor_that_is_off_is_the_one_that_moves():
    # A network of half the speed: what crosses InfiniBand tells it from all others.
    found = cm.calibrate.runs(measured_with({"collective.ib.transfer": np.array(2.0)}))
    network = moved(found)["collective.ib.transfer"]

    assert found.moves[0] == network
    np.testing.assert_allclose(network.center, np.log(2.0), atol=0.02)
    assert all(abs(move.moved) < 0.3 for move in found.moves[1:])
    assert found.errors["before"] > 0.25
    # A benchmark's constant may be off by twice its spread at a site, and is believed no less than as shipped.
    benched = [move for move in found.moves if move.name.partition(".")[0] in site_fit.WIDER]
    assert {move.prior_spread for move in benched} <= {factors()[move.name].spread for move in benched}
    assert all(move.spread <= move.prior_spread * (1 + 1e-9) for move in benched)
    assert found.errors["after"] < 0.01


def test_bands_narrow_only_where_the_runs_speak():
    runs = {layout: (est, 1.1 * float(est.step_time_s)) for layout, est in estimates().items()}
    site = cm.calibrate.runs(runs).site
    of_runs = set(site.belief.names)

    assert not {name for name in of_runs if "blackwell" in name or "ampere" in name or "roce" in name}
    other = {**JOB, "cluster": "llama3-roce", "gpus": 16384, "global_batch": 16384, "layout": "tp8 pp2"}
    for job in ({**JOB, "cluster": "hgx-b200-ndr", "layout": "tp2"}, other):
        site_of_job = cm.estimate(**job, site=site).job.belief
        assert site_of_job == site.belief
    b200 = {**JOB, "cluster": "hgx-b200-ndr", "layout": "tp2"}
    plain, told = cm.estimate(**b200), cm.estimate(**b200, site=site)
    products = "matmul.blackwell.16-bit"
    np.testing.assert_array_equal(plain.sample(50).factors[products], told.sample(50).factors[products])
    np.testing.assert_array_equal(
        plain.sample(50).factors["unexplained.blackwell-dense"],
        told.sample(50).factors["unexplained.blackwell-dense"],
    )


def test_runs_that_are_as_predicted_move_nothing_and_no_constant_gets_less_sure():
    """A site is expected where the price says."""
    job = {"model": "deepseek-v3-671b", "cluster": "hgx-b200-ndr", "gpus": 256, "layout": "tp1 pp4 ep64"}
    est = cm.estimate(**job, global_batch=2048, seq_len=4096)
    name = f"unexplained.{job_class(est.job)}"
    found = cm.calibrate.runs({"one": (est, float(est.step_time_s))})

    assert moved(found)[name].center == pytest.approx(0.0, abs=1e-6)
    assert found.moved.predicted == pytest.approx(0.0, abs=1e-6)
    assert moved_text(found) == ["Your step times are as predicted (medians): estimates stay where they are."]
    for move in found.moves:
        if move.name.startswith(("matmul", "grouped_matmul", "attention", "launch", "memory_kernels")):
            assert move.spread <= factors()[move.name].spread * (1 + 1e-9)


def test_memory_is_learned_by_how_it_was_measured(tmp_path):
    est = cm.estimate(**JOB, layout="tp2")
    rows = ["layout,step_time,memory,memory_kind"]
    for layout in LAYOUTS[:4]:
        one = cm.estimate(**JOB, layout=layout)
        seen = 1.1 * float(seen_by_kind(one.bill, "max_allocated"))
        rows.append(f"{layout},{float(one.step_time_s)}s,{seen / 2**30:.6f} GiB,max_allocated")
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    found = cm.calibrate.runs(tmp_path / "mine.csv", job=JOB)

    told = cm.estimate(**JOB, layout="tp2", site=found.site)
    # States, which spread most, take most of it: a layout with a larger share of them gains a little more.
    assert 1.04 < float(told.memory_bytes_per_gpu / est.memory_bytes_per_gpu) < 1.11
    assert {"states", "activations"} & set(found.site.belief.names)
    assert all(abs(fit.after / fit.measured - 1) < 0.06 for fit in found.fits if fit.what == "memory")


def table(tmp_path, *rows, name="mine.csv", head="name,layout,step_time,gpus"):
    file = tmp_path / name
    file.write_text("\n".join((head, *rows)) + "\n")
    return file


def test_rows_of_a_table_with_flags_units_and_a_base_job(tmp_path):
    base = {key: value for key, value in JOB.items() if key != "gpus"}
    file = table(tmp_path, "a,tp2,2.5s,64", "b,tp4,2500ms,64", "c,tp8,2.5,32", "d,tp8,,32")
    runs = read_runs([file], base)

    assert [run.name for run in runs] == ["a", "b", "c"]  # d was not measured
    assert [run.time_s for run in runs] == [2.5, 2.5, 2.5]
    assert [float(run.est.job.layout.gpus) for run in runs] == [64, 64, 32]
    assert all(np.isnan(run.memory_bytes) for run in runs)


def test_job_files_say_what_was_measured_and_are_jobs_all_the_same(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        json.dumps({**JOB, "layout": "tp2", "measured": {"step_time": "2.1s", "memory": "50GiB"}})
    )
    (run,) = read_runs([file])

    assert (run.name, run.time_s, run.memory_bytes) == ("a", 2.1, 50 * 2**30)
    assert main(["estimate", str(file), "--format", "json", "--out", str(tmp_path / "out.json")]) == 0


def test_a_log_is_a_row_with_its_standard_error(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "".join(f"steps: {n} loss: 5.5 iter time (s): {2.0 + 0.01 * (n % 3)}\n" for n in range(1, 41))
    )
    (run,) = read_runs([log], {**JOB, "layout": "tp2"})

    np.testing.assert_allclose(run.time_s, 2.01)
    assert 0 < run.error < 0.01
    with pytest.raises(DataError, match="needs the job"):
        read_runs([log])


def test_the_file_comes_back_as_it_was_written(tmp_path):
    runs = {layout: (est, 1.1 * float(est.step_time_s)) for layout, est in estimates().items()}
    found = cm.calibrate.runs(runs)
    path = tmp_path / "site.yaml"
    ((file, text),) = found.files(path).items()
    path.write_text(text)
    back = load_site(path)

    assert file == path
    assert [run["name"] for run in back.runs] == list(LAYOUTS)
    ours, theirs = (cm.estimate(**JOB, layout="tp2", site=site) for site in (found.site, str(path)))
    np.testing.assert_allclose(float(theirs.step_time_s), float(ours.step_time_s), rtol=1e-4)
    assert theirs.to_dict()["inputs"]["site"] == str(path)
    again = cm.estimate(**theirs.to_dict()["inputs"])
    assert float(again.step_time_s) == float(theirs.step_time_s)


def test_a_plan_and_its_commands_carry_the_site(tmp_path):
    runs = {layout: (est, 1.1 * float(est.step_time_s)) for layout, est in estimates().items()}
    path = tmp_path / "site.yaml"
    path.write_text(site_text(cm.calibrate.runs(runs).site))
    plain, told = (cm.plan(**JOB, pp=1, site=site) for site in (None, str(path)))

    assert float(told.best.step_time_s) > 1.05 * float(plain.best.step_time_s)
    assert f"--site {path}" in told.commands(1)[0]
    assert "--site" not in plain.commands(1)[0]


def run(*arguments):
    return main(["observed", "calibrate", "runs", *map(str, arguments)])


def test_the_command_from_a_table_to_a_narrower_estimate(tmp_path, capsys):
    job, path = tmp_path / "job.yaml", tmp_path / "site.yaml"
    job.write_text(json.dumps({**JOB, "layout": "tp2"}))
    file = table(tmp_path, "a,tp2,2.1s,64", "b,tp4,2.4s,64", "c,tp2 pp2,2200,64")

    assert run(file, "--job", job, "--write", path) == 0
    said = capsys.readouterr().out
    assert "unexplained.hopper-dense" in said
    assert "c does not fit (time): measured is" in said
    assert "Median error of step times:" in said
    assert main(["estimate", str(job), "--site", str(path), "--details"]) == 0
    assert f"by the runs of {path}" in capsys.readouterr().out
    assert run(file, "--job", job, "--write", path) == 2
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert run(file, "--job", job, "--format", "json") == 0
    record = json.loads(capsys.readouterr().out)
    assert {row["run"]: row["fits"] for row in record["rows"]} == {"a": True, "b": True, "c": False}


BAD = (
    ("layout,step_tim", "tp2,2s", "'step_tim' is no column; did you mean 'step_time'"),
    ("layout,gpus", "tp2,64", "has no column of a measurement"),
    ("layout,step_time", "tp2,soon", "line 2: step_time: expected a time"),
    ("layout,step_time", "tp2,-1", "line 2: step_time: expected more than 0"),
    ("layout,step_time", "tp3,2s", "line 2: "),
    ("layout,step_time", "tp2", "line 2: has 1 cells, expected 2"),
    ("layout,step_time", "tp2,", "no row has a measured step time"),
    ("layout,step_time,memory_kind", "tp2,2s,max_alocated", "line 2: memory_kind: 'max_alocated' is unknown"),
    ("layout,step_time,job", "tp2,2s,none.yaml", "line 2: "),
)


def test_a_bad_row_is_one_line_and_nothing_is_written(tmp_path, capsys):
    job, path = tmp_path / "job.yaml", tmp_path / "site.yaml"
    job.write_text(json.dumps(JOB))
    for head, row, message in BAD:
        assert run(table(tmp_path, row, head=head), "--job", job, "--write", path) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not path.exists()


def test_a_site_that_is_not_there_and_runs_that_are_none(tmp_path, capsys):
    with pytest.raises(DataError, match=r"site: none\.yaml: cannot be read"):
        cm.estimate(**JOB, layout="tp2", site="none.yaml")
    with pytest.raises(DataError, match="at least one measured run"):
        fit_site([])
    with pytest.raises(CostModelError, match="site: expected a text"):
        cm.estimate(**JOB, layout="tp2", site=3)
    assert run(tmp_path / "none.csv") == 2
    assert "none.csv: no such file" in capsys.readouterr().err
    assert set(factors())


def test_a_single_step_time_is_no_surer_than_repeats_of_a_layout(monkeypatch):
    """Releases differ by 2 %; a class whose few rows agree by chance is not taken for surer than that."""
    est = cm.estimate(**JOB, layout="tp2")
    assert row_scale(est) > 0.02
    # What a site shares is 37 % of the variance of both, or that of its class where it is more.
    monkeypatch.setattr(site_fit, "_shared", lambda _: (0.01, 0.05))
    assert row_scale(est) == pytest.approx((0.63 * 0.0026) ** 0.5)
    monkeypatch.setattr(site_fit, "_shared", lambda _: (0.05, 0.05))
    assert row_scale(est) == pytest.approx(0.05)
    monkeypatch.setattr(site_fit, "_shared", lambda _: (0.0, 0.0))
    assert row_scale(est) == 0.02


def test_runs_far_off_their_predictions_are_told_to_look_at_the_job(tmp_path, capsys):
    job, step_s = tmp_path / "job.yaml", float(cm.estimate(**JOB, layout="tp2").step_time_s)
    job.write_text(json.dumps({**JOB, "layout": "tp2"}))
    for factor, told in ((1.6, True), (0.6, True), (1.25, False), (0.8, False)):
        file = table(tmp_path, f"tp2,{factor * step_s}s", head="layout,step_time")
        assert run(file, "--job", job) == 0
        out = capsys.readouterr().out
        said = f"Your run takes {factor:.2f} times as long as predicted, further than all but a few published runs"
        assert (said in out) == told, factor
        assert "mine.csv:2" in out  # a row without a name is its line
        assert run(f"{job}={factor * step_s}s,60GiB") == 0
        out = capsys.readouterr().out
        assert (said in out) == told, factor
        assert "60.0 GiB" in out


def test_a_job_with_what_its_step_took_that_cannot_be_is_one_line(tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({**JOB, "layout": "tp2"}))
    for text, message in (
        ("job.yaml=", "expected a job and its step time"),
        ("none.yaml=3s", "none.yaml"),
        ("{job}=0s", "=0s: step time: expected 1 us to 10,000,000 s"),
        ("{job}=1ns", "step time: expected"),
        ("{job}=1e300s", "step time: expected"),
        ("{job}=3", "step time: expected a time such as"),
        ("{job}=3s,60", "memory: expected a quantity"),
        ("{job}=3s,0GiB", "memory: expected more than 0 B"),
        ("{job}=none.log", "none.log: cannot be read"),
    ):
        assert run(text.format(job=job)) == 2, text
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_measured_memory_is_in_the_unit_of_its_column(tmp_path):
    path, row = tmp_path / "own.csv", "llama3-8b,dgx-h100-ndr,8,16,2048,2,1.5 s"
    for head, cell, size in (
        ("peak_memory_gib", "2", 2 * 2**30),
        ("memory", "2 GB", 2e9),
        ("memory", "2 GiB", 2 * 2**30),
    ):
        path.write_text(f"model,cluster,gpus,global_batch,seq_len,tp,step_time,{head}\n{row},{cell}\n")
        (run,) = read_runs([path])
        assert (run.time_s, run.memory_bytes) == (1.5, size)
