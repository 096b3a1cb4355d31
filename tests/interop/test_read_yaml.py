"""YAML files of Megatron's kin and of trainers on transformers, small ones written here, with what they mean."""

import json

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file
from costmodel.interop.text_file import TextFile, decoded, encoding_of, read_text, shown

ARGUMENTS = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 64
  --num-attention-heads: 4
  --seq-length: 128
  --max-position-embeddings: 128
  --micro-batch-size: 2
  --global-batch-size: 32
  --vocab-size: 1000
  --swiglu: true
  --disable-bias-linear: true
  --position-embedding-type: rope
  --tensor-model-parallel-size: 2
  --use-distributed-optimizer: true
  --bf16: true
  --fp16: false
  --odd-thing: 3
"""
PARTS = """
micro_batch_size: 1
global_batch_size: 16
vocab_size: 512
language_model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 4
  gated_linear_unit: true
  add_bias_linear: false
  seq_length: 64
  max_position_embeddings: 64
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  bf16: true
"""
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16-mixed}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  activations_checkpoint_granularity: selective
  sequence_parallel: true
  hidden_dropout: 0.0
  attention_dropout: 0.0
  make_vocab_size_divisible_by: 1
  tokenizer: {library: huggingface, type: meta-llama/Llama-2-7b-hf}
  optim: {name: distributed_fused_adam, overlap_grad_sync: true}
  weird_thing: 7
"""
BRIDGE = """
model:
  _target_: megatron.bridge.models.llama.LlamaProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  seq_length: 8192
  max_position_embeddings: 8192
  vocab_size: 128256
  gated_linear_unit: true
  add_bias_linear: false
  normalization: RMSNorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  context_parallel_size: 2
train: {micro_batch_size: 1, global_batch_size: 64}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true}
mixed_precision: bf16_mixed
"""
PRIMUS = """
work_group: ours
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3_8B.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 128, seq_length: 8192, pipeline_model_parallel_size: 2}
"""
NEOX = """
{
  # braces and comments
  "pipe-parallel-size": 2,
  "model-parallel-size": 2,
  "num-layers": 16, "hidden-size": 2048, "num-attention-heads": 16,
  "seq-length": 2048, "max-position-embeddings": 2048,
  "norm": "layernorm", "pos-emb": "rotary", "no-weight-tying": true,
  "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "checkpoint-activations": true, "fp16": {"enabled": true}
}
"""


