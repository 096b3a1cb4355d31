"""Recipes: how a training framework of some era runs a step.

A recipe is a list of documented behaviours (kernels, fusions, dtypes, overlaps, host overhead),
never a speed. Presets live in ``describe/data/recipes/*.yaml``; a user overrides single switches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    ValidationError,
    field_validator,
)

from costmodel.base.errors import RecipeError, choices_hint, shown
from costmodel.base.words import rule
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.frameworks import FRAMEWORKS, UNWRITTEN, Launches
from costmodel.describe.hardware.attention_kernels import OPEN_KERNELS
from costmodel.describe.hardware.cluster import Accelerator, AttentionKernel

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TensorOverlap = Literal["none", "weight-grad", "pipelined"]
DataOverlap = Literal["none", "last-micro-batch", "every-layer"]
ContextMethod = Literal["ring", "all-gather", "ulysses", "a2a+p2p"]
ContextSlices = Literal["zigzag", "striped", "contiguous"]
Dispatcher = Literal["all-to-all", "all-gather", "deep-ep", "hybrid-ep"]
CrossEntropy = Literal["unfused", "fused", "chunked"]
ShardBuffers = Literal["none", "flat", "per-parameter"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8", "fp4"]
RecomputeModule = Literal[
    "core_attn",
    "attention",
    "mlp",
    "mlp_act",
    "layernorm",
    "moe",
    "moe_act",
    "mla_up_proj",
    "every_second_matmul",
    "every_second_layer",
    "all_but_qkv",
    "attention_output",
]

LABELS = ("name", "description", "source", "launches", "prints")
"""What of a recipe is no switch."""

DTYPE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes an element; fp4 with the fp8 scale of its block of 16 (NVFP4)."""


def _none_or_one(value: float) -> float:
    """Refuse a part of an element."""
    if 0.0 < value < 1.0:
        raise ValueError("expected 0, or 1 and more")
    return value


Elements = Annotated[float, AfterValidator(_none_or_one)]
"""A number of elements of a tensor; 0 where there is no such limit."""

GraphScope = Literal["all", "static", "attention", "router"]


class Kernels(BaseModel):
    """Which kernels run, and what is fused into them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    attention_kernel: AttentionKernel = "auto"
    """Kernel of the attention core; auto is what Transformer Engine picks for the GPU, torch what
    PyTorch's scaled_dot_product_attention does."""
    fp8_attention: bool = False
    """Q, K, V and their gradients are quantised and attention runs on the 8-bit units, where the precision has 8
    or 4 bits (Transformer Engine's fp8_dpa; Megatron-Core's fp8_dot_product_attention)."""
    fused_norm: bool = True
    """One kernel a norm; otherwise a chain of element-wise kernels with fp32 in between."""
    norm_adds_residual: bool = False
    """The kernel of a norm adds the residual before it, which is then none of its own."""
    fused_rope: bool = True
    """One kernel for the rotary embedding of Q and K."""
    rope_by_element: bool = False
    """That kernel is flash-attention's in Triton, which loads 64 rotated columns element by element."""
    fused_activation: bool = True
    """Bias and activation (or SwiGLU) in one kernel."""
    fused_dropout_add: bool = True
    """Bias, dropout and residual addition in one kernel."""
    cross_entropy: CrossEntropy = "unfused"
    """Loss through fp32 copies of the logits; in one kernel over them; or chunked with the logits
    GEMM, so that they never exist whole (Liger)."""
    loss_bytes_per_logit: float = Field(default=10.0, gt=0, le=32)
    """Bytes a logit alive at the peak of an unfused loss. Megatron's works in place: half-precision
    logits, their fp32 copy, the exponentials (core/tensor_parallel/cross_entropy.py)."""
    split_loss_bytes_per_logit: float = Field(default=0.0, ge=0, le=16)
    """More of them where the vocabulary is split (DTensor's loss parallel adds an exponential of its own)."""
    vocab_parallel_loss: bool = True
    """Each TP rank takes the loss over its share of the vocabulary; otherwise the logits are gathered
    and every rank works on all of them."""
    separate_gate: bool = False
    """Gate and up projection of a gated MLP are layers of their own: two GEMMs, and without sequence
    parallelism two all-reduces of the input's gradient."""
    separate_qkv: bool = False
    """The projections of queries, keys and values are layers of their own, and without sequence parallelism each
    sums the gradient of its input over TP by itself."""
    own_column_inputs: bool = False
    """Each column-parallel layer copies its input, or gathers it under sequence parallelism, for itself and keeps
    that for the backward pass (Paddle: python/paddle/distributed/fleet/layers/mpu/mp_ops.py, _c_identity, whose
    kernel copies; fleet/utils/sequence_parallel_utils.py, AllGatherOp)."""
    fused_grad_accumulation: bool = True
    """The weight-gradient GEMM adds into the gradient buffer; otherwise a kernel of its own does, after
    every GEMM."""
    weight_gradient_slowdown: float = Field(default=1.0, ge=1, le=4)
    """Time of a weight-gradient product in 8 or 4 bits over that of the library that the accelerator's profile was
    fitted to, where a framework has kernels of its own."""
    cast_slowdown: float = Field(default=1.0, ge=1, le=8)
    """Time of quantising over that of one pass that reads 16 bits and writes what both products need: kernels that
    cast, transpose and store apart take more."""
    fused_wgrad: bool = False
    """Weight-gradient GEMMs add into the resident buffer (Megatron's gradient accumulation fusion);
    autograd gets an empty stub of the weight's shape, and Transformer Engine keeps one per shape."""
    compiled: bool = False
    """torch.compile fuses every chain of element-wise operators."""
    dropout: bool = False
    """Dropout after attention and MLP (and inside an unfused attention)."""


