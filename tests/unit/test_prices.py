"""What a GPU-hour costs: profiles with date and range, what the user says, and who pays for spare nodes."""

from dataclasses import replace

import pytest

import costmodel as cm
from costmodel.describe.hardware.hardware import check_file, load_cluster, profile_numbers
from costmodel.describe.hardware.prices import given_price, price_note, price_text, with_price
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.short_form import command_text, short_form

JOB = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192, "layout": "tp2", "tokens": 1e12}
PRICED = [
    name for name in cm.list_profiles("cluster") if load_cluster(name).price_usd_per_gpu_hour is not None
]


def test_every_price_has_a_day_a_source_and_lies_in_its_range():
    for name in PRICED:
        cluster = load_cluster(name)
        # H800 are rented inside China only: the price is that of DeepSeek-V3's report of December 2024.
        assert cluster.price_date >= ("2024-12-01" if name == "h800-cx7" else "2025-01-01"), name
        sources = {number.key: number for number in profile_numbers("cluster", name)}
        assert sources["price_usd_per_gpu_hour"].title, name
        if cluster.price_range_usd_per_gpu_hour is not None:
            low, high = cluster.price_range_usd_per_gpu_hour
            assert low <= cluster.price_usd_per_gpu_hour <= high, name
            assert sources["price_range_usd_per_gpu_hour"].title, name


def test_a_child_with_another_accelerator_or_price_takes_no_price_of_its_parent(tmp_path):
    own = "schema_version: 1\nprofile: cluster\nname: mine\ntitle: mine\ninherit: dgx-h100-ndr\n"
    (tmp_path / "mine.yaml").write_text(own)
    assert load_cluster(tmp_path / "mine.yaml").price_usd_per_gpu_hour == 2.95
    (tmp_path / "mine.yaml").write_text(own + "accelerator: b300\n")
    other = load_cluster(tmp_path / "mine.yaml")
    assert (other.price_usd_per_gpu_hour, other.price_date) == (None, "")
    assert other.price_range_usd_per_gpu_hour is None
    dated = "price_usd_per_gpu_hour: {value: 9.5, source: assumed}\nprice_date: 2026-10-01\n"
    (tmp_path / "mine.yaml").write_text(own + dated)
    assert load_cluster(tmp_path / "mine.yaml").price_range_usd_per_gpu_hour is None


@pytest.mark.parametrize("span", ["[3, 4]", "[2, 1]", "[0.5, 0.9]"])
def test_a_range_that_does_not_hold_the_price_is_refused(tmp_path, span):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "schema_version: 1\nprofile: cluster\nname: mine\ntitle: mine\ninherit: dgx-h100-ndr\n"
        "price_usd_per_gpu_hour: {value: 1, source: assumed}\nprice_date: 2026-10-01\n"
        f"price_range_usd_per_gpu_hour: {{value: {span}, source: assumed}}\n"
    )
    (problem,) = check_file(path)
    assert "price_range_usd_per_gpu_hour: expected two prices, the lower first" in problem


def test_prices_are_read_as_a_number_or_by_cluster():
    assert read("price_usd_per_gpu_hour", "$2.10") == 2.1
    both = {"dgx-h200-ndr": 2.5, "tpu-v6e": 1.8}
    assert read("price_usd_per_gpu_hour", "dgx-h200-ndr=$2.5, tpu-v6e=1.8") == both
    assert read("price_usd_per_gpu_hour", {"dgx-h200-ndr": "2.5", "tpu-v6e": 1.8}) == both
    for wrong in ("dgx-h200-ndr=", "=2", "a=1,a=2", "a=-1", {"a": "much"}, {1: 2.0}):
        with pytest.raises(cm.CostModelError, match="price_usd_per_gpu_hour: expected"):
            read("price_usd_per_gpu_hour", wrong)


