"""Hardware profiles: what is shipped, how it is found, composed and refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.base.errors import ProfileError
from costmodel.cli import main
from costmodel.describe.hardware import profile_files
from costmodel.describe.hardware.hardware import (
    ProfileNumber,
    check_file,
    compose_cluster,
    list_profiles,
    load_accelerator,
    load_cluster,
    load_link,
    profile_numbers,
)
from costmodel.describe.hardware.prices import given_price, price_note, price_text, with_price
from costmodel.describe.hardware.profile_files import (
    aliases_of,
    parts,
    search_folders,
    solid,
)
from costmodel.describe.hardware.profile_pages import hardware_profile, profiles_table
from costmodel.describe.jobs.reading import read
from costmodel.describe.jobs.short_form import command_text, short_form

SHIPPED = sorted(profile_files.shipped_folder().rglob("*.yaml"))


def test_every_shipped_profile_is_right_and_every_number_has_a_source():
    assert len(SHIPPED) > 100
    kinds = {folder: kind for kind, folder in profile_files.FOLDERS.items()}
    for path in SHIPPED:
        assert check_file(path) == []
        numbers = profile_numbers(kinds[path.parent.name], path)
        assert numbers
        assert all(number.source == "assumed" or number.title for number in numbers), path


def test_no_number_stands_without_value_and_source():
    """Walk the raw files: a bare number outside the fitted blocks has escaped its source."""

    def bare(node, inside=False):
        if isinstance(node, dict):
            return [hit for key, child in node.items() for hit in bare(child, inside or key == "value")]
        if isinstance(node, list):
            return [hit for child in node for hit in bare(child, inside)]
        return [] if inside or isinstance(node, bool) or not isinstance(node, int | float) else [node]

    for path in SHIPPED:
        content = dict(profile_files.read_yaml(path))
        for key in ("schema_version", "kernels", "fabric"):
            content.pop(key, None)
        assert bare(content) == [], path


def test_links_are_plausible():
    for name in list_profiles("link"):
        link = load_link(name)
        assert 0.5e9 < link.achieved_bandwidth_bytes_per_s <= 1800e9, name
        # Light in glass over 1,000 km takes 5 ms.
        assert 0 <= link.latency_s < (100e-6 if name != "wan-100g" else 10e-3), name
        assert link.in_network_reduction == (link.reduction_bandwidth_bytes_per_s > 0), name


def test_inherited_cluster_replaces_only_what_it_names():
    parent, child = load_cluster("dgx-h100-ndr"), load_cluster("dgx-h200-ndr")
    assert child.accelerator.name == "h200-sxm-141gb"
    assert child.tiers == parent.tiers
    assert child.storage == parent.storage
    assert child.price_usd_per_gpu_hour != parent.price_usd_per_gpu_hour


def test_products_that_nobody_timed_are_estimates():
    names = ("h100-sxm-80gb", "b300", "mi455x", "vr200", "rtx-a6000")
    assert [load_accelerator(name).is_estimated for name in names] == [False] * 2 + [True] * 3


# Composing: the five words of a published run.
def test_composed_clusters():
    """Accelerator, GPUs of a node and of an NVLink domain, rate and kind of the network, GPUs: kinds and sizes of the tiers."""
    for words, tiers in (
        (("h100-sxm-80gb", 8, 8, 50e9, "ib", 2048), [("nvlink", 8), ("ib", 2048)]),
        (("gb200", 4, 72, 50e9, "ib", 256), [("nvlink", 72), ("ib", 288)]),
        (("a100-pcie-40gb", 8, 1, 25e9 / 8, "ib", 512), [("pcie", 8), ("ib", 512)]),
        (("b200-sxm-180gb", 8, 8, 0, "none", 8), [("nvlink", 8)]),
        (("h100", 1, 1, 0, "none", 1), [("", 1)]),
    ):
        cluster = compose_cluster(*words)
        assert [(tier.kind, tier.size) for tier in cluster.tiers] == tiers
        assert cluster.gpus_per_node == words[1]


def test_compose_takes_the_nearest_adapter_at_the_rate_given():
    for nic, kind, link in (
        (25e9 / 8, "ib", "ib-edr"),
        (200e9 / 8, "ib", "ib-hdr"),
        (50e9, "ib", "ib-ndr"),
        (800e9 / 8, "ib", "ib-xdr"),
        (50e9 / 8, "efa", "efa-v1"),
        (400e9 / 8, "efa", "efa-v2"),
        (50e9 / 8, "omnipath", "omnipath-100"),
        (200e9 / 8, "roce", "roce-200"),
        (100e9 / 8, "ethernet", "gpudirect-tcpx"),
        (12.5e9 / 8, "ethernet", "tcp-100gbe"),
    ):
        network = compose_cluster("a100-sxm-80gb", 8, 8, nic, kind, 64).tiers[-1]
        assert (network.link, network.bandwidth_bytes_per_s) == (link, nic)


def test_compose_refuses_what_cannot_be():
    for arguments, message in (
        (("h100", 8, 8, 0, "none", 16), "16 GPUs"),
        (("h100", 8, 8, 0, "ib", 16), "rate per GPU"),
        (("h100", 8, 8, 50e9, "infiniband", 16), "'infiniband'"),
        (("h100-pcie-80gb", 8, 4, 50e9, "ib", 16), "scale_up_link"),
        (("h100", 0, 8, 50e9, "ib", 16), "gpus_per_node"),
        (("h100", 8, 8, 50e9, "ib", 2.5), "gpus"),
        (("tpu-v9", 4, 4, 50e9, "ib", 16), "'tpu-v9'"),
    ):
        with pytest.raises(ProfileError, match=message):
            compose_cluster(*arguments)


# Files of the user.
GPU = """\
schema_version: 1
profile: accelerator
name: mine
title: My GPU
aliases: [own]
generation: hopper
peak_dense:
  bf16: {value: 989.4 TFLOP/s, source: sheet}
