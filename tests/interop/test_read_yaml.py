"""Files beside each other, references inside YAML, and what a text may be: encodings, lengths, what may be printed."""

import json

import pytest

from costmodel.base.errors import CostModelError
from costmodel.interop.interpolation import resolved
from costmodel.interop.reading import read as read_file
from costmodel.interop.text_file import TextFile, decoded, encoding_of, read_text


def written(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_interpolation():
    for value, meant in (
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
    ):
        raw = {"top": 7, "part": {"a": 3, "b": "${multiply:1, 5}", "value": value}}
        assert resolved(raw)["part"] == {"a": 3, "b": 5, "value": meant}


def test_a_trainer_joined_with_its_deepspeed_file(tmp_path):
    text = (
        "model_name_or_path: llama3-8b\nstage: sft\ndeepspeed: configs/ds.json\ncutoff_len: 2048\n"
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\nneat_packing: true\n"
    )
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    auto = {**dict.fromkeys(batch, "auto"), "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(json.dumps(auto))
    found = read_file(written(tmp_path, text), gpus=8)
    # 2 sequences x 4 steps x 8 GPUs.
    wanted = {"global_batch": 64, "micro_batch": 2, "seq_len": 2048, "zero_stage": 3, "precision": "bf16"}
    assert {key: found.job[key] for key in wanted} == wanted
    assert (found.missing, found.ignored, found.job["recompute"]) == (("cluster",), (), "full")


SWIFT = """
export NNODES=2
each=4
NPROC_PER_NODE=$each swift sft --model llama3-8b --max_length 2048 --per_device_train_batch_size 2 \\
  --dataset 'a#500' b --learning_rate 1e-4 {}
"""
FACTORY = "llamafactory-cli train {} --per_device_train_batch_size 2 --bf16 --cutoff_len 1024\n"


def test_scripts_that_start_trainers(tmp_path):
    def job(text, **given):
        return read_file(written(tmp_path, text, "run.sh"), **given).job

    def has(found, **wanted):
        assert {key: found.get(key) for key in wanted} == wanted

    # ms-swift's defaults: adapters, the checkpoint's dtype, 16 sequences a step or one of each of 2 x 4 GPUs.
    has(job(SWIFT.format("")), gpus=8, lora_rank=8, precision="bf16", global_batch=16, seq_len=2048)
    two = SWIFT.format("").replace("NNODES=2", "NNODES=1").replace("each=4", "each=2")
    has(job(two), gpus=2, global_batch=2 * 2 * 4)
    has(job(SWIFT.format("--gradient_accumulation_steps $(expr 16 / $each)")), global_batch=4 * 2 * 8)
    has(job(SWIFT.format("--train_type full --deepspeed zero3")), lora_rank=None, zero_stage=3)
    offload = job(SWIFT.format("--fsdp fsdp2_offload"))
    assert (offload["zero_stage"], offload["switches"]["offload_optimizer"]) == (3, True)
    has(job(SWIFT.format("--fsdp fsdp2"), gpus=16), gpus=16, zero_stage=3, global_batch=2 * 16)
    for more, words in {
        "--max_steps $STEPS": "--max-steps: its value is not in the script: $STEPS is not set; give --env STEPS=…",
        "--odd_parallel_size 2": "odd_parallel_size: 2 is not understood",
    }.items():
        with pytest.raises(CostModelError) as caught:
            job(SWIFT.format(more))
        assert words in str(caught.value)
    job(SWIFT.format("--output_dir $WHERE"))  # changes nothing
    pairs = job(SWIFT.format("").replace("swift sft", "swift rlhf"))
    has(pairs, algorithm="dpo", samples_per_prompt=2, prompts=job(SWIFT.format(""))["global_batch"])
    with pytest.raises(CostModelError, match="rlhf_type: 'kto' has no price here"):
        job(SWIFT.format("--rlhf_type kto").replace("swift sft", "swift rlhf"))

    # Flags stand over the file that is named first; adapters are LLaMA-Factory's default, too.
    has(job(FACTORY.format("--model_name_or_path llama3-8b")), lora_rank=8, seq_len=1024, micro_batch=2)
    with pytest.raises(CostModelError, match=r"job\.yaml.*is not beside the script"):
        job(FACTORY.format("job.yaml"))
    written(tmp_path, "model_name_or_path: llama3-8b\nfinetuning_type: full\ncutoff_len: 64\n", "job.yaml")
    has(job(FACTORY.format("job.yaml")), lora_rank=None, seq_len=1024, micro_batch=2)

    commented = "# llamafactory-cli train job.yaml\nmodel_name_or_path: llama3-8b\ncutoff_len: 32\nfinetuning_type: full\n"
    has(read_file(written(tmp_path, commented, "own.yaml")).job, seq_len=32, lora_rank=None)

    # Accelerate's file says how parameters are sharded, and over how many GPUs.
    launched = (
        "accelerate launch --config_file fsdp.yaml swift/cli/sft.py --model llama3-8b --max_length 64\n"
    )
    with pytest.raises(CostModelError, match=r"--config_file: 'fsdp\.yaml' says how parameters are sharded"):
        job(launched)
    written(
        tmp_path,
        "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: 2}\n",
        "fsdp.yaml",
    )
    has(job(launched), zero_stage=2, gpus=4, precision="bf16")
    assert job(launched)["switches"]["fused_norm"] is False  # the kernels of Hugging Face's models
    offloads = "fsdp_config: {fsdp_sharding_strategy: 2, fsdp_offload_params: true}\n"
    written(tmp_path, f"distributed_type: FSDP\n{offloads}", "fsdp.yaml")
    assert job(launched, gpus=8)["switches"]["offload_optimizer"] is True
    # And so does the JSON that ms-swift's --fsdp names.
    words = '{"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"activation_checkpointing": true}}'
    written(tmp_path, words, "offload.json")
    swift = job(SWIFT.format("--fsdp offload.json --gradient_checkpointing false"))
    has(swift, zero_stage=2, recompute="full")
    assert "offload_optimizer" not in swift["switches"]
    megatron = (
        "torchrun --nnodes 2 --nproc_per_node 8 swift/cli/_megatron/sft.py --model llama3-8b --max_length 64 "
        "--micro_batch_size 1 --global_batch_size 16 --tensor_model_parallel_size 2\n"
    )
    has(job(megatron), precision="bf16", zero_stage=1, tp=2, gpus=16)


def test_a_maxtext_file_stands_over_its_base(tmp_path):
    text = "base_config: ../other.yml\nper_device_batch_size: 2\n"
    below = "base_config: base.yml\nmodel_name: llama3-8b\nmax_target_length: 64\nper_device_batch_size: 8\n"
    written(tmp_path, below, "other.yml")
    (tmp_path / "in").mkdir()
    found = read_file(written(tmp_path / "in", text, "job.yml"), gpus=4)
    assert (found.job["seq_len"], found.job["global_batch"], found.job["model"].name) == (64, 8, "llama3-8b")
    written(tmp_path, "base_config: other.yml\n", "other.yml")
    with pytest.raises(CostModelError, match="more than 8 files name each other"):
        read_file(tmp_path / "in" / "job.yml", gpus=4)


REGISTRY = """
from torchtitan.trainer import Trainer
from . import model_registry


def small() -> Trainer.Config:
    "A docstring."
    model_spec = model_registry("8B")
    return Trainer.Config(
        loss=Loss.Config(rows=vocabulary(model_spec)),
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=2, seq_len=1024),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        compile=CompileConfig(enable=True, components=["loss"]),
        activation_checkpoint=FullAC.Config(),
    )


def large() -> Trainer.Config:
    config = small()
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(fqns=["layers"])])
    config.training.seq_len = 4096
    config.parallelism = ParallelismConfig(context_parallel_degree=4)
    config.activation_checkpoint = None
    return config


def partly() -> Trainer.Config:
    config = small()
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(fqns=names())])
    return config


def patched() -> Trainer.Config:
    config = large()
    patch(config)
    return config


def endless() -> Trainer.Config:
    config = endless()
    return config


def odd() -> Trainer.Config:
    config = small()
    config.parallelism.odd_parallel_size = 3
    return config


def tokens() -> Trainer.Config:
    config = small()
    config.model_spec = model_registry("8B", moe_comm_backend="deepep", ODD=2)
    config.training = TrainingConfig(num_tokens_per_microbatch_per_dp_rank=4 * 2 * 512, max_context_length=512)
    config.optimizer = OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(pattern="embeddings", optimizer_name="AdamW"),
            ParamGroupConfig(pattern=".*", optimizer_name="Muon", optimizer_kwargs={"lr": 1e-3}),
        ],
    )
    return config


def helper(config: Trainer.Config) -> None:
    config.training.seq_len = 1
"""


def test_functions_of_a_registry(tmp_path):
    def job(name="", text=REGISTRY):
        (tmp_path / "llama3").mkdir(exist_ok=True)
        file = written(tmp_path / "llama3", text, "config_registry.py")
        return read_file(file, gpus=16, env={"config": name} if name else None).job

    def has(found, **wanted):
        assert {key: found.get(key) for key in wanted} == wanted

    has(
        job("small"),
        model="llama3-8b",
        tp=2,
        cp=1,
        micro_batch=2,
        global_batch=16,
        seq_len=1024,
        recompute="full",
    )
    assert job("small")["switches"]["compiled"] is False  # of the loss alone
    # 4096 tokens of 512 a sequence.
    has(job("tokens"), seq_len=512, micro_batch=8, global_batch=64, optimizer="muon")
    with pytest.raises(CostModelError, match=r"model\.tp_backend: 2 is not understood"):
        job("tokens", REGISTRY.replace("ODD", "tp_backend"))
    with pytest.raises(CostModelError, match=r"expected a whole number, got '4 \* -2'"):
        job("tokens", REGISTRY.replace("4 * 2 * 512", "4 * -2"))
    # A table put in place is the whole table: tensor parallelism is gone.
    has(job("large"), model="llama3-70b", tp=1, cp=4, seq_len=4096, recompute="none", precision="fp8-current")
    for name, words in {
        "": "--env config=small: small, large, partly, patched, endless, odd",
        "helper": "expected one of its configurations",
        "partly": "fqns='names()': low precision of some layers has no price",
        "patched": "is not followed: 'patch(config)'",
        "endless": "'endless' is not in the file",
        "odd": "parallelism.odd_parallel_size: 3 is not understood",
    }.items():
        with pytest.raises(CostModelError) as caught:
            job(name)
        assert words in str(caught.value)
    only = REGISTRY.partition("\n\ndef large")[0]
    has(job(text=only), seq_len=1024)
    for text in (
        only.replace("return Trainer.Config(", "return made("),
        only.replace("    model_spec", "    model_spec x"),
    ):
        with pytest.raises(CostModelError, match=r"is not followed|not a module of Python"):
            job(text=text)


def test_marks_of_encodings_stand_at_the_beginning():
    for encoding, mark, found in [
        ("utf-8", b"\xef\xbb\xbf", "utf-8-sig"),
        ("utf-16-le", b"\xff\xfe", "utf-16"),
        ("utf-16-be", b"\xfe\xff", "utf-16"),
        ("utf-8", b"", "utf-8"),
    ]:
        text = "num_layers: 4"
        raw = mark + text.encode(encoding)
        assert encoding_of(raw, "f") == found
        assert decoded(raw, "f") == text
        if mark and encoding == "utf-8":
            assert encoding_of(text.encode() + mark, "f") == "utf-8"


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