def test_a_price_goes_to_the_cluster_that_it_names_by_name_alias_or_accelerator():
    h200, tpu = load_cluster("dgx-h200-ndr"), load_cluster("tpu-v6e")
    given = {"h200-ndr": 2.5, "tpu-v6e": 1.8}
    assert with_price(h200, given).price_usd_per_gpu_hour == 2.5
    assert price_text(with_price(tpu, given)) == "$1.80 (given)"
    other = load_cluster("dgx-h100-ndr")
    assert with_price(other, given) is other
    assert with_price(other, None) is other
    assert with_price(replace(other, name="mine"), {"mine": 1.0}).price_usd_per_gpu_hour == 1.0
    with pytest.raises(cm.CostModelError, match="price_usd_per_gpu_hour: unknown cluster 'h300'"):
        with_price(other, {"h300": 1.0})
    assert given_price(other) is None
    assert "lists from $1.99 to $5.00" in price_note(other)


def test_a_given_price_stays_with_the_job():
    est = cm.estimate(**JOB, price=1.5)
    assert short_form(est.job)["price_usd_per_gpu_hour"] == 1.5
    assert "--price 1.5" in command_text(est.job)
    record = est.to_dict()
    assert record["inputs"]["price_usd_per_gpu_hour"] == 1.5
    again = cm.estimate(**record["inputs"])
    assert again.job.cluster == est.job.cluster
    # The cluster is the shipped one but for its price, so its sources are still known.
    assert "cluster dgx-h100-ndr" in record["sources"]
    assert "price_usd_per_gpu_hour" not in short_form(cm.estimate(**JOB).job)


def test_dollars_say_what_the_ends_of_the_lists_would_cost():
    run = cm.run(**JOB)
    low, high = run.dollars_at_list_prices
    assert (low, high) == (pytest.approx(1.99 * run.gpu_hours), pytest.approx(5.0 * run.gpu_hours))
    said = dict(run.grids()[0].rows)["cost"]
    assert said.endswith(f"where it costs ${low:,.0f} to ${high:,.0f}")
    assert "dollars at $2.95 a GPU-hour throughout" in run.grids()[2].note
    assert cm.run(**JOB, price=2.0).dollars_at_list_prices is None


def test_machines_side_by_side_show_the_price_at_which_they_cost_the_same():
    job = {key: value for key, value in JOB.items() if key != "layout"}
    found = cm.plan(**job | {"gpus": 64}, cluster=["dgx-h100-ndr", "hgx-b200-ndr"])
    first, second = found.machines
    rows = {row[0]: row[1:] for row in reversed(found.grids()[0].rows)}
    hours = float(second.est.gpu_hours(1e12))
    assert rows["break-even price"] == ["", f"${first.usd_per_trillion_tokens / hours:,.2f}"]
    low, high = (f"${price * hours:,.0f}" for price in second.job.cluster.price_range_usd_per_gpu_hour)
    assert rows["  at the lowest / highest list price"][1] == f"{low} / {high}"


def test_a_plan_searches_clusters_at_the_prices_given_for_them():
    found = cm.plan(
        model="llama3-8b",
        cluster=["dgx-h100-ndr", "tpu-v6e"],
        gpus=64,
        global_batch=128,
        seq_len=8192,
        tokens=1e11,
        price={"tpu-v6e": 1e-3},
        objective="tokens-per-dollar",
    )
    assert found.best.job.cluster.name == "tpu-v6e"
    assert found.best.job.recipe.name == "maxtext-tpu"
    prices = {job.cluster.name: job.cluster.price_usd_per_gpu_hour for job in found.question.jobs}
    assert prices == {"dgx-h100-ndr": 2.95, "tpu-v6e": 1e-3}
    recipes = {job.cluster.name: job.recipe.name for job in found.question.jobs}
    assert recipes == {"dgx-h100-ndr": "megatron-core", "tpu-v6e": "maxtext-tpu"}
    # Each keeps to what its own framework starts: MaxText has no pipeline schedule here.
    by_recipe = {job.recipe.name: found.question.values(job)["schedule"] for job in found.question.jobs}
    assert by_recipe["maxtext-tpu"] == (0.0,)
    assert len(by_recipe["megatron-core"]) > 1
