"""Which jobs are possible, rule by rule with the numbers in the sentence, and what a job makes of its fields."""

import numpy as np
import pytest
from round_jobs import CLUSTER, MOE, SMALL, model_file

from costmodel.base.errors import CostModelError, LayoutError, ProfileError
from costmodel.describe.factors import PRIOR
from costmodel.describe.jobs.job import expand_layout, job_of, make_job, precision_on
from costmodel.describe.jobs.layout import Layout, first_of, layout_problems, make_layout, parse_layout
from costmodel.describe.jobs.merge import read_job, read_job_text
from costmodel.describe.models.model_files import load_model
from costmodel.describe.switch_table import GROUPS
from costmodel.physics.network.mesh import DEFAULT_ORDER

BASE = {"cluster": str(CLUSTER), "recipe": "megatron-core", "gpus": 16, "global_batch": 64, "seq_len": 1024}


def job(fields=SMALL, **more):
    """Return a job of the small model on 16 GPUs of the round machine."""
    return make_job(model=model_file(fields), **{**BASE, **more})


def test_what_cannot_be_is_one_line():
    for fields, more, said in [
        (SMALL, {"tp": 3}, "tp·cp·pp = 3·1·1 = 3 does not divide gpus = 16"),
        (SMALL, {"layout": "tp2 dp4"}, "tp·cp·pp·dp = 2·1·1·4 = 8, but gpus = 16"),
        (SMALL, {"tp": 16}, "tp = 16 does not divide the model's 8 attention heads"),
        ({**SMALL, "ffn_size": 4098}, {"tp": 4}, "tp = 4 does not divide the MLP width 4098"),
        (
            {**MOE, "shared_expert_ffn_size": 514},
            {"tp": 4},
            "tp = 4 does not divide the width 514 of the shared experts",
        ),
        ({**MOE, "expert_ffn_size": 514}, {"etp": 4}, "etp = 4 does not divide the experts' width 514"),
        (SMALL, {"seq_len": 1026, "cp": 2, "tp": 2}, "cp·tp = 2·2 does not divide the sequence length 1026"),
        (
            SMALL,
            {"pp": 4, "vp": 2, "schedule": "interleaved"},
            "pp·vp = 4·2 gives more chunks than the model's 4 layers, embedding and head",
        ),
        (SMALL, {"global_batch": 24}, "dp·micro_batch = 16·1 does not divide global_batch = 24"),
        (SMALL, {"micro_batch": 8}, "dp·micro_batch = 16·8 does not divide global_batch = 64"),
        (MOE, {"ep": 16}, "ep = 16 does not divide the model's 8 experts"),
        (SMALL, {"ep": 2}, "ep = 2, but .* has no experts; use ep = 1"),
        (MOE, {"ep": 8, "etp": 4}, r"ep·etp = 8·4 does not divide tp·cp·dp = 16"),
        (MOE, {"ep": 8, "etp": 2, "pp": 2, "tp": 2}, r"ep·etp = 8·2 does not divide tp·cp·dp = 8"),
        (SMALL, {"shard_group": 3}, "shard_group = 3 does not divide dp·cp = 16·1; 0 shards over all of it"),
        (SMALL, {"shard_group": 16, "cp": 2, "tp": 2}, "shard_group = 16 does not divide dp·cp = 4·2"),
        (
            SMALL,
            {"cp": 16, "switches": {"cp_method": "ulysses"}},
            "cp_method ulysses divides heads, and tp·cp = 1·16 does not divide the model's 8 heads",
        ),
        (
            SMALL,
            {"cp": 4, "switches": {"cp_method": "a2a+p2p", "cp_a2a_ranks": 3}},
            "cp_a2a_ranks = 3 does not divide cp = 4, or tp·3 the 4 heads of keys",
        ),
        (
            SMALL,
            {"cp": 4, "tp": 4, "switches": {"cp_method": "a2a+p2p", "cp_a2a_ranks": 2}},
            "cp_a2a_ranks = 2 does not divide cp = 4, or tp·2 the 4 heads of keys",
        ),
        (SMALL, {"vp": 2}, r"vp = 2 needs pp > 1"),
        (
            SMALL,
            {"pp": 2, "global_batch": 8, "schedule": "interleaved", "vp": 2},
            r"schedule: interleaved cannot run pp = 2 stages, vp = 2 and 1 micro-batches",
        ),
        (SMALL, {"gpus": 2**24}, "gpus: expected a whole number from 1 to 10,000,000"),
        (
            SMALL,
            {"cluster": "p4d-efa", "gpus": 8192, "global_batch": 8192},
            "gpus: 8192 is more than cluster p4d-efa",
        ),
        (SMALL, {"tp": 2, "layout": "tp4"}, "tp: given as 2 and, in the layout text, as 4"),
        (SMALL, {"epochs": 2}, "epochs: needs dataset_samples"),
        (SMALL, {"dataset_samples": 100, "tokens": "1T"}, "tokens: follow from dataset_samples and epochs"),
        (
            SMALL,
            {"zero": 1, "switches": {"gradient_compression": "powersgd"}},
            "gradient_compression: powersgd needs whole gradients on every replica, zero_stage 0; got 1",
        ),
        (
            SMALL,
            {"zero": 2, "switches": {"sync_every": 500}},
            "sync_every: 500 needs replicas that hold everything: zero_stage 0, or a shard_group",
        ),
        (
            SMALL,
            {"zero": 0, "switches": {"sync_every": 5, "sync_fragments": 6}},
            "sync_fragments: expected at most 5 where sync_every is 5, got 6",
        ),
        (
            SMALL,
            {"zero": 0, "switches": {"outer_compression": "int8", "sync_every": 5}},
            "outer_compression: int8 is for averages between the groups of a shard_group, with sync_every above 1",
        ),
        (
            SMALL,
            {"zero": 0, "switches": {"sync_overlap_steps": 1}},
            "sync_overlap_steps: expected at most 0 where sync_every is 1, got 1",
        ),
        (
            SMALL,
            {"lora_rank": 8, "zero": 0, "switches": {"gradient_compression": "top-k"}},
            "gradient_compression: top-k is for training of every parameter",
        ),
        (
            SMALL,
            {"lora_rank": 8, "optimizer": "muon"},
            "optimizer: muon, which steps matrices in a way of their own",
        ),
        (SMALL, {"frozen": "head", "optimizer": "shampoo"}, "optimizer: shampoo, which steps"),
        (
            SMALL,
            {"optimizer": "muon", "switches": {"offload_optimizer": True}},
            "offload_optimizer: no host steps muon; it needs optimizer .*adamw",
        ),
        (
            SMALL,
            {"precision": "mxfp8", "cluster": "dgx-a100-hdr"},
            "precision: 'mxfp8' needs fp8 matrix units",
        ),
        (SMALL, {"pp": [2, 4], "pipeline_layout": "Ett|ttL"}, "pipeline_layout: needs one pp and one vp"),
        (SMALL, {"cluster": 3}, "cluster: expected a text"),
        (SMALL, {"cluster": object}, "cluster: expected a text or a Cluster"),
        (
            SMALL,
            {"cluster": "tpu-v5p", "gpus": [64, 128]},
            "gpus: a job on the torus of tpu-v5p has one number",
        ),
    ]:
        with pytest.raises(CostModelError, match=said):
            job(fields, **more)