class Dtypes(BaseModel):
    """In which dtypes weights, gradients and optimizer states live and travel."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    param_dtype: Dtype = "bf16"
    """Resident model parameters (FSDP keeps fp32 shards and gathers `gather_dtype`)."""
    gather_dtype: Dtype = "bf16"
    """Dtype in which sharded parameters are gathered."""
    grad_accum_dtype: Dtype = "fp32"
    """Resident gradient buffer."""
    grad_reduce_dtype: Dtype = "fp32"
    """Dtype on the wire of the gradient reduction."""
    autograd_grad_bytes: float = Field(default=0.0, ge=0, le=4)
    """Bytes a parameter of autograd's own gradient where it lives on beside the resident buffer."""
    master_weights_bytes: float = Field(default=4.0, ge=0, le=8)
    """Bytes a parameter of main weights in the optimizer (0 where parameters are fp32)."""
    moments_bytes: float = Field(default=8.0, ge=0, le=16)
    """Bytes a parameter of Adam's two moments."""
    quantised_weights: Literal["none", "cached", "primary"] = "none"
    """Low-precision copies of the weights: made for each product; cached beside the parameters until the next
    step; or primary, in place of the parameters and of what is gathered (Megatron-LM's --fp8-param-gather;
    embeddings, which stay in bf16 there, are counted too)."""
    activation_input_bytes: float = Field(default=2.0, ge=1, le=4)
    """Bytes an element at which the input of GELU or SwiGLU is kept for the backward pass (1: cached in fp8)."""

    def grad_bytes(self) -> float:
        """Bytes a parameter of the resident gradient."""
        return DTYPE_BYTES[self.grad_accum_dtype]

    def param_bytes(self) -> float:
        """Bytes a parameter of the resident weights."""
        return DTYPE_BYTES[self.param_dtype]


