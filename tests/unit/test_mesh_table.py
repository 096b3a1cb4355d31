"""The mesh beside a bill: what is sent over several links is said to be."""

import costmodel as cm

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
