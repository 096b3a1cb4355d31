"""Training logs: what each framework prints, in whatever noise; warm-up, restarts and odd steps left out and said."""

import gzip
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel as cm
from costmodel.base.errors import DataError
from costmodel.cli import main
from costmodel.interop.step_log.collect import LogFollower, StepCollector, read_step_log
from costmodel.interop.step_log.formats import MEMORY_FORMATS
from costmodel.interop.step_log.lines import LineSplitter
from costmodel.trust.step_times import longest_run, measured_steps, step_times, warm_up_lines

# 16 sequences of 4,096 tokens a step on 8 GPUs.
JOB = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": 8,
    "layout": "tp2",
    "global_batch": 16,
    "seq_len": 4096,
}

# A step 12 of 2.5 s, as each framework would print it: 16 · 4096 / 2.5 / 8 = 3,276.8 tokens/s a GPU, 6.4 samples/s.
LINES = {
    "megatron-lm": " [2025-08-01 07:19:37] iteration       12/    5000 | consumed samples:          192 | elapsed time"
    " per iteration (ms): 2500.0 | throughput per GPU (TFLOP/s/GPU): 80.2 | learning rate: 6.976744E-08 | global batch"
    " size:    16 | lm loss: 1.043863E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "nemo": "Training epoch 0, iteration 12/5000 | lr: 1.961e-06 | global_batch_size: 16 | global_step: 12 |"
    " reduced_train_loss: 1.315 | train_step_timing in s: 2.5 | consumed_samples: 192",
    "torchtitan": "\x1b[31mstep: 12  \x1b[32mloss:  7.6987  \x1b[38;2;180;60;0mgrad_norm:  8.5730  \x1b[36mmemory: "
    "45.25GiB(57.12%)  \x1b[34mtps: 3,276.8  \x1b[36mtflops: 301.33  \x1b[35mmfu: 30.47%\x1b[39m",
    "deepspeed-pipeline": "steps: 12 loss: 5.5508 lm loss: 5.5103 iter time (s): 2.500 samples/sec: 6.400",
    "deepspeed": "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=24/global_step=12,"
    " RunningAvgSamplesPerSec=58.73, CurrSamplesPerSec=6.4, MemAllocated=6.01GB, MaxMemAllocated=19.50GB",
    "megatron-bridge": "Step Time : 2.50s GPU utilization: 697.3MODEL_TFLOP/s/GPU",
    "deepspeed-timers": "[2024-06-21 10:50:42,167] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 600.25"
    " | bwd: 1800.50 | bwd_inner: 1700.00 | bwd_allreduce: 100.50 | step: 99.25",
}

# Peaks that a person reads off each line.
PEAKS = {
    "max allocated:": (
        "[Rank 2] (after 1 iterations) memory (MB) | allocated: 9334.0 | max allocated: 12000.5",
        12000.5 * 2**20,
    ),
    "max reserved:": (
        "[Rank 2] (after 1 iterations) memory (MB) | reserved: 9334.0 | max reserved: 13236.0",
        13236 * 2**20,
    ),
    "mem-max-allocated-gigabytes:": (
        "memory (GB) | mem-max-allocated-gigabytes: 153.4 | mem-alloc-retires: 0",
        153.4e9,
    ),
    "mem-max-reserved-gigabytes:": (
        "memory (GB) | mem-max-reserved-gigabytes: 182.2 | mem-alloc-retires: 0",
        182.2e9,
    ),
    "memory:": (LINES["torchtitan"], 45.25 * 2**30),
    "MaxMemAllocated=": (LINES["deepspeed"], 19.5 * 2**30),
    "Max_MA": (
        "[INFO] [utils.py:801:see_memory_usage] MA 0.29 GB  Max_MA 0.31 GB  CA 2.93 GB  Max_CA 3 GB",
        0.31 * 2**30,
    ),
}


def megatron(number, seconds, *, batch=16, of=5000, clock="2025-08-01 07:19:37", skipped=0):
    return (
        f" [{clock}] iteration {number:8d}/{of:8d} | consumed samples: {number * batch:12d} | elapsed time per iteration"
        f" (ms): {1e3 * seconds:.1f} | learning rate: 6.976744E-08 | global batch size: {batch:5d} | lm loss: 1.0E+01 |"
        f" number of skipped iterations: {skipped:3d} |\n"
    )


def heard(text, est=None):
    collector = StepCollector("train.log")
    for line in text.splitlines():
        collector.take(line)
    return measured_steps(collector.found(), est)


@pytest.fixture(scope="module")
def est():
    return cm.estimate(**JOB)