class Overlap(BaseModel):
    """How the ranks of each axis talk, and what of it hides behind compute."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    sp_regathers: bool = True
    """Under sequence parallelism the backward pass gathers a layer's input again (Megatron);
    otherwise autograd keeps it gathered."""
    tp_overlap: TensorOverlap = "weight-grad"
    """none; the backward collective behind the weight-gradient GEMM; or pipelined with each GEMM."""
    dp_overlap: DataOverlap = "last-micro-batch"
    """none; with the last micro-batch's passes (Megatron); or with every layer of every micro-batch (FSDP)."""
    hsdp_overlap: bool = True
    """Replicas of a sharded group sum a layer's gradient behind the backward pass of the layers below
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: concurrently with gathers and scatters)."""
    reduce_each_micro_batch: bool = False
    """ZeRO-2 reduces gradients after every micro-batch (DeepSpeed) instead of once a step."""
    reduce_each_chunk: bool = False
    """ZeRO-2 reduces the gradients of a model chunk once the micro-batches that follow each other have passed
    it (FSDP under an interleaved pipeline): where these are all of the step, one chunk's are whole at a time."""
    zero_all_reduce: bool = False
    """ZeRO-1 sums whole gradients on every rank (all-reduce) before each steps its part."""
    zero_by_tensor: bool = False
    """ZeRO-1 deals out whole tensors: each owner receives its gradients by a reduction of their own
    and broadcasts its parameters; otherwise one reduce-scatter and one all-gather."""
    bucket_elements: Elements = Field(default=0.0, ge=0, le=1e15)
    """Gradients of one message of the reduction (PyTorch DDP: 25 MiB); each pays its latency and only the last
    waits for nothing to hide behind. 0: one message whose last 40 million are exposed, as Megatron-Core's."""
    fsdp_reshard_after_forward: bool = True
    """ZeRO-3 drops gathered parameters after the forward pass and gathers them again."""
    fsdp_pp_keeps_gathered: bool = False
    """With several pipeline stages ZeRO-3 gathers once a step, keeps the parameters, and adds up
    whole gradients in the reduction's dtype (torchtitan's default)."""
    fsdp_prefetch: int = Field(default=1, ge=0)
    """Layers gathered ahead."""
    fsdp_across_layers: bool = True
    """Under ZeRO-3 one layer's messages hide behind the passes of its neighbours. Otherwise layers are one loop of the
    compiler, whose messages do not leave their turn (JAX's scan under XLA): the first product waits for its weights
    and the last gradient for nothing, and those of experts hide behind what else the layer computes."""
    fsdp_by_tensor: bool = False
    """Under ZeRO-3 each tensor is gathered before its product and its gradient scattered after it (XLA's GSPMD);
    otherwise a layer at a time (FSDP, DeepSpeed). Says what is whole at a time, not when it is sent."""
    fsdp_backward_prefetch: bool = True
    """The next layer is gathered behind the backward pass of this one; otherwise after it (FSDP1's
    BACKWARD_POST), where nothing hides it."""
    pp_overlap: bool = False
    """Stage-to-stage transfers run behind compute (interleaved schedules)."""
    post_validation: bool = False
    """Ranks step the optimizer without waiting for each other and take it back if the global norm says so
    (sail-sg's zero-bubble runtime): only so do ZB-2p and ZB-V reach their bubble."""
    pp_scatter_gather: bool = True
    """TP ranks share a stage-to-stage message (SC21, arXiv:2104.04473, section 4.1); otherwise each sends
    the whole activation."""
    cp_method: ContextMethod = "ring"
    """How context parallelism brings K and V together; a2a+p2p swaps heads among neighbours and rotates K and V
    between such groups (Megatron's hierarchical context parallelism)."""
    cp_slices: ContextSlices = "zigzag"
    """Which tokens a context rank holds: one chunk from either end of the sequence (Megatron, Transformer Engine,
    PyTorch's load balancer), every n-th token (Brandon et al., arXiv:2311.09431), or one piece, of which the last
    meets nearly all keys under a causal mask while the first meets few."""
    cp_by_torch: bool = False
    """Context parallelism is PyTorch's own (torch/distributed/tensor/experimental/_attention.py): attention slice by
    slice, K and V repeated to the heads of queries before they are exchanged (torchtitan models/llama3/model.py,
    repeat_kv), gathered or rotated behind it, their gradients around the ring in fp32, and all partial results added
    up by operators in fp32 that nothing fuses."""
    cp_a2a_ranks: int = Field(default=0, ge=0, le=1024)
    """Ranks that swap heads under a2a+p2p (the first of --hierarchical-context-parallel-sizes); 0 is as many as
    share the innermost domain and divide the heads of keys."""
    nccl_pat: bool = False
    """All-gathers and reduce-scatters of one GPU a node may go along parallel aggregated trees (PAT: NCCL from
    2.23 on, of October 2024) instead of around a ring."""
    nccl_sharp: bool = True
    """All-reduces are added up by the network's switches (SHARP, NCCL_COLLNET_ENABLE) where the cluster's profile
    says that they can."""
    overlap_contention: float = Field(default=0.15, ge=0, lt=1)
    """Share of compute speed lost while communication runs beside it: 20 of 132 SMs (DeepSeek-V3,
    arXiv:2412.19437, section 3.2.1), 15 % in Calculon's NVLink systems."""
    collectives_on: Literal["auto", "compute-cores", "sparse-cores"] = "compute-cores"
    """Which cores move the data of collectives: those that compute, which lose `overlap_contention` of their speed
    meanwhile, or the SparseCores of a TPU (--xla_tpu_enable_sparse_core_collective_offload_all_gather and its like),
    which leave them all of it. auto: as the published recipes of the device do."""
    reserved_sm_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the SMs that communication kernels hold all the time."""

    @property
    def torch_slices(self) -> bool:
        """Whether attention runs slice by slice as PyTorch's own does, which rotates or gathers K and V and nothing else."""
        return self.cp_by_torch and self.cp_method in ("ring", "all-gather")


