"""The mesh beside a bill: what is sent over several links is said to be."""

import pytest

import costmodel as cm
from costmodel.base.errors import LayoutError
from costmodel.base.units import format_bytes, format_seconds
from costmodel.describe.hardware.hardware import compose_cluster, load_cluster
from costmodel.describe.jobs.layout import make_layout
from costmodel.describe.recipe import load_recipe
from costmodel.estimates.mesh import mesh_rows

JOB = {"model": "llama3-8b", "gpus": 64, "global_batch": 64, "seq_len": 2048}


def note(layout):
    (grid,) = [grid for grid in cm.estimate(**JOB, layout=layout).grids() if grid.title.startswith("Mesh")]
    return grid.note


def test_sent_is_of_all_links_where_an_axis_crosses_several():
    """With tp8 in nodes of eight, dp meets between nodes only; with tp4 two of its ranks share a node."""
    assert note("tp8") == ""
    assert note("tp4").startswith(
        "Link: the slowest that an axis crosses. Sent: over faster links inside that too"
    )


def test_an_axis_has_the_seconds_and_bytes_of_its_lines():
    est = cm.estimate(**JOB, layout="tp8 pp2")
    (grid,) = [grid for grid in est.grids() if grid.title.startswith("Mesh")]
    lines = [line for line in est.bill.time_lines if line.axis == "tp" and line.category == "communication"]
    assert [column.title for column in grid.columns[-3:]] == ["Sent/GPU/step", "Busy", "Exposed"]
    assert [row[:3] for row in grid.rows if row[0] in ("tp", "cp")] == [["tp", "8", "8"], ["cp", "1", "–"]]
    assert list(next(row for row in grid.rows if row[0] == "tp")[-3:]) == [
        format_bytes(sum(float(line.bytes) for line in lines)),
        format_seconds(sum(float(line.seconds) for line in lines)),
        format_seconds(sum(float(line.exposed_seconds) for line in lines)),
    ]


def test_a_rank_stands_where_megatron_puts_it():
    """64 ranks, tp4 pp2 dp8, pp outermost: 37 = 1 + 4 (1 + 8 x 1); experts of its stage by etp, ep, edp."""
    mesh = cm.mesh(cluster="dgx-h100-ndr", gpus=64, layout="tp4 pp2 ep4")
    found = mesh.of_ranks(37).to_dict()
    places = {"tp": 1, "cp": 0, "dp": 1, "pp": 1, "ep": 1, "etp": 0, "edp": 1}
    assert found["ranks"] == [{"rank": 37, **places}]
    data = [33, 37, 41, 45, 49, 53, 57, 61]
    groups = {"tp": [36, 37, 38, 39], "dp": data, "pp": [5, 37], "ep": [36, 37, 38, 39], "edp": data}
    assert found["groups"] == {dim: [groups.get(dim, [37])] for dim in places}
    with pytest.raises(LayoutError, match="rank: 64 is unknown; the job has ranks 0 to 63"):
        mesh.of_ranks(64)


def test_all_ranks_listed_by_hand():
    """tp2 pp2 dp2 of 8 ranks, pp outermost: rank = tp + 2 dp + 4 pp. With pp inside dp it is tp + 2 pp + 4 dp."""
    for order, inner, outer in (("tp cp dp pp", "dp", "pp"), ("tp cp pp dp", "pp", "dp")):
        found = (
            cm.mesh(cluster="dgx-h100-ndr", gpus=8, layout="tp2 pp2", axis_order=order).of_ranks().to_dict()
        )
        groups = {dim: found["groups"][dim] for dim in ("tp", inner, outer)}
        assert groups == {
            "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
            inner: [[0, 2], [1, 3], [4, 6], [5, 7]],
            outer: [[0, 4], [1, 5], [2, 6], [3, 7]],
        }
        listed = [(row["rank"], row["tp"], row[inner], row[outer], row["cp"]) for row in found["ranks"]]
        assert listed == [(rank, rank % 2, rank // 2 % 2, rank // 4, 0) for rank in range(8)]


def test_groups_of_every_axis_split_all_ranks_and_agree_with_their_members():
    """Pipeline inside data parallelism: a group is the same seen from each of its ranks, and none is left out."""
    mesh = cm.mesh(cluster="llama3-roce", gpus=48, layout="tp2 pp4 ep3", axis_order="tp cp pp dp")
    whole = mesh.of_ranks()
    for row in mesh.rows:
        groups, places = whole.groups[row.dim], whole.coordinates[row.dim]
        assert groups.shape == (row.groups, row.factor)
        assert sorted(groups.ravel().tolist()) == list(range(48)), row.dim
        assert sum(other < 8 for group in groups.tolist() if 0 in group for other in group) == row.members[0]
        for rank in range(48):
            (group,) = mesh.of_ranks(rank).groups[row.dim].tolist()
            assert group in groups.tolist()
            assert group[places[rank]] == rank


# --- examples of pipelines and meshes from introductions to the field -------------------------


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