def test_a_line_of_each_framework(est):
    for name, line in LINES.items():
        times = heard(line, est)
        assert times.log.format.name == name
        np.testing.assert_allclose(times.step_time_s, 2.5, rtol=1e-12)
        has_number = name not in ("megatron-bridge", "deepspeed-timers")
        assert times.log.number.tolist() == ([12] if has_number else [0]), name
        assert times.log.last_step == (5000 if name in ("megatron-lm", "nemo") else 0)


def test_a_peak_of_each_framework():
    kinds = {known.mark: known.name for known in MEMORY_FORMATS}
    for mark, (line, size) in PEAKS.items():
        collector = StepCollector("train.log")
        collector.take(line)
        collector.take(LINES["megatron-bridge"])
        assert kinds[mark] == ("max_reserved" if mark == "memory:" or "reserved" in mark else "max_allocated")
        np.testing.assert_allclose(collector.found().memory_bytes[kinds[mark]], size, rtol=1e-12)


def test_the_largest_peak_of_all_ranks_counts_also_where_two_share_a_line():
    text = "[Rank 0] memory (MB) | max allocated: 100.0 | max reserved: 110.0[Rank 1] memory (MB) | max allocated: 300.0 | max"
    log = heard(text + " reserved: 120.0\n" + megatron(1, 2.0)).log

    assert log.memory_bytes == {"max_allocated": 300 * 2**20, "max_reserved": 120 * 2**20}


PREFIXES = (
    *(
        "",
        "[rank0]:",
        "[default0]:[rank0] ",
        "0: ",
        "node-01.cluster: ",
        "[1,0]<stdout>:",
        "2025-08-01T07:19:37.123Z ",
    ),
    *("[pod/worker-0/pytorch] ", "(TrainWorker pid=4132, ip=10.0.0.7) ", "\x1b[36m(pid=7)\x1b[0m "),
)


def test_whatever_a_launcher_puts_before_a_line(est):
    for prefix in PREFIXES:
        for line in LINES.values():
            np.testing.assert_allclose(heard(prefix + line, est).step_time_s, 2.5, rtol=1e-12)


def test_encodings_line_ends_and_packing(tmp_path):
    file = tmp_path / "train.log"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        for end in ("\n", "\r\n", "\r"):
            text = "".join(megatron(n, 2.0 + 0.001 * n) for n in range(1, 8)).replace("\n", end)
            for raw in (text.encode(encoding), gzip.compress(text.encode(encoding), mtime=0)):
                file.write_bytes(raw)
                assert read_step_log([file]).number.tolist() == [1, 2, 3, 4, 5, 6, 7], (encoding, end)


@given(cuts=st.lists(st.integers(0, 2000), max_size=12), encoding=st.sampled_from(["utf-8", "utf-16"]))
def test_lines_do_not_depend_on_how_the_bytes_are_cut(cuts, encoding):
    text = "größe\r\n\n" + "x" * 300 + "\rlast"
    raw = text.encode(encoding)
    splitter, at = LineSplitter("log"), 0
    found = []
    for cut in [*sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]:
        found += splitter.feed(raw[at:cut])
        at = cut
    found += splitter.feed(b"", last=True)

    assert found == ["größe", "x" * 300, "last"]


def test_warm_up_ends_where_the_run_settles():
    # A mixture of experts that compiles, then captures its graphs in the fourth step; the sixth is odd.
    seconds = [125.37, 6.13, 4.66, 10.69, 2.26, 3.54, 2.24, 2.22, 2.23, 2.24, 2.22, 2.25, 2.24, 2.23]
    times = heard("".join(megatron(n, s) for n, s in enumerate(seconds, start=1)))

    assert [(one.reason, one.lines) for one in times.left_out] == [("warm-up", 4), ("slow", 1)]
    assert times.left_out[0].detail.startswith("steps 1 to 4, up to 56")
    np.testing.assert_allclose(times.step_time_s, np.median([2.26, *seconds[6:]]), rtol=1e-12)


def test_lines_of_warm_up():
    for times, lines in (
        ([5.0], 0),  # nothing to compare with
        ([5.0, 5.0], 0),
        ([6.0, 5.0], 1),
        ([5.1, 5.0], 0),  # within 3 %
        ([9.0, 9.0, 9.0, 5.0, 5.0, 5.0], 3),
        ([9.0, 5.0, 9.0, 5.0, 5.0, 5.0, 5.0, 5.0], 1),
        ([5.0] * 4 + [9.0] * 4, 0),  # slower later is no warm-up
        ([9.0] * 80 + [5.0] * 400, 50),  # beyond what warm-up can be
    ):
        assert warm_up_lines(np.array(times)) == lines


