"""Documents of other programs with one value of any type, texts of any shape, command lines of any words, databases.

Third part of the fuzzer: `tests/fuzz.py` changes lines, `tests/fuzz_wild.py` draws whole files, and this one puts any
value at any place of a file that is right otherwise, so that every reader gets it at every depth.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "unit"))
import trace_files
from fuzz_wild import Wild, any_value

_TRAINED = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "bf16": True,
    "cutoff_len": 2048,
}
DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepspeed": (
        "ds.json",
        {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "none"},
                "overlap_comm": True,
                "mics_shard_size": 8,
                "zero_hpz_partition_size": 8,
            },
            "bf16": {"enabled": True},
            "fp16": {"enabled": False, "loss_scale": 0},
            "tensor_parallel": {"autotp_size": 1, "tp": {"tp_size": 1}},
            "sequence_parallel_size": 1,
            "expert_parallel": {"autoep_size": 1, "expert_tensor_parallel_size": 1},
            "communication_data_type": "fp32",
            "data_types": {"grad_accum_dtype": "fp32"},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "activation_checkpointing": {"partition_activations": True},
            "comment": {"model": "llama3-8b", "gpus": 8, "pp": 1, "seq_len": 2048, "recompute": "none"},
        },
    ),
    "torchtitan": (
        "f.json",
        {
            "model": {"name": "llama3", "flavor": "8B", "converters": ["quantize.linear.float8"]},
            "training": {"local_batch_size": 1, "global_batch_size": 16, "seq_len": 2048, "steps": 1000},
            "parallelism": {
                "data_parallel_replicate_degree": 1,
                "data_parallel_shard_degree": -1,
                "tensor_parallel_degree": 2,
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_schedule": "Interleaved1F1B",
                "pipeline_parallel_microbatch_size": 1,
                "context_parallel_degree": 1,
                "expert_parallel_degree": 1,
                "enable_async_tensor_parallel": False,
            },
            "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
            "compile": {"enable": True, "components": ["model", "loss"]},
            "quantize": {"linear": {"float8": {"recipe_name": "rowwise"}}},
        },
    ),
    "nemo": (
        "f.yaml",
        {
            "trainer": {"devices": 8, "num_nodes": 2, "precision": "bf16", "max_steps": 100},
            "model": {
                "micro_batch_size": 1,
                "global_batch_size": 32,
                "tensor_model_parallel_size": 2,
                "pipeline_model_parallel_size": 2,
                "virtual_pipeline_model_parallel_size": 2,
                "encoder_seq_length": 2048,
                "max_position_embeddings": 2048,
                "num_layers": 8,
                "hidden_size": 1024,
                "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
                "num_attention_heads": 16,
                "num_query_groups": 4,
                "activation": "fast-swiglu",
                "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer"},
                "optim": {"name": "distributed_fused_adam", "overlap_grad_sync": True},
                "data": {"seq_length": 2048},
                "fp8": True,
            },
        },
    ),
    "bridge": (
        "f.yaml",
        {
            "model": {
                "num_layers": 8,
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "seq_length": 2048,
                "vocab_size": 32000,
                "tensor_model_parallel_size": 2,
                "pipeline_model_parallel_size": 1,
                "num_moe_experts": 4,
                "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1],
                "moe_router_topk": 2,
                "gated_linear_unit": True,
            },
            "train": {"micro_batch_size": 1, "global_batch_size": 16, "train_iters": 10},
            "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True},
            "mixed_precision": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed"},
            "tokenizer": {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "Qwen/Qwen3-8B"},
            "peft": {"dim": 8, "target_modules": ["linear_qkv"]},
        },
    ),
    "llama-factory": (
        "f.yaml",
        {
            "model_name_or_path": "Qwen/Qwen3-8B",
            "finetuning_type": "lora",
            "lora_rank": 8,
            "lora_target": "all",
            "deepspeed": {"zero_optimization": {"stage": 3}, "train_batch_size": "auto"},
            **_TRAINED,
        },
    ),
    "axolotl": (
        "f.yaml",
        {
            "base_model": "meta-llama/Llama-3.1-8B",
            "sequence_len": 4096,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "sample_packing": True,
            "bf16": "auto",
            "gradient_checkpointing": True,
            "optimizer": "adamw_torch_fused",
            "fsdp_version": 2,
            "fsdp_config": {"reshard_after_forward": True, "offload_params": False},
            "adapter": "lora",
            "lora_r": 16,
            "lora_target_modules": ["q_proj", "v_proj"],
        },
    ),
    "accelerate": (
        "f.yaml",
        {
            "distributed_type": "FSDP",
            "mixed_precision": "bf16",
            "num_machines": 2,
            "num_processes": 16,
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_sharding_strategy": "FULL_SHARD",
                "fsdp_offload_params": False,
            },
            "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 2},
        },
    ),
    "maxtext": (
        "f.yml",
        {
            "base_emb_dim": 1024,
            "base_num_query_heads": 16,
            "base_num_kv_heads": 4,
            "base_mlp_dim": 4096,
            "base_num_decoder_layers": 8,
            "head_dim": 64,
            "vocab_size": 32000,
            "max_target_length": 2048,
            "per_device_batch_size": 1,
            "mlp_activations": ["silu", "linear"],
            "decoder_block": "llama2",
            "ici_fsdp_parallelism": -1,
            "ici_tensor_parallelism": 2,
            "dcn_data_parallelism": 1,
            "remat_policy": "full",
        },
    ),
    "neox": (
        "f.yml",
        {
            "pipe_parallel_size": 1,
            "model_parallel_size": 2,
            "num_layers": 8,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "seq_length": 2048,
            "max_position_embeddings": 2048,
            "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": 16,
            "zero_optimization": {"stage": 1},
            "attention_config": [[["flash"], 8]],
            "fp16": {"enabled": True},
            "norm": "rmsnorm",
            "pos_emb": "rotary",
        },
    ),
    "nccl json": (
        "f.json",
        {
            "args": ["all_reduce_perf", "-b", "8"],
            "env": ["NCCL_ALGO=Ring"],
            "config": {"devices": [{"rank": 0, "host": "a", "device": 0, "name": "NVIDIA H100 80GB HBM3"}]},
            "results": [
                {
                    "size": 1048576,
                    "count": 262144,
                    "type": "float",
                    "redop": "sum",
                    "root": -1,
                    "out_of_place": {"time": 30.0, "alg_bw": 34.95, "bus_bw": 61.17, "nwrong": 0},
                }
            ],
        },
    ),
    "config": (
        "config.json",
        {
            "model_type": "deepseek_v3",
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "moe_intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "q_lora_rank": 256,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "n_group": 2,
            "topk_group": 1,
            "vocab_size": 1000,
            "tie_word_embeddings": False,
            "rope_scaling": {"type": "yarn", "factor": 4},
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
    ),
    "hybrid config": (
        "config.json",
        {
            "model_type": "qwen3_next",
            "architectures": ["Qwen3NextForCausalLM"],
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "vocab_size": 1000,
            "text_config": None,
        },
    ),
}
"""A small file of each kind that is read, all of whose values matter."""

_NAMES = """
    llama qwen2 qwen3 qwen3_moe mixtral deepseek_v2 deepseek_v3 gpt_oss gemma2 gemma3 gemma3_text phi3 phimoe glm4
    glm4_moe olmo olmo2 olmoe cohere cohere2 falcon falcon_h1 gpt2 gpt_neox gpt_bigcode bloom mistral mistral3 minimax
    minimax_m2 jamba bamba nemotron nemotron_h qwen3_next kimi_k2 kimi_linear llama4 llama4_text granite granitemoe
    granitemoehybrid ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe dbrx starcoder2 stablelm mpt opt exaone4
    smollm3 seed_oss lfm2 bitnet grok-1 chatglm internlm2 baichuan qwen3_5 qwen3_vl_moe mimo dots1 step3 arcee
    """
FAMILIES = tuple(_NAMES.split())


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a document, outermost first."""
    if way:
        yield way
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _places(each, (*way, key))


