"""Configurations of NeMo-RL and verl, read as a step of reinforcement learning; the files here are our own."""

import itertools

import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.interop.reading import kind_of, read

NEMO = """
defaults: ../../../grpo_math_1B.yaml
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 32, max_num_steps: 500}
loss_fn: {use_importance_sampling_correction: true}
policy:
  model_name: meta-llama/Llama-3.1-8B-Instruct
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    pipeline_model_parallel_size: 2
    activation_checkpointing: true
    fp8_cfg: {enabled: false}
  generation:
    max_new_tokens: ${policy.max_total_sequence_length}
    vllm_cfg: {tensor_parallel_size: 1, max_model_len: 4096}
logger: {wandb_enabled: true}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""
APART = """
defaults: ./base.yaml
grpo: {async_grpo: {enabled: true, max_trajectory_age_steps: 2}}
policy:
  generation:
    colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}
    vllm_cfg: {gpu_memory_utilization: 0.8, enforce_eager: true, precision: fp8}
cluster: {num_nodes: 3}
"""
VERL = r"""
set -x
max_prompt=$((1024 * 1))
offload=False
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.train_batch_size=1024 data.max_prompt_length=${max_prompt} data.max_response_length=2048 \
    actor_rollout_ref.model.path=$HOME/models/Qwen3-30B-A3B \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \
    actor_rollout_ref.actor.megatron.param_offload=${offload} \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    trainer.n_gpus_per_node=8 trainer.nnodes=4 trainer.total_epochs=15 $@
