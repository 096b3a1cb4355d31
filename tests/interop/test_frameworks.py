"""A layout written for a framework and read back gives the same bill; wrong files are refused in one line."""

from functools import partial
from pathlib import Path

import pytest
from texts import assert_same_bill, read_as, read_flags

import costmodel as cm
from costmodel.base.yaml_files import read_mapping
from costmodel.interop.emit import emit
from costmodel.interop.framework import FrameworkConfigError
from costmodel.interop.nemo import import_nemo

JOBS = read_mapping(Path(__file__).with_name("framework_jobs.yaml"), example="megatron:")
MEGATRON_JOBS, TITAN_JOBS, DEEPSPEED_JOBS = JOBS["megatron"], JOBS["titan"], JOBS["deepspeed"]


READERS = {
    "megatron": read_flags,
    "torchtitan": partial(read_as, "torchtitan"),
    "deepspeed": partial(read_as, "deepspeed"),
    "nemo": import_nemo,
}
RECIPES = {"megatron": "megatron-core", "nemo": "megatron-bridge"}
WRITTEN = {
    "megatron": MEGATRON_JOBS,
    "nemo": MEGATRON_JOBS,
    "torchtitan": TITAN_JOBS,
    "deepspeed": DEEPSPEED_JOBS,
}


@pytest.mark.parametrize(
    ("framework", "asked"),
    [
        pytest.param(framework, job, id=f"{framework}-{name}")
        for framework, jobs in WRITTEN.items()
        for name, job in jobs.items()
    ],
)
def test_what_is_written_reads_back_to_the_same_bill(framework, asked):
    asked = {**asked, "recipe": RECIPES["nemo"]} if framework == "nemo" else asked
    ours = cm.estimate(**asked)
    text = emit(ours, framework)
    assert not any(said in text for said in ("no flag for", "no setting for", "no key for", "without a key"))
    if framework == "torchtitan":
        compile(text, "job.py", "exec")
    more = {"recipe": asked.get("recipe", RECIPES["megatron"])} if framework == "megatron" else {}
    back = READERS[framework](text, **more)
    assert back.ignored == ()
    assert_same_bill(ours, cm.estimate(**back.estimate_keywords(cluster=asked["cluster"])))


def test_batches_of_accelerate_are_of_the_data_ranks():
    """64 sequences on four data ranks of eight GPUs: one at a time, sixteen times."""
    asked = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 64, "seq_len": 4096}
    est = cm.estimate(**asked, layout="tp2", zero_stage=3, recipe="torchtitan", sequence_parallel=False)
    text = emit(est, "accelerate")
    assert "gradient_accumulation_steps = 16" in text
    assert read_as("accelerate", text).job["global_batch"] == 64
    assert "fsdp_reshard_after_forward: true" in text
    kept = cm.estimate(**asked, layout="tp2", zero_stage=2, recipe="torchtitan", sequence_parallel=False)
    assert "fsdp_reshard_after_forward: false" in emit(kept, "accelerate")


def test_messages_of_stages_overlap_only_where_each_rank_has_several():
    """Megatron-Core refuses overlapped messages outside the interleaved schedule."""
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 64, "seq_len": 4096}
    for layout, switches, overlaps in (
        ("pp4 vp2", {}, True),
        ("pp4", {}, False),
        ("pp4 vp2", {"pp_overlap": False}, False),
    ):
        est = cm.estimate(**job, layout=layout, recipe="megatron-bridge", switches=switches)
        text = emit(est, "nemo")
        assert f"model.overlap_p2p_comm={str(overlaps).lower()}\n" in text
        assert f"model.batch_p2p_comm={str(not overlaps).lower()}\n" in text


def test_the_local_batch_of_a_pipeline_is_cut_into_its_micro_batches():
    """32 sequences over eight data ranks: four a rank, one at a time."""
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 32, "seq_len": 4096}
    text = emit(
        cm.estimate(**job, layout="pp2", zero_stage=3, micro_batch=1, recipe="torchtitan"), "torchtitan"
    )
    assert "local_batch_size=4," in text
    assert "pipeline_parallel_microbatch_size=1," in text


def test_shards_are_those_of_data_beside_context():
    """Eight ranks share states, two of context in four of data: two replicas of four shards."""
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, "global_batch": 16, "seq_len": 8192}
    est = cm.estimate(**job, layout="cp2", zero_stage=3, shard_group=8, recipe="torchtitan", recompute="full")
    text = emit(est, "torchtitan")
    assert "data_parallel_replicate_degree=2," in text
    assert "data_parallel_shard_degree=4," in text
    ring = cm.estimate(
        **job,
        layout="cp2",
        zero_stage=3,
        shard_group=8,
        recipe="torchtitan",
        recompute="full",
        switches={"cp_method": "ring"},
    )
    assert "dp_replicate_size: 2\n" in emit(ring, "axolotl")


def test_what_no_price_depends_on_is_written_where_it_is_known():
    """Llama 3 turns by 500,000; the rotation of another model is left to its user, in words."""
    asked = {"gpus": 8, "layout": "tp2", "global_batch": 8, "seq_len": 4096}
    est = cm.estimate(model="llama3-8b", **asked)
    text = emit(est, "megatron")
    assert "--rotary-base 500000" in text
    assert "--norm-epsilon 1e-05" in text
    unknown = emit(cm.estimate(model="smollm2-1.7b", **asked), "megatron")
    assert "--rotary-base" not in unknown.partition("torchrun")[2]
    assert "# left to you: model: --rotary-base (else 10000), --norm-epsilon (else 1e-5)" in unknown