def test_what_can_be_is_no_error():
    for fields, more in [
        (SMALL, {"tp": 4}),
        # Heads of keys are copied where there are fewer than ranks.
        (SMALL, {"tp": 8}),
        (SMALL, {"pp": 2, "vp": 2}),
        (SMALL, {"pp": 4, "vp": 1}),
        (SMALL, {"seq_len": 1026, "cp": 2, "tp": 2, "sequence_parallel": False}),
        (SMALL, {"cp": 4, "tp": 2, "switches": {"cp_method": "ulysses"}}),
        (SMALL, {"cp": 4, "tp": 2, "switches": {"cp_method": "a2a+p2p", "cp_a2a_ranks": 2}}),
        # What is not asked for is not checked.
        (SMALL, {"cp": 16, "tp": 1, "switches": {"cp_method": "ring", "cp_a2a_ranks": 3}}),
        (MOE, {"ep": 8, "etp": 2}),
        # The ranks of four experts are those of two tensor-parallel groups.
        (MOE, {"tp": 2, "ep": 4}),
        ({**MOE, "shared_expert_ffn_size": 6}, {"tp": 2}),
        (SMALL, {"shard_group": 8, "cp": 2, "zero": 1}),
        (SMALL, {"shard_group": 3, "zero": 0}),
        (SMALL, {"zero": 0, "switches": {"gradient_compression": "powersgd", "sync_every": 500}}),
        (SMALL, {"zero": 1, "shard_group": 8, "switches": {"sync_every": 500}}),
        (SMALL, {"lora_rank": 8, "switches": {"gradient_compression": "int8"}}),
        (SMALL, {"cluster": "p4d-efa", "gpus": 4096, "global_batch": 4096}),
        (SMALL, {"layout": "tp2 dp8"}),
    ]:
        assert job(fields, **more).layout.shape == ()


