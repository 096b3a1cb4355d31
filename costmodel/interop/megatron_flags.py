"""What Megatron's flags mean for the bill: which change nothing, which have no price here, and which change the model.

Names of NVIDIA/Megatron-LM d98e8a64 (``megatron/training/arguments.py``, ``core/transformer/transformer_config.py``,
``core/model_parallel_config.py``, ``core/distributed/distributed_data_parallel_config.py``),
deepspeedai/Megatron-DeepSpeed 4efb479d (``megatron/arguments.py``), Ascend/MindSpeed-LLM c77308a1, and
bigcode-project/Megatron-LM 7c325cd3. A flag that no reader reads and that is not here is told to the user.
"""

from __future__ import annotations

import re

# Training without effect on a step's time or memory: learning rates, data, checkpoints, logs, launchers; and
# fusions and checks that a recipe has as switches of its own.
HARMLESS = re.compile(
    r"--?(lr|min-lr|lr-.*|decoupled-.*|weight-decay.*|adam-.*|adam.*-eps|clip-grad|train-(?!iters-to-skip).*|eval-.*|full-validation"
    r"|valid-.*|test-data-path|log-.*|save.*|load.*|tensorboard-.*|wandb-.*|tee|logging-.*|loss-scale.*|start-weight-decay"
    r"|data-.*|dataset.*|split.*|tokenizer-.*|vocab-file|merge-file|vocab-.*file|seed|init-method.*|exit-.*|node-rank"
    r"|master-.*|rdzv.*|distributed-.*|manual-gc.*|num-workers|use-mcore-models|use-legacy-models|transformer-impl|ckpt-.*"
    r"|rotary-.*|rope-.*|use-rope-scaling|norm-epsilon|timing-.*|no-load.*|no-save.*|override-.*|mock-data"
    r"|moe-aux-loss-coeff|moe-z-loss-coeff|moe-router-(?!topk$|num-groups$|group-topk$).*|moe-loss-coeff|moe-min-capacity|moe-per-layer-logging"
    r"|use-flash-attn.*|dataloader-.*|enable-experimental|bias-.*|no-bias-.*|no-masked-softmax-fusion"
    r"|masked-softmax-.*|no-rope-fusion|apply-rope-fusion|use-fused-.*|attention-softmax-in-fp32|no-async-tensor.*|use-cpu-init.*"
    r"|disable-bf16-.*|no-persist-layer-norm|no-gradient-accumulation-fusion|gradient-accumulation-fusion"
    r"|gemm-gradient-accumulation-fusion|no-check-for-nan.*|check-for-.*|empty-unused-.*|no-mmap-.*|profile.*|use-pytorch-profiler"
    r"|no-create-attention-mask.*|create-attention-mask.*|reset-.*|eod-mask-loss|finetune|pretrained-checkpoint|dist-ckpt-.*"
    r"|use-dist-ckpt.*|async-save|auto-detect-.*|no-use-tokenizer.*|structured-logs.*|codecarbon-.*|hysteresis|initial-loss-scale"
    r"|min-loss-scale|fp32-residual.*|fp16-lm-.*|apply-query-key-.*|no-query-key-.*|no-shared-storage|no-barrier-.*|nccl-.*"
    r"|high-priority-.*|disable-gloo.*|no-use-.*|use-checkpoint-opt.*|export-.*|trust-remote-code|mscale.*|beta-.*"
    r"|original-max-position.*|rampup-batch-size|step-batch-size-schedule|decrease-batch-size.*|attention-backend|max-position-embeddings"
    r"|fim-.*|handler-name|enable-hf2mg.*|model-type-hf|tiktoken-.*|prompt-.*|patch-tokenizer-type|extra-vocab-size|max-padding-length"
    r"|eval-micro-.*|calculate-per-token-loss|one-logger.*|enable-one-logger|no-one-logger|delay-.*|seq-length-.*|end-weight.*"
    r"|deepspeed|deepspeed-config|deepscale.*|no-pipeline-parallel|create-moe-param-group|moe-eval-.*|disable-moe-token-dropping"
    r"|hostfile|include|exclude|force-multi|launcher|max-restarts|role|partition-activations|synchronize-.*|contigious-.*"
    r"|use-pin-memory|cpu-.*-init|local-rank|standalone|venv|mpi|wandb|report-to|output-dir|num-train-epochs|add-version|packing"
    r"|safe-serialization|strict|model-author|model-name|custom-.*|load-from-cache-file|dataset-num-proc|use-hf|streaming"
    r"|lazy-tokenize|attn-impl|truncation-strategy|loss-type|template|system|no-new-tokens|yaml-cfg|inference-.*|moe-permute-fusion"
    r"|use-pipeline-parallel-.*|barrier-.*|straggler-.*|rerun-.*|error-injection-.*|result-rejected-.*|apply-layernorm-1p"
    r"|perform-initialization|no-initialization|init-model-with-meta-device|fp8-amax-.*|fp8-margin|fp8-interval|first-last-.*"
    r"|accumulate-allreduce-grads-in-fp32|te-rng-tracker|use-te|use-te-rng.*|deterministic-mode|swin-.*|retro-.*|query-in-block-prob"
    r"|group-query-attention|use-cp-send-recv-overlap|timers?-.*|memory-.*|record-memory-history|cuda-memory.*|num-dataset-builder.*"
    r"|object-storage.*|mid-level.*|short-seq-prob|mask-prob|non-persistent-.*|dataset-.*|cross-entropy-fusion-impl|eval-global-.*"
    r"|moe-pad-.*|disable-.*-logging|tee-.*|universal-checkpoint|repeated-dataloader|data-impl|log-interval|use-dataset-only"
    r"|mtp-loss-scaling-factor|seq-aux|norm-topk-prob|topk-softmax-.*|fsdp-manual-registration|shape-order|mla-fa-.*"
    r"|abort-on-.*|rmsnorm-weight-.*|moe-permutation-async-comm|loss-compute-mode|skip-.*|ignore-.*|sft.*|moe-token-drop-policy|moe-input-jitter-eps|align-.*|jitter.*|noise.*|norm-eps|add-eos.*"
    r"|language-model-type|lora-(?!rank$|r$|target-modules$).*|bos.*|eos.*|allow-missing-.*|image-tag.*|num-nodes|num-gpus|nnodes|nproc-per-node|no-local-rank|no-python|world-size|b|n)$"
)