class Experts(BaseModel):
    """How tokens are routed to experts, sent, and computed there."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    moe_dispatcher: Dispatcher = "all-to-all"
    """How tokens reach their experts."""
    dispatch_sms: int = Field(default=0, ge=0, le=256)
    """SMs that a dispatcher of own kernels holds while it sends: matrix products beside it run on the others;
    0 is what it takes by itself (DeepEP: 20, Hybrid-EP: 16)."""
    ep_overlap: bool = False
    """Dispatch and combine of one micro-batch run behind the compute of another."""
    ep_hidden_between_nodes: float = Field(default=0.6, ge=0, le=1)
    """Most of an exchange that crosses nodes which hides so (NVIDIA-NeMo/Megatron-Bridge's MoE optimization
    notes: 0.37 of it on 16 H100); 1 where kernels of communication have SMs of their own."""
    moe_dispatches_gradients_in_fp8: bool = False
    """The gradient of combine travels in fp8 as the dispatch does (DeepSeek-V3, arXiv:2412.19437, section 3.3.3)."""
    permutes_once: bool = False
    """Tokens are put into the order of their experts only where they are received, as they travelled; otherwise also
    before they are sent, in 16 bits."""
    exchange_rate_under_load: float = Field(default=1.0, gt=0, le=1)
    """Rate of an exchange by kernels of a dispatcher's own while something is computed beside it, over that of the
    exchange alone, which its published tables show."""
    moe_imbalance: float = Field(default=1.0, ge=1)
    """Tokens of the busiest expert rank over the mean, as measured: on top of what `moe_balance` says."""
    moe_balance: Literal["random", "balanced"] = "random"
    """How evenly the router loads ranks: as independent choices of tokens do, or as `moe_loads` say where there are
    some; or forced, whatever the tokens are (benchmarks' fake gates)."""
    moe_loads: tuple[NonNegativeFloat, ...] = ()
    """Tokens that each expert got, in order, as a run counted them; ranks hold experts that follow each other."""
    moe_capacity_factor: float = Field(default=0.0, ge=0)
    """Padded capacity of each expert over its mean load; 0 is dropless."""
    node_limited_routing: int = Field(default=0, ge=0)
    """Most nodes that the experts of one token lie on; 0 is what the model's expert groups say."""
    dispatch_by_products: bool = False
    """Tokens come to the slots of their experts, and back, by products with one-hot matrices of a sequence's tokens by
    all slots (Lepikhin et al., GShard, arXiv:2006.16668, algorithm 2; MaxText with a capacity factor and without
    megablox); otherwise rows are gathered."""
    grouped_gemm: bool = True
    """All local experts in one grouped GEMM; otherwise one GEMM an expert."""
    grouped_launch_share: float = Field(default=0.0, ge=0, le=1)
    """Host cost of each product of a grouped GEMM in launches; 0 where one kernel computes them all."""
    grouped_launch_share_quantised: float = Field(default=0.0, ge=0, le=4)
    """The same in 8 and 4 bits, where each expert is quantised by itself; never less than in 16."""
    fused_grouped_mlp: bool = False
    """With block scales the products of experts activate and quantise their results themselves (the grouped
    GEMM + SwiGLU kernels that Transformer Engine takes from cuDNN)."""
    expert_bias_chain: bool = False
    """The output bias of experts is added in PyTorch operators, expert by expert, in fp32."""
    router_fusion: bool = False
    """Router scores, top-k and auxiliary loss in fused kernels."""

    @field_validator("moe_loads")
    @classmethod
    def _some_are_loaded(cls, loads: tuple[float, ...]) -> tuple[float, ...]:
        """Refuse loads without a token."""
        if loads and not sum(loads) > 0:
            raise ValueError("expected tokens of some expert, got none")
        return loads


class HostCosts(BaseModel):
    """What the host takes: launches, its time between steps, data, states that it holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    launch_s: float = Field(default=20e-6, ge=0, lt=1e-3)
    """Host time to issue one kernel."""
    kernel_gap_s: float = Field(default=1.9e-6, ge=0, lt=1e-3)
    """What the GPU idles before a kernel that was issued in time. On the compute stream of DeepSeek's published profile
    of a training step (deepseek-ai/profile-data, train.json; H800) 902 kernels are 1.5 us apart, which are 700 on the
    bill of the same layers."""
    launch_blocking: bool = False
    """CUDA_LAUNCH_BLOCKING: the host waits for each kernel, so that its time adds to the GPU's."""
    cuda_graphs: bool = False
    """Kernels are replayed from a graph: the host is out of the way."""
    cuda_graph_scope: GraphScope = "all"
    """What the graphs hold: everything; what has static shapes (not dispatch and routed experts); attention and
    router; or the router alone (Megatron-Core's --cuda-graph-scope)."""
    cpu_binding: bool = False
    """Processes are bound to the cores beside their GPU, which a Grace host needs to issue kernels at its rate."""
    ep_overlap_launches: float = Field(default=1.6, ge=1)
    """Launches where the exchange of experts overlaps over those where it does not, outside full graphs: layers
    are cut into schedule nodes, weight gradients are calls of their own (Megatron-Core models/common/
    model_chunk_schedule_plan.py); Qwen3-30B on H100 takes 16.7 ms a layer with it and 9.4 without."""
    step_overhead_s: float = Field(default=0.0, ge=0)
    """Host time a step outside the passes (data loading, logging, optimizer start)."""
    overhead_fraction: Annotated[float, Field(ge=-0.5, le=1)] | None = 0.0
    """The one constant that may be fitted to whole runs: share of step time nothing else explains, on GPUs. Without
    one of its own a recipe takes that of other runs on GPUs of the generation (null)."""
    overhead_fraction_xla: float = Field(default=0.0, ge=-0.5, le=1)
    """The same where a compiler of whole steps drives TPUs or Trainium."""
    input_tokens_per_s: float = Field(default=0.0, ge=0)
    """Tokens that the data loader of one host delivers; 0 is no limit."""
    offload_optimizer: bool = False
    """Optimizer states live and step on the CPU."""
    offload_parameters: bool = False
    """Under ZeRO-3 each rank's share of the parameters lives in the host's memory, and is fetched before every gather
    (DeepSpeed's offload_param, FSDP's CPU offload)."""
    nvme_bytes_per_s: float = Field(default=0.0, ge=0)
    """Where the optimizer is offloaded: rate of a host's NVMe that its states stream from and to; 0 is memory."""


class Memory(BaseModel):
    """What is kept where: layers on stages, activations, buffers, the allocator."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    selective_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """What `recompute: selective` recomputes."""
    recompute_early_stop: bool = False
    """Recomputation of a layer ends with the last tensor that its backward pass needs, so that the
    output projection of the MLP never runs again (PyTorch's non-reentrant checkpoint from 2.1; XLA
    removes it as dead code)."""
    embedding_as_layer: bool = False
    """The embedding takes the place of a layer on the first pipeline stage."""
    head_as_layer: int = Field(default=0, ge=0, le=8)
    """Layers whose place the head takes on the last pipeline stage."""
    head_by_work: bool = False
    """The head counts as many layers as it does multiply-adds of one (nanotron's block costs)."""
    fsdp_buffers: ShardBuffers = "none"
    """Copies around the collectives of sharded parameters: none; one flat parameter a layer, whose
    gradients are concatenated, cast and scaled (FSDP1); or copies between the communication buffer
    and every parameter (FSDP2)."""
    reduce_bucket_elements: Elements = Field(default=0.0, ge=0, le=1e15)
    """Gradients that are copied into one flat bucket before they are reduced (0: reduced in place)."""
    pp_keeps_outputs: bool = False
    """The pipeline engine holds the output of every micro-batch in flight (DeepSpeed's pipe buffers)."""
    norm_copy_bytes: float = Field(default=0.0, ge=0, le=8)
    """Bytes an element of the copy that the gradient norm makes of one gradient at a time."""
    adam_temporary_bytes: float = Field(default=0.0, ge=0, le=16)
    """Bytes a parameter that an optimizer step of unfused kernels makes for a moment."""
    flattens_parameters: bool = False
    """Under ZeRO-2 the parameters are copied into one flat buffer a rank before the first step, and the allocator keeps
    what they lay in for what fits there (GroupShardedOptimizerStage2 of Paddle)."""
    cuda_graph_pools: bool = True
    """Graphs of parts of a layer keep their inputs in pools of their own (PyTorch); XLA assigns all buffers beforehand."""
    allocator_slack: float = Field(default=0.04, ge=0, lt=1)
    """Fragmentation of the caching allocator, as a share of what is allocated."""
    context_bytes: float = Field(default=1.0e9, ge=0)
    """CUDA context and libraries."""
    communicator_bytes: float = Field(default=4.0e8, ge=0)
    """NCCL buffers of one communicator (342-392 MiB measured for 2-8 ranks)."""


class Prints(BaseModel):
    """How a framework counts the FLOPs behind the utilisation that it prints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mfu: Literal["full", "causal", "hardware"]
    """full: the whole attention matrix, no recomputation; causal: half of it; hardware: recomputation counted too."""
    source: str


class Recipe(BaseModel):
    """The switches of a framework, in six groups. Field docstrings say what each changes on the bill.

    A switch has one name wherever it stands: in its group, in a preset's file, after ``--set``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    description: str = ""
    source: str = ""

    kernels: Kernels = Kernels()
    dtypes: Dtypes = Dtypes()
    overlap: Overlap = Overlap()
    moe: Experts = Experts()
    host: HostCosts = HostCosts()
    memory: Memory = Memory()
    launches: Launches | None = None
    """What its framework starts; none where nobody says it, and a plan tries everything."""
    prints: Prints | None = None
    """How its framework counts the MFU that it prints; none where nobody says it."""

    @field_validator("launches")
    @classmethod
    def _has_known_members(cls, launches: Launches | None) -> Launches | None:
        """Refuse schedules, stages and frameworks that do not exist."""
        from costmodel.physics.pipeline.schedule_table import SCHEDULES

        if launches is None:
            return None
        held: tuple[tuple[str, Iterable[object], Collection[object]], ...] = (
            ("schedule", launches.schedule, SCHEDULES),
            ("zero_stage", launches.zero_stage, (0, 1, 2, 3)),
            ("framework", (launches.framework,), (*UNWRITTEN, *FRAMEWORKS)),
        )
        for name, given, known in held:
            for member in given:
                if member not in known:
                    raise ValueError(
                        f"{name} {shown(member)} is unknown; {choices_hint(str(member), map(str, known))}"
                    )
        return launches

    @property
    def switches(self) -> dict[str, Any]:
        """Values of all switches by name."""
        return {name: getattr(getattr(self, group), name) for name, group in GROUP_OF.items()}

    def replaced(self, name: str, value: Any) -> Self:
        """Return the recipe with one switch at a value that is not checked."""
        group = GROUP_OF[name]
        return self.model_copy(update={group: getattr(self, group).model_copy(update={name: value})})


GROUPS: Mapping[str, type[BaseModel]] = {
    "kernels": Kernels,
    "dtypes": Dtypes,
    "overlap": Overlap,
    "moe": Experts,
    "host": HostCosts,
    "memory": Memory,
}
"""The groups of a recipe's switches, in the order in which they are shown."""

GROUP_OF: Mapping[str, str] = {name: group for group, held in GROUPS.items() for name in held.model_fields}
"""Where each switch of a recipe stands."""


def _folder() -> Traversable:
    return files("costmodel") / "describe" / "data" / "recipes"


@cache
def list_recipes() -> tuple[str, ...]:
    """Return the names of the shipped recipes."""
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))
    )


