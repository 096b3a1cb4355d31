"""Each axis at 2 beside each other axis at 2, against sums over the ranks of a small model, counted one by one.

What one axis does to the lines of another is where bugs live that tests of one axis at a time cannot see. The model has four
layers of `round_jobs`, dense or of eight experts. The counts here are written from the papers, in plain loops, and share
nothing with the package: a rank holds what it holds, and sends (P - 1) / P of what its group exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from round_jobs import MOE, SMALL, counts, memory, near, price, sent_bytes

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 1024, 8, 4, 128, 4096, 32000
EXPERTS, TOP_K, EXPERT_FFN, LAYERS, SEQ_LEN = 8, 2, 512, 4, 1024


@dataclass(frozen=True)
class Setting:
    """One job: degrees, what is trained, and how."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vp: int = 1
    dp: int = 1
    ep: int = 1
    micro_batch: int = 1
    micro_batches: int = 4
    zero_stage: int = 1
    recompute: str = "none"
    mtp_layers: int = 0
    experts: bool = False

    @property
    def gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def tokens(self) -> float:
        """Of a micro-batch on one rank of the context group."""
        return SEQ_LEN * self.micro_batch / self.cp

    def estimate(self):
        model = {**(MOE if self.experts else SMALL), "mtp_layers": self.mtp_layers}
        return price(
            model,
            gpus=self.gpus,
            global_batch=self.dp * self.micro_batch * self.micro_batches,
            **{
                name: getattr(self, name)
                for name in ("tp", "cp", "pp", "vp", "ep", "micro_batch", "zero_stage")
            },
            pipeline_layout="even",
            recompute=self.recompute,
        )


AXES: dict[str, dict[str, object]] = {
    "tp": {"tp": 2},
    "cp": {"cp": 2},
    "pp": {"pp": 2},
    "vp": {"pp": 2, "vp": 2},
    "dp": {"dp": 2},
    "experts": {"experts": True},
    "ep": {"experts": True, "ep": 2, "dp": 2},
    "micro_batch": {"micro_batch": 2},
    "accumulation": {"micro_batches": 8},
    "zero 3": {"zero_stage": 3, "dp": 2},
    "full": {"recompute": "full"},
    "selective": {"recompute": "selective"},
    "mtp": {"mtp_layers": 2},
}
PAIRS = [
    replace(replace(Setting(), **AXES[one]), **AXES[other])
    for one, other in combinations(AXES, 2)
    if {one, other} != {"full", "selective"}
]