def _put(rng: random.Random, document: dict[str, Any]) -> None:
    """Put any value at some place, take it away, or give it another name."""
    *way, last = rng.choice(list(_places(document)))
    inside: Any = document
    for key in way:
        inside = inside[key]
    how = rng.randrange(8)
    if how == 0:
        del inside[last]
    elif how == 1 and isinstance(inside, dict):
        inside[f"{last}_"] = inside.pop(last)
    elif how == 2:
        inside[last] = [inside[last]]
    elif how == 3:
        inside[last] = {str(last): inside[last]}
    elif how == 4:
        inside[last] = str(inside[last])
    else:
        inside[last] = any_value(rng, 2)


def any_field(rng: random.Random) -> Wild:
    """Return a file of another program in which some values are of any type."""
    name, right = DOCUMENTS[rng.choice(list(DOCUMENTS))]
    document = copy.deepcopy(right)
    if "model_type" in document and rng.random() < 0.5:
        document["model_type"] = rng.choice(FAMILIES)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if document:
            _put(rng, document)
    use = ["read", name]
    if rng.random() < 0.4:
        use += ["--format", "json"]
    if rng.random() < 0.7:
        use += ["--gpus", "16", "--vocab-size", "32000", "-m", "dense-1b", "--seq-len", "2048"][
            : rng.choice((2, 4, 8))
        ]
    if name == "config.json":
        use = ["model", "show", name]
    elif rng.random() < 0.2:
        use[0] = "estimate"
        use = [word for word in use if word not in ("--vocab-size", "32000")]
    return Wild(use, {name: json.dumps(document).encode("utf-8", "surrogatepass")})