_OTHERWISE = {
    **dict.fromkeys(("megatron", "megatron-lm", "mcore"), "megatron-core"),
    **dict.fromkeys(("fsdp", "fsdp2", "ddp", "pytorch", "huggingface", "transformers"), "torchtitan"),
    **dict.fromkeys(("hf", "trl", "axolotl", "accelerate", "torchtune", "unsloth"), "torchtitan"),
    **dict.fromkeys(("zero", "zero-3"), "deepspeed"),
}
"""What people call a way of training, and the recipe that is the nearest to it."""
_ADAPTERS = {"lora": "--lora-rank 16", "qlora": "--lora-rank 16 --base-dtype nf4"}
"""Ways of training that are fields of a job, with any recipe."""


def _meant(name: str) -> str:
    """Return what somebody meant by a recipe that there is not: by another name, or no recipe at all."""
    called = name.lower().replace("_", "-")
    if called in _ADAPTERS:
        return f"low-rank adapters are fields of the job, with any recipe: {_ADAPTERS[called]}"
    if called in _OTHERWISE:
        return f"did you mean {_OTHERWISE[called]!r}? (costmodel recipe list has all)"
    return choices_hint(name, list_recipes())


@cache
def load_recipe(name: str) -> Recipe:
    """Return a shipped recipe by name.

    Raises
    ------
    RecipeError
        If there is none of that name, or its file is malformed.
    """
    if name not in list_recipes():
        raise RecipeError(f"recipe: {shown(name)} is unknown; {_meant(name)}")
    raw = read_mapping(_folder() / f"{name}.yaml", example="zero_stage: 1", error=RecipeError)
    return make_recipe({"name": name, **raw})


