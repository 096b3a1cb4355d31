"""Adapters in other programs' words: written, read back to the same bill, or refused in one line."""

from texts import assert_same_bill

import costmodel as cm
from costmodel.base.yaml_files import parse_mapping
from costmodel.interop.emit import emit
from costmodel.interop.nemo import import_nemo
from costmodel.interop.text_file import TextFile
from costmodel.interop.trainers import read_trainer

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 64, "seq_len": 4096}


def priced(framework, **more):
    recipe = {"nemo": "megatron-bridge"}.get(framework, "torchtitan")
    return cm.estimate(**JOB, layout="tp1", micro_batch=1, recipe=recipe, **more)


EAGER = dict.fromkeys(("fused_norm", "fused_rope", "fused_activation", "compiled"), False)
EAGER |= {"cross_entropy": "unfused", "loss_bytes_per_logit": 14.0}
ADAPTERS = "lora_target_linear lora_target_modules load_in_4bit load_in_8bit peft_use_dora"


def test_axolotl():
    for more, adapter, keys in (
        ({"base_dtype": "nf4"}, "qlora", {"lora_target_linear": True, "load_in_4bit": True}),
        ({"base_dtype": "fp8"}, "lora", {"lora_target_linear": True, "load_in_8bit": True}),
        ({"lora_targets": "q,v"}, "lora", {"lora_target_modules": ["q_proj", "v_proj"]}),
        ({"lora_targets": "q,magnitude"}, "lora", {"lora_target_modules": ["q_proj"], "peft_use_dora": True}),
        ({"lora_targets": "dora"}, "lora", {"lora_target_linear": True, "peft_use_dora": True}),
        ({"switches": EAGER}, "lora", {"lora_target_linear": True}),
        ({"switches": EAGER | {"cross_entropy": "chunked"}}, "lora", {"lora_target_linear": True}),
        ({"switches": EAGER | {"fused_rope": True}}, "lora", {"lora_target_linear": True}),
        ({"switches": {"compiled": False}}, "lora", {"lora_target_linear": True}),
    ):
        est = priced("axolotl", lora_rank=16, zero_stage=3, **more)
        text = emit(est, "axolotl")
        raw = parse_mapping(text, "axolotl", example="key: value")
        assert {key: raw[key] for key in ADAPTERS.split() if key in raw} == keys
        assert (raw["adapter"], raw["lora_r"], raw["lora_alpha"]) == (adapter, 16, 32)
        back = read_trainer(TextFile(text, "axolotl.yaml"), {"gpus": 8})
        assert_same_bill(est, cm.estimate(**back.estimate_keywords(cluster="dgx-h100-ndr")))


def test_axolotl_has_the_hubs_name_of_a_model_that_a_file_names():
    text = "base_model: Qwen/Qwen2.5-14B\nmicro_batch_size: 1\nsequence_len: 4096\nadapter: lora\n"
    job = read_trainer(TextFile(text, "a.yaml"), {"gpus": 8})
    written = emit(cm.estimate(**job.estimate_keywords(cluster="dgx-a100-hdr", zero_stage=3)), "axolotl")
    assert "base_model: Qwen/Qwen2.5-14B\n" in written
    assert "left to you: model" not in written
    assert "left to you: adapters: lora_dropout" in written
    assert "left to you: model" in emit(priced("axolotl", zero_stage=3), "axolotl")
    assert "lora_dropout" not in emit(priced("axolotl", zero_stage=3), "axolotl")
    # Liger's loss has none of the copies of an eager one.
    assert "loss_bytes_per_logit" not in emit(priced("axolotl", zero_stage=3), "axolotl")


def test_accelerate_says_what_the_script_hands_to_peft():
    text = emit(
        priced("accelerate", lora_rank=8, lora_targets="o", base_dtype="nf4", zero_stage=3), "accelerate"
    )
    assert "# in the training script: peft.LoraConfig(r=8, target_modules=['o_proj'])" in text
    assert 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")' in text
    plain = emit(priced("accelerate", lora_rank=8, zero_stage=3), "accelerate")
    assert "target_modules='all-linear')" in plain
    assert "BitsAndBytes" not in plain


def test_megatron_bridge():
    for targets, scheme, modules in (
        ("qkv,o", "lora", "[linear_proj,linear_qkv]"),
        ("q,gate", "canonical_lora", "[linear_q,linear_fc1_gate]"),
    ):
        est = priced("nemo", lora_rank=32, lora_targets=targets)
        text = emit(est, "nemo")
        for words in (
            "peft.dim=32\n",
            f"peft.target_modules={modules}\n",
            f"recipe with peft_scheme={scheme}",
        ):
            assert words in text
        assert_same_bill(est, cm.estimate(**import_nemo(text).estimate_keywords(cluster="dgx-h100-ndr")))


def test_the_inputs_of_an_answer_make_the_same_bill():
    """What JSON says went in, nothing of it left to a default, is the job again."""
    adapters = {"lora_rank": 16, "lora_targets": "q,v", "base_dtype": "nf4"}
    packed = {"packed_len": 1000, "packed_spread": 0.5}
    for more in (adapters | packed, {"frozen": "embedding,mlp", "base_dtype": "fp8"}, {}):
        est = cm.estimate(**JOB, **more)
        inputs = est.to_dict()["inputs"]
        assert {key: inputs[key] for key in more} == more
        assert_same_bill(
            est, cm.estimate(**{key: value for key, value in inputs.items() if value is not None})
        )