def _aliases(rng: random.Random) -> str:
    merges = rng.random() < 0.5
    count = rng.choice((2, 9, 30))
    first = "b0: &b0 {gpus: 8}" if merges else "b0: &b0 [8]"
    more = [
        f"b{i}: &b{i}\n  <<: [{', '.join([f'*b{i - 1}'] * 9)}]"
        if merges
        else f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]"
        for i in range(1, count)
    ]
    return "\n".join([first, *more, f"gpus: *b{count - 1}", "model: llama3-8b"])


TEXTS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: "[" * rng.choice((49, 200, 1200, 100_000)),
    lambda rng: '{"a":' * rng.choice((49, 200, 1200, 50_000)) + "1",
    lambda rng: "[" * 300 + "]" * 300,
    lambda rng: "gpus:\n" + "- " * rng.choice((60, 1000)) + "1",
    lambda rng: "\n".join(" " * i + f"a{i}:" for i in range(rng.choice((60, 600)))),
    _aliases,
    lambda rng: "model: " + "x" * rng.choice((10_000, 10_000_000)),
    lambda rng: '{"model_type": "llama", "x": "' + "y" * rng.choice((10_000, 10_000_000)) + '"}',
    lambda rng: "gpus: [" + "1, " * rng.choice((100, 60_000)) + "1]",
    lambda rng: "\n".join(f"k{i}: {i}" for i in range(rng.choice((100, 20_000)))),
    lambda rng: "model: llama3-8b\x00\ngpus: 8\n",
    lambda rng: "\ufeffmodel: llama3-8b\r\ngpus: 8\r\nglobal_batch: 16\r\nseq_len: 2048\r\n",
    lambda rng: "\u2028".join(("model: llama3-8b", "gpus: 8", "global_batch: 16", "seq_len: 2048")),
    lambda rng: "model: llama3-8b\ngpus: 8\ngpus: 16\nglobal_batch: 16\nseq_len: 2048\n",
    lambda rng: "model: llama3-8b\ngpus: 8\n--- \nmodel: x\n",
    lambda rng: "%TAG ! tag:x,2000:\n--- !y\nmodel: z",
    lambda rng: (
        "gpus: !!binary aGFsbG8=\nmodel: !!set {a, b}\nseq_len: !!omap [a: 1]\nglobal_batch: !!timestamp 2001-01-01"
    ),
    lambda rng: "gpus: 0x" + "f" * rng.choice((4, 5000)) + "\nmodel: llama3-8b",
    lambda rng: (
        "#!/bin/bash\n" + "A=$A$A\n" * rng.choice((5, 60)) + "torchrun pretrain_gpt.py --num-layers $A"
    ),
    lambda rng: (
        "#!/bin/bash\nA=x\n" + "A=$A$A\n" * rng.choice((5, 60)) + "torchrun pretrain_gpt.py --num-layers $A"
    ),
    lambda rng: "#!/bin/bash\nf() { f; f; }\nf\ntorchrun pretrain_gpt.py --num-layers 4",
    lambda rng: (
        "#!/bin/bash\nfor ((;;)); do for ((;;)); do A=$((A+1)); done; done\ntorchrun x.py --num-layers 4"
    ),
    lambda rng: (
        "#!/bin/bash\nwhile true; do A+=(1); done\ntorchrun x.py --num-layers ${#A[@]} --hidden-size 4"
    ),
    lambda rng: "#!/bin/bash\ntorchrun x.py --num-layers $((2**2**2**2**9)) --hidden-size $((1<<999999))",
    lambda rng: "#!/bin/bash\ntorchrun x.py --num-layers {1..999999999} --hidden-size {a,b}{c,d}{e,f}",
    lambda rng: "#!/bin/bash\nA=" + "(" * 500 + "\ntorchrun x.py --num-layers " + "$(" * 500,
    lambda rng: "#!/bin/bash\ntorchrun x.py " + "--num-layers 4 " * rng.choice((3, 20_000)),
    lambda rng: "[a]\n" + "b = " + "[" * rng.choice((60, 3000)) + "\n[training]\n[parallelism]",
    lambda rng: (
        "[training]\nseq_len = "
        + "9" * rng.choice((30, 5000))
        + "\n[parallelism]\ntensor_parallel_degree = 1_0\n"
    ),
    lambda rng: "[training]\nseq_len = inf\nlocal_batch_size = nan\n[parallelism]\n",
    lambda rng: "[training]\n" + ".".join("a" * 500) + " = 1\n[parallelism]\n",
)