def make_recipe(values: Mapping[str, Any]) -> Recipe:
    """Validate a recipe: its switches in their groups, as in a preset's file, or by name alone.

    Raises
    ------
    RecipeError
        If a switch or group does not exist, stands in another group, or has a value it cannot take.
    """
    return _checked(_nested(values))


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put switches that are given by name into their groups."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in LABELS:
            found[key] = _launches(value) if key == "launches" else value
        elif key in GROUP_OF:
            found.setdefault(GROUP_OF[key], {})[key] = value
        elif key not in GROUPS:
            raise RecipeError(f"recipe: switch {key!r} is unknown; {choices_hint(key, [*GROUP_OF, *GROUPS])}")
        elif not isinstance(value, Mapping):
            raise RecipeError(f"recipe: {key}: expected switches such as {_example(key)}, got {value!r}")
        else:
            for name in value:
                if GROUP_OF.get(name) != key:
                    raise RecipeError(f"recipe: {key}: {_misplaced(name, key)}")
            found.setdefault(key, {}).update(value)
    return found


def _launches(given: Any) -> Any:
    """Complete what a recipe launches by what the framework that it names starts."""
    if not isinstance(given, Mapping):
        return given
    named = FRAMEWORKS.get(given.get("framework", "none"))
    return {**asdict(named.launches), **given} if named else given


