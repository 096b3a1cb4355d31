"""Which kernel does what, by its name: a table of families, each with where its names come from.

The first family whose pattern is found in a name has it; a name that none knows is of the class `UNKNOWN`, which is
a line like the others. Names tell what a library runs, not what for: a matrix product is one of experts where it is
grouped, and belongs to a pass where name or call say so.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple, get_args

Communication = Literal[
    "dispatch",
    "combine",
    "exchange_wait",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "send_recv",
    "other_collective",
]
Class = Literal[
    "matmul",
    "experts",
    "attention",
    "mixer",
    "norm",
    "elementwise",
    "softmax_and_loss",
    "cast",
    "permute",
    "routing",
    "embedding",
    "optimizer",
    "copy",
    Communication,
    "graph",
    "unknown",
]
Pass = Literal["", "forward", "backward", "backward_weight"]

UNKNOWN: Class = "unknown"
BY_PASS: tuple[Class, ...] = ("matmul", "experts", "attention", "mixer")
"""Classes that are told apart by pass."""
COMMUNICATION: tuple[Class, ...] = get_args(Communication)
"""Classes that move data between GPUs, or wait for it; every other kernel computes, an unknown one too."""


class Family(NamedTuple):
    """Kernels of one library that do one thing.

    Attributes
    ----------
    name : str
        Library, and what of it.
    does : str
        What they do (`Class`).
    pattern : str
        Regular expression, found anywhere in the name, whatever its case.
    source : str
        Where these names come from.
    runs_in : str
        Pass that the name itself tells, "" where it does not.
    """

    name: str
    does: Class
    pattern: str
    source: str
    runs_in: Pass = ""


_TORCH = "pytorch/pytorch, aten/src/ATen/native/cuda"
_TE = "NVIDIA/TransformerEngine, transformer_engine/common"
_DEEPSEEK = "deepseek-ai/profile-data, train.json"
_DEEPEP = "deepseek-ai/DeepEP, csrc/kernels"
_FLASH2 = "Dao-AILab/flash-attention, csrc/flash_attn/src (and its copies in PyTorch)"
_FLASH3 = "Dao-AILab/flash-attention, hopper"
_NCCL = "NVIDIA/nccl, src/device/generate.py (RCCL has the same names)"
_GEMM_NOT_ATTENTION = "names printed by torch.profiler and nsys for cuBLAS"

FAMILIES: tuple[Family, ...] = (
    # Communication first: its arguments may hold any other word.
    Family("NCCL all-reduce", "all_reduce", r"nccl\w*(kernel|symk\w*)_\w*allreduce", _NCCL),
    Family("NCCL all-gather", "all_gather", r"nccl\w*(kernel|symk\w*)_\w*allgather", _NCCL),
    Family("NCCL reduce-scatter", "reduce_scatter", r"nccl\w*(kernel|symk\w*)_\w*reducescatter", _NCCL),
    Family("NCCL send and receive", "send_recv", r"nccl\w*kernel_\w*(sendrecv|alltoall)", _NCCL),
    Family("NCCL broadcast", "broadcast", r"nccl\w*kernel_\w*(broadcast|reduce)", _NCCL),
    Family("NCCL, any", "other_collective", r"nccl(dev|sym)?\w*kernel|rccl_main_kernel", _NCCL),
    Family(
        "DeepEP notify",
        "exchange_wait",
        r"(deep_ep|dpsk::ep)::.*\b(cached_)?notify|get_dispatch_layout",
        _DEEPEP,
    ),
    Family("DeepEP dispatch", "dispatch", r"(deep_ep|dpsk::ep)::\w+::dispatch", _DEEPEP),
    Family("DeepEP combine", "combine", r"(deep_ep|dpsk::ep)::\w+::combine", _DEEPEP),
    Family("DeepEP, other", "exchange_wait", r"deep_ep::|dpsk::ep::", _DEEPEP),
    Family("HybridEP dispatch", "dispatch", r"hybrid_ep::.*dispatch", "deepseek-ai/DeepEP, branch hybrid-ep"),
    Family("HybridEP combine", "combine", r"hybrid_ep::.*combine", "deepseek-ai/DeepEP, branch hybrid-ep"),
    Family("HybridEP, other", "exchange_wait", r"hybrid_ep::", "deepseek-ai/DeepEP, branch hybrid-ep"),
    Family("NVSHMEM", "exchange_wait", r"nvshmem", "NVIDIA NVSHMEM, host collectives and barriers"),
    Family("user buffers", "other_collective", r"userbuffers", f"{_TE}/comm_gemm_overlap"),
    Family(
        "symmetric memory all-reduce",
        "all_reduce",
        r"(multimem|one_shot|two_shot)_all_reduce",
        "pytorch/pytorch, torch/csrc/distributed/c10d/cuda/symm_mem",
    ),
    # Attention before products: FlashAttention-3 is CUTLASS, and cuDNN's names hold both words.
    Family("FlashAttention-3 backward", "attention", r"flash::FlashAttnBwd", _FLASH3, "backward"),
    Family(
        "FlashAttention-3 forward", "attention", r"flash::(FlashAttnFwd|compute_attn_ws)", _FLASH3, "forward"
    ),
    Family(
        "FlashAttention-2 backward",
        "attention",
        r"flash_bwd_\w*(kernel|dot_do_o|convert_dq)",
        _FLASH2,
        "backward",
    ),
    Family("FlashAttention-2 forward", "attention", r"flash_fwd_\w*kernel", _FLASH2, "forward"),
    Family(
        "FlashAttention-4 backward",
        "attention",
        r"FlashAttentionBackward",
        "Dao-AILab/flash-attention, flash_attn/cute",
        "backward",
    ),
    Family(
        "FlashAttention-4 forward",
        "attention",
        r"FlashAttentionForward",
        "Dao-AILab/flash-attention, flash_attn/cute",
        "forward",
    ),
    Family(
        "cuDNN attention backward",
        "attention",
        r"cudnn_generated\w*(sdpa|mha)\w*bprop",
        "NVIDIA cuDNN, graph API: SDPA",
        "backward",
    ),
    Family(
        "cuDNN attention forward",
        "attention",
        r"cudnn_generated\w*(sdpa|mha)",
        "NVIDIA cuDNN, graph API: SDPA",
        "forward",
    ),
    Family(
        "memory-efficient attention backward",
        "attention",
        r"fmha_cutlassB",
        f"{_TORCH}/transformers",
        "backward",
    ),
    Family(
        "memory-efficient attention forward",
        "attention",
        r"fmha_cutlassF",
        f"{_TORCH}/transformers",
        "forward",
    ),
    Family(
        "FlexAttention backward",
        "attention",
        r"triton_tem_\w*flex_attention_backward",
        "pytorch/pytorch, torch/_inductor/kernel/flex",
        "backward",
    ),
    Family(
        "FlexAttention forward",
        "attention",
        r"triton_tem_\w*flex_attention",
        "pytorch/pytorch, torch/_inductor/kernel/flex",
        "forward",
    ),
    Family(
        "Composable Kernel attention backward", "attention", r"FmhaBwd", "ROCm/composable_kernel", "backward"
    ),
    Family(
        "Composable Kernel attention forward", "attention", r"FmhaFwd", "ROCm/composable_kernel", "forward"
    ),
    Family(
        "Triton attention backward",
        "attention",
        r"\b_?(attn_bwd|bwd_kernel_d[kq])",
        "triton-lang/triton, tutorial 6",
        "backward",
    ),
    Family(
        "Triton attention forward", "attention", r"\b_?attn_fwd", "triton-lang/triton, tutorial 6", "forward"
    ),
    # Layers without attention.
    Family(
        "state-space scan",
        "mixer",
        r"selective_scan|_chunk_(scan|state|cumsum)|_state_passing|_bmm_chunk|causal_conv1d",
        "state-spaces/mamba, mamba_ssm/ops; Dao-AILab/causal-conv1d",
    ),
    Family(
        "linear attention",
        "mixer",
        r"chunk_(gated_)?delta|chunk_(fwd|bwd)_kernel|fused_recurrent",
        "fla-org/flash-linear-attention",
    ),
    # Optimizers before norms and element-wise work: they share helpers, and their arguments say what they do.
    Family(
        "multi-tensor optimizer",
        "optimizer",
        r"multi_tensor_apply|lpnorm_cleanup",
        "NVIDIA/apex, csrc; PyTorch foreach and fused",
    ),
    Family(
        "8-bit optimizer", "optimizer", r"kOptimizer", "bitsandbytes-foundation/bitsandbytes, csrc/kernels.cu"
    ),
    Family(
        "L2 norm of gradients",
        "optimizer",
        r"l2norm|L2NormFunctor|cleanup_kernel",
        "NVIDIA/apex, csrc/multi_tensor_l2norm_kernel.cu",
    ),
    # Grouped products are those of experts.
    Family("DeepSeek grouped fp8", "experts", r"m_grouped_fp8", _DEEPSEEK),
    Family(
        "DeepGEMM weight gradients",
        "matmul",
        r"fp8_(wgrad|dptp128c_acc)|gemm_1d1d",
        "deepseek-ai/DeepGEMM",
        "backward_weight",
    ),
    Family(
        "DeepGEMM grouped",
        "experts",
        r"deep_gemm::.*(GemmType\)[12]|GroupedContiguous|GroupedMasked|KGrouped)",
        "deepseek-ai/DeepGEMM",
    ),
    Family(
        "DeepGEMM",
        "matmul",
        r"deep_gemm::|fp8_gemm_kernel|grouped_gemm::cuda::fp8_ptp128c",
        "deepseek-ai/DeepGEMM",
    ),
    Family(
        "CUTLASS grouped",
        "experts",
        r"GroupProblemShape|GemmGrouped|grouped_?gemm.*GemmKernel",
        "NVIDIA/cutlass, examples 24 and 57",
    ),
    Family(
        "Triton grouped",
        "experts",
        r"\b_?grouped_(gemm|mm)\w*kernel|_scaled_grouped_mm",
        "pytorch/pytorch, torch/_inductor; torchao",
    ),
    Family("gated activations", "elementwise", r"swiglu|geglu|gated_act", f"{_TE}/activation; {_DEEPSEEK}"),
    # Casts before products: Transformer Engine's and DeepSeek's names. What loads with a cast is something else.
    Family(
        "casts to and from 8 and 4 bits, transposes of them",
        "cast",
        r"(?<!broad)(?<!with)cast|transpose|quanti[sz]e|dequant|_amax|swizzle\w*scal|hadamard",
        f"{_TE}/cast, transpose, swizzle; {_DEEPSEEK}; bitsandbytes, csrc/kernels.cu",
    ),
    Family("cuBLASLt epilogue", "matmul", r"splitKreduce|cublasLt::epilogue", _GEMM_NOT_ATTENTION),
    Family("cuBLASLt nvjet", "matmul", r"nvjet_", _GEMM_NOT_ATTENTION),
    Family(
        "cuBLAS",
        "matmul",
        r"xmma_gemm|\w+_[a-z0-9]*gemm_\w+|gemv|gemmk1|gemmSN|\b[sdhb]?dot_kernel",
        _GEMM_NOT_ATTENTION,
    ),
    Family("rocBLAS and hipBLASLt", "matmul", r"Cijk_", "ROCm/Tensile, naming of solutions"),
    Family("CUTLASS", "matmul", r"cutlass.*gemm|cutlass_\d+_|GemmUniversal", "NVIDIA/cutlass"),
    Family(
        "Triton products",
        "matmul",
        r"triton_tem_|\b_?matmul_kernel|\bmm_kernel|addmm",
        "pytorch/pytorch, torch/_inductor/kernel",
    ),
    Family(
        "norms",
        "norm",
        r"layer_?norm|rms_?norm|ln_(fwd|bwd)|group_?norm|GammaBeta",
        f"{_TE}/normalization; {_TORCH}; NVIDIA/apex",
    ),
    Family(
        "softmax and loss",
        "softmax_and_loss",
        r"softmax|nll_loss|cross_?entropy|log_?sum_?exp",
        f"{_TORCH}; Megatron-LM fused_kernels; linkedin/Liger-Kernel",
    ),
    Family(
        "permutation of tokens",
        "permute",
        r"permute|sort_chunks|row_id_map|expand_to_fused|reduce_fused_impl|moe_align",
        f"{_TE}/permutation and triton; {_DEEPSEEK}",
    ),
    Family(
        "routing",
        "routing",
        r"topk|radix_?sort|bitonicSort|scatter_gather|count_expert|fused_mapping|group_indices|cub::|moe_aux|gating",
        f"{_TORCH}; NVIDIA/cccl (CUB); {_DEEPSEEK}",
    ),
    Family("embedding", "embedding", r"embedding|indexSelect|index_select|vectorized_gather", _TORCH),
    Family(
        "copies by kernels",
        "copy",
        r"copy_kernel|_copy_tensor|CatArray|BatchedCopy|split_with_sizes|chunk_cat",
        f"{_TORCH}; {_DEEPSEEK}",
    ),
    Family(
        "element-wise",
        "elementwise",
        r"elementwise|reduce_kernel|rotary|rope|swiglu|silu|gelu|gated_act|geglu|dropout|triton_(poi|red|per)_|"
        r"index_put|indexing_backward|fill|bias|where|arange|distribution_|index_kernel|add_kernel|mul_kernel|tensor_kernel_scan",
        f"{_TORCH}; pytorch/pytorch, torch/_inductor; {_TE}/activation; {_DEEPSEEK}",
    ),
    Family(
        "CUDA graph",
        "graph",
        r"^CUDA graph \d+$",
        "Nsight Systems, --cuda-graph-trace=graph: one row a graph",
    ),
    Family(
        "fused by a compiler",
        "elementwise",
        r"^triton_|_kernel_0d1d|^fusion_\d+",
        "pytorch/pytorch, torch/_inductor",
    ),
)

_UNKNOWN_FAMILY = Family("unknown", UNKNOWN, "", "no family has this name")
_PATTERNS = tuple((re.compile(family.pattern, re.IGNORECASE | re.DOTALL), family) for family in FAMILIES)


@cache
def family_of(kernel: str) -> Family:
    """Return the family of a kernel by its name.

    >>> family_of("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)").does
    'all_gather'
    >>> family_of("my_own_kernel").name
    'unknown'
    """
    return next((family for pattern, family in _PATTERNS if pattern.search(kernel)), _UNKNOWN_FAMILY)


_LAYOUT = re.compile(r"_(nn|nt|tn)(?:_|\b)|_(NN|NT|TN)[NT](?:_|\b)")


def layout_of(kernel: str) -> str:
    """Return which operands of a product are transposed, "" where its name does not say.

    In the column-major terms of BLAS a linear layer's forward product is TN, the gradient of its input NN, that of
    its weight NT (NVIDIA/TransformerEngine, transformer_engine/pytorch/module/linear.py).

    >>> layout_of("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTN"), layout_of("ampere_bf16_s16816gemm_128x64_tn")
    ('nt', 'tn')
    """
    found = _LAYOUT.search(kernel)
    return (found.group(1) or found.group(2)).lower() if found else ""


_RANGES: tuple[tuple[re.Pattern[str], Pass], ...] = (
    (
        re.compile(r"\(W\)$|(?<![a-z])(wgrad|weight[ _]grad(ient)?s?)(?![a-z])", re.IGNORECASE),
        "backward_weight",
    ),
    (re.compile(r"\(B\)$|(?<![a-z])(backward|bwd)(?![a-z])", re.IGNORECASE), "backward"),
    (re.compile(r"\(F\)$|(?<![a-z])(forward|fwd)(?![a-z])", re.IGNORECASE), "forward"),
)


def pass_of_range(name: str) -> Pass:
    """Return the pass that a range's name tells, "" where it tells none or more than one.

    >>> pass_of_range("attn(B)"), pass_of_range("forward_step"), pass_of_range("1F1B")
    ('backward', 'forward', '')
    """
    told = [each for pattern, each in _RANGES if pattern.search(name)]
    return told[0] if len(told) == 1 or told[:1] == ["backward_weight"] else ""