"""
GIVEN = {"prompt_len": 130, "response_len": 900}


def job_of(tmp_path, text, name="grpo.yaml", **given):
    path = tmp_path / name
    path.write_text(text)
    return read(path, **{**GIVEN, **given})


def holds(job, **expected):
    assert {key: job.get(key) for key in expected} == expected


def test_a_recipe_of_nemo_rl(tmp_path):
    found = job_of(tmp_path, NEMO)
    assert (found.kind, found.missing, found.ignored) == ("nemo-rl", (), ())
    holds(
        found.job,
        algorithm="grpo", rl_framework="nemo-rl", gpus=16, prompts=64, samples_per_prompt=32, optimizer_steps=4,
        tp=1, pp=2, zero_stage=1, recompute="full", seq_len=4096, micro_batch=1, batching="packing",
        max_response_len=4096 - 130, generation_layout="tp1", memory_fraction=0.6, cuda_graphs=True, reference=True,
        old_logprobs=True, recipe="megatron-bridge", precision="bf16",
    )  # fmt: skip
    assert "generation_gpus" not in found.job
    # The same step as the published row, whose keywords were written by hand.
    step = cm.estimate_rl(**found.job)
    by_hand = cm.estimate_rl(
        model="llama3-8b", gpus=16, pp=2, recompute="full", recipe="megatron-bridge", seq_len=4096, prompts=64,
        samples_per_prompt=32, optimizer_steps=4, max_response_len=3966, rl_framework="nemo-rl", micro_batch=1,
        zero_stage=1, memory_fraction=0.6, **GIVEN,
    )  # fmt: skip
    assert step.step_time_s == pytest.approx(by_hand.step_time_s, rel=0.03)


def test_defaults_are_followed_and_halves_stand_apart(tmp_path):
    (tmp_path / "base.yaml").write_text(NEMO)
    found = job_of(tmp_path, APART)
    holds(
        found.job,
        gpus=24, generation_gpus=8, lag=2.0, memory_fraction=0.8, cuda_graphs=False, generation_precision="fp8", pp=2,
        prompts=64,
    )  # fmt: skip
    for named in ("base", "[base]"):
        assert job_of(tmp_path, APART.replace("./base.yaml", named)).job == found.job
    synchronous = job_of(
        tmp_path, APART.replace("enabled: true, max_trajectory_age_steps: 2", "enabled: false")
    )
    assert synchronous.job["lag"] == 0.0
    (tmp_path / "base.yaml").write_text(NEMO.replace("../../../grpo_math_1B.yaml", "grpo.yaml"))
    with pytest.raises(cm.CostModelError, match="name each other"):
        job_of(tmp_path, APART)


def test_every_key_that_changes_the_answer_of_nemo_rl_does(tmp_path):
    def changed(old, new):
        assert old in NEMO
        return job_of(tmp_path, NEMO.replace(old, new)).job

    for old, new, expected in (
        ("num_prompts_per_step: 64", "num_prompts_per_step: 128", {"prompts": 128, "optimizer_steps": 8}),
        (
            "train_micro_batch_size: 1",
            "train_global_batch_size: 2048\n  train_micro_batch_size: 2",
            {"optimizer_steps": 1, "seq_len": 8192},
        ),
        (
            "  dtensor_cfg",
            "  sequence_packing: {enabled: false}\n  dtensor_cfg",
            {"batching": "padding", "seq_len": 4096},
        ),
        (
            "  dtensor_cfg",
            "  sequence_packing: {enabled: true, train_mb_tokens: 9000}\n  dtensor_cfg",
            {"seq_len": 9000},
        ),
        (
            "pipeline_model_parallel_size: 2",
            "tensor_model_parallel_size: 4\n    context_parallel_size: 2",
            {"tp": 4, "cp": 2, "pp": 1},
        ),
        ("activation_checkpointing: true", "activation_checkpointing: false", {"recompute": "none"}),
        (
            "fp8_cfg: {enabled: false}",
            "fp8_cfg: {enabled: true, fp8: e4m3, fp8_recipe: blockwise}",
            {"precision": "fp8-block"},
        ),
        (
            "tensor_parallel_size: 1, max",
            "tensor_parallel_size: 2, expert_parallel_size: 4, max",
            {"generation_layout": "tp2 ep4 dp2"},
        ),
        ("max_model_len: 4096", "max_model_len: 2048", {"max_response_len": 2048}),
        ("loss_fn: {", "loss_fn: {force_on_policy_ratio: true, ", {"old_logprobs": False}),
        ("loss_fn: {", "loss_fn: {reference_policy_kl_penalty: 0, ", {"reference": False}),
        (
            "grpo: {",
            "grpo: {use_dynamic_sampling: true, batch_multiplier: 3, ",
            {"algorithm": "dapo", "rollout_factor": 3.0},
        ),
        (
            "    max_new_tokens",
            "    vllm_kwargs: {max_num_seqs: 32}\n    max_new_tokens",
            {"max_running": 32},
        ),
        (
            "dtensor_cfg: {enabled: false}\n  megatron_cfg:\n    enabled: true",
            "dtensor_cfg: {enabled: true, tensor_parallel_size: 4}\n  megatron_cfg:\n    enabled: false",
            {"recipe": "torchtitan", "zero_stage": 3, "tp": 4},
        ),
    ):
        holds(changed(old, new), **expected)


def test_other_algorithms_of_nemo_rl(tmp_path):
    dpo = job_of(
        tmp_path,
        "dpo: {max_num_steps: 9}\npolicy: {model_name: llama3-8b, train_global_batch_size: 64, max_total_sequence_length: 2048}\n"
        "cluster: {gpus_per_node: 8}",
    )
    holds(dpo.job, algorithm="dpo", prompts=64, samples_per_prompt=2, gpus=8, reference=True)
    distilled = job_of(
        tmp_path,
        "defaults: distillation_math.yaml\ndistillation: {num_prompts_per_step: 128}\n"
        "policy: {model_name: Qwen/Qwen3-1.7B-Base}\nteacher: {model_name: Qwen/Qwen3-4B}\ncluster: {gpus_per_node: 8}",
    )
    holds(
        distilled.job,
        algorithm="distill",
        teacher="Qwen3-4B",
        samples_per_prompt=1,
        optimizer_steps=2,
        tp=2,
        cp=2,
    )
    assert "reference" not in distilled.job
    for found in (dpo, distilled):
        assert cm.estimate_rl(**found.job).step_time_s > 0
    with pytest.raises(cm.CostModelError, match="sft: trains on answers that are there"):
        job_of(
            tmp_path, "sft: {max_num_steps: 60}\npolicy: {model_name: llama3-8b}", "sft.yaml", kind="nemo-rl"
        )


def test_only_what_changes_the_answer_of_a_script_must_be_known_before_it_runs(tmp_path):
    plain = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.rollout.n=8"
    named = job_of(tmp_path, f"{plain} trainer.experiment_name=$(date)", "run.sh")
    assert named.job == job_of(tmp_path, plain, "run.sh").job
    with pytest.raises(cm.CostModelError, match=r"verl: trainer\.nnodes: .*give --env"):
        job_of(tmp_path, f"{plain} trainer.nnodes=$(nproc)", "run.sh")


def test_a_script_of_verl(tmp_path):
    found = job_of(tmp_path, VERL, "run.sh")
    assert (found.kind, found.missing, found.ignored) == ("verl", (), ())
    holds(
        found.job,
        model="Qwen3-30B-A3B", gpus=32, prompts=1024, samples_per_prompt=5, optimizer_steps=4, tp=2, ep=8,
        recompute="full", seq_len=16384, batching="packing", reference=True, old_logprobs=True, engine="sglang",
        generation_layout="tp4", memory_fraction=0.7, max_response_len=2048, rl_framework="verl", zero_stage=1,
    )  # fmt: skip
    assert cm.estimate_rl(**found.job).step_time_s > 0
    plain = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.rollout.n=8"
    sharded = f"{plain} actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 trainer.nnodes=2"
    for more, expected in (
        (
            "",
            {
                "algorithm": "ppo",
                "batching": "padding",
                "micro_batch": 1,
                "recipe": "torchtitan",
                "zero_stage": 3,
                "cp": 2,
                "generation_layout": "tp2",
                "recompute": "full",
                "seq_len": 1024,
            },
        ),
        (" algorithm.adv_estimator=grpo", {"algorithm": "grpo", "reference": False}),
        (
            " algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True data.gen_batch_size=3072",
            {"algorithm": "dapo", "rollout_factor": 3.0},
        ),
        (" actor_rollout_ref.model.enable_gradient_checkpointing=False", {"recompute": "none"}),
        (
            " actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            {"batching": "packing", "seq_len": 2048},
        ),
        (" actor_rollout_ref.actor.use_dynamic_bsz=True", {"batching": "packing", "seq_len": 2 * 16384}),
        (" actor_rollout_ref.actor.ppo_epochs=2", {"optimizer_steps": 8}),
        (
            " actor_rollout_ref.rollout.enforce_eager=True actor_rollout_ref.rollout.max_num_seqs=64",
            {"cuda_graphs": False, "max_running": 64},
        ),
        (" actor_rollout_ref.rollout.quantization=fp8", {"generation_precision": "fp8"}),
        (" actor_rollout_ref.actor.fsdp_config.fsdp_size=8", {"shard_group": 8}),
        (
            " reward_model.enable=True reward_model.model.path=Qwen/Qwen2.5-1.5B",
            {"reward_model": "Qwen2.5-1.5B"},
        ),
        (
            " rollout.nnodes=2 rollout.n_gpus_per_node=8 data.train_batch_size=0 "
            "async_training.staleness_threshold=0.5 async_training.trigger_parameter_sync_step=4",
            {"gpus": 32, "generation_gpus": 16, "lag": 0.5, "prompts": 1024, "optimizer_steps": 4},
        ),
    ):
        holds(job_of(tmp_path, sharded + more, "run.sh", response_len=384, prompt_len=128).job, **expected)


def test_a_yaml_of_verl_says_what_its_script_says(tmp_path):
    text = """