def written(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def said(job, *names):
    return tuple(job.get(name) for name in names)


def test_arguments_of_megatrons_tests(tmp_path):
    found = read_file(written(tmp_path, ARGUMENTS))

    model = found.job["model"]
    assert found.kind == "megatron-yaml"
    assert said(found.job, "tp", "micro_batch", "global_batch", "precision", "zero_stage") == (
        2,
        2,
        32,
        "bf16",
        1,
    )
    assert (model.num_layers, model.gated_mlp, model.linear_bias, model.vocab_size) == (4, True, False, 1024)
    assert found.ignored == ("--odd-thing",)
    assert found.missing == ("cluster", "gpus")


def test_parts_for_yaml_cfg(tmp_path):
    found = read_file(written(tmp_path, PARTS), gpus=8)

    assert said(found.job, "tp", "pp", "gpus", "seq_len", "global_batch", "precision") == (
        2,
        2,
        8,
        64,
        16,
        "bf16",
    )
    assert (found.job["model"].gated_mlp, found.job["model"].linear_bias) == (True, False)


def test_nemo_1_with_the_vocabulary_of_its_tokenizer(tmp_path):
    found = read_file(written(tmp_path, NEMO))

    assert found.kind == "nemo"
    assert said(found.job, "gpus", "tp", "pp", "micro_batch", "global_batch", "seq_len") == (
        32,
        4,
        2,
        1,
        128,
        4096,
    )
    assert said(found.job, "recompute", "precision", "zero_stage") == ("selective", "bf16", 1)
    # Llama 2 7B: its vocabulary is padded to 32,000, a multiple of 4.
    from costmodel.step.anatomy.params import num_params

    assert round(num_params(found.job["model"])) == 6738415616
    assert found.notes == ("vocabulary of meta-llama/Llama-2-7b-hf: 32000",)
    assert found.ignored == ("weird_thing",)


def test_true_keys_of_nemo_are_read_or_said(tmp_path):
    from costmodel.step.anatomy.params import num_params

    more = "  qkv_bias: true\n  odd_switch: true\n  gradient_as_bucket_view: true\n"
    plain = read_file(written(tmp_path, NEMO)).job["model"]
    found = read_file(written(tmp_path, NEMO + more))
    # Biases of queries, keys and values, 4,096 each, in 32 layers.
    assert round(num_params(found.job["model"]) - num_params(plain)) == 32 * 3 * 4096
    assert found.ignored == ("weird_thing", "odd_switch")


def test_the_table_that_nemo_stores(tmp_path):
    own = "  tokenizer: {library: huggingface, type: meta-llama/Llama-2-7b-hf}\n"
    assert own in NEMO
    padded = NEMO.replace(own, "  override_vocab_size: 152064\n")
    assert read_file(written(tmp_path, padded)).job["model"].vocab_size == 152064
    megatron = NEMO.replace(own, "  tokenizer: {library: megatron, type: GPT2BPETokenizer}\n")
    megatron = megatron.replace("divisible_by: 1\n", "divisible_by: 128\n")
    # 50,257 tokens of GPT-2 in a table of a multiple of 128 times tp 4.
    assert read_file(written(tmp_path, megatron)).job["model"].vocab_size == 50688


def test_references_of_nemo_are_followed(tmp_path):
    text = """
run: {name: mine, results_dir: "${base_results_dir}/${.name}"}
trainer: {num_nodes: 2, devices: 8, precision: bf16}
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  global_batch_size: "${multiply:4, ${.micro_batch_size}}"
  micro_batch_size: 2
  encoder_seq_length: 512
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: "${multiply:4, ${.hidden_size}}"
  num_attention_heads: ${training.model.num_layers}
  vocab_size: 1000
  num_query_groups: ${nobody.knows}
"""
    found = read_file(written(tmp_path, text))
    model = found.job["model"]
    assert (model.ffn_size, model.num_heads, model.num_kv_heads, found.job["global_batch"]) == (256, 4, 4, 8)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("${.a}", 3),
        ("${..top}", 7),
        ("${part.a}", 3),
        ("${cfg.part.a}", 3),
        ("x/${.a}/y", "x/3/y"),
        ("${divide_ceil:7, 2}", 4),
        ("${divide_floor:7, 0}", None),
        ("${add:${.a},${.b}}", 8),
        ("${oc.env:HOME}", None),
        ("${.none}", None),
        ("${.value}", None),
        ("${unfinished", None),
    ],
)
def test_interpolation(value, meant):
    from costmodel.interop.interpolation import resolved

    raw = {"top": 7, "part": {"a": 3, "b": "${multiply:1, 5}", "value": value}}
    assert resolved(raw)["part"] == {"a": 3, "b": 5, "value": meant}


def test_run_config_of_megatron_bridge(tmp_path):
    from costmodel.step.anatomy.params import num_params

    found = read_file(written(tmp_path, BRIDGE, "run_config.yaml"), gpus=16)

    assert found.kind == "megatron-bridge"
    assert said(found.job, "tp", "cp", "global_batch", "precision", "zero_stage") == (2, 2, 64, "bf16", 1)
    assert round(num_params(found.job["model"])) == 8030261248  # Llama 3 8B


def test_primus_names_its_model(tmp_path):
    found = read_file(written(tmp_path, PRIMUS))

    assert (found.kind, found.job["model"].name) == ("primus", "llama3-8b")
    assert said(found.job, "pp", "micro_batch", "global_batch", "seq_len") == (2, 2, 128, 8192)
    assert "presets pre_trainer.yaml and llama3_8B.yaml are not beside it" in found.warnings[-1]
    for change, part in (
        ("framework: maxtext", "framework 'maxtext' is not supported"),
        ("model: none_7B.yaml", "'none_7B' is not known here"),
    ):
        key = change.split(":")[0]
        old = next(line.strip() for line in PRIMUS.splitlines() if line.strip().startswith(f"{key}:"))
        with pytest.raises(CostModelError, match=part):
            read_file(written(tmp_path, PRIMUS.replace(old, change)))


def test_gpt_neox_in_braces_with_comments(tmp_path):
    from costmodel.step.anatomy.params import num_params

    found = read_file(written(tmp_path, NEOX, "1B.yml"), gpus=16, vocab_size=50304)

    assert found.kind == "gpt-neox"
    # 4 sequences x 2 steps x 4 replicas.
    assert said(found.job, "tp", "pp", "global_batch", "zero_stage", "recompute", "precision") == (
        2,
        2,
        32,
        1,
        "full",
        "fp16",
    )
    # Pythia 1B has 1,011,781,632 with 50,304 tokens, which TP 2 pads to a multiple of 256.
    assert round(num_params(found.job["model"])) == 1011781632 + (50432 - 50304) * 2048 * 2


