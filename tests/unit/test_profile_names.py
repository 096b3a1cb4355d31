"""Accelerators as people type their names: a profile, or one line that says what is nearest."""

from importlib.resources import files

import pytest

from costmodel.base.errors import ProfileError
from costmodel.base.yaml_files import read_mapping
from costmodel.cli import main
from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.hardware.profile_files import (
    aliases_of,
    holds,
    parts,
    profile_files,
    search_folders,
    solid,
    without_profile,
)

WITHOUT = read_mapping(
    files("costmodel") / "describe" / "data" / "without_profile.yaml", example="devices: []"
)["devices"]


@pytest.mark.parametrize(
    ("typed", "cluster"),
    [
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
    ],
)
def test_names_as_typed_find_their_cluster(typed, cluster):
    assert load_cluster(typed).name == cluster


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rubin cpx", "no rate in bf16 or fp8, which a training needs; nearest: vr200"),
        ("NVIDIA H100 NVL", "has no profile: PCIe cards"),
        ("Apple M3 Ultra", "has no profile: Apple's chips"),
        ("trainium3", "nearest: trn2"),
        ("cerebras wse-3", "has no profile: a wafer"),
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
    with pytest.raises(ProfileError, match="accelerator: 'Rubin CPX' has no profile"):
        load_accelerator("Rubin CPX")


def test_a_record_hides_no_profile_and_names_near_ones_that_are_there():
    known = [
        called
        for kind in ("accelerator", "cluster")
        for name, path in profile_files(kind, search_folders())
        for called in (name, *aliases_of(path))
    ]
    for record in WITHOUT:
        for near in record.get("near", ()):
            assert load_cluster(near)
        for name in record["names"]:
            assert without_profile(name)
            assert not [called for called in known if holds(called, name)], name


def test_no_two_profiles_are_called_alike():
    for kind in ("accelerator", "cluster", "link", "storage"):
        owners = {}
        for name, path in profile_files(kind, search_folders()):
            for called in {solid(word) for word in (name, *aliases_of(path))}:
                assert owners.setdefault(called, name) == name


def test_words_of_makers_alone_are_kept():
    assert parts("Google Cloud") == ("google", "cloud")
    assert without_profile("") == ""


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
