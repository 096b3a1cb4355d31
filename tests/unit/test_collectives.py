"""The textbook formulas: limits, broadcasting, the validity table."""

import numpy as np
import pytest

from costmodel.base.errors import LayoutError
from costmodel.physics.network.collectives import ALGORITHMS, textbook_time, two_level_time

LINK = {"latency_s": 2e-6, "bandwidth_bytes_per_s": 50e9}
ROWS = [(primitive, name) for primitive, rows in ALGORITHMS.items() for name in rows]


def test_a_grid_is_priced_as_each_of_its_cells_and_a_group_of_one_is_free():
    sizes, ranks = np.array([1.0, 1e4, 1e9])[:, None], np.array([1, 2, 8, 64])
    for primitive, name in ROWS:
        row = ALGORITHMS[primitive][name]
        grid = row.time(sizes, ranks, **LINK, gamma_s_per_byte=1e-12)
        cells = [[row.time(s, n, **LINK, gamma_s_per_byte=1e-12).time_s for n in ranks] for s in sizes[:, 0]]
        np.testing.assert_array_equal(grid.time_s, cells, err_msg=f"{primitive} {name}")
        assert not grid.latency_s[..., 0].any()
        assert not grid.transfer_s[..., 0].any()


def test_auto_is_the_fastest_that_applies_and_needs_nothing_special():
    ranks, sizes = np.array([2, 6, 8, 64]), np.array([8.0, 1e6, 1e10])[:, None]
    for primitive, rows in ALGORITHMS.items():
        auto = textbook_time(primitive, "auto", sizes, ranks, **LINK).time_s
        open_to_all = [
            np.where(row.applies(ranks), row.time(sizes, ranks, **LINK).time_s, np.inf)
            for row in rows.values()
            if not row.needs
        ]
        np.testing.assert_array_equal(auto, np.min(open_to_all, axis=0))


def test_what_does_not_exist_or_apply_is_refused():
    with pytest.raises(LayoutError, match="did you mean 'all_reduce'"):
        textbook_time("allreduce", "ring", 1.0, 8, **LINK)
    with pytest.raises(LayoutError, match="did you mean 'ring'"):
        textbook_time("all_reduce", "rings", 1.0, 8, **LINK)
    with pytest.raises(LayoutError, match="power of two"):
        textbook_time("all_gather", "recursive-doubling", 1.0, 6, **LINK)


def test_two_levels_of_equal_links_move_a_rings_bytes():
    levels = {
        "intra_latency_s": 2e-6,
        "intra_bandwidth_bytes_per_s": 50e9,
        "inter_latency_s": 2e-6,
        "inter_bandwidth_bytes_per_s": 50e9,
    }
    for primitive in ("all_reduce", "all_gather", "reduce_scatter"):
        two = two_level_time(primitive, "two-level", 1e9, 8, 4, **levels)
        one = textbook_time(primitive, "ring", 1e9, 32, **LINK)
        assert float(two.transfer_s) == pytest.approx(float(one.transfer_s), rel=1e-12)
        assert float(two.latency_s) < float(one.latency_s)
