"""`costmodel observed measure` on a torch of our own with a clock of our own: what is started, how often, and what is written."""

import csv
import os
import sys
from types import SimpleNamespace

import pytest

from costmodel.base.errors import CostModelError
from costmodel.trust import measure
from costmodel.trust.calibration import measure_collectives as bench
from costmodel.trust.calibration import measure_kernels as devices


class Tensor:
    def __init__(self, *shape, **kind):
        self.shape, self.kind, self.turned = shape, kind, False

    def to(self, dtype):
        self.kind["dtype"] = dtype
        return self

    def t(self):
        self.turned = True
        return self

    def copy_(self, source):
        TORCH.spend("copy", source.shape, self.shape)

    def item(self):
        return self.value


class Torch:
    """Tensors are shapes; every call takes the seconds that a test gives it, and is written down."""

    __version__ = "9.9"
    bfloat16, float16, float32, float64, float8_e4m3fn, uint8 = "bf16", "fp16", "fp32", "fp64", "fp8", "u8"

    def __init__(self):
        self.now, self.calls, self.seconds, self.waits = 0.0, [], {}, 0
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_name=lambda: "Round GPU",
            synchronize=self.wait,
            set_device=lambda index: self.calls.append(("set_device", index)),
        )
        self.version = SimpleNamespace(cuda="12.8", hip=None)
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None)))
        self.randn = self.ones = self.empty = self.zeros = Tensor
        self.randn_like = self.empty_like = self.zeros_like = lambda one: Tensor(*one.shape)

    def spend(self, what, *said):
        self.calls.append((what, *said))
        self.now += self.seconds[what]

    def wait(self):
        self.waits += 1

    def get_num_threads(self):
        return 4

    def timer(self, stmt, *, globals, num_threads):
        """Time what torch.utils.benchmark would: calls in a row, within a budget."""

        def timed(*, min_run_time):
            before = self.now
            eval(stmt, globals)
            return SimpleNamespace(median=self.now - before)

        assert num_threads == 4
        return SimpleNamespace(blocked_autorange=timed)

    def matmul(self, left, right):
        self.spend(
            "matmul", left.shape, right.shape, left.kind["dtype"], self.backends.cuda.matmul.allow_tf32
        )

    def _scaled_mm(self, left, right, *, scale_a, scale_b, out_dtype):
        self.spend("fp8", left.shape, right.shape, left.kind["dtype"], out_dtype)

    def tensor(self, values, *, dtype, device):
        one = Tensor(len(values))
        one.value = values[0]
        return one


TORCH = Torch()


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    TORCH.__init__()
    for module in (measure, bench, devices):
        monkeypatch.setattr(module, "import_torch", lambda: TORCH)
    clock = SimpleNamespace(perf_counter=lambda: TORCH.now)
    monkeypatch.setitem(sys.modules, "torch.utils.benchmark", SimpleNamespace(Timer=TORCH.timer))
    monkeypatch.setattr(bench, "time", clock)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return TORCH


def table(text):
    head, _, rows = text.partition("\n")
    return head, list(csv.DictReader(rows.splitlines()))


def test_products_of_two_dtypes(torch):
    """A millisecond each: 2 m n k / 1 ms; the small sweep has four sizes of tokens by four of weights."""
    torch.seconds = {"matmul": 1e-3, "fp8": 5e-4}
    seen = []
    text = measure.kernels("matmul", dtypes=("bf16", "fp8"), small=True, progress=lambda *at: seen.append(at))
    head, rows = table(text)
    assert head.startswith("# Round GPU")
    assert seen == [(done, 32) for done in range(1, 33)]
    sizes = [[r["dtype"], *(int(r[key]) for key in "mnk")] for r in rows[3:5]]
    assert sizes == [["bf16", 512, 256, 256], ["bf16", 64, 512, 256]]
    assert {r["op"] for r in rows} == {"matmul"}
    assert [float(r["time_us"]) for r in rows] == pytest.approx([1000.0] * 16 + [500.0] * 16)
    assert float(rows[0]["tflops"]) == pytest.approx(2 * 64 * 256 * 256 / 1e-3 / 1e12)
    assert float(rows[-1]["tflops"]) == pytest.approx(2 * 512 * 512 * 512 / 5e-4 / 1e12)
    assert ("matmul", (64, 256), (256, 256), "bf16", False) in torch.calls
    assert ("fp8", (64, 1024), (256, 1024), "fp8", "bf16") in torch.calls
    measure.kernels("matmul", dtypes=("tf32",), small=True)
    assert torch.calls[-1] == ("matmul", (512, 512), (512, 512), "fp32", True)


def test_copies_read_and_write_each_byte_once(torch):
    """Half of the bytes are read and half are written; 16 KiB to 8 MiB in the small sweep."""
    torch.seconds = {"copy": 1e-4}
    _, rows = table(measure.kernels("memory", small=True))
    assert [float(row["bytes"]) for row in rows] == [2.0**power for power in range(14, 24)]
    assert torch.calls[0] == ("copy", (8192,), (8192,))
    assert {row["op"] for row in rows} == {"copy"}
    assert float(rows[3]["time_us"]) == pytest.approx(100.0)
    with pytest.raises(CostModelError, match="kernels: 'matmull' is unknown; did you mean 'matmul'"):
        measure.kernels("matmull")