def test_flags_that_megatron_asks_for_beside_others_are_written():
    """Each switch with what `validate_args` and its configurations want beside it."""
    beside = {
        "--recompute-granularity full": ["--recompute-method uniform", "--recompute-num-layers 1"],
        "--use-megatron-fsdp": ["--ckpt-format fsdp_dtensor", "--use-distributed-optimizer"],
        "--overlap-param-gather": ["--overlap-grad-reduce", "--use-distributed-optimizer"],
        "--optimizer-cpu-offload": ["--use-precision-aware-optimizer"],
        "--num-experts": ["--moe-grouped-gemm", "--moe-ffn-hidden-size"],
        "--sequence-parallel": ["--tensor-model-parallel-size", "CUDA_DEVICE_MAX_CONNECTIONS=1"],
    }
    asked = {"model": "qwen3-30b-a3b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64}
    asked |= {"seq_len": 4096, "recipe": "megatron-core"}
    texts = [
        emit(cm.estimate(**asked, layout="tp2 ep4 etp1", recompute="full", zero_stage=1), "megatron"),
        emit(cm.estimate(**asked, layout="ep4", zero_stage=3, recompute="full"), "megatron"),
        emit(
            cm.estimate(**asked, layout="tp2 ep4", zero_stage=1, switches={"offload_optimizer": True}),
            "megatron",
        ),
    ]
    for flag, others in beside.items():
        written = [text for text in texts if flag in text]
        assert written, flag
        for text in written:
            assert [other for other in others if other not in text] == [], flag
    assert [text.count("--bf16") + text.count("--fp16") for text in texts] == [1, 1, 1]
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in texts[1]


def test_hierarchical_context_parallelism_says_its_sizes():
    """Four GPUs of a node of eight are of one context group of eight, with four heads of keys each."""
    job = {**MEGATRON_JOBS["hierarchical-cp"], "switches": {"cp_method": "a2a+p2p"}}
    text = " ".join(emit(cm.estimate(**job), "megatron").replace("\\", " ").split())
    assert "--cp-comm-type a2a+p2p" in text
    assert "--hierarchical-context-parallel-sizes 4 2" in text


def test_megatron_names_the_backend_that_dispatches():
    job = {"model": "qwen3-30b-a3b", "gpus": 16, "layout": "ep16", "global_batch": 64, "seq_len": 4096}
    switches = {"moe_dispatcher": "hybrid-ep", "dispatch_sms": 24}
    text = emit(cm.estimate(**job, cluster="dgx-h100-ndr", switches=switches), "megatron")
    assert "--moe-flex-dispatcher-backend hybridep" in text
    assert "--moe-hybridep-num-sms 24" in text
    back = read_flags(text).estimate_keywords(cluster="dgx-h100-ndr")
    assert {name: back["switches"][name] for name in switches} == switches
    deep = read_flags(text.replace("hybridep", "deepep")).estimate_keywords(cluster="dgx-h100-ndr")
    assert deep["switches"]["moe_dispatcher"] == "deep-ep"
    assert "dispatch_sms" not in deep["switches"]
    with pytest.raises(
        FrameworkConfigError, match="--moe-flex-dispatcher-backend: expected one of deepep, hybridep"
    ):
        read_flags(text.replace("backend hybridep", "backend pplx"))


BF16_RECORD = (
    "mixed_precision={_target_:megatron.bridge.training.mixed_precision.MixedPrecisionConfig,bf16:true,"
    "params_dtype:{_target_:torch.bfloat16,_call_:false},pipeline_dtype:{_target_:torch.bfloat16,_call_:false},"
    "autocast_enabled:false,grad_reduce_in_fp32:false"
)


def test_gradients_of_bridge_are_reduced_in_bf16_only_where_the_precision_says_so():
    """The name of a precision sets fp32 over what ``ddp`` says (megatron-bridge 0.3.1, training/config.py:1864)."""
    for precision, record in [
        ("bf16", BF16_RECORD + "}"),
        (
            "mxfp8",
            BF16_RECORD
            + ",fp8:e4m3,fp8_recipe:mxfp8,fp8_param_gather:true,reuse_grad_buf_for_mxfp8_param_ag:true}",
        ),
    ]:
        job = MEGATRON_JOBS["llama3"] | {"precision": precision, "cluster": "hgx-b200-ndr"}
        switches = job.get("switches") or {}
        text = emit(cm.estimate(**job | {"switches": switches | {"grad_reduce_dtype": "bf16"}}), "nemo")
        assert text.splitlines()[-1] == record
        assert import_nemo(text).job["switches"]["grad_reduce_dtype"] == "bf16"

        without = text.replace(record + "\n", "")
        assert "grad_reduce_dtype" not in import_nemo(without).job["switches"]
        whole = emit(cm.estimate(**job | {"switches": switches | {"grad_reduce_dtype": "fp32"}}), "nemo")
        assert "_target_" not in whole
        assert "grad_reduce_dtype" not in import_nemo(whole).job["switches"]


def test_overlaps_that_want_one_queue_and_several_are_told():
    """With experts' overlap one connection would queue the exchange behind what tensor parallelism orders: a note, no export."""
    job = {
        "model": "mixtral-8x7b",
        "cluster": "dgx-h100-ndr",
        "recipe": "megatron-core",
        "gpus": 64,
        "seq_len": 4096,
    }
    for overlap in (True, False):
        switches = {"ep_overlap": overlap}
        est = cm.estimate(**job, layout="tp2 pp2 vp4 ep4", global_batch=256, switches=switches)
        text = emit(est, "megatron")
        assert ("CUDA_DEVICE_MAX_CONNECTIONS stays unset" in text) == overlap
        assert ("export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text) != overlap