def _example(group: str) -> str:
    return next(iter(GROUPS[group].model_fields))


def _misplaced(name: str, group: str) -> str:
    """Say why a switch cannot stand in a group."""
    if name in GROUP_OF:
        return f"switch {name!r} stands in {GROUP_OF[name]}"
    return f"switch {name!r} is unknown; {choices_hint(name, GROUPS[group].model_fields)}"


def _checked(values: dict[str, Any]) -> Recipe:
    """Validate nested values."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path = first["loc"][1:] if first["loc"][0] in GROUPS else first["loc"]
        key = ".".join(str(part) for part in path)
        raise RecipeError(
            f"recipe {values.get('name', '')}: {key}: {rule(first['msg'])}, got {shown(first['input'])}"
        ) from None


def with_switches(recipe: Recipe, switches: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some switches changed.

    Raises
    ------
    RecipeError
        If a switch does not exist or has a value it cannot take.
    """
    if not switches:
        return recipe
    labels = {key: getattr(recipe, key) for key in LABELS}
    return make_recipe({**labels, **recipe.switches, **switches})


@cache
def _unexplained() -> dict[str, float]:
    """Return the share that nothing explains by generation of GPUs, which `costmodel.trust.overheads` writes. [-]"""
    shares = read_mapping(files("costmodel.describe") / "data" / "unexplained.yaml", example="hopper: 0.15")
    return {name: float(share) for name, share in shares.items()}