actor_rollout_ref:
  model: {path: Qwen/Qwen3-30B-A3B, use_remove_padding: true}
  actor:
    strategy: megatron
    ppo_mini_batch_size: 256
    use_dynamic_bsz: true
    use_kl_loss: true
    megatron:
      tensor_model_parallel_size: 2
      expert_model_parallel_size: 8
      override_transformer_config: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}
  rollout: {name: sglang, n: 5, tensor_model_parallel_size: 4, gpu_memory_utilization: 0.7,
    log_prob_max_token_len_per_gpu: "${oc.select:actor_rollout_ref.actor.ppo_max_token_len_per_gpu,16384}"}
data: {train_batch_size: 1024, max_prompt_length: 1024, max_response_length: 2048}
algorithm: {adv_estimator: grpo}
trainer: {nnodes: 4, n_gpus_per_node: 8}
"""
    script, yaml = job_of(tmp_path, VERL, "run.sh"), job_of(tmp_path, text, "ppo.yaml")
    assert (yaml.kind, dict(yaml.job)) == ("verl", dict(script.job))


def test_unknown_keys_that_change_the_answer_stop_the_reading(tmp_path):
    run = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B "
    for text, name, said in (
        (
            NEMO.replace("  dtensor_cfg", "  tensor_parallelism: 4\n  dtensor_cfg"),
            "a.yaml",
            "policy.tensor_parallelism: 4 is not understood, and by its name changes parallelism",
        ),
        (
            NEMO.replace("  dtensor_cfg", "  optimizer_offload_share: 0.5\n  dtensor_cfg"),
            "a.yaml",
            "changes optimizer",
        ),
        (
            NEMO.replace("    fp8_cfg", "    my_fp8_mode: on\n    fp8_cfg"),
            "a.yaml",
            "my_fp8_mode: 'on' is not understood, and by its name changes precision",
        ),
        (NEMO.replace("grpo: {", "grpo: {prompt_batch_size: 7, "), "a.yaml", "changes batch"),
        (run + "actor_rollout_ref.rollout.max_think_tokens=99", "a.sh", "changes lengths"),
        (run + "actor_rollout_ref.rollout.n=0", "a.sh", "rollout.n: expected a whole number above 0"),
        (run + "actor_rollout_ref.rollout.dtype=int3", "a.sh", "rollout.dtype: expected one of"),
        (run + "actor_rollout_ref.rollout.n=$SAMPLES", "a.sh", "SAMPLES"),
    ):
        with pytest.raises(cm.CostModelError) as caught:
            job_of(tmp_path, text, name)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    # What is off, or no word of those, is said and not refused.
    assert "grpo.colour" in job_of(tmp_path, NEMO.replace("grpo: {", "grpo: {colour: red, ")).ignored


def test_the_commands_price_such_a_file_and_say_what_they_assume(tmp_path, capsys):
    path, script, ours = tmp_path / "grpo.yaml", tmp_path / "run.sh", tmp_path / "rl.yaml"
    path.write_text(NEMO)
    script.write_text(VERL)
    for file, lengths in itertools.product(
        (path, script), ((), ("--response-len", "900", "--prompt-len", "130"))
    ):
        assert main(["estimate", str(file), "-c", "dgx-h100-ndr", *lengths]) == 0
        out, err = capsys.readouterr()
        assert "old log-probs" in out
        assert ("tokens are assumed" in err) == (not lengths)
    assert main(["read", str(path), "--response-len", "900", "--prompt-len", "130", "--out", str(ours)]) == 0
    assert kind_of(ours) == "job"
    assert main(["estimate", str(ours), "--format", "json"]) == 0
    assert main(["run", str(path), "--steps", "10", "--response-len", "900", "--prompt-len", "130"]) == 0
