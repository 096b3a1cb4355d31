"""A site's file, number by number; what a search shows of its defaults; odds by hand."""

import inspect
from math import exp, log

import numpy as np
import pytest
from ruamel.yaml import YAML

from costmodel.base.errors import DataError
from costmodel.describe.jobs.fields import FIELD, shows
from costmodel.describe.odds import FitOdds, KnownOdds, odds
from costmodel.describe.site import Site, load_site, make_belief, site_text

NAMES = ("launch", "routing")


def made():
    """Return spreads of 0.1 and 0.2, correlated by a half."""
    belief = make_belief(NAMES, (0.05, -0.1), ((0.01, 0.01), (0.01, 0.04)), (3.0, 1e9), "here")
    prior = {"launch": (0.0, 0.3), "routing": (0.01, 0.4)}
    return Site(belief, "", prior, ({"job": "a", "step_time_s": 2.5},))


def test_a_belief_from_a_covariance():
    belief = made().belief
    assert (belief.names, belief.center, belief.tail, belief.source) == (
        NAMES,
        (0.05, -0.1),
        (3.0, 1e9),
        "here",
    )
    assert belief.spread == pytest.approx((0.1, 0.2))
    np.testing.assert_allclose(belief.correlation, ((1, 0.5), (0.5, 1)))
    assert {name: float(value) for name, value in made().factors.items()} == pytest.approx(
        {"launch": exp(0.05), "routing": exp(-0.1)}
    )


def test_every_number_of_the_file_and_back(tmp_path):
    text = site_text(made())
    assert text.splitlines()[1:3] == ["schema_version: 1", "profile: site"]
    read = YAML(typ="safe", pure=True).load(text)
    keys = ("center", "spread", "tail", "prior_center", "prior_spread")
    assert read["factors"] == {
        "launch": dict(zip(keys, (0.05, 0.1, 3, 0, 0.3), strict=True)),
        "routing": dict(zip(keys, (-0.1, 0.2, 10**9, 0.01, 0.4), strict=True)),
    }
    assert read["runs"] == [{"job": "a", "step_time_s": 2.5}]
    assert read["correlation"] == [[1, 0.5], [0.5, 1]]
    path = tmp_path / "site.yaml"
    path.write_text(text)
    again = load_site(path)
    assert again.path == again.belief.source == str(path)
    assert again.prior == made().prior
    assert [dict(run) for run in again.runs] == [{"job": "a", "step_time_s": 2.5}]
    assert again.belief.center == made().belief.center
    assert again.belief.spread == pytest.approx(made().belief.spread)
    assert again.belief.tail == made().belief.tail
    np.testing.assert_allclose(again.belief.correlation, ((1, 0.5), (0.5, 1)))


def test_what_no_site_says(tmp_path):
    for old, new, said in [
        ("profile: site", "profile: cluster", "is no site file"),
        ("schema_version: 1", "schema_version: 2", "schema_version 2 is not 1"),
        ("profile: site", "profile: site\nrun: 1", "'run' is not a key; did you mean 'runs'"),
        ("launch:", "lanch:", "'lanch' is no factor; did you mean 'launch'"),
        ("center: 0.05", "centre: 0.05", "launch: expected center, spread, tail"),
        ("center: 0.05", "center: 5.1", "launch: center: expected a number from -5 to 5, got 5.1"),
        ("center: 0.05", "center: -5.1", "launch: center: expected a number from -5 to 5"),
        ("spread: 0.1", "spread: 0", "launch: spread: expected a number from 0 to 5, got 0"),
        ("spread: 0.1", "spread: 5.1", "launch: spread: expected a number from 0 to 5"),
        ("tail: 3", "tail: 0", "launch: tail: expected a number from 0 to inf"),
        ("tail: 3", "tail: true", "launch: tail: expected a number"),
        ("tail: 3", "tail: .nan", "launch: tail: expected a number"),
        ("prior_spread: 0.3", "prior_spread: -0.1", "launch: prior_spread: expected a number from 0 to 5"),
        ("[1, 0.5]", "[1, 0.6]", "correlation: expected 2 rows of 2 numbers, 1 on the diagonal"),
        ("[1, 0.5]", "[1.1, 0.5]", "correlation: expected 2 rows of 2"),
        ("[1, 0.5]", "[1]", "correlation: expected 2 rows of 2"),
        ("[1, 0.5]", "[1, x]", "correlation: expected 2 rows of 2"),
    ]:
        path = tmp_path / "site.yaml"
        text = site_text(made())
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=said):
            load_site(path)