memory: {value: 79 GiB, source: assumed}
memory_vendor: {value: 80 GiB, source: sheet}
memory_bandwidth: {value: 3.35 TB/s, source: sheet}
num_sms: {value: 132, source: sheet}
tdp: {value: 700 W, source: sheet}
host_link: {value: 63 GB/s, source: sheet}
sources:
  sheet: {title: My data sheet, accessed: 2026-11-20}
"""
LINK = """\
schema_version: 1
profile: link
name: wire
title: My wire
kind: roce
bandwidth: {value: 25 Gbit/s, source: assumed}
efficiency: {value: 0.9, source: assumed}
latency: {value: 5 us, source: assumed}
base_latency: {value: 50 us, source: assumed}
in_network_reduction: {value: false, source: assumed}
"""
CLUSTER = """\
schema_version: 1
profile: cluster
name: home
title: My cluster
accelerator: mine
gpus_per_node: {value: 8, source: assumed}
host:
  memory: {value: 1 TB, source: assumed}
  memory_bandwidth: {value: 400 GB/s, source: assumed}
  gpus_per_link: {value: 1, source: assumed}
tiers:
  - name: nvlink
    link: nvlink4
    size: {value: 8, source: assumed}
  - name: spine
    link: wire
    size: {value: 64, source: assumed}
    oversubscription: {value: 2, source: assumed}
pue: {value: 1.3, source: assumed}
"""


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def home(tmp_path):
    """Return a folder with a user's own accelerator, link and cluster."""
    return write(tmp_path, mine=GPU, wire=LINK, home=CLUSTER)


def test_own_profiles_are_found_by_folder_path_environment_and_kind(home, tmp_path_factory, monkeypatch):
    cluster = load_cluster("home", profile_path=home)
    assert cluster.accelerator.name == "mine"
    assert cluster.tiers[1].achieved_bandwidth_bytes_per_s == pytest.approx(25e9 / 8 * 0.9 / 2)
    assert {"home", "dgx-h100-ndr"} <= set(list_profiles("cluster", profile_path=home))
    assert "mine" not in list_profiles("cluster", profile_path=home)
    assert load_accelerator("own", profile_path=[home]).name == "mine"
    # A file given by its path sees what lies beside it.
    assert load_cluster(home / "home.yaml") == cluster
    assert check_file(home / "home.yaml") == []
    # A folder that is called like a profile is none.
    names = list_profiles("accelerator", profile_path=home)
    (home / "notes.yaml").mkdir()
    assert list_profiles("accelerator", profile_path=home) == names
    sorted_by_kind = tmp_path_factory.mktemp("kinds")
    for kind, name in (("accelerators", "mine"), ("links", "wire"), ("clusters", "home")):
        (sorted_by_kind / kind).mkdir()
        (sorted_by_kind / kind / f"{name}.yaml").write_text((home / f"{name}.yaml").read_text())
    assert load_cluster("home", profile_path=sorted_by_kind) == cluster
    assert load_cluster(sorted_by_kind / "clusters" / "home.yaml") == cluster
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setenv(profile_files.PATH_VARIABLE, os.pathsep.join([str(empty), str(home)]))
    assert load_cluster("home") == cluster