def test_degrees_that_follow():
    """16 GPUs: tp 2, cp 2, pp 2 leave two replicas; of experts, over ep 2 and etp 2, again two."""
    layout = make_layout(gpus=16, tp=2, cp=2, pp=2, ep=2, etp=2, micro_batch=4)
    assert (float(layout.dp), float(layout.expert_dp)) == (2, 2)
    assert float(make_layout(gpus=16, tp=2, pp=2, ep=4).expert_dp) == 2
    assert float(layout.micro_batches(np.asarray(64.0))) == 8
    assert make_layout(gpus=16, tp=[1, 2], pp=[[1], [2], [4]]).shape == (3, 2)


def test_what_a_layout_does_where_nothing_is_said():
    from costmodel.physics.pipeline.schedules import schedule_at

    def schedule(**more):
        return schedule_at(float(make_layout(gpus=16, **more).schedule)).name

    assert [schedule(), schedule(pp=2), schedule(pp=2, vp=2), schedule(pp=2, schedule="gpipe")] == [
        "none",
        "1f1b",
        "interleaved",
        "gpipe",
    ]
    assert [float(make_layout(gpus=16, tp=tp).sequence_parallel) for tp in (1, 2)] == [0, 1]
    plain = make_layout(gpus=16)
    assert {name: float(getattr(plain, name)) for name in ("tp", "ep", "micro_batch", "zero_stage")} == {
        "tp": 1,
        "ep": 1,
        "micro_batch": 1,
        "zero_stage": 1,
    }
    assert (float(plain.shard_group), float(plain.recompute)) == (0, 0)
    with pytest.raises(LayoutError, match="layout: gpus missing"):
        make_layout(tp=2)
    with pytest.raises(LayoutError, match="layout: 'dp' is not a field"):
        make_layout(gpus=8, dp=2)


def test_texts_of_layouts():
    assert parse_layout("TP8pp4, cp=2·ep:3") == {"tp": 8, "pp": 4, "cp": 2, "ep": 3}
    assert parse_layout("tp8 x pp2 × vp2") == {"tp": 8, "pp": 2, "vp": 2}
    for text, said in (
        ("tp8 tp4", "layout: tp is given twice in 'tp8 tp4'"),
        ("8tp", "layout: cannot read '8tp' in '8tp'; write it as 'tp8 cp1 pp16 vp2'"),
        ("tp8!", "layout: cannot read 'tp8!'"),
        ("tpp8", "layout: axis 'tpp' in 'tpp8' is unknown; did you mean 'tp'"),
        ("tp0", "tp: expected a whole number from 1"),
    ):
        with pytest.raises(LayoutError, match=said):
            parse_layout(text)
    assert expand_layout({"layout": "tp8", "tp": "8", "gpus": 8}) == {"tp": 8, "gpus": 8}
    assert first_of(np.array([[False, True], [True, True]]), [1.0, 2.0], [[3.0], [4.0]], 5) == [2, 3, 5]
    assert isinstance(make_layout(gpus=8), Layout)


def test_tokens_of_a_data_set():
    """1,000 samples of 1,024 tokens, or of documents of 256, three times."""
    assert job(tokens="1T").tokens == 1e12
    assert job().tokens is None
    assert job(dataset_samples=1000).tokens == 1000 * 1024
    assert job(dataset_samples=1000, epochs=3).tokens == 3000 * 1024
    assert job(dataset_samples=1000, epochs=1.5, packed_len=256).tokens == 1500 * 256