def test_the_longest_run_survives_one_gap():
    assert longest_run(np.array([1, 1, 1, 0, 1, 1, 0, 0, 0], dtype=bool)) == 6
    assert longest_run(np.array([0, 1, 1, 1], dtype=bool)) == 4
    assert longest_run(np.array([0, 0], dtype=bool)) == 0
    assert longest_run(np.array([], dtype=bool)) == 0


def test_a_restart_has_a_warm_up_of_its_own_and_steps_count_again():
    first = [(n, 9.0 if n == 1 else 2.0) for n in range(1, 31)]
    again = [(n, 8.0 if n < 23 else 2.0) for n in range(21, 61)]
    times = heard("".join(megatron(n, s) for n, s in [*first, *again]))

    assert [(one.reason, one.lines) for one in times.left_out] == [
        ("warm-up", 1),
        ("warm-up after a restart", 2),
    ]
    assert int(times.steady.sum()) == 29 + 38
    assert times.log.segment.max() == 1


def test_a_step_after_a_checkpoint_or_an_evaluation_is_left_out_with_its_reason():
    lines = []
    for n in range(1, 41):
        slow = 1.3 if n in (11, 21, 31) else 1.0
        lines.append(megatron(n, 2.0 * slow))
        lines += ["  successfully saved checkpoint from iteration 10\n"] * (n in (10, 20))
        lines += [" validation loss at iteration 30 | lm loss value: 2.1E+00 |\n"] * (n == 30)
    times = heard("".join(lines))

    assert [(one.reason, one.lines) for one in times.left_out] == [
        ("slow after a checkpoint", 2),
        ("slow after an evaluation", 1),
    ]
    assert times.step_time_s == 2.0


def test_a_skipped_update_is_left_out_with_its_reason():
    lines = [megatron(n, 1.6 if n == 5 else 2.0, skipped=int(n == 5)) for n in range(1, 21)]

    assert [(one.reason, one.lines) for one in heard("".join(lines)).left_out] == [("skipped update", 1)]


def test_steps_of_another_batch_are_left_out_and_a_log_of_another_job_refused(est):
    ramp = "".join(megatron(n, 1.0, batch=8) for n in range(1, 6))
    times = heard(ramp + "".join(megatron(n, 2.0) for n in range(6, 20)), est)

    assert times.step_time_s == 2.0
    assert times.left_out[0][:2] == ("other batch", 5)
    with pytest.raises(DataError, match="global batch is 8 in the log, but 16 in the job"):
        heard(ramp, est)


def test_ranks_that_print_the_same_step_count_once():
    lines = [
        f"[rank{rank}]:[titan] step: {n}  loss: 7.0  memory: {40 + rank:.2f}GiB(50.0%)  tps: 1,000  mfu: 3%\n"
        for n in range(10, 60, 10)
        for rank in (0, 1)
    ]
    collector = StepCollector("train.log")
    for line in lines:
        collector.take(line)
    log = collector.found()

    assert log.number.tolist() == [10, 20, 30, 40, 50]
    assert (log.steps, log.repeated) == (5, 5)
    assert log.memory_bytes == {"max_reserved": 41 * 2**30}


def test_a_validation_line_is_no_step(est):
    text = LINES["torchtitan"] + "\nvalidate step: 13  loss: 7.0  memory: 9.00GiB(9.0%)  tps: 99\n"

    assert heard(text, est).log.number.tolist() == [12]


def test_the_way_of_printing_that_times_whole_steps_is_taken():
    both = "".join(LINES["megatron-bridge"] + "\n" + megatron(n, 2.504) for n in range(1, 9))

    times = heard(both)
    assert times.log.format.name == "megatron-lm"
    np.testing.assert_allclose(times.step_time_s, 2.504, rtol=1e-12)
    # Half as many lines are enough, fewer are not.
    for others, name in ((4, "megatron-lm"), (5, "megatron-bridge")):
        text = "".join(megatron(n, 2.504) for n in (1, 2)) + (LINES["megatron-bridge"] + "\n") * others
        assert heard(text).log.format.name == name


def test_steps_without_a_number_of_their_own_take_the_one_that_was_said():
    said = "[Rank 0] step=40, skipped=0, lr=[1e-4], mom=[(0.9, 0.95)]\n"

    assert heard(said + (LINES["deepspeed-timers"] + "\n") * 3).log.number.tolist() == [40, 41, 42]


def test_a_rate_needs_a_job():
    with pytest.raises(DataError, match=r"torchtitan prints tokens/s/GPU: .* needs the job"):
        heard(LINES["torchtitan"])


