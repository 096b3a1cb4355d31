"""Examples of pipelines and meshes from introductions to the field: bubbles, what is held, where groups lie.

They are those of a widely read guide to distributed training, of a post by S. Consul ("Training is not (just) a compute
problem", blog.noise2signal.ai) and of an interactive page on parallelism. Where one is wrong the printed
value stands beside the right one: Narayanan et al., arXiv:2104.04473, and Qi et al., arXiv:2401.10241.
"""

import numpy as np
import pytest

from costmodel.describe.hardware.hardware import compose_cluster, load_cluster
from costmodel.describe.jobs.layout import make_layout
from costmodel.describe.models.model import make_model
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.estimate import estimate
from costmodel.estimates.mesh import mesh_rows
from costmodel.physics.pipeline.schedules import bubble_time_s, schedule_code
from costmodel.step.anatomy.params import num_params

# Schedule, stages, micro-batches, virtual stages, printed bubble fraction (arXiv:2104.04473, section 2.2)
BUBBLES = [
    ("naive", 4, 1, 1, 0.75),  # (P - 1)/P, for any number of micro-batches
    ("naive", 4, 8, 1, 0.75),
    ("gpipe", 4, 1, 1, 0.75),
    ("gpipe", 4, 4, 1, 0.43),
    ("1f1b", 4, 4, 1, 0.43),
    ("1f1b", 4, 8, 1, 3 / 11),
    ("1f1b", 8, 32, 1, 7 / 39),
    ("interleaved", 4, 8, 2, 3 / (8 * 2 + 3)),
]


@pytest.mark.parametrize(("schedule", "p", "m", "v", "printed"), BUBBLES)
def test_bubble_fractions(schedule, p, m, v, printed):
    f, b, w = 1.0, 1.0, 1.0
    idle = float(
        bubble_time_s(
            schedule_code(schedule),
            stages=p,
            micro_batches=m,
            virtual_stages=v,
            forward_s=f,
            backward_input_s=b,
            backward_weight_s=w,
        )
    )
    assert idle / (idle + m * (f + b + w)) == pytest.approx(printed, abs=0.002)


def rows_of(layout, cluster, order="tp cp dp pp"):
    """Return the mesh table as dim: (factor, groups, link)."""
    rows = mesh_rows(layout, cluster, order.split(), load_recipe("torchtitan"))
    return {row.dim: (row.factor, row.groups, row.link) for row in rows}


def test_mesh_of_eight_gpus():
    """The page on parallelism: TP 2, FSDP 2, DP 2 on two nodes of four: TP and FSDP inside a node, replicas across."""
    two_nodes = compose_cluster("h100-sxm-80gb", 4, 4, 50e9, "ib", 8)
    layout = make_layout(gpus=8, tp=2, zero_stage=3, shard_group=2, sequence_parallel=False)
    rows = mesh_rows(layout, two_nodes, ["tp", "cp", "dp", "pp"], load_recipe("torchtitan"))
    inside, between = (tier.name for tier in two_nodes.tiers)
    table = {row.dim: (row.factor, row.groups, row.link) for row in rows}
    assert table == {
        "tp": (2, 4, inside),
        "cp": (1, 8, ""),
        "shard": (2, 4, inside),
        "replica": (2, 4, between),
        "pp": (1, 8, ""),
    }
    said = {row.dim: row.comm for row in rows if row.comm}
    assert said["tp"].startswith("all-reduce")
    assert said["shard"].startswith("all-gather + reduce-scatter")
    assert said["replica"].startswith("all-reduce of gradients")


def test_three_dimensional_mesh():
    """The guide: TP 8 x PP 4 x DP 4 = 128; it counts ranks in the order tp, pp, dp."""
    cluster = load_cluster("dgx-h100-ndr")
    layout = make_layout(gpus=128, tp=8, pp=4)
    assert float(layout.dp) == 4
    table = rows_of(layout, cluster, "tp cp pp dp")
    assert table["tp"] == (8, 16, "nvlink")
    assert table["pp"] == (4, 32, "leaf")
    assert table["dp"] == (4, 32, "leaf")
    # A comment there: TP = PP = DP = 2 on nodes of two.
    small = compose_cluster("h100-sxm-80gb", 2, 2, 50e9, "ib", 8)
    table = rows_of(make_layout(gpus=8, tp=2, pp=2), small, "tp cp pp dp")
    assert table["tp"] == (2, 4, small.tiers[0].name)
    assert table["pp"] == table["dp"] == (2, 4, small.tiers[1].name)


def trillion():
    """About 1.2T parameters: 64 experts in each of 64 layers, two a token."""
    return make_model(
        {
            "name": "moe-1t",
            "source": "an example",
            "num_layers": 64,
            "hidden_size": 8192,
            "num_heads": 64,
            "num_kv_heads": 8,
            "gated_mlp": True,
            "vocab_size": 128000,
            "num_experts": 64,
            "top_k": 2,
            "expert_ffn_size": 12288,
        }
    )


def test_a_trillion_parameters_on_4096_gpus():
    """The guide: DP 8 x PP 8 x TP 8 x EP 8 = 4,096.

    EP is no factor of its own: the experts' axes are laid over the same ranks, so that experts
    have the 8 replicas that the guide counts, and everything else has 64.
    """
    model = trillion()
    assert num_params(model) > 1e12
    est = estimate(
        model=model,
        cluster="dgx-h100-ndr",
        gpus=4096,
        layout="tp8 pp8 ep8 etp8",
        recompute="full",
        global_batch=2048,
        seq_len=4096,
    )
    layout = est.job.layout
    assert float(layout.expert_dp) == 8
    assert float(layout.dp) == 64
    assert float(layout.expert_dp * layout.pp * layout.ep * layout.etp) == 4096
    assert float(layout.dp * layout.pp * layout.tp) == 4096
    assert est.fits
    experts = {line.name: line for line in est.bill.memory_lines if line.name.startswith("state.expert.")}
    held = float(np.max(experts["state.expert.parameters"].terms["params"]))
    assert held == pytest.approx(64 * 64 / 512 * 3 * 8192 * 12288, rel=1e-12)
    table = rows_of(layout, est.job.cluster)
    assert table["ep"][:2] == (8, 512)
    assert table["edp"][:2] == (8, 512)
    assert table["tp"] == (8, 512, "nvlink")
    # Experts whole on each rank would be 19 billion parameters a GPU, and would not fit.
    assert not estimate(
        model=model,
        cluster="dgx-h100-ndr",
        gpus=4096,
        layout="tp8 pp8 ep8 etp1",
        recompute="full",
        global_batch=2048,
        seq_len=4096,
    ).fits