def test_own_profile_wins_over_the_shipped_one(tmp_path):
    write(tmp_path, nvlink4=LINK.replace("name: wire", "name: nvlink4"))
    assert load_link("nvlink4", profile_path=tmp_path).kind == "roce"
    assert load_link("nvlink4").kind == "nvlink"


def test_inherit_follows_a_chain_and_refuses_a_circle(home):
    child = "schema_version: 1\nprofile: cluster\nname: {0}\ntitle: x\ninherit: {1}\n"
    write(home, second=child.format("second", "home"), third=child.format("third", "second"))
    assert load_cluster("third", profile_path=home).tiers == load_cluster("home", profile_path=home).tiers
    write(home, egg=child.format("egg", "hen"), hen=child.format("hen", "egg"))
    with pytest.raises(ProfileError, match="inherit"):
        load_cluster("egg", profile_path=home)


BROKEN = [
    (GPU, "3.35 TB/s", "3.35TB/s", ("memory_bandwidth.value", "'3.35TB/s'", "TB/s")),
    (GPU, "79 GiB", "79 GB/s", ("memory.value", "'79 GB/s'", "80 GiB")),
    (GPU, "79 GiB", "81 GiB", ("memory", "at most memory_vendor")),
    (GPU, "{value: 700 W, source: sheet}", "700 W", ("tdp", "{value: ..., source: ...}", "'700 W'")),
    (GPU, "132, source: sheet", "132, source: shet", ("num_sms.source", "'shet'", "sheet")),
    (GPU, "132", "132.5", ("num_sms.value", "whole number", "132.5")),
    (GPU, "132", "1" + "0" * 400, ("num_sms.value", "less than or equal to 1000000000")),
    (GPU, "tdp:", "tpd:", ("tpd", "did you mean 'tdp'")),
    (GPU, "bf16", "bf17", ("peak_dense.bf17", "'bf16'")),
    (GPU, "hopper", "hoper", ("software", "did you mean 'hopper'", "'hoper'")),
    (
        GPU,
        "hopper",
        "rubin\nsoftware: {attention: auto, torch_attention: flash2, fp8: mxfp8, fp8_layouts: both}",
        ("software", "expected a kernel, not 'auto'"),
    ),
    (
        GPU,
        "hopper",
        "rubin\nsoftware: {attention: flash2, torch_attention: flash2, fp8: mxfp9, fp8_layouts: both}",
        ("software", "did you mean 'mxfp8'"),
    ),
    (GPU, "schema_version: 1", "schema_version: 2", ("schema_version", "expected 1", "got 2", "version 1:")),
    (GPU, "profile: accelerator", "profile: gpu", ("profile", "accelerator, link", "'gpu'")),
    (GPU, "name: mine", "name: other", ("name", "'mine'", "'other'")),
    (GPU, "tdp:", "num_sms:", ("line 13", "duplicate key", "num_sms")),
    (GPU, GPU, "- 1\n", ("keys with values", "list")),
    (GPU, GPU, "a: [1", ("line 1", "valid YAML")),
    (LINK, "0.9", "1.9", ("efficiency.value", "less than or equal to 1", "1.9")),
    (LINK, "false", "true", ("reduction_bandwidth", "expected a rate")),
    (CLUSTER, "value: 64", "value: 60", ("tiers.1.size", "multiple", "8", "60")),
    (CLUSTER, "value: 2,", "value: 0.5,", ("tiers.1.oversubscription.value", "0.5")),
    (CLUSTER, "link: wire", "link: wier", ("tiers.1.link", "'wier'", "did you mean 'wire'")),
    (CLUSTER, "name: spine", "name: nvlink", ("tiers", "different name")),
]