def wire(size: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-gather, a reduce-scatter or an all-to-all of that size."""
    return (ranks - 1) / ranks * size


def layer_params(at: Setting) -> tuple[float, float]:
    """Parameters that a rank holds of a layer: dense ones and those of experts."""
    attention = HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD_DIM / at.tp + HEADS * HEAD_DIM * HIDDEN / at.tp
    norms = 2 * HIDDEN
    if not at.experts:
        return attention + norms + 3 * HIDDEN * FFN / at.tp, 0.0
    router = HIDDEN * EXPERTS
    return attention + norms + router, sum(3.0 * HIDDEN * EXPERT_FFN for _ in range(EXPERTS // at.ep))


def stage_params(at: Setting) -> list[tuple[float, float]]:
    """Dense and expert parameters that a rank of each stage holds."""
    dense, expert = layer_params(at)
    stages = []
    for stage in range(at.pp):
        layers = LAYERS // at.pp
        others = 0.0
        if stage == 0:
            others += VOCAB * HIDDEN / at.tp
        if stage == at.pp - 1:
            others += VOCAB * HIDDEN / at.tp + HIDDEN  # the head and the last norm
            for _ in range(at.mtp_layers):
                layers += 1
                others += 2 * HIDDEN * HIDDEN / at.tp + 3 * HIDDEN  # a projection of two streams, three norms
            if at.mtp_layers and at.pp > 1:
                others += VOCAB * HIDDEN / at.tp  # a copy of the embedding
        stages.append((layers * dense + others, layers * expert))
    return stages


def a_stage(values: list[float]) -> object:
    """As `round_jobs.memory` shows them."""
    return values[0] if len(set(values)) == 1 else values


@pytest.fixture(scope="module")
def priced():
    return [(at, at.estimate()) for at in PAIRS]


def test_states_of_every_pair(priced):
    """Two bytes of parameters, four of main weights, eight of moments; experts are sharded over their own replicas."""
    for at, est in priced:
        expected = {}
        for part, place, ranks in (
            ("dense", 0, at.dp * at.cp),
            ("expert", 1, at.tp * at.cp * at.dp // at.ep),
        ):
            held = [stage[place] for stage in stage_params(at)]
            if not any(held):
                continue
            for name, width, sharded in (
                ("parameters", 2, at.zero_stage == 3),
                ("optimizer.main_weights", 4, True),
                ("optimizer.moments", 8, True),
            ):
                expected[f"state.{part}.{name}"] = a_stage(
                    [width * params / (ranks if sharded else 1) for params in held]
                )
            if at.zero_stage < 3:
                expected[f"state.{part}.gradients"] = a_stage([4 * params for params in held])
        found = memory(est, "state.")
        if at.zero_stage == 3:
            found = {name: size for name, size in found.items() if "gradients" not in name}
        assert found == near(expected), at


def test_messages_of_layers_of_every_pair(priced):
    """Bytes of a message, and how many: a layer of every micro-batch, of the stage that has most to do."""
    for at, est in priced:
        layers = LAYERS // at.pp + at.mtp_layers
        activations = 2 * at.tokens * HIDDEN
        expected = {}
        if at.tp > 1:
            expected["tp.attention.all_gather.forward"] = wire(activations, at.tp)
            expected["tp.attention.reduce_scatter.backward"] = wire(activations, at.tp)
            if not at.experts:
                expected["tp.mlp.reduce_scatter.forward"] = wire(activations, at.tp)
        if at.cp > 1:
            expected["cp.attention.ring.forward"] = (
                2 * 2 * at.tokens * KV_HEADS * HEAD_DIM / at.tp * (at.cp - 1)
            )
        if at.ep > 1:
            sent = 2 * at.tokens / at.tp * TOP_K * HIDDEN
            expected["ep.moe.dispatch.forward"] = expected["ep.moe.combine.backward"] = wire(sent, at.ep)
        bytes_of, count_of = sent_bytes(est), counts(est)
        for name, size in expected.items():
            assert bytes_of[name] == near(size), (at, name)
            assert count_of[name] == layers * at.micro_batches, (at, name)
        if at.recompute == "full" and at.tp > 1:
            again = "tp.attention.all_gather.recompute"
            assert bytes_of[again] == near(wire(activations, at.tp)), at
            assert count_of[again] == layers * at.micro_batches, at


def test_messages_between_stages_of_every_pair(priced):
    """A stage sends its activations, split over the tensor group, and gets gradients of the same size."""
    for at, est in priced:
        if at.pp > 1:
            sends = counts(est, "pp.send_recv")["pp.send_recv"]
            assert sent_bytes(est, "pp.send_recv")["pp.send_recv"] == near(2 * at.tokens * HIDDEN / at.tp), at
            assert sends >= 2 * at.micro_batches * (at.vp - 1 / at.pp), at


def test_gradients_of_every_pair(priced):
    """Reduced in four bytes once a step, gathered in two, by the stage that has most."""
    for at, est in priced:
        if at.zero_stage == 3:
            continue
        bytes_of = sent_bytes(est, "dp.")
        for part, place, ranks in (
            ("dense", 0, at.dp * at.cp),
            ("expert", 1, at.tp * at.cp * at.dp // at.ep),
        ):
            params = max(stage[place] for stage in stage_params(at))
            if ranks > 1 and params:
                assert bytes_of[f"dp.{part}.grad_reduce_scatter"] == near(wire(4 * params, ranks)), at
                assert bytes_of[f"dp.{part}.param_all_gather"] == near(wire(2 * params, ranks)), at


def test_work_of_every_pair(priced):
    """Model FLOPs are those of the tokens, whatever the layout; recomputation adds one forward pass of the layers."""
    dense = 6.0 * (LAYERS * (15 * 2**20) + VOCAB * HIDDEN)
    scores = LAYERS * 12.0 * SEQ_LEN * HEADS * HEAD_DIM
    for at, est in priced:
        peak = float(est.peak_flops_per_s)
        model = float(est.mfu) * float(est.step_time_s) * at.gpus * peak
        tokens = at.dp * at.micro_batch * at.micro_batches * SEQ_LEN
        hardware = float(est.hfu) * float(est.step_time_s) * at.gpus * peak
        if not at.experts and not at.mtp_layers:
            assert model == near((dense + scores) * tokens), at
            layers = 6.0 * LAYERS * 15 * 2**20 + scores
            if at.recompute == "full":
                assert hardware - model == pytest.approx(layers * tokens / 3, rel=1e-2), at
        if at.recompute == "none":
            assert hardware == near(model), at