def any_text(rng: random.Random) -> Wild:
    """Return a text of an extreme shape, read by what reads such texts."""
    text = rng.choice(TEXTS)(rng)
    suffix = (
        "sh"
        if text.startswith("#!")
        else "toml"
        if "[training]" in text
        else rng.choice(("yaml", "json", "txt"))
    )
    name = f"f.{suffix}"
    uses = [["read", name], ["read", name, "--gpus", "8"], ["estimate", name]]
    if suffix in ("yaml", "json"):
        uses += [
            ["model", "show", f"./{name}"],
            ["hardware", "check", name],
            ["sweep", name, "-q"],
            ["compare", name, name],
        ]
        uses += [
            [
                "estimate",
                "-m",
                "dense-1b",
                "-n",
                "8",
                "--global-batch",
                "8",
                "--seq-len",
                "2048",
                "--recipe",
                f"./{name}",
            ]
        ]
        uses += [
            ["calibrate", "runs", name],
            ["profile", name],
            ["plan", name],
            ["run", name, "--tokens", "1e9"],
        ]
    return Wild(rng.choice(uses), {name: text.encode("utf-8", "surrogatepass")})


CELLS = (
    *(
        "",
        " ",
        '"',
        '""',
        "a,b",
        "a\nb",
        "a\r\nb",
        "=1+1",
        "-0",
        "1e308",
        "1e400",
        "nan",
        "inf",
        "²",
        "٣",
        "1_000",
        "0x10",
    ),
    *(
        "9" * 400,
        "x" * 5000,
        "\x00",
        "\x1b[31m",
        "\ufeff",
        "true",
        "1;2",
        "1\t2",
        "8.0",
        "-1",
        "1 ms",
        "5s",
        "80GB",
    ),
)