UNPRICED: dict[str, str] = {
    "--moe-layer-recompute": "recomputes the experts of every layer; price it by --recompute selective "
    "--set selective_modules=moe",
    "--use-checkpoint-args": "the checkpoint's arguments replace those of the model here",
    "--cpu-offloading": "offloads activations of some layers; price it by --set offload_activations=<share>",
    "--freeze-LM": "the language model is frozen: its gradients and optimizer states are priced all the same",
    "--freeze-ViT": "the vision tower is not priced",
    "--img-h": "the vision tower is not priced",
    "--main-params-dtype": "main weights of another dtype; price them by --set master_weights_bytes=…",
    "--main-grads-dtype": "gradients of another dtype; price them by --set grad_accum_dtype=…",
    "--megatron-fsdp-grad-comm-dtype": "gradients on the wire of another dtype; price them by --set grad_reduce_dtype=…",
    "--megatron-fsdp-main-grads-dtype": "gradients of another dtype; price them by --set grad_accum_dtype=…",
    "--fsdp-double-buffer": "keeps two layers' gathered parameters; priced as one prefetched layer",
    "--use-nccl-ub": "user buffers of NCCL save copies, which is not priced",
    "--reuse-fp32-param": "shares main weights with parameters; price it by --set master_weights_bytes=2",
    "--swap-attention": "activations go to the host; price it by --set offload_activations=<share>",
    "--use-ascend-coc": "overlaps tensor-parallel communication with GEMMs; price it by --set tp_overlap=pipelined",
    "--ampipe-degree": "overlaps the experts' exchange with GEMMs; price it by --set ep_overlap=true",
    "--moe-shared-expert-overlap": "runs the shared experts behind the exchange, which is not priced",
    "--moe-alltoall-overlap-comm": "overlaps the experts' exchange with GEMMs; price it by --set ep_overlap=true",
    "--moe-fb-overlap": "overlaps one micro-batch's exchange with another's GEMMs; price it by --set ep_overlap=true",
    "--swap-optimizer": "optimizer states go to the host; price them by --set offload_optimizer=true",
    "--coc-fused-kernel": "overlaps tensor-parallel communication with GEMMs; price it by --set tp_overlap=pipelined",
    "--pp-partition-method": "layers are split over stages as it says; priced as evenly as it goes",
    "--recompute-method-per-stage": "recomputation differs from stage to stage; priced alike on all",
    "--recompute-num-layers-per-stage": "recomputation differs from stage to stage; priced alike on all",
    "--num-layers-per-stage": "layers differ from stage to stage; priced as evenly as it goes",
    "--curriculum-learning": "the sequence grows during training; this is its full length",
    "--moe-train-capacity-factor": "read as the capacity factor",
}
"""Flags that change time or memory in a way that has no price yet, with what to say."""

OTHER_MIXERS = (
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--hybrid-attention-ratio",
    "--is-hybrid-model",
    "--linear-attention-type",
    "--linear-attention-freq",
    "--linear-key-head-dim",
    "--linear-num-key-heads",
    "--linear-value-head-dim",
    "--full-attention-interval",
    "--experimental-attention-variant",
    "--mamba-num-heads",
    "--mamba-head-dim",
    "--mamba-state-dim",
    "--mamba-num-groups",
    "--use-gated-attention",
    "--attention-output-gate",
    "--dsa-indexer-n-heads",
)
"""Flags of layers that are no softmax attention, or attention with an output gate: not priced yet."""