class Group:
    """Four ranks, of which this is the second of the first node."""

    ReduceOp = SimpleNamespace(MAX="max")
    isend, irecv = "isend", "irecv"

    def __init__(self, torch, ranks=4, rank=0):
        self.torch, self.ranks, self.rank, self.started = torch, ranks, rank, []

    def init_process_group(self, backend, **given):
        self.started.append((backend, given))

    def destroy_process_group(self):
        self.started.append("over")

    def get_world_size(self):
        return self.ranks

    def get_rank(self):
        return self.rank

    def barrier(self):
        self.torch.calls.append(("barrier",))

    def all_gather_object(self, into, mine):
        pid, _, name = mine
        assert pid == os.getpid()
        into[:] = [(100 + rank, f"node{rank // 2}", name) for rank in range(self.ranks)]

    def all_reduce(self, one, op="sum"):
        if op == "max":
            one.value *= 2  # the slowest rank takes twice as long as this one
        else:
            self.torch.spend("all_reduce", one.shape)

    def all_gather_into_tensor(self, full, part):
        self.torch.spend("all_gather", full.shape, part.shape)

    def reduce_scatter_tensor(self, part, full):
        self.torch.spend("reduce_scatter", part.shape, full.shape)

    def all_to_all_single(self, other, full):
        self.torch.spend("all_to_all", other.shape, full.shape)

    def broadcast(self, full, root):
        self.torch.spend("broadcast", full.shape, root)

    def reduce(self, full, root):
        self.torch.spend("reduce", full.shape, root)

    def P2POp(self, way, tensor, peer):
        return way, tensor.shape, peer

    def batch_isend_irecv(self, sends):
        self.torch.spend("ring", *sends)
        return [SimpleNamespace(wait=self.torch.wait) for _ in sends]


KINDS = {
    # bus factor of four ranks, reduction, root, and the call of 4 KiB: 1,024 floats, 256 a rank
    "all_reduce": (1.5, "sum", "-1", ("all_reduce", (1024,))),
    "all_gather": (0.75, "none", "-1", ("all_gather", (1024,), (256,))),
    "reduce_scatter": (0.75, "sum", "-1", ("reduce_scatter", (256,), (1024,))),
    "all_to_all": (0.75, "none", "-1", ("all_to_all", (1024,), (1024,))),
    "broadcast": (1.0, "none", "0", ("broadcast", (1024,), 0)),
    "reduce": (1.0, "sum", "0", ("reduce", (1024,), 0)),
    "send_recv": (1.0, "none", "-1", ("ring", ("isend", (1024,), 1), ("irecv", (1024,), 3))),
}


def test_a_collective_of_four_ranks(torch):
    """10 us here and 20 us on the slowest rank: 4,096 B / 20 us = 0.2048 GB/s; five batches of ten calls, three before."""
    for primitive, (bus, redop, root, call) in KINDS.items():
        torch.__init__()
        torch.distributed, torch.seconds = Group(torch), {call[0]: 1e-5}
        ticks = []
        text = bench.measure_collectives(
            [primitive], 4096, 8192, "cuda", progress=lambda *at, to=ticks: to.append(at)
        )
        assert torch.distributed.started == [("nccl", {}), "over"]
        log = text.splitlines()
        first = next(line.split() for line in log if not line.startswith("#"))
        assert first == [
            *("4096", "1024", "float", redop, root, "20.0000", "0.2048", f"{0.2048 * bus:.4f}", "N/A")
        ]
        assert ticks == [(1, 2), (2, 2)]
        assert torch.calls.count(call) == 3 + 5 * 10
        assert torch.calls.count(("barrier",)) == 10
        ranks = [line.split() for line in log if "Rank" in line]
        assert [(row[2], row[6], row[8], row[10]) for row in ranks] == [
            (str(rank), str(100 + rank), f"node{rank // 2}", str(rank % 2)) for rank in range(4)
        ]


def test_ranks_of_a_launcher(torch, monkeypatch):
    """Four sizes of two collectives; the second rank writes nothing and uses its own device."""
    torch.seconds = {"all_reduce": 1e-5, "all_gather": 1e-5}
    with pytest.raises(CostModelError, match="expected several ranks; start with torchrun"):
        measure.collectives()
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    torch.distributed = Group(torch, rank=1)
    seen = []
    given = {"low_bytes": 1024, "high_bytes": 8192, "progress": lambda *at: seen.append(at)}
    assert measure.collectives(["all-reduce", "all-gather"], **given) == ""
    assert seen == [(done, 8) for done in range(1, 9)]
    assert torch.calls[0] == ("set_device", 1)
    torch.distributed = Group(torch)
    assert "all_reduce_perf" in measure.collectives(["all-reduce"], **given)