def usual_overhead(generation: str, own_stack: bool = False) -> float:
    """Return the share of a step that nothing explains in all runs on GPUs of a generation. [-]

    Without such runs that of all GPUs beyond CUDA, if its vendor has a stack of its own, else of all GPUs.

    >>> usual_overhead("ampere") < usual_overhead("hopper")
    True
    >>> usual_overhead("hopper", own_stack=True) == usual_overhead("hopper")
    True
    """
    shares = _unexplained()
    of_stack = shares.get("other-stacks", shares["any"]) if own_stack else shares["any"]
    return shares.get(generation, of_stack)


def resolved_for(recipe: Recipe, accelerator: Accelerator) -> Recipe:
    """Return the recipe as it runs on a device.

    With its attention kernel in place of ``auto`` or ``torch``, the cores that move its collectives in place of
    ``auto``, and its usual overhead where the recipe has none.
    """
    software = accelerator.software
    kernels = dict(zip(OPEN_KERNELS, (software.attention, software.torch_attention), strict=True))
    kernel = recipe.kernels.attention_kernel
    if kernel in kernels:
        recipe = recipe.replaced("attention_kernel", kernels[kernel])
    if recipe.overlap.collectives_on == "auto":
        recipe = recipe.replaced("collectives_on", accelerator.collectives_on)
    if recipe.host.overhead_fraction is None:
        share = usual_overhead(accelerator.generation, accelerator.has_own_stack)
        recipe = recipe.replaced("overhead_fraction", share)
    return recipe


def require_cores(recipe: Recipe, accelerator: Accelerator) -> None:
    """Refuse a device that has not the cores which a recipe gives collectives to.

    Raises
    ------
    RecipeError
        If it has none of them.
    """
    if recipe.overlap.collectives_on == "sparse-cores" and not accelerator.sparse_cores:
        raise RecipeError(
            f"collectives_on: sparse-cores needs a device that has them; {accelerator.name} has none: "
            "auto or compute-cores"
        )