def any_table(rng: random.Random) -> Wild:
    """Return a table with odd cells and an odd head, as CSV of any dialect."""
    heads = {
        "validate": (Path(__file__).parent / "published" / "runs.csv")
        .read_text(encoding="utf-8")
        .splitlines()[:3],
        "runs": [
            "name,model,gpus,global_batch,seq_len,tp,step_time_s,memory_gib",
            "a,llama3-8b,8,16,2048,2,5.2,60",
        ],
        "kernels": ["dtype,m,n,k,time_us", "bf16,4096,4096,4096,200", "bf16,8192,4096,4096,400"],
        "fabric": ["size,time,algbw,busbw", "1024,30,1,2"],
    }
    kind = rng.choice(list(heads))
    rows = [list(row) for row in csv.reader(heads[kind])]
    for _ in range(rng.randint(1, 4)):
        row = rows[rng.choice((0, 1, 1, -1))]
        if row:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
    if rng.random() < 0.2:
        rows.append(rows[-1][: rng.randrange(len(rows[-1]) + 1)])
    if rng.random() < 0.2:
        rows[0].append(rng.choice(rows[0]) if rows[0] else "")
    out = io.StringIO()
    csv.writer(
        out,
        delimiter=rng.choice(",,,;\t"),
        quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
        lineterminator=rng.choice(("\n", "\r\n", "\r")),
    ).writerows(rows)
    text = rng.choice(("", "", "\ufeff", "# a note\n", "\n\n", "sep=,\n")) + out.getvalue()
    use = {
        "validate": ["validate", "f.csv"],
        "runs": ["calibrate", "runs", "f.csv"],
        "kernels": ["calibrate", "kernels", "f.csv", "-a", rng.choice(("h100", "x"))],
        "fabric": ["calibrate", "fabric", "f.csv"],
    }[kind]
    return Wild(use, {"f.csv": text.encode(rng.choice(("utf-8", "utf-8", "utf-16", "cp1252")), "replace")})


WORDS = (
    *(
        "0x10",
        "1_000",
        "1__0",
        "_1",
        "+8",
        "8.",
        ".5",
        "８",
        "٨",
        "8\u200b",
        "\u00a08",
        "-0",
        "--",
        "1e400",
        "inf",
    ),
    *(
        "\udcff",
        "a\udc80b",
        "é" * 200,
        "\u202e8",
        "8\n",
        "8\t",
        "\x7f",
        "",
        " ",
        "=",
        "==8",
        "=8",
        "8=",
        "*",
        "@f",
        "@",
    ),
)


def any_words(rng: random.Random) -> Wild:
    """Return a command line whose options are repeated, glued to odd values, or meant for another program."""
    command = rng.choice(
        ("estimate", "mesh", "run", "plan", "collective", "budget", "model", "hardware", "explain", "read")
    )
    line = [command]
    if command in ("estimate", "run", "explain"):
        line += ["-m", "dense-1b", "-n", "8", "--global-batch", "16", "--seq-len", "2048", "-l", "tp2"]
    elif command == "plan":
        line += [
            "-m",
            "dense-1b",
            "-n",
            "8",
            "--global-batch",
            "16",
            "--seq-len",
            "2048",
            "--tp",
            "1",
            "--pp",
            "1",
        ]
    elif command == "collective":
        line += ["all-reduce", "--size", "1MB", "--ranks", "16"]
    flags = (
        "--gpus",
        "-n",
        "--tp",
        "--seq-len",
        "--global-batch",
        "--layout",
        "--set",
        "--format",
        "--out",
        "--size",
    )
    flags += (
        "--model",
        "--cluster",
        "--recipe",
        "--tokens",
        "--budget",
        "--days",
        "--top",
        "--zero",
        "--profiles",
    )
    for _ in range(rng.randint(1, 4)):
        flag, word = rng.choice(flags), rng.choice(WORDS)
        how = rng.randrange(5)
        if how == 0:
            line.append(f"{flag}={word}")
        elif how == 1:
            line += [flag, word, flag, word]
        elif how == 2:
            line.append(flag.upper() if rng.random() < 0.5 else flag[:-1])
            line.append(word)
        elif how == 3:
            line.insert(rng.randrange(len(line) + 1), word)
        else:
            line += [flag, word]
    return Wild([word for word in line if "\x00" not in word], {})