def test_the_standard_error_is_that_of_a_median():
    # Half of 100 lines at 2.02 s, half at 1.98: the median absolute deviation is 0.02 s.
    times = heard("".join(megatron(n, 2.0 + (0.02 if n % 2 else -0.02)) for n in range(1, 101)))

    np.testing.assert_allclose(times.spread, 1.4826 * 0.02 / 2.0, rtol=1e-6)
    np.testing.assert_allclose(times.error, np.sqrt(np.pi / 2) * times.spread / 10.0, rtol=1e-12)


def test_what_is_no_log_is_one_line(tmp_path):
    file = tmp_path / "train.log"
    for content, message in (
        (b"", "no line of 0 tells how long a step took"),
        (
            b"hello\nworld\n",
            r"no line of 2 tells .* \(read: Megatron-LM, NeMo, torchtitan, DeepSpeed, Megatron-Bridge\)",
        ),
        (b"iteration 1/ 5 | elapsed time per iteration (ms): nan |\n", "no line of 1 tells"),
        (b"iteration 1/ 5 | elapsed time per iteration (ms): 0.0 |\n", "no line of 1 tells"),
        (bytes(range(1, 256)) + b"\x00abc\x00" * 40, "is not a text"),
        (gzip.compress(b"x" * 10_000, mtime=0)[:30], "cannot be read"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message):
            step_times(file)


def test_a_log_in_pieces_is_one_log(tmp_path):
    for index, span in enumerate(((1, 10), (10, 20), (20, 30))):
        (tmp_path / f"{index}.log").write_text("".join(megatron(n, 2.0) for n in range(*span)))

    log = step_times(tmp_path / f"{index}.log" for index in range(3)).log
    assert log.number.tolist() == list(range(1, 30))
    assert log.segment.max() == 0
    assert log.name.endswith("0.log and 2 more")


def test_following_a_log_through_growth_rotation_and_truncation(tmp_path):
    file = tmp_path / "train.log"
    file.write_text(megatron(1, 2.0) + megatron(2, 2.0)[:40])
    follower = LogFollower(file)
    numbers = lambda: follower.collector.found().number.tolist()  # noqa: E731

    assert follower.poll()
    assert numbers() == [1]
    assert not follower.poll()
    with file.open("a") as stream:  # the rest of a line that was cut
        stream.write(megatron(2, 2.0)[40:])
    assert follower.poll()
    assert numbers() == [1, 2]

    with file.open("a") as stream:
        stream.write(megatron(3, 2.0))
    os.replace(file, tmp_path / "train.log.1")  # rotated before anybody looked
    assert follower.poll()
    assert numbers() == [1, 2, 3]
    file.write_text(megatron(4, 2.0))
    assert follower.poll()
    assert numbers() == [1, 2, 3, 4]

    file.write_text(megatron(5, 2.0) + megatron(6, 2.0) * 2)  # truncated, and longer than before
    assert follower.poll()
    assert numbers() == [1, 2, 3, 4, 5, 6]
    file.write_text(megatron(7, 2.0))  # and shorter
    assert follower.poll()
    assert numbers() == [1, 2, 3, 4, 5, 6, 7]
    follower.close()


def test_a_log_in_place_of_a_measured_time(tmp_path, capsys):
    job, log = tmp_path / "job.yaml", tmp_path / "train.log"
    job.write_text(json.dumps(JOB))
    log.write_text(
        "[Rank 0] memory (MB) | max allocated: 30000.0 | max reserved: 31000.0\n"
        + "".join(megatron(n, 9.0 if n < 3 else 2.0) for n in range(1, 21))
    )

    assert main(["observed", "calibrate", "runs", f"{job}={log}", "--format", "json"]) == 0
    time, memory = json.loads(capsys.readouterr().out)["rows"]
    assert time["measured"] == pytest.approx(2.0)
    assert memory["measured"] == pytest.approx(31000 * 2**20)
    # The device's own share is not the allocator's.
    assert memory["before"] < float(cm.estimate(**JOB).memory_bytes_per_gpu)
    assert main(["observed", "calibrate", "runs", f"{job}={log}"]) == 0
    assert "left out: 2 warm-up (steps 1 to 2, up to 4.5 times the steady step)" in capsys.readouterr().out


def test_a_peak_of_nothing_is_none():
    collector = StepCollector("log")
    step = LINES["deepspeed"]
    collector.take(step.replace("MaxMemAllocated=19.50GB", "MaxMemAllocated=0.0GB"))
    assert collector.found().memory_bytes == {}
    collector.take(step)
    collector.take(step.replace("19.50GB", "18.0GB"))
    assert collector.found().memory_bytes == {"max_allocated": 19.5 * 2**30}
