"""Layers with other mixers in Megatron's flags: written, read, and read back to the same model."""

import pytest
from texts import read_flags

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.models.mixers import GatedDelta, Indexed, Mamba2
from costmodel.describe.models.model import make_model
from costmodel.interop.emit import emit

BASE = "--hidden-size 256 --num-attention-heads 4 --vocab-size 1024 --make-vocab-size-divisible-by 1 "
BASE += "--seq-length 512 --global-batch-size 8 --nnodes 1 --nproc-per-node 8 --disable-bias-linear "


def model_of(flags):
    return read_flags("pretrain_gpt.py " + BASE + flags).job["model"]


def test_a_pattern_of_blocks():
    """M state space, * attention, - MLP, E experts; bars cut stages, behind a slash is prediction."""
    model = model_of(
        "--hybrid-layer-pattern M-M*|E-/*E --mamba-num-heads 8 --mamba-state-dim 64 --num-experts 4 "
        "--moe-router-topk 2 --moe-ffn-hidden-size 96 --ffn-hidden-size 512"
    )
    assert (model.num_layers, model.attention_pattern, model.mlp_pattern) == (6, "mnmfnn", "ndnned")
    assert model.mixers == {"m": Mamba2(heads=8, head_dim=64, groups=8, state=64, conv_kernel=4, chunk=128)}
    assert (model.ffn_size, model.expert_ffn_size, model.num_experts, model.top_k) == (512, 96, 4, 2)
    # Without their number the heads are those of twice the width.
    assert model_of("--hybrid-override-pattern MM --num-layers 2").mixers["m"].heads == 2 * 256 // 64


def test_gated_delta_nets():
    for freq, pattern in [("4", "dddfdd"), ("[1,0]*3", "dfdfdf"), ("([0]*2+[1]*4)", "ffdddd")]:
        model = model_of(
            f"--num-layers 6 --experimental-attention-variant gated_delta_net --linear-attention-freq {freq} "
            "--linear-num-key-heads 2 --linear-num-value-heads 4 --linear-key-head-dim 32 --linear-value-head-dim 48 "
            "--linear-conv-kernel-dim 3 --attention-output-gate"
        )
        assert model.attention_pattern == pattern
        assert model.attention_gate
        sizes = GatedDelta(key_heads=2, value_heads=4, key_head_dim=32, value_head_dim=48, conv_kernel=3)
        assert model.mixers == {"d": sizes}


def test_sparse_attention():
    model = model_of(
        "--num-layers 3 --multi-latent-attention --experimental-attention-variant dsa --dsa-indexer-n-heads 2 "
        "--dsa-indexer-head-dim 16 --dsa-indexer-topk 64"
    )
    assert (model.attention_pattern, model.mixers["i"]) == ("iii", Indexed(heads=2, head_dim=16, top_k=64))


def test_written_and_read_back_to_the_same_bill():
    for model, layout in [
        ("nemotron-h-56b", "tp8"),
        ("nemotron-3-nano-30b-a3b", "ep8"),
        ("qwen3-next-80b-a3b", "ep8"),
        ("deepseek-v3.2", "ep8"),
    ]:
        job = {"cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 128, "seq_len": 4096, "zero_stage": 1}
        est = cm.estimate(model=model, layout=layout, **job)
        text = emit(est, "megatron")
        assert ("pretrain_mamba.py" in text) == ("--hybrid-layer-pattern" in text) == ("nemotron" in model)
        back = cm.estimate(**read_flags(text).estimate_keywords(cluster="dgx-h100-ndr"))
        assert float(back.step_time_s) == pytest.approx(float(est.step_time_s), rel=1e-12)
        assert float(back.memory_bytes_per_gpu) == pytest.approx(float(est.memory_bytes_per_gpu), rel=1e-12)


def hybrid(mlp_pattern="ndnd", **more):
    sizes = {"kind": "mamba-2", "heads": 8, "head_dim": 64, "groups": 2, "state": 64, "conv_kernel": 4}
    fields = {"name": "h", "num_layers": 4, "hidden_size": 256, "num_heads": 4, "vocab_size": 1024}
    fields |= {"ffn_size": 512, "gated_mlp": False, "position": "none", "mlp_pattern": mlp_pattern}
    mixers = {"m": {**sizes, "chunk": 128, **more}}
    pattern = "mnfn" if "n" in mlp_pattern else "mmfm"
    return make_model({**fields, "attention_pattern": pattern, "mixers": mixers})


def test_what_megatron_does_not_have_is_one_line():
    for model, said in [
        (hybrid(chunk=256), "Megatron-LM's state-space layers have chunk = 128, h has 256"),
        (hybrid(conv_kernel=3), "state-space layers have conv_kernel = 4, h has 3"),
        ("kimi-linear-48b-a3b", "Megatron-LM has no layers of kimi-delta"),
        (hybrid(mlp_pattern="dddd"), "one block a layer, a mixer or an MLP; those of h have both"),
    ]:
        est = cm.estimate(model=model, gpus=8, global_batch=8, seq_len=512, zero_stage=1)
        with pytest.raises(CostModelError) as caught:
            emit(est, "megatron")
        assert said in str(caught.value)


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "deepseek-v3.2"])
def test_context_parallelism_is_refused_as_megatron_does(model):
    est = cm.estimate(model=model, gpus=64, global_batch=64, seq_len=4096, layout="cp2 ep8", zero_stage=1)
    with pytest.raises(CostModelError, match="no context parallelism: "):
        emit(est, "megatron")