def any_events(rng: random.Random) -> Wild:
    """Return a trace of the PyTorch profiler whose events are of odd forms."""
    events = [dict(event) for event in trace_files.step_events(200, 1)]
    for _ in range(rng.randint(1, 8)):
        event = rng.choice(events)
        key = rng.choice((*event, "ph", "cat", "dur", "args"))
        how = rng.randrange(6)
        if how == 0:
            event.pop(key, None)
        elif how == 1:
            event[key] = str(event.get(key))
        elif how == 2 and isinstance(event.get("args"), dict):
            event["args"] = {
                **event["args"],
                rng.choice(("device", "stream", "correlation")): any_value(rng, 1),
            }
        elif how == 3:
            event["ph"] = rng.choice("BEXiMsfbn")
        else:
            event[key] = any_value(rng, 1)
    if rng.random() < 0.2:
        events.insert(rng.randrange(len(events)), any_value(rng, 1))
    document: Any = {"traceEvents": events}
    if rng.random() < 0.3:
        document |= {rng.choice(("deviceProperties", "schemaVersion", "distributedInfo")): any_value(rng, 2)}
    if rng.random() < 0.2:
        document = events
    return Wild(
        ["profile", "f.json", *rng.choice(([], ["--format", "json"]))],
        {"f.json": json.dumps(document).encode()},
    )


_ODD_CELLS = (None, "text", b"\xff", -1, 0, 2**62, 1.5, "", 2**63 - 1)


def any_database(rng: random.Random) -> Wild:
    """Return an export of Nsight Systems with odd cells, tables that are not there, and bytes that are wrong."""
    kernels = [("gemm", 1000 * i, 1000 * i + 900, 7, i) for i in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.sqlite"
        trace_files.nsight(
            path, kernels, calls=[(1000 * i - 100, i) for i in range(12)], ranges=[("step", 0, 12_000)]
        )
        base = sqlite3.connect(path)
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.randint(0, 3)):
            table = rng.choice(tables)
            names = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
            how = rng.randrange(4)
            try:
                if how == 0:
                    base.execute(f"DROP TABLE {table}")
                elif how == 1 and len(names) > 1:
                    base.execute(f'ALTER TABLE {table} DROP COLUMN "{rng.choice(names)}"')
                elif names:
                    where = "" if how == 2 else " WHERE rowid = 2"
                    base.execute(
                        f'UPDATE {table} SET "{rng.choice(names)}" = ?{where}', (rng.choice(_ODD_CELLS),)
                    )
            except sqlite3.Error:
                pass
        base.commit()
        base.close()
        data = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 30)):
            data[rng.randrange(20, len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        del data[rng.randrange(len(data)) :]
    return Wild(["profile", "f.sqlite"], {"f.sqlite": bytes(data)})


def more_kinds() -> Iterator[tuple[str, int, Callable[[random.Random], Wild]]]:
    """Yield name, weight and maker of every kind."""
    yield "any field", 16, any_field
    yield "any text", 5, any_text
    yield "any table", 6, any_table
    yield "any words", 8, any_words
    yield "any events", 6, any_events
    yield "any database", 3, any_database