@pytest.mark.parametrize(
    ("text", "old", "new", "parts"), BROKEN, ids=[f"{new!r}"[:30] for _, _, new, _ in BROKEN]
)
def test_a_broken_file_gets_file_key_value_and_what_is_expected(home, text, old, new, parts):
    path = home / {GPU: "mine", LINK: "wire", CLUSTER: "home"}[text]
    path = path.with_suffix(".yaml")
    assert old in text
    path.write_text(text.replace(old, new))
    found = check_file(path)
    assert found
    assert all("\n" not in line and line.startswith(path.name) for line in found)
    assert any(all(part in line for part in parts) for line in found), found


def test_wrong_names_get_the_nearest_right_ones():
    for call, message in [
        (lambda: load_cluster("h100-nrd"), "did you mean 'h100-ndr'"),
        (lambda: load_accelerator("h10"), "did you mean 'h100'"),
        (lambda: load_cluster("nowhere.yaml"), r"no file 'nowhere.yaml'"),
        (lambda: list_profiles("gpu"), "known: accelerator"),
        (lambda: load_cluster("home", profile_path="nowhere"), "'nowhere' is not a folder"),
    ]:
        with pytest.raises(ProfileError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_missing_file_is_a_problem_not_a_crash(tmp_path):
    assert len(check_file(tmp_path / "none.yaml")) == 1
    assert len(check_file(tmp_path)) == 1
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert len(check_file(tmp_path / "bytes.yaml")) == 1


def test_profile_numbers_keep_the_words_of_the_file(home):
    numbers = {number.key: number for number in profile_numbers("accelerator", home / "mine.yaml")}
    assert numbers["memory_bandwidth"] == ("memory_bandwidth", "3.35 TB/s", "sheet", "My data sheet")
    assert numbers["peak_dense.bf16"].value == "989.4 TFLOP/s"
    assert numbers["memory"].source == "assumed"


def test_lists_of_profiles():
    table = profiles_table().columns()
    assert list(dict.fromkeys(table["kind"])) == ["accelerator", "link", "cluster", "storage"]
    row = table["name"].index("ib-ndr")
    assert [table[key][row] for key in table] == ["link", "ib-ndr", "ndr", "InfiniBand NDR, 400 Gbit/s"]
    with pytest.raises(ProfileError, match="kind: 'links' is unknown; did you mean 'link'"):
        profiles_table("links")


def test_pages_of_profiles():
    page = hardware_profile("TPU-v5p", "cluster")
    assert (page.kind, page.device_word, page.cluster.name) == ("cluster", "chip", "tpu-v5p")
    assert hardware_profile("h100-ndr").device_word == "GPU"
    link = hardware_profile("ndr")
    assert (link.kind, link.name, link.cluster, link.device_word) == ("link", "ndr", None, "GPU")
    said = link.to_dict()
    assert said["numbers"][0] == link.numbers[0]._asdict()
    assert (said["kind"], said["name"], len(said["numbers"])) == ("link", "ndr", len(link.numbers))
    assert list(link.columns()) == list(ProfileNumber._fields)
    assert link.columns()["source"][0] == link.numbers[0].source
    path = profile_files.shipped_folder() / "links" / "ib-ndr.yaml"
    assert hardware_profile(str(path)).numbers == hardware_profile("ib-ndr").numbers
    with pytest.raises(ProfileError, match="unknown profile 'ib-ndx': did you mean 'ib-ndr'"):
        hardware_profile("ib-ndx")


def test_names_as_typed_find_their_cluster():
    for typed, cluster in [
        ("trillium", "tpu-v6e"),
        ("Google TPU v5p", "tpu-v5p"),
        ("gaudi 3", "gaudi3-roce"),
        ("trainium2", "trn2-efa"),
        ("trn2 ultra", "trn2-ultraserver"),
        ("trn1.32xlarge", "trn1-efa"),
        ("gb300 NVL72", "gb300-nvl72-xdr"),
        ("h20x8", "hgx-h20-roce"),
        ("NVIDIA GeForce RTX 5090", "workstation-rtx-5090"),
        ("Grace Hopper", "alps-gh200"),
        ("vera rubin", "vr-nvl144"),
        ("AMD Instinct MI300X", "mi300x-roce400"),
        ("ascend 910c", "cloudmatrix-384"),
        ("dgx h100", "dgx-h100-ndr"),
        # Several machines hold these; the vendor's own is the one that a bare name means.
        ("h100 sxm", "dgx-h100-ndr"),
        ("v100", "dgx-v100-edr"),
    ]:
        assert load_cluster(typed).name == cluster


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("NVIDIA H100 NVL", "unknown cluster 'NVIDIA H100 NVL': did you mean"),
        ("mi300a", "unknown cluster 'mi300a': did you mean 'mi300x'"),
        ("Apple M3 Ultra", "unknown cluster 'Apple M3 Ultra'"),
        # Half a word names what it may be, and chooses nothing, even where it can be one only.
        ("mi300", "accelerators mi300x begin so; clusters of it: mi300x-roce400; name one of them"),
        ("trainium", "clusters of it: trn1-efa, trn2-efa and trn2-ultraserver"),
        ("gaudi", "clusters of it: gaudi2-roce and gaudi3-roce"),
        ("tpu v5", "clusters of it: tpu-v5e and tpu-v5p"),
        ("a100-sxm-40gb", "is an accelerator, no cluster; clusters of it: p4d-efa and polaris; name"),
        ("v100-sxm2-16gb", "and no cluster has it"),
        # Nor is a word begun by two letters.
        ("tr", "unknown cluster 'tr'"),
        # The end of one name alone is no name.
        ("ultraserver", "unknown cluster 'ultraserver': did you mean 'trn2-ultraserver'"),
    ],
)
def test_what_has_none_is_one_line(typed, said, capsys):
    job = ["estimate", "-m", "llama3-8b", "-n", "8", "--global-batch", "64", "--seq-len", "8192", "-c", typed]
    assert main(job) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert len(line) <= 300


