"""`costmodel observed watch`: in the band it is quiet; out of it: since when, by how much, what it costs, and the exit code."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.estimates.samples import Interval
from costmodel.whole_run.watch import LEAST_LINES, RECENT_LINES, Watch, Watcher

JOB = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 64,
    "layout": "tp2",
    "global_batch": 128,
    "seq_len": 8192,
}
EST = cm.estimate(**JOB)
STEP_S = float(EST.step_time_s)
LOW, HIGH = EST.error_band.low, EST.error_band.high


def line(number, seconds, of=100_000):
    minute, second = divmod(number, 60)
    return (
        f" [2026-01-29 10:{minute:02d}:{second:02d}] iteration {number:8d}/{of:8d} | elapsed time per iteration"
        f" (ms): {1e3 * seconds:.4f} | global batch size:   128 |\n"
    )


def log_of(factors, first=1, of=100_000):
    """Write steps that take so many times the estimate."""
    return "".join(line(n, STEP_S * factor, of) for n, factor in enumerate(factors, start=first))


def look(tmp_path, text, **more):
    (tmp_path / "train.log").write_text(text)
    return cm.watch(tmp_path / "train.log", **{**JOB, **more})


@pytest.mark.parametrize(
    ("factors", "state", "since"),
    [
        ([1.0] * 40, "inside", 21),
        ([HIGH * 0.99] * 40, "inside", 21),
        ([HIGH * 1.01] * 40, "slower", 1),
        ([LOW * 0.99] * 40, "faster", 1),
        ([1.0] * 30 + [HIGH * 1.1] * 10, "slower", 31),
        ([1.0] * 30 + [HIGH * 1.1] * 4, "inside", 15),  # too few to say
        (
            [1.0] * 30 + [HIGH * 1.1] * 4 + [1.0] + [HIGH * 1.1] * 5,
            "slower",
            31,
        ),  # one good step is no end of it
        ([HIGH * 1.1] * 30 + [1.0] * 5, "inside", 16),  # and it ends when it ends
        ([1.0] * 3, "unknown", 1),
        ([9.0] + [1.0] * 19 + [9.0] + [1.0] * 19, "inside", 21),  # warm-up and one odd step
    ],
)
def test_states_and_since_when(tmp_path, factors, state, since):
    seen = look(tmp_path, log_of(factors))

    assert seen.state == state
    assert seen.since_step == since


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ([0.9] * 5, ("inside", 5)),  # the ends belong to the band
        ([1.2] * 5, ("inside", 5)),
        ([0.89] * 5, ("faster", 5)),
        ([1.21] * 5, ("slower", 5)),
        ([1.21] * 4, ("unknown", 4)),
        ([1.0] * 30 + [1.21] * 4, ("inside", RECENT_LINES)),
        ([1.0, *[1.21] * 5], ("slower", 5)),
        ([*[1.21] * 8, 1.0, 1.0], ("slower", 10)),  # three of the last five are
        ([*[1.21] * 8, 1.0, 1.0, 1.0], ("inside", 11)),
    ],
)
def test_where_lines_lie_at_the_ends_of_the_band(seconds, said):
    times = SimpleNamespace(times_s=np.array(seconds), running=np.ones(len(seconds), dtype=bool))
    seen = Watch(None, times, Interval(0.9, 1.2), None)
    assert seen._lines == said


def test_the_band_is_the_range_of_the_estimate(tmp_path):
    seen = look(tmp_path, log_of([1.0] * 30))
    assert seen.to_dict()["band_s"] == [*seen.est.range_s]
    assert seen.to_dict()["expected_step_time_s"] == seen.est.step_time_s


def test_a_step_after_a_checkpoint_is_expected_to_be_slow(tmp_path):
    lines = [line(n, STEP_S) for n in range(1, 31)]
    for n in range(31, 39):
        lines += ["saving checkpoint to /data\n", line(n, 2.0 * STEP_S)]

    assert look(tmp_path, "".join(lines)).state == "inside"


def test_what_it_costs(tmp_path):
    seen = look(
        tmp_path, log_of([1.0] * 100 + [1.5] * 100, of=10_200), price=2.0, reliability="none", spare_nodes=2
    )

    assert (seen.since_step, seen.last_step, seen.steps_left) == (101, 200, 10_000)
    assert seen.since_s - look(tmp_path, log_of([1.0] * 30)).times.log.at[0] == 100.0
    np.testing.assert_allclose(seen.off, 0.5, rtol=1e-6)
    # Nothing fails, so 10,000 steps take half a step each more, but for the checkpoints.
    share = seen.run.effective_training_time_ratio
    assert 0.9 < share <= 1.0
    days = 10_000 * 0.5 * STEP_S / share / 86_400
    np.testing.assert_allclose(seen.extra_days, days, rtol=1e-5)
    np.testing.assert_allclose(seen.extra_dollars, days * 24 * (64 + 16) * 2.0, rtol=1e-5)
    assert f"over the 10,000 steps that are left this costs {days:.3g} days and $" in seen.remarks()[0]


def test_how_far_steps_are_beyond_the_band_is_over_the_end_that_they_left(tmp_path):
    low, high = EST.range_s
    for factor, beyond, side in (
        (1.5, 1.5 * STEP_S / high - 1, "above"),
        (0.5, 1 - 0.5 * STEP_S / low, "below"),
    ):
        (said,) = look(tmp_path, log_of([factor] * 40)).remarks()
        assert f", {beyond:.1%} {side} the band (" in said
        assert f"{factor - 1:+.1%} off the " in said


def test_the_length_of_a_run_is_the_logs_or_that_of_its_tokens(tmp_path):
    # torchtitan prints no number of steps in all: 128 · 8,192 tokens a step.
    rate = 128 * 8192 / (1.5 * STEP_S) / 64
    text = "".join(
        f"step: {n}  loss: 7.0  memory: 40.00GiB(50.0%)  tps: {rate:,.3f}  mfu: 3%\n"
        for n in range(10, 410, 10)
    )

    unknown = look(tmp_path, text)
    assert (unknown.run, unknown.steps_left, unknown.extra_days, unknown.extra_dollars) == (None,) * 4
    assert "-33.3% steps a day" in unknown.remarks()[0]
    known = look(tmp_path, text, tokens=128 * 8192 * 5000)
    assert known.steps_left == 4600
    assert known.since_s != known.since_s  # no clock: not a number
    assert known.to_dict()["since_s"] is None


def run_watch(*arguments):
    return main(["observed", "watch", *map(str, arguments)])


@pytest.fixture
def files(tmp_path):
    job, log = tmp_path / "job.yaml", tmp_path / "train.log"
    job.write_text(json.dumps(JOB))
    return job, log


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (2.0, 4), (0.3, 5)])
def test_exit_codes_for_schedulers(files, capsys, factor, code):
    job, log = files
    log.write_text(log_of([factor] * 40))

    assert run_watch(log, "--job", job, "--once", "--format", "json") == code
    record = json.loads(capsys.readouterr().out)
    assert record["state"] == {0: "inside", 4: "slower", 5: "faster"}[code]
    assert run_watch(log, "--job", job, "--once") == code
    assert ("off the" in capsys.readouterr().out) == (code != 0)


def test_a_watcher_sees_every_state_of_a_growing_log(files):
    _, log = files
    log.write_text("starting\n")
    watcher = Watcher(log, **JOB)
    states = [watcher.look()]
    for first, factor in ((1, 1.0), (11, 2.0), (21, 2.0), (31, 1.0)):
        with log.open("a") as stream:
            stream.write(log_of([factor] * 10, first=first))
        states.append(watcher.look().state)

    assert states == [None, "inside", "slower", "slower", "inside"]
    assert LEAST_LINES <= 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--interval", "soon"], "--interval: expected"),
        (["--interval", "0s"], "--interval: expected more than 0 s"),
        (["--global-batch", "64"], "global batch is 128 in the log, but 64 in the job"),
        (["--price", "-1"], "price"),
    ],
)
def test_wrong_input_is_one_line(files, capsys, change, message):
    job, log = files
    log.write_text(log_of([1.0] * 10))

    assert run_watch(log, "--job", job, *change) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("factors", "now"),
    [
        ([1.0] * 30 + [1.5] * 30 + [3.0] * 8, 3.0),  # a second jump
        ([1.0] * 30 + [3.0] * 30 + [1.5] * 6, 1.5),  # half way back
        ([1.0] * 30 + [1.5, 1.52, 1.48, 1.51, 1.49] * 4, 1.5),  # one level, all of it
        ([1.0] * 30 + [1.5] * 10 + [9.0] + [1.5] * 3, 1.5),  # one step is no level
        ([1.0] * 30 + [1.5] * 15 + [1.56] * 5, 1.5),  # still the same level: its median
    ],
)
def test_a_step_now_is_that_of_the_last_level(tmp_path, factors, now):
    seen = look(tmp_path, log_of(factors), price=2.0)
    assert (seen.state, seen.since_step) == ("slower", 31)
    assert seen.step_time_s == pytest.approx(now * STEP_S, rel=1e-6)
    assert seen.off == pytest.approx(now - 1.0, rel=1e-5)