def test_what_a_job_says_of_itself():
    one = job(micro_batch=2, tp=2, packed_len=256)
    assert (float(one.micro_batches), float(one.span)) == (4, 256)
    assert one.slice == ""
    assert one.steps_factor == 1.0
    assert job(zero=0, switches={"gradient_compression": "top-k"}).steps_factor == pytest.approx(1.075)
    assert job(switches={"compression_steps": 1.2}).steps_factor == pytest.approx(1.2)
    tpu = job(cluster="tpu-v5p", gpus=64, recipe=None)
    assert (tpu.slice, tpu.recipe.name) == ("4x4x4", "maxtext-tpu")
    assert job(pp=2, pipeline_layout="balanced").balanced_stages
    assert not job(pp=2, pipeline_layout="Ett|ttL").balanced_stages
    assert [chunk.layers for chunk in job(pp=2, pipeline_layout="Ettt|tL").pipeline_layout] == [3, 1]
    assert job(price=2.5).cluster.price_usd_per_gpu_hour == 2.5


def test_every_field_arrives(tmp_path):
    """Each is given another value than what is taken where nothing is said, and stands in the job under its own name."""
    file = tmp_path / "site.yaml"
    numbers = "{center: 0.1, spread: 0.2, tail: 5, prior_center: 0, prior_spread: 0.3}"
    file.write_text(
        f"schema_version: 1\nprofile: site\nfactors:\n  launch: {numbers}\ncorrelation:\n  - [1]\n"
    )
    plain = job()
    assert (plain.site, plain.belief, plain.tokens) == ("", PRIOR, None)
    assert (plain.precision.name, plain.optimizer.name, plain.axis_order) == ("bf16", "adamw", DEFAULT_ORDER)
    order = ("tp", "cp", "pp", "dp")
    assert order != DEFAULT_ORDER
    one = job(
        precision="fp16",
        optimizer="lion",
        axis_order=order,
        tokens=3e9,
        site=str(file),
        lora_rank=4,
        lora_targets="q_proj",
        packed_len=256,
        packed_spread=0.5,
        switches={"sync_every": 1, "straggler_jitter": 0.01, "fused_norm": False},
    )
    assert (one.precision.name, one.optimizer.name, one.axis_order, one.tokens) == (
        "fp16",
        "lion",
        order,
        3e9,
    )
    assert (one.site, one.belief.names, one.belief.center) == (str(file), ("launch",), (0.1,))
    assert float(one.factors.of("launch")) == pytest.approx(np.exp(0.1))
    assert one.tuning.lora_rank == 4
    assert float(one.packing.span(one.seq_len)) != 256
    assert (one.health.straggler_jitter, one.recipe.kernels.fused_norm) == (0.01, False)
    assert (float(one.global_batch), float(one.seq_len)) == (64, 1024)
    assert job(recipe="torchtitan").recipe.name == "torchtitan"


def test_what_fp8_means_on_a_machine():
    from costmodel.describe.hardware.hardware import load_cluster

    found = {
        name: precision_on("fp8", load_cluster(name).accelerator).name
        for name in ("dgx-h100-ndr", "hgx-b200-ndr", "mi300x-roce400")
    }
    assert found["dgx-h100-ndr"] == "fp8-delayed"
    assert found["hgx-b200-ndr"] == "mxfp8"
    with pytest.raises(
        CostModelError, match=r"'fp8-delayed' needs fp8 matrix units, which a100.* \(it has bf16, fp16"
    ):
        precision_on("fp8-delayed", load_cluster("dgx-a100-hdr").accelerator)


def test_files_that_are_no_job(tmp_path):
    for kind, said in (
        ("cluster", r"give it as --cluster .* beside a job"),
        ("accelerator", "name it under accelerator: in a cluster's profile"),
        ("link", "name it under tiers:"),
        ("storage", "name it under storage:"),
    ):
        with pytest.raises(
            LayoutError, match=rf"x\.yaml: is the profile of a piece of hardware \({kind}\).*{said}"
        ):
            read_job_text(f"profile: {kind}\n", "x.yaml")
    with pytest.raises(LayoutError, match=r"x: unknown field of a job 'gpu'|x: .*'gpu'.*did you mean 'gpus'"):
        read_job_text("gpu: 8\n", "x")
    path = tmp_path / "job.yaml"
    path.write_text("zero: 2\nmeasured: {step_time: 3}\ngpus: 8\n")
    assert read_job(path) == {"zero_stage": 2, "gpus": 8}
    with pytest.raises(CostModelError, match="me: model, gpus, global_batch, seq_len missing"):
        job_of({}, who="me")
    with pytest.raises(CostModelError, match="unknown cluster"):
        job(cluster="nowhere")
    assert issubclass(ProfileError, CostModelError)


