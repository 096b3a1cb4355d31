"""What jobs of Axolotl, LLaMA-Factory and ms-swift say of batch, precision, adapters, and of training that is no plain one."""

import pytest

from costmodel.interop.text_file import TextFile
from costmodel.interop.trainers import read

AXOLOTL = """base_model: llama3-8b
sequence_len: 2048
micro_batch_size: 2
"""
FACTORY = """model_name_or_path: llama3-8b
cutoff_len: 2048
per_device_train_batch_size: 2
stage: {stage}
"""


def job_of(text, **given):
    return read(TextFile(text, "job.yaml"), {"gpus": 8, **given})


def test_axolotls_batch_size_is_of_one_rank():
    assert job_of(AXOLOTL + "batch_size: 6\n").job["global_batch"] == 6 * 8
    # What is said of accumulation stands.
    assert (
        job_of(AXOLOTL + "batch_size: 6\ngradient_accumulation_steps: 4\n").job["global_batch"] == 2 * 4 * 8
    )
    assert job_of(AXOLOTL).job["global_batch"] == 2 * 8


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ("", "bf16"),
        ("bf16: auto\n", "bf16"),
        ("bf16: false\nfp16: true\n", "fp16"),
        ("float16: true\nbf16: false\n", "fp16"),
        ("bfloat16: true\n", "bf16"),
        ("bf16: false\nfp16: false\n", "fp32"),
    ],
)
def test_precision(more, precision):
    assert job_of(AXOLOTL + more).job["precision"] == precision


def test_a_precision_that_nobody_says_is_told():
    found = job_of(FACTORY.format(stage="sft"))
    assert "precision" not in found.job
    assert any(note.startswith("precision: not said") for note in found.notes)


@pytest.mark.parametrize("stage", ["dpo", "ppo", "kto", "rm"])
def test_training_with_other_passes_is_not_priced_in_silence(stage):
    (warning,) = job_of(FACTORY.format(stage=stage)).warnings
    assert warning.startswith(f"stage: {stage}: priced as supervised training")
    assert job_of(FACTORY.format(stage="pt")).warnings == ()
    assert job_of(AXOLOTL + f"rl: {stage}\n").warnings[0].startswith(f"rl: {stage}")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("unfrozen_parameters: [model.layers.3]\n", "unfrozen_parameters"),
        ("gradient_checkpointing: offload\n", "activation_offloading"),
        ("reward_model: true\n", "reward_model"),
    ],
)
def test_what_changes_time_or_memory_without_a_price_is_a_warning(more, word):
    (warning,) = job_of(AXOLOTL + more).warnings
    assert warning.startswith(word)


def test_axolotls_expert_parallelism_is_read():
    assert job_of(AXOLOTL + "expert_parallel_size: 4\n").job["ep"] == 4


@pytest.mark.parametrize(
    ("targets", "meant"),
    [
        ("[self_attn.q_proj, mlp.down_proj]", "q_proj,down_proj"),
        ("[shared_expert.gate_proj, linear_attn.in_proj_qkv]", "gate_proj,mixer"),
        (
            r"'model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj'",
            "up_proj,down_proj,q_proj,v_proj",
        ),
        (r"'.*\.self_attn\.(q|k)_proj|.*\.mlp\.gate_proj'", "q_proj,k_proj,gate_proj"),
        ("[query_key_value, dense, dense_h_to_4h]", "qkv,o_proj,up_proj"),
        ("[c_attn, c_proj, c_fc]", "qkv,o_proj,down_proj,up_proj"),
        ("[q_a_proj, q_b_proj, kv_b_proj]", "q_proj,k_proj,v_proj"),
    ],
)
def test_targets_by_place_and_by_pattern(targets, meant):
    found = job_of(AXOLOTL + f"adapter: lora\nlora_r: 16\nlora_target_modules: {targets}\n")
    assert found.job["lora_targets"] == meant
    assert found.warnings == ()


def test_targets_of_some_layers_and_of_towers_are_told():
    text = AXOLOTL + "adapter: lora\nlora_r: 16\nlora_target_modules: "
    some = job_of(text + r"'.*\.layers\.(3|7)\.self_attn\.(q|v)_proj'" + "\n")
    assert some.job["lora_targets"] == "q_proj,v_proj"
    assert "of some layers; priced as of all" in some.warnings[0]
    tower = job_of(text + "[q_proj, vision_adapter.mlp.fc1]\n")
    assert tower.job["lora_targets"] == "q_proj"
    assert tower.warnings[0].startswith("lora target vision_adapter.mlp.fc1: no layer is known")


EAGER = {
    "cross_entropy": "unfused",
    "loss_bytes_per_logit": 14.0,
    "fused_norm": False,
    "fused_rope": False,
    "fused_activation": False,
    "compiled": False,
}
"""Hugging Face's own code, where the recipe of FSDP compiles."""


def kernels_of(text, **given):
    switches = job_of(text, **given).job.get("switches", {})
    return {name: switches[name] for name in EAGER if name in switches}


def test_models_are_hugging_faces_however_they_are_sharded():
    assert kernels_of(AXOLOTL) == EAGER
    assert kernels_of(AXOLOTL + "fsdp_version: 2\n") == EAGER
    assert kernels_of(AXOLOTL + "torch_compile: true\n") == {
        name: value for name, value in EAGER.items() if name != "compiled"
    }
    # The recipe of DeepSpeed has them already; one that is asked for stands.
    zero = AXOLOTL + "deepspeed: {zero_optimization: {stage: 3}}\n"
    assert kernels_of(zero) == {}
    assert kernels_of(AXOLOTL, recipe="torchtitan") == {}


@pytest.mark.parametrize("key", ["enable_liger_kernel", "use_liger_kernel"])
def test_ligers_kernels(key):
    text = FACTORY.format(stage="sft")
    assert kernels_of(f"{text}{key}: true\n") == {
        "cross_entropy": "chunked",
        "loss_bytes_per_logit": 14.0,
        "compiled": False,
    }
    assert kernels_of(f"{text}{key}: false\n") == EAGER


def test_ligers_kernels_one_by_one():
    found = kernels_of(AXOLOTL + "liger_rms_norm: true\nliger_fused_linear_cross_entropy: true\n")
    assert found == {
        **{name: value for name, value in EAGER.items() if name != "fused_norm"},
        "cross_entropy": "chunked",
    }
    zero = AXOLOTL + "deepspeed: {zero_optimization: {stage: 3}}\nliger_glu_activation: true\n"
    assert kernels_of(zero) == {"fused_activation": True}


def test_a_plugin_that_changes_the_loss_is_said():
    said = "plugins: the loss of cut_cross_entropy is priced by --set cross_entropy=chunked"
    cut = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
    assert said in job_of(AXOLOTL + f"plugins: [{cut}]\n").warnings
    assert said not in job_of(AXOLOTL + "plugins: [axolotl.integrations.kd.KDPlugin]\n").warnings