def test_accelerators_are_found_by_the_same_names():
    assert load_accelerator("MI300X").name == load_accelerator("amd mi 300x").name == "mi300x"
    assert load_accelerator("ascend 910c").peak_flops_per_s["bf16"] == 376e12
    with pytest.raises(ProfileError, match="unknown accelerator 'Rubin CPX'"):
        load_accelerator("Rubin CPX")


def test_no_two_profiles_are_called_alike():
    for kind in ("accelerator", "cluster", "link", "storage"):
        owners = {}
        for name, path in profile_files.profile_files(kind, search_folders()):
            for called in {solid(word) for word in (name, *aliases_of(path))}:
                assert owners.setdefault(called, name) == name


def test_words_of_makers_alone_are_kept():
    assert parts("Google Cloud") == ("google", "cloud")


def test_a_die_of_910c_is_half_a_package():
    """289 PFLOP/s over 384 packages of two dies; 76.8 Tbit/s of RoCE over the same."""
    cluster = load_cluster("cloudmatrix")
    assert cluster.accelerator.peak_flops_per_s["bf16"] == pytest.approx(289e15 / 768, rel=2e-3)
    ub, spine = cluster.tiers
    assert ub.size == 768
    assert spine.bandwidth_bytes_per_s == pytest.approx(76.8e12 / 8 / 768)


def test_an_ultraserver_is_four_instances_over_a_quarter_of_the_links():
    """1,024 and 256 GB/s in both directions together."""
    torus, ultra, efa = load_cluster("trn2u").tiers
    assert (torus.bandwidth_bytes_per_s, ultra.bandwidth_bytes_per_s) == (512e9, 128e9)
    assert ultra.size == 64
    assert efa.bandwidth_bytes_per_s == 25e9


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
    given, among = {"h200-ndr": 2.5, "tpu-v6e": 1.8}, ("dgx-h200-ndr", "tpu-v6e")
    assert with_price(h200, given, among=among).price_usd_per_gpu_hour == 2.5
    assert price_text(with_price(tpu, given, among=among)) == "$1.80 (given)"
    other = load_cluster("dgx-h100-ndr")
    assert with_price(other, given, among=among) is other
    with pytest.raises(cm.CostModelError, match="dgx-h200-ndr is not used here; expected dgx-h100-ndr"):
        with_price(other, given)
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