TRAINER = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: full
deepspeed: configs/ds.json
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
neat_packing: true
"""


def test_a_trainer_joined_with_its_deepspeed_file(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(
        json.dumps(
            {
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "bf16": {"enabled": "auto"},
                "zero_optimization": {"stage": 3},
            }
        )
    )

    found = read_file(written(tmp_path, TRAINER), gpus=8)

    assert (found.kind, found.job["model"].name) == ("trainer", "llama3-8b")
    # 2 sequences x 4 steps x 8 GPUs.
    assert said(
        found.job, "global_batch", "micro_batch", "seq_len", "zero_stage", "precision", "recompute"
    ) == (
        64,
        2,
        2048,
        3,
        "bf16",
        "full",
    )
    assert found.missing == ("cluster",)
    assert found.ignored == ()
    assert any("packing: the lengths of documents are not in the file" in note for note in found.notes)
    with pytest.raises(CostModelError, match=r"configs/other.json is not beside the file"):
        read_file(written(tmp_path, TRAINER.replace("ds.json", "other.json")))
    with pytest.raises(CostModelError, match=r"\.\./ds.json is not beside"):
        read_file(written(tmp_path, TRAINER.replace("configs/ds.json", "../ds.json")))


@pytest.mark.parametrize(
    ("named", "stage", "switches"),
    [
        ("examples/deepspeed/ds_z0_config.json", 0, {}),
        ("examples/deepspeed/ds_z2_offload_config.json", 2, {"offload_optimizer": True}),
        ("examples/deepspeed/ds_z3_config.json", 3, {}),
        ("deepspeed_configs/zero3_bf16.json", 3, {}),
        ("deepspeed_configs/zero1.json", 1, {}),
        ("zero3_offload", 3, {"offload_optimizer": True}),
    ],
)
def test_a_deepspeed_configuration_of_a_usual_name(tmp_path, named, stage, switches):
    """Repositories keep them beside their code, not beside the job."""
    found = read_file(written(tmp_path, TRAINER.replace("configs/ds.json", named)), gpus=8)
    assert found.job["zero_stage"] == stage
    assert {key: found.job.get("switches", {})[key] for key in switches} == switches
    assert bool(switches) == ("offload_optimizer" in found.job.get("switches", {}))
    said_so = any("is not beside the file; taken for what its name says" in note for note in found.notes)
    assert said_so == ("/" in named)


def test_ms_swift_and_axolotl(tmp_path):
    swift = "model: Qwen/Qwen2.5-7B-Instruct\ntrain_type: full\ntorch_dtype: bfloat16\nmax_length: 8192\n"
    swift += "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\ndeepspeed: zero2\n"
    found = read_file(written(tmp_path, swift), gpus=8)
    assert said(found.job, "global_batch", "zero_stage", "seq_len", "precision") == (16, 2, 8192, "bf16")
    assert found.job["model"].name == "qwen2.5-7b"

    axolotl = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 4096\nmicro_batch_size: 2\nbf16: auto\n"
    axolotl += "gradient_accumulation_steps: 4\nadapter: lora\noptimizer: adamw_bnb_8bit\n"
    axolotl += "fsdp: [shard_grad_op, auto_wrap, offload]\n"
    found = read_file(written(tmp_path, axolotl))
    assert said(found.job, "zero_stage", "recompute", "micro_batch", "global_batch") == (2, "none", 2, None)
    assert found.missing == ("cluster", "gpus", "global_batch")
    assert [warning.split(":")[0] for warning in found.warnings] == [
        "offload_params",
        "optimizer adamw-8bit",
    ]
    assert found.job["lora_rank"] == 8
    assert [note for note in found.notes if note.startswith("lora")] == [
        "lora rank: 8, the default of these trainers",
        "lora targets: not said, priced on every linear layer",
    ]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "finetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,v_proj\nquantization_bit: 4\n",
            {"lora_rank": 16, "lora_targets": "q_proj,v_proj", "base_dtype": "nf4"},
        ),
        ("finetuning_type: lora\nlora_target: all\nlora_rank: 64\n", {"lora_rank": 64}),
        (
            "adapter: qlora\nlora_r: 32\nlora_target_linear: true\nload_in_4bit: true\n",
            {"lora_rank": 32, "base_dtype": "nf4"},
        ),
        (
            "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, o_proj, lm_head]\nload_in_8bit: true\n",
            {"lora_rank": 8, "lora_targets": "q_proj,o_proj", "base_dtype": "fp8"},
        ),
        ("finetuning_type: full\nlora_rank: 8\n", {}),
        ("finetuning_type: oft\n", {}),
    ],
)
def test_adapters_of_trainers(tmp_path, text, fields):
    name = "model_name_or_path: meta-llama/Llama-2-7b-hf\ncutoff_len: 1024\nper_device_train_batch_size: 1\n"
    found = read_file(written(tmp_path, name + "gradient_accumulation_steps: 4\nbf16: true\n" + text), gpus=1)
    taken = ("lora_rank", "lora_targets", "base_dtype")
    assert {key: found.job[key] for key in taken if key in found.job} == fields
    assert [warning for warning in found.warnings if "lora target" in warning] == (
        ["lora target lm_head: no layer is known by that name; it gets no adapter here"]
        if "lm_head" in text
        else []
    )
    assert any("every parameter" in warning for warning in found.warnings) == ("oft" in text)
    if fields:
        bill = cm.estimate(**found.estimate_keywords(cluster="dgx-h100-ndr")).bill
        assert any("lora" in line.name for line in bill.time_lines)


def test_accelerate_with_deepspeed_inside(tmp_path):
    text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
    text += "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}\n"
    found = read_file(written(tmp_path, text))

    assert said(found.job, "zero_stage", "gpus", "precision") == (3, 8, "bf16")
    assert found.job["switches"]["offload_optimizer"]
    with pytest.raises(CostModelError, match="distributed_type: 'TPU' is not supported"):
        read_file(written(tmp_path, "distributed_type: TPU\n"))


def test_an_optimizer_that_no_host_steps_is_offloaded_as_adam(tmp_path):
    axolotl = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 4096\nmicro_batch_size: 2\nbf16: auto\n"
    axolotl += "optimizer: adamw_bnb_8bit\nfsdp: [full_shard, auto_wrap, offload]\n"
    found = read_file(written(tmp_path, axolotl))
    assert "optimizer" not in found.job
    assert found.job["switches"]["offload_optimizer"] is True
    assert "optimizer adamw-8bit: no host steps it; its offloaded step is priced as Adam's" in found.warnings
    lion = axolotl.replace("adamw_bnb_8bit", "lion_32bit")
    assert read_file(written(tmp_path, lion)).job["optimizer"] == "lion"


@pytest.mark.parametrize(
    ("raw", "fine"), [(b"a\x00b\x00c\x00", True), (b"\x00a\x00b", True), (b"ab\x00cdefgh", False)]
)
def test_zero_bytes_are_utf_16_where_every_second_is_one(raw, fine):
    if fine:
        assert encoding_of(raw, "f").startswith("utf-16")
    else:
        with pytest.raises(CostModelError, match=r"^f: is not a text"):
            encoding_of(raw, "f")


@pytest.mark.parametrize(
    ("encoding", "mark", "found"),
    [
        ("utf-8", b"\xef\xbb\xbf", "utf-8-sig"),
        ("utf-16-le", b"\xff\xfe", "utf-16"),
        ("utf-16-be", b"\xfe\xff", "utf-16"),
        ("utf-8", b"", "utf-8"),
        ("utf-16-le", b"", "utf-16-le"),
        ("utf-16-be", b"", "utf-16-be"),
    ],
)
def test_marks_of_encodings_stand_at_the_beginning(encoding, mark, found):
    text = "num_layers: 4"
    raw = mark + text.encode(encoding)
    assert encoding_of(raw, "f") == found
    assert decoded(raw, "f") == text
    if mark and encoding == "utf-8":
        assert encoding_of(text.encode() + mark, "f") == "utf-8"


def test_what_is_no_text_is_told_by_its_byte():
    with pytest.raises(CostModelError, match=r"^f: is not a text in UTF-8 or UTF-16 \(byte 3\)$"):
        decoded(b"abc\xff", "f")


def test_files_that_are_no_texts(tmp_path):
    empty = written(tmp_path, " \n")
    with pytest.raises(CostModelError, match=r"is empty$"):
        read_text(empty)
    with pytest.raises(CostModelError, match=r"no such file$"):
        read_text(tmp_path / "none.yaml")
    with pytest.raises(CostModelError, match=r"is a folder without a config.json or run_config.yaml$"):
        read_text(tmp_path)
    text = written(tmp_path, "a: 1234567890", "long.yaml")
    assert read_text(text, most_bytes=13) == TextFile("a: 1234567890", str(text), tmp_path)
    with pytest.raises(CostModelError, match=r"expected at most 12 bytes$"):
        read_text(text, most_bytes=12)
    written(tmp_path, "b: 2", "run_config.yaml")
    assert read_text(tmp_path).text == "b: 2"
    written(tmp_path, "{}", "config.json")
    assert read_text(tmp_path).text == "{}"


def test_what_may_be_printed():
    assert shown("a\tb  c\u202ed\x1b[31me") == "a b cde"
    assert shown("x" * 300) == "x" * 300
    assert shown("x" * 301) == "x" * 299 + "…"
    assert shown("abcdef", most=4) == "abc…"