def test_more_gpus_than_there_are():
    for gpus, most in [(10**7, 10**7), ([16, 10**7], 10**7), ([10**6, 16, 10**7], 10**7)]:
        with pytest.raises(
            LayoutError, match=rf"^gpus: {most} is more than cluster round-cluster can hold \(\d+\)$"
        ):
            job(gpus=gpus)


# 4 layers, 8 heads (4 of keys), an MLP of 4,096.
DENSE = load_model(model_file(SMALL))


def broken(model=DENSE, *, global_batch=64, seq_len=1024, method="ring", swapped=0, **layout):
    """Return the rules that a layout breaks."""
    overlap = GROUPS["overlap"](cp_method=method, cp_a2a_ranks=swapped)
    found = layout_problems(make_layout(**{"gpus": 8, **layout}), model, global_batch, seq_len, overlap)
    return {problem.code for problem in found if problem.bad.any()}


def test_what_just_fits():
    for layout in [
        {"gpus": 8, "tp": 8},
        # An end may be a stage of its own: 4 layers on 6 stages, on 2 of 3 chunks.
        {"gpus": 6, "pp": 6, "global_batch": 6},
        {"gpus": 4, "pp": 2, "vp": 3},
        # Without sequence parallelism a context rank's part stays whole.
        {"gpus": 8, "cp": 2, "tp": 4, "seq_len": 1030, "sequence_parallel": False},
        # States are sharded over the ranks of context too; without ZeRO over nobody.
        {"gpus": 8, "cp": 4, "zero_stage": 1, "shard_group": 8},
        {"gpus": 8, "zero_stage": 0, "shard_group": 3},
        {"gpus": 8, "micro_batch": 8},
        # One replica takes an odd batch; shards of one rank are any number.
        {"gpus": 1, "global_batch": 63},
        {"gpus": 3, "global_batch": 3, "zero_stage": 1, "shard_group": 1},
    ]:
        assert broken(**layout) == set()


def test_a_batch_is_asked_of_whole_replicas_alone():
    """16 ranks of a replica on 24 GPUs are one and a half: there is no batch that would do."""
    for layout in ({"tp": 2, "cp": 4, "pp": 2}, {"tp": 4, "cp": 2, "pp": 2}):
        assert broken(gpus=24, **layout) == {"gpus_not_divisible"}


def test_rules_of_context_methods():
    """Ulysses divides 8 heads over tp·cp ranks; of a2a+p2p the first ranks deal 4 heads of keys."""
    assert broken(cp=8, method="ulysses") == set()
    assert broken(gpus=16, cp=8, tp=2, method="ulysses") == {"heads_not_divisible_by_cp"}
    assert broken(cp=8, method="a2a+p2p", swapped=4) == set()
    assert broken(cp=8, method="a2a+p2p", swapped=8) == {"heads_not_divisible_by_a2a"}
    assert broken(cp=2, gpus=8, tp=4, method="a2a+p2p", swapped=2) == {"heads_not_divisible_by_a2a"}
    assert broken(cp=1, method="a2a+p2p", swapped=8) == set()
    assert broken(gpus=6, cp=6, seq_len=1020, global_batch=6, method="a2a+p2p", swapped=4) == {
        "heads_not_divisible_by_a2a"
    }
    # A rank by itself deals nothing out.
    assert broken(gpus=3, cp=3, seq_len=1023, global_batch=3, method="a2a+p2p", swapped=1) == set()
    assert broken(gpus=8, cp=2, tp=4, method="a2a+p2p", swapped=1) == set()


def test_rules_of_embeddings_of_each_layer():
    each = load_model(model_file({**SMALL, "layer_embedding_size": 256, "layer_embedding_rows": 1000}))
    assert broken(each, cp=2) == set()
    assert broken(each, tp=2) == broken(each, pp=2) == {"layer_embeddings_split"}
