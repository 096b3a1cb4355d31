"""Frameworks that a plan can be launched with: one record each, and the registry of them.

A record says what the framework starts at all, under which words, and where its exporter stands. What
`plan` looks at, what `--emit` refuses and what a recipe's ``launches`` leaves unsaid all follow from it. A new
framework is a new record and a module that writes its configurations; no field has a default.

Nothing heavy is imported here: ``costmodel --help`` names the frameworks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

MEGATRON_2026 = "NVIDIA/Megatron-LM 002526d81b81"
"""Megatron-Core in development after 0.18: what NVIDIA's containers from 26.06 on are nearest to."""


@dataclass(frozen=True, kw_only=True)
class Launches:
    """What a framework starts at all: the values of knobs that a plan for it keeps to.

    Attributes
    ----------
    framework : str
        Name in `FRAMEWORKS` of the one that writes its configurations, or none.
    release : str
        Whose settings and assertions hold: the framework's own, or a later one of `RELEASES`.
    zero_stage : tuple of int
        Stages of sharding it has; what it asserts beside them stands in `costmodel.interop.assertions`.
    schedule : tuple of str
        Pipeline schedules, none for no pipeline.
    pipeline_layouts : bool
        Whether layers may be dealt to stages as a plan finds best.
    keeps : mapping
        Values of other knobs, or fewer of these, that its layouts keep to.
    chooses : tuple of str
        Switches that its users choose by a setting, and ``axis_order``.
    source : str
        Where that is stated.
    """

    framework: str
    release: str
    zero_stage: tuple[int, ...]
    schedule: tuple[str, ...]
    pipeline_layouts: bool
    keeps: Mapping[str, str]
    chooses: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework whose configurations are written.

    Attributes
    ----------
    name : str
        For ``--framework`` and ``--emit``.
    title : str
        As its makers write it.
    release : str
        The one whose names and checks a configuration keeps to.
    exporter : str
        Module and function that write a job in its words: ``module:function``.
    recipe : str
        How it runs a step, where no recipe is named.
    schedules : mapping
        Pipeline schedules that it starts, none for no pipeline, with its own words for them (empty where it
        has no word, and other settings make the schedule).
    precisions : mapping
        Precisions that it has, with its own words for them.
    optimizers : mapping
        Optimizers that it has, with its own words for them (empty where that is what it takes unasked).
    adapters : tuple of str
        Types of a frozen base that it trains low-rank adapters on; none where it trains no adapters.
    zero_stage, pipeline_layouts
        As in `Launches`.
    recompute_modules : tuple of str
        Modules of a layer that its selective recomputation takes one by one; none where it has no such list.
    switches : mapping
        Values of a recipe's switches that its users choose by a setting.
    axis_orders : tuple of str
        Orders in which it can lay its axes on the machine, innermost first.
    leaves : tuple of str
        What a configuration leaves to its user, in the framework's words.
    keeps : mapping
        Values of other knobs, or fewer of these, that a layout has to keep to so that it can be written.
    source : str
        Where that is stated.
    """

    name: str
    title: str
    release: str
    exporter: str
    recipe: str
    schedules: Mapping[str, str]
    precisions: Mapping[str, str]
    optimizers: Mapping[str, str]
    adapters: tuple[str, ...]
    zero_stage: tuple[int, ...]
    pipeline_layouts: bool
    recompute_modules: tuple[str, ...]
    switches: Mapping[str, tuple[object, ...]]
    axis_orders: tuple[str, ...]
    leaves: tuple[str, ...]
    keeps: Mapping[str, str]
    source: str

    @property
    def launches(self) -> Launches:
        """What it starts, as a recipe says it."""
        return Launches(
            framework=self.name,
            release=self.release,
            zero_stage=self.zero_stage,
            schedule=tuple(self.schedules),
            pipeline_layouts=self.pipeline_layouts,
            keeps=self.keeps,
            chooses=(*self.switches, "axis_order"),
            source=self.source,
        )

    @property
    def values(self) -> dict[str, str]:
        """Values of knobs that a search keeps to for the framework to run the result."""
        return {
            "schedule": ",".join(self.schedules),
            "zero_stage": ",".join(str(stage) for stage in self.zero_stage),
            **self.keeps,
        }


_MEGATRON_SOURCE = (
    "NVIDIA/Megatron-LM megatron/training/arguments.py, core/pipeline_parallel/schedules.py "
    "(get_forward_backward_func), core/transformer/pipeline_parallel_layer_layout.py"
)

_MEGATRON_SWITCHES: dict[str, tuple[object, ...]] = {
    "tp_overlap": ("weight-grad", "pipelined"),
    "cp_method": ("ring", "all-gather", "ulysses"),
    "moe_dispatcher": ("all-to-all", "deep-ep", "hybrid-ep"),
    "ep_overlap": (False, True),
    "cuda_graphs": (False, True),
}
_MEGATRON_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")
_MEGATRON_ORDERS = ("tp cp dp pp", "tp cp pp dp")

# The tensor parallelism of transformers' plans is not sequence-parallel; layers are recomputed whole.
_TRAINERS_KEEP = {"sequence_parallel": "false", "recompute": "none,full", "vp": "1", "ep": "1", "etp": "1"}

_RECORDS = (
    Framework(
        name="megatron",
        title="Megatron-LM",
        release="megatron-core 0.16.1",
        exporter="costmodel.interop.megatron:emit_megatron",
        recipe="megatron-core",
        schedules={"none": "", "1f1b": "", "interleaved": ""},
        precisions={
            "fp32": "",
            "fp16": "--fp16",
            "bf16": "--bf16",
            "fp8-delayed": "--bf16 --fp8-format hybrid --fp8-recipe delayed",
            "fp8-current": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
            "fp8-block": "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
            "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
            "nvfp4": "--bf16 --fp4-format e2m1",
        },
        optimizers={
            "adamw": "",
            "adamw-bf16": "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            "sgd-momentum": "--optimizer sgd",
            "muon": "--optimizer muon",
        },
        adapters=(),
        # Megatron-FSDP, which has ZeRO-2 and 3, asks for settings of its own (checkpoint format, connections).
        zero_stage=(0, 1),
        pipeline_layouts=True,
        recompute_modules=_MEGATRON_MODULES,
        switches=_MEGATRON_SWITCHES,
        axis_orders=_MEGATRON_ORDERS,
        leaves=(
            "data: --data-path, --split, --dataloader-type",
            "tokenizer: --tokenizer-type, --tokenizer-model",
            "training: --lr and its schedule, --train-iters, --weight-decay, --clip-grad, --init-method-std",
            "routing: --moe-router-load-balancing-type, --moe-aux-loss-coeff, --moe-router-topk-scaling-factor",
            "positions: --rotary-scaling-factor, --use-rope-scaling",
            "nodes: torchrun --rdzv-backend c10d --rdzv-endpoint HOST:PORT (or --master-addr and --node-rank)",
            "checkpoints: --save, --load",
        ),
        keeps={},
        source=_MEGATRON_SOURCE,
    ),
    Framework(
        name="torchtitan",
        title="torchtitan",
        release="torchtitan 0.3.0",
        exporter="costmodel.interop.torchtitan:emit_torchtitan",
        recipe="torchtitan",
        schedules={
            "none": "",
            "gpipe": "GPipe",
            "1f1b": "1F1B",
            "interleaved": "Interleaved1F1B",
            "zb-v": "ZBVZeroBubble",
            "dualpipe-v": "DualPipeV",
        },
        precisions={"fp32": "float32", "bf16": "bfloat16", "fp8-current": "float8", "mxfp8": "mx"},
        optimizers={"adamw": ""},
        adapters=(),
        zero_stage=(0, 3),
        pipeline_layouts=False,
        recompute_modules=(),
        leaves=(
            "data: config.dataloader",
            "tokenizer: config.hf_assets_path",
            "training: config.optimizer, config.lr_scheduler, training.steps, training.max_norm",
            "checkpoints: config.checkpoint",
        ),
        # FSDP2 shards parameters, and tensor parallelism is sequence-parallel.
        switches={"tp_overlap": ("none", "pipelined"), "cp_method": ("ring", "all-gather")},
        axis_orders=("tp cp dp pp",),
        keeps={"zero_stage": "3", "sequence_parallel": "true"},
        source="pytorch/pytorch torch/distributed/pipelining/schedules.py; pytorch/torchtitan docs/fsdp.md",
    ),
    Framework(
        name="deepspeed",
        title="DeepSpeed",
        release="deepspeed 0.19.8",
        exporter="costmodel.interop.deepspeed:emit_deepspeed",
        recipe="deepspeed",
        schedules={"none": "", "1f1b": ""},
        precisions={"fp32": "", "fp16": "fp16", "bf16": "bf16"},
        optimizers={"adamw": "", "lion": "Lion", "muon": "Muon"},
        adapters=(),
        zero_stage=(0, 1, 2, 3),
        pipeline_layouts=False,
        recompute_modules=(),
        switches={},
        axis_orders=("tp cp dp pp",),
        leaves=(
            "model, data and tokenizer: the training script",
            "training: optimizer, scheduler, gradient_clipping",
            "pipeline: PipelineModule(num_stages=…) in the script",
            "recomputation: model.gradient_checkpointing_enable()",
        ),
        keeps={"vp": "1", "sequence_parallel": "false"},
        source="deepspeedai/DeepSpeed runtime/zero/config.py, runtime/pipe/schedule.py (TrainSchedule)",
    ),
    Framework(
        name="nemo",
        title="Megatron-Bridge",
        release="megatron-bridge 0.3.1",
        exporter="costmodel.interop.nemo:emit_nemo",
        recipe="megatron-bridge",
        schedules={"none": "", "1f1b": "", "interleaved": ""},
        precisions={
            "fp16": "fp16_mixed",
            "bf16": "bf16_mixed",
            "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
            "fp8-current": "bf16_with_fp8_current_scaling_mixed",
            "fp8-block": "bf16_with_fp8_subchannel_scaling_mixed",
            "mxfp8": "bf16_with_mxfp8_mixed",
            "nvfp4": "bf16_with_nvfp4_mixed",
        },
        optimizers={"adamw": "", "sgd-momentum": "sgd", "muon": "muon"},
        adapters=("bf16",),
        zero_stage=(0, 1),
        pipeline_layouts=True,
        recompute_modules=_MEGATRON_MODULES,
        switches=_MEGATRON_SWITCHES,
        axis_orders=_MEGATRON_ORDERS,
        leaves=(
            "the model: the recipe of the library that these override",
            "data: dataset.*",
            "tokenizer: tokenizer.*",
            "training: optimizer.lr, scheduler.*, train.train_iters",
            "checkpoints: checkpoint.save, checkpoint.load",
        ),
        keeps={},
        source=_MEGATRON_SOURCE,
    ),
    Framework(
        name="accelerate",
        title="Accelerate",
        release="accelerate 1.15.0",
        exporter="costmodel.interop.accelerate:emit_accelerate",
        recipe="torchtitan",
        schedules={"none": ""},
        precisions={"fp32": "no", "fp16": "fp16", "bf16": "bf16"},
        optimizers={"adamw": ""},
        adapters=("bf16", "fp8", "nf4"),
        zero_stage=(0, 2, 3),
        pipeline_layouts=False,
        recompute_modules=(),
        switches={"cp_method": ("ring", "all-gather")},
        axis_orders=("tp cp dp pp",),
        leaves=(
            "model, data and tokenizer: the training script",
            "training: optimizer and learning rate in the script",
            "nodes: machine_rank, main_process_ip, main_process_port",
        ),
        keeps=_TRAINERS_KEEP,
        source="huggingface/accelerate src/accelerate/parallelism_config.py, utils/dataclasses.py",
    ),
    Framework(
        name="axolotl",
        title="Axolotl",
        release="axolotl 0.19.0",
        exporter="costmodel.interop.trainers:emit_axolotl",
        recipe="torchtitan",
        schedules={"none": ""},
        precisions={"fp16": "fp16", "bf16": "bf16"},
        optimizers={"adamw": "adamw_torch_fused"},
        adapters=("bf16", "fp8", "nf4"),
        zero_stage=(0, 2, 3),
        pipeline_layouts=False,
        recompute_modules=(),
        switches={"cp_method": ("ring",)},
        axis_orders=("tp cp dp pp",),
        leaves=(
            "model: base_model is our name of it, a folder or an id of the hub is wanted",
            "data: datasets, val_set_size",
            "training: learning_rate, lr_scheduler, num_epochs, output_dir",
            "sharding: fsdp_config.transformer_layer_cls_to_wrap",
        ),
        keeps=_TRAINERS_KEEP,
        source="axolotl-ai-cloud/axolotl src/axolotl/utils/distributed.py, utils/schemas/validation.py",
    ),
)

FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in _RECORDS}
"""Every framework whose configurations are written, by name."""

UNWRITTEN = ("neuronx", "none")
"""What a recipe's ``launches`` may name beside them: frameworks whose code was read and whose configurations nobody
writes here, and none for those whose code nobody outside reads."""

RELEASES: Mapping[str, tuple[str, ...]] = {
    name: (framework.release, MEGATRON_2026) if name in ("megatron", "nemo") else (framework.release,)
    for name, framework in FRAMEWORKS.items()
}
"""Releases of each framework whose settings are written and whose assertions are known, its own first."""


def launched_by(name: str, launches: Launches | None) -> Launches:
    """Return what a framework starts, in the release of a recipe where the framework has that one too."""
    own = FRAMEWORKS[name].launches
    known = launches is not None and launches.release in RELEASES[name][1:]
    return replace(own, release=launches.release) if launches is not None and known else own


def trainers_of(base_dtype: str) -> tuple[str, ...]:
    """Return the frameworks that train adapters on a base of a type, in the order of the registry."""
    return tuple(name for name, framework in FRAMEWORKS.items() if base_dtype in framework.adapters)