def test_edges_of_what_a_site_says(tmp_path):
    """The ends of each range are in it; correlations above what is possible are refused, by a hair mended."""
    path = tmp_path / "site.yaml"
    text = site_text(made()).replace("center: 0.05", "center: -5").replace("spread: 0.1", "spread: 5")
    path.write_text(text.replace("prior_spread: 0.3", "prior_spread: 0").replace("tail: 3", "tail: .inf"))
    assert load_site(path).belief.center[0] == -5
    path.write_text(site_text(made()).replace("0.5]", "1.05]").replace("[0.5", "[1.05"))
    with pytest.raises(DataError, match="correlation: no distribution has it"):
        load_site(path)
    path.write_text(site_text(made()).replace("0.5]", "1.0005]").replace("[0.5", "[1.0005"))
    assert np.linalg.eigvalsh(load_site(path).belief.correlation).min() > 0


def test_what_a_search_shows_of_its_defaults():
    @shows([FIELD["gpus"], FIELD["tp"], FIELD["cluster"]], searched=True)
    def search(*, cluster="mine", **asked):
        return asked

    assert str(inspect.signature(search)) == "(*, cluster='mine', gpus, tp=None)"
    assert search(tp=2) == {"tp": 2}

    @shows([FIELD["tp"], FIELD["cluster"]])
    def call(first, **asked):
        return first, asked

    assert str(inspect.signature(call)) == f"(first, *, tp=1, cluster={FIELD['cluster'].default!r})"


def test_odds_of_fitting():
    """A probit of the logarithm of offered over needed, a half where it is minus the center."""
    one = FitOdds(center=-0.1, spread=0.05, runs=7, source="x")
    assert one.probability(exp(-0.1), 1.0) == pytest.approx(0.5)
    assert one.probability(exp(-0.15), 1.0) == pytest.approx(0.8413447, rel=1e-6)
    assert one.probability(exp(-0.05), 1.0) == pytest.approx(0.1586553, rel=1e-6)
    assert one.share(0.5) == pytest.approx(exp(-0.1))
    assert log(one.share(0.1586552539)) == pytest.approx(-0.15, rel=1e-6)
    # What may be filled at a risk is what fits with the rest of the odds.
    assert one.probability(one.share(0.2), 1.0) == pytest.approx(0.8)
    two = one._replace(center=0.0)
    known = KnownOdds({"other": one, "megatron-core": two}, {"run": 0.06})
    assert (known.fits_with("megatron-core"), known.fits_with("x")) == (two, one)
    assert "run" in odds().layouts
    assert odds().fits_with("no such recipe") is odds().fits["other"]


def test_factors_and_correlations_that_are_none(tmp_path):
    path, text = tmp_path / "site.yaml", site_text(made())
    for key, end, held, said in (
        ("factors:", "correlation:", ("3", "[launch]", "{}", "", "launch"), "expected a mapping of factors"),
        (
            "correlation:",
            "",
            ("null", "{}", "[[1, 0.5], [0.5]]", "[[1, .nan], [.nan, 1]]", "[[1, 0.5], [0.4, 1]]"),
            "expected 2 rows of 2 numbers, 1 on the diagonal",
        ),
    ):
        for wrong in held:
            head, _, rest = text.partition(key)
            path.write_text(f"{head}{key} {wrong}\n{end}{rest.partition(end)[2] if end else ''}")
            with pytest.raises(DataError, match=f"{key} {said}$"):
                load_site(path)
