"""torchtitan's job files read: TOML of 2024 to February 2026, JSON that it saves since, and its Python registry.

Keys of pytorch/torchtitan: ``config_manager.py`` and ``config/job_config.py`` up to 9810191bb (February 2026),
``config/configs.py`` after; the 2024 names are those of 6a6f755d ([training] and [experimental] held the degrees).
Python files are parsed, never run.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, shown
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES, REQUIRED
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.framework import FrameworkConfigError, Imported, own_head, tokens_of
from costmodel.interop.optimizer_names import take_optimizer
from costmodel.interop.sniff import parse_json
from costmodel.interop.text_file import TextFile

_RECORD = FRAMEWORKS["torchtitan"]
DEFAULT_RECIPE = _RECORD.recipe
SCHEDULES = {ours: theirs for ours, theirs in _RECORD.schedules.items() if ours != "none"}
_SCHEDULE_OF = {name.lower(): ours for ours, name in SCHEDULES.items()}
FLAVORS = {
    ("llama2", "7b"): "llama2-7b",
    ("llama2", "13b"): "llama2-13b",
    ("llama2", "70b"): "llama2-70b",
    ("llama3", "8b"): "llama3-8b",
    ("llama3", "70b"): "llama3-70b",
    ("llama3", "405b"): "llama3-405b",
    ("llama4", "17bx16e"): "llama-4-scout-17b-16e",
    ("llama4", "17bx128e"): "llama-4-maverick-17b-128e",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("deepseek_v3", "236b"): "deepseek-v2-236b",
    ("deepseek_v3", "671b"): "deepseek-v3-671b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
    ("qwen3", "0.6b"): "qwen3-0.6b",
    ("qwen3", "1.7b"): "qwen3-1.7b",
    ("qwen3", "4b"): "qwen3-4b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "14b"): "qwen3-14b",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
}
"""Models that torchtitan has under a name and a flavor, in lower case, with ours."""

_ENDS = ("first", "last")
LOW_PRECISION = {ours: kind for ours, kind in _RECORD.precisions.items() if ours not in ("fp32", "bf16")}
# A converter's name of any age, with the precision that it means.
_CONVERTERS = {
    "float8": "fp8-current",
    "quantize.linear.float8": "fp8-current",
    "float8linearconverter": "fp8-current",
    "mx": "mxfp8",
    "quantize.linear.mx": "mxfp8",
    "mxlinearconverter": "mxfp8",
    "mxfp8linearconverter": "mxfp8",
}
_PARTIAL_CONVERTERS = (
    "quantize.grouped_mm",
    "float8groupedmmconverter",
    "mxgroupedmmconverter",
    "mxfp8groupedmmconverter",
)
_RECOMPUTE_CLASSES = {
    "fullac": "full",
    "selectiveac": "selective",
    "memorybudgetac": "selective",
    "none": "none",
}

_HARMLESS_TABLES = frozenset(
    """job profiling metrics lr_scheduler checkpoint comm validation fault_tolerance debug validator dataloader
    tokenizer experimental model training parallelism activation_checkpoint compile quantize float8 mx optimizer
    memory_estimation hf_transformers model_spec model_converters hf_assets_path loss dump_folder print_config
    ft flight_recorder symm_mem profiler encoder preprocessing inference eval""".split()  # noqa: SIM905
)
_HARMLESS_KEYS = frozenset(
    """training.dataset training.dataset_path training.steps training.max_norm training.warmup_steps training.seed
    training.deterministic training.gc_freq training.gc_debug training.dtype training.debug_moe_force_load_balance
    training.classifier_free_guidance_prob training.img_size training.test_mode training.mixed_precision_param
    training.data_parallel_type training.shuffle training.use_for_integration_test training.compile
    training.data_parallel_degree training.enable_loss_parallel training.loss_parallel_enabled
    training.cfg_prob training.guidance model.hf_assets_path model.tokenizer_path model.norm_type model.print_after_conversion
    model.tokenizer_name model.tokenizer model.converters compile.components compile.backend compile.model compile.loss
    parallelism.disable_loss_parallel parallelism.module_fqns_per_model_part
    parallelism.enable_compiled_autograd parallelism.pipeline_parallel_split_points
    parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers
    parallelism.context_parallel_load_balancer parallelism.enable_sequence_parallel
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns activation_checkpoint.early_stop
    activation_checkpoint.preserve_rng_state activation_checkpoint.determinism_check activation_checkpoint.debug
    activation_checkpoint.visualize_memory_budget_pareto parallelism.pipeline_parallel_schedule_csv
    parallelism.expert_parallel_comm_backend parallelism.spmd_backend parallelism.full_dtensor""".split()  # noqa: SIM905
)


class Section:
    """A table of a config that remembers what was read."""

    def __init__(self, raw: Mapping[str, Any], path: str) -> None:
        self.raw, self.path, self.read = raw, path, set[str]()

    def get(self, key: str, default: Any, kind: type) -> Any:
        """Return a value of a kind."""
        self.read.add(key)
        value = self.raw.get(key, default)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise FrameworkConfigError(
                f"torchtitan: {self.path}.{key}: expected {kind.__name__}, got {value!r}"
            )
        return value


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job file, TOML or JSON; see `imported`.

    Raises
    ------
    CostModelError
        If the text is neither, or a value is of the wrong kind.
    """
    return imported(content(file.text), given)


def read_registry(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read one function of a Python registry, which ``env`` names as ``config`` where there are several.

    Raises
    ------
    CostModelError
        If there is no such function, or it is more than a configuration.
    """
    asked = (given.get("env") or {}).get("config", "")
    folder = Path(file.name).absolute().parent.name
    own = {name: value for name, value in own_head(file.text).items() if name == "recipe"}
    return imported(registry(file.text, asked, folder), {**own, **given})


def registry(text: str, asked: str, folder: str = "") -> dict[str, Any]:
    """Return one function of a Python registry as tables of a job file.

    Parameters
    ----------
    text : str
        The module.
    asked : str
        Name of the function, where there are several.
    folder : str
        Family of its models, where it is the family's own registry.

    Raises
    ------
    FrameworkConfigError
        If there is no such function, or it is more than a configuration.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FrameworkConfigError(f"torchtitan: not Python: {str(error)[:80]}") from None
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and "Trainer.Config" in ast.unparse(node)
    }
    if asked not in functions and len(functions) != 1:
        listed = ", ".join(sorted(functions)) or "none"
        raise FrameworkConfigError(
            f"torchtitan: say which configuration: --env config=NAME (there are {listed})"
        )
    chosen = asked or next(iter(functions))
    raw = _configured(chosen, functions, 0)
    _require_whole(chosen, raw)
    return _tables_of(raw, _family(tree) or folder)


_SAID = ("model_spec", "training", "parallelism", "activation_checkpoint")


def _require_whole(name: str, raw: Mapping[str, Any]) -> None:
    """Refuse a configuration that takes over from another file what it does not say itself.

    Raises
    ------
    FrameworkConfigError
        Naming the function that it takes over, and what that says.
    """
    base = str(raw.get("__class__", ""))
    if base.endswith("Trainer.Config"):
        return
    if base.endswith(".Config"):
        raise FrameworkConfigError(f"torchtitan: {name}: expected a Trainer.Config, returns a {base}")
    # A part is whole where it is made anew, not where single keys of it are set.
    whole = [
        key for key in _SAID if key in raw and (not isinstance(raw[key], dict) or "__class__" in raw[key])
    ]
    if lacking := [key for key in _SAID if key not in whole]:
        raise FrameworkConfigError(
            f"torchtitan: {name}: takes over {base or 'another function'}() of another file, which says its "
            f"{', '.join(lacking)}; read that file, or what torchtitan prints of the whole configuration"
        )


def _family(tree: ast.Module) -> str:
    """Return the family whose registry a module takes its model from, empty where it is itself one."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(name.name == "model_registry" for name in node.names):
            return (node.module or "").rpartition(".")[2] if not node.level else ""
    return ""


def content(text: str) -> Mapping[str, Any]:
    """Return the content of a job file.

    Raises
    ------
    FrameworkConfigError
        If it is no job file.
    """
    try:
        raw = parse_json(text, "torchtitan") if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameworkConfigError(
            f"torchtitan: neither TOML nor JSON: {str(error).splitlines()[0][:80]}"
        ) from None
    if "parallelism" not in raw and "training" not in raw:
        raise FrameworkConfigError("torchtitan: neither [parallelism] nor [training] in the file")
    return raw


def imported(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Imported:
    """Read a job file's content.

    Parameters
    ----------
    raw : mapping
        Tables by name.
    given : mapping
        Keywords of a job that go on top; ``gpus`` where the shard degree is -1 ("the rest").

    Raises
    ------
    FrameworkConfigError
        If a value is of the wrong kind.
    """
    recipe = given.get("recipe") or DEFAULT_RECIPE
    tables = _tables(raw)
    parallel, training, old = tables["parallelism"], tables["training"], tables["experimental"]
    warnings: list[str] = []
    notes: list[str] = []

    def degree(key: str, ours: str, default: int = 1) -> int:
        """Look where the degree is in the file's age."""
        if ours in given:
            return int(given[ours])
        for table in (parallel, training, old):
            if (found := table.get(key, None, int)) is not None:
                return int(found)
        return default

    degrees = {
        "tp": degree("tensor_parallel_degree", "tp"),
        "cp": degree("context_parallel_degree", "cp"),
        "pp": degree("pipeline_parallel_degree", "pp"),
        "ep": degree("expert_parallel_degree", "ep"),
        "etp": degree("expert_tensor_parallel_degree", "etp"),
    }
    replicate = degree("data_parallel_replicate_degree", "replicate")
    shard = degree("data_parallel_shard_degree", "shard", degree("data_parallel_degree", "data", -1))
    for axis, given_degree in {**degrees, "replicate": replicate}.items():
        if given_degree < 1:
            raise FrameworkConfigError(
                f"parallelism: the {axis} degree: expected at least 1, got {shown(given_degree)}"
            )
    if shard == 0 or shard < -1:
        raise FrameworkConfigError(
            f"parallelism: the shard degree: expected at least 1, or -1 for all that is left, got {shown(shard)}"
        )
    others = degrees["tp"] * degrees["cp"] * degrees["pp"] * replicate
    gpus = given.get("gpus")
    if shard > 0 and gpus is not None and gpus != others * shard:
        warnings.append(
            f"gpus = {gpus}: the degrees of the file make {others * shard} GPUs, which are priced; "
            "give --layout to place it on others"
        )
    if shard < 0 and gpus is not None:
        shard = max(1, gpus // others)
    known = shard > 0
    job: dict[str, Any] = {"recipe": recipe, **degrees, "gpus": others * shard if known else None}
    sharded = not known or shard * degrees["cp"] > 1
    job["zero_stage"] = 3 if sharded or replicate == 1 else 0
    job["shard_group"] = shard * degrees["cp"] if known and replicate > 1 and sharded else 0
    job |= _batch_of(training, parallel, degrees["pp"], replicate * shard if known else None)
    facts = {"local_batch": job.pop("local_batch")} if "local_batch" in job else {}
    model = given.get("model") or _model_of(tables, raw, notes)
    job["model"] = model
    job |= _stages_of(parallel, old, degrees["pp"])
    layers_each = job.pop("layers_per_stage", None)
    if layers_each and isinstance(model, str):
        ends = sum(int(parallel.raw.get(f"pipeline_parallel_{end}_stage_less_layers", 0)) for end in _ENDS)
        job["vp"] = -(-(load_model(model).num_layers + ends) // (degrees["pp"] * layers_each))
    elif layers_each:
        notes.append("pipeline_parallel_layers_per_stage: virtual stages need the model's layers; give vp")
    job["recompute"] = _recompute_of(tables["activation_checkpoint"], notes)
    job["precision"] = given.get("precision") or _precision_of(raw, tables, warnings)
    job["switches"] = _switches_of(tables, recipe, degrees)
    warnings += _unpriced(raw, tables, job, facts)
    job |= {
        key: value for key, value in given.items() if key not in ("env", "vocab_size", "switches", "gpus")
    }
    job["switches"] = {**job["switches"], **(given.get("switches") or {})}
    job |= tokens_of(training.raw["steps"] if type(training.raw.get("steps")) is int else None, job)
    missing = [key for key in REQUIRED if job.get(key) is None]
    return Imported(
        {key: value for key, value in job.items() if value is not None},
        ("cluster", *missing),
        _ignored(raw, tables),
        tuple(notes),
        tuple(warnings),
        facts,
    )


def _tables(raw: Mapping[str, Any]) -> dict[str, Section]:
    """Return the tables that are read; those that are not there are empty."""
    names = (
        "model",
        "training",
        "parallelism",
        "activation_checkpoint",
        "compile",
        "experimental",
        "optimizer",
        "float8",
    )
    found = {}
    for name in names:
        value = raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise FrameworkConfigError(f"torchtitan: {name}: expected a table, got {value!r}")
        found[name] = Section(value or {}, name)
    return found


def _batch_of(training: Section, parallel: Section, pp: int, dp: int | None) -> dict[str, Any]:
    """Read tokens and batch, of a file of any age."""
    seq = training.get("seq_len", None, int) or training.get("max_context_length", None, int)
    local = training.get("local_batch_size", training.get("batch_size", 1, int), int)
    total = training.get("global_batch_size", -1, int)
    per_rank = training.get("num_tokens_per_microbatch_per_dp_rank", None, int)
    per_step = training.get("num_tokens_per_train_step", None, int)
    if per_rank is not None and seq:
        cuts = parallel.get("num_pp_microbatches", None, int) if pp > 1 else None
        sequences = max(1, per_rank // seq)
        steps = per_step // seq if per_step and per_step > 0 else None
        whole = None if dp is None else dp * sequences
        return {
            "seq_len": seq,
            "micro_batch": max(1, sequences // cuts) if cuts else sequences,
            "global_batch": steps or whole,
        }
    micro = parallel.get("pipeline_parallel_microbatch_size", 1, int) if pp > 1 else local
    whole = None if dp is None else dp * local
    return {
        "seq_len": seq,
        "micro_batch": micro,
        "global_batch": total if total and total > 0 else whole,
        "local_batch": local,
    }


def _model_of(tables: Mapping[str, Section], raw: Mapping[str, Any], notes: list[str]) -> str | None:
    """Return our name of the model."""
    model = tables["model"]
    name, flavor = model.get("name", "", str), model.get("flavor", "", str)
    known = FLAVORS.get((name.lower(), flavor.lower()))
    backend = raw.get("hf_transformers")
    named = [backend.get("model", "")] if isinstance(backend, dict) else []
    if not (name and flavor):
        # A flavor that is not known is a debugging model, whatever its tokenizer.
        named += [str(raw.get("hf_assets_path") or "").rstrip("/").rsplit("/", 1)[-1]]
    if known:
        return known
    for candidate in named:
        try:
            if candidate:
                load_model(candidate)
                return str(candidate)
        except CostModelError:
            continue
    notes.append(
        f"model {f'{name} {flavor}'.strip() or 'unnamed'}: sizes live in torchtitan's code; give a model"
    )
    return None


def _stages_of(parallel: Section, old: Section, pp: int) -> dict[str, Any]:
    """Read the schedule and the virtual stages."""
    table = parallel if "pipeline_parallel_schedule" in parallel.raw or not old.raw else old
    given = table.get("pipeline_parallel_schedule", "1F1B", str)
    layers = parallel.get("pipeline_parallel_layers_per_stage", None, int)
    old.get("pipeline_parallel_microbatches", None, int)
    if pp == 1:
        return {"schedule": "none", "vp": 1}
    if given.lower() not in _SCHEDULE_OF:
        known = ", ".join(SCHEDULES.values())
        raise FrameworkConfigError(
            f"torchtitan: pipeline_parallel_schedule: expected one of {known}, got {given!r}"
        )
    schedule = _SCHEDULE_OF[given.lower()]
    looped = schedule in ("interleaved", "zb-v", "dualpipe-v")
    found: dict[str, Any] = {"schedule": schedule, "vp": 2 if looped else 1}
    if layers and schedule == "interleaved":
        found["layers_per_stage"] = layers
    return found


def _recompute_of(table: Section, notes: list[str]) -> str:
    """Read activation checkpointing: a mode, or since 2026 the name of a class."""
    kind = str(table.raw.get("__class__") or table.raw.get("_type") or "").rsplit(".", 1)[-1].lower()
    if kind in _RECOMPUTE_CLASSES and "mode" not in table.raw:
        return _RECOMPUTE_CLASSES[kind]
    mode = table.get("mode", "selective", str)
    option = table.get("selective_ac_option", "2", str)
    if mode == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget is priced as selective")
        return "selective"
    if mode not in RECOMPUTE_POLICIES:
        raise FrameworkConfigError(
            f"torchtitan: activation_checkpoint.mode: expected none, selective or full, got {mode!r}"
        )
    if mode == "selective" and option != "op":
        notes.append(f"selective_ac_option {option!r} is priced as 'op'")
    return str(mode)


def _precision_of(raw: Mapping[str, Any], tables: Mapping[str, Section], warnings: list[str]) -> str:
    """Read the precision: converters decide, a [quantize…] or [float8] table alone enables nothing."""
    converters = list(tables["model"].get("converters", [], list) or [])
    made = raw.get("model_converters")
    if isinstance(made, dict):
        converters += [
            each.get("__class__", each) if isinstance(each, dict) else each
            for each in made.get("converters", [])
        ]
    names = [str(each).lower().removesuffix(".config").rsplit("torchtitan.", 1)[-1] for each in converters]
    names = [
        name
        if name in _CONVERTERS or "." not in name or name.startswith("quantize")
        else name.rsplit(".", 1)[-1]
        for name in names
    ]
    for name in names:
        if name in _CONVERTERS:
            return _CONVERTERS[name]
        if not name.startswith(_PARTIAL_CONVERTERS):
            warnings.append(f"converter {name}: is not known, and not priced")
        else:
            warnings.append(
                f"converter {name}: low precision of the experts alone has no price; priced in bf16"
            )
    float8 = tables["float8"]
    if float8.get("enable_float8_linear", False, bool):
        return "fp8-current"
    stored = tables["training"].get("mixed_precision_param", "bfloat16", str)
    return "fp32" if stored == "float32" else "bf16"


def _switches_of(tables: Mapping[str, Section], recipe: str, degrees: Mapping[str, int]) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(recipe)
    training, parallel, compiled = tables["training"], tables["parallelism"], tables["compile"]
    reduce = training.get("mixed_precision_reduce", "float32", str)
    reshard = parallel.get("fsdp_reshard_after_forward", "default", str)
    rotate = parallel.get("context_parallel_rotate_method", "allgather", str)
    # A recipe that keeps layers gathered in pipelines says so by itself.
    reshards = degrees["pp"] == 1 or base.overlap.fsdp_pp_keeps_gathered
    pipelined = any(
        table.get("enable_async_tensor_parallel", False, bool)
        for table in (parallel, tables["experimental"], compiled)
    )
    read: dict[str, Any] = {
        "grad_reduce_dtype": "bf16" if reduce == "bfloat16" else "fp32",
        # By default torchtitan keeps layers gathered where a pipeline would gather them again each time.
        "fsdp_reshard_after_forward": reshards if reshard == "default" else reshard == "always",
        "compiled": compiled.get("enable", training.get("compile", False, bool), bool),
        "tp_overlap": "pipelined"
        if pipelined
        else "none"
        if base.overlap.tp_overlap == "pipelined"
        else base.overlap.tp_overlap,
    }
    if "disable_cuda_graphs" in training.raw:
        read["cuda_graphs"] = not training.get("disable_cuda_graphs", False, bool)
    if degrees["cp"] > 1:
        read["cp_method"] = "ring" if rotate == "alltoall" else "all-gather"
    current = base.switches
    # Said even where it is the recipe's: files of all ages differ in it.
    return {key: value for key, value in read.items() if current[key] != value or key == "compiled"}


def _unpriced(
    raw: Mapping[str, Any], tables: Mapping[str, Section], job: dict[str, Any], facts: dict[str, Any]
) -> list[str]:
    """Take the optimizer, and return warnings of what has no price."""
    warnings: list[str] = []
    optimizer = tables["optimizer"].raw
    name = str(optimizer.get("name") or optimizer.get("__class__") or "AdamW")
    if (
        name.lower()
        .removesuffix(".config")
        .endswith(("optimizerscontainer", "optimizersinbackwardcontainer"))
    ):
        groups = optimizer.get("param_groups")
        listed = [each.get("optimizer_name") for each in groups or () if isinstance(each, dict)]
        # Embeddings and norms keep AdamW beside an optimizer of matrices.
        others = [str(each) for each in listed if each and not str(each).lower().startswith("adam")]
        name = others[0] if others else "AdamW"
    # Functions of the registry: default_adamw, _dist_muon_optimizer.
    short = re.sub(r"^_*(?:default_)?|_optimizers?$", "", name)
    take_optimizer(short, job, facts, warnings)
    if optimizer.get("early_step_in_backward") or "InBackward" in name:
        warnings.append(
            "the optimizer steps inside the backward pass: gradients are priced as kept until its end"
        )
    if tables["training"].get("enable_cpu_offload", False, bool):
        facts["offload_param"] = True
        warnings.append(
            "training.enable_cpu_offload: parameters on the host are priced by --set offload_parameters=true, here on the GPU"
        )
    if str(tables["model"].raw.get("name", "")).lower() == "flux":
        warnings.append("flux is a diffusion model: no model here is like it")
    return warnings


def _ignored(raw: Mapping[str, Any], tables: Mapping[str, Section]) -> tuple[str, ...]:
    """Return keys that may matter and were not read."""
    read_ones = ("model", "training", "parallelism", "activation_checkpoint", "compile")
    keys = [
        f"{name}.{key}"
        for name in read_ones
        for key in tables[name].raw
        if key not in tables[name].read and not key.startswith("_")
    ]
    unknown = [name for name in raw if name not in _HARMLESS_TABLES]
    return tuple([key for key in keys if key not in _HARMLESS_KEYS] + unknown)


def _configured(name: str, functions: Mapping[str, ast.FunctionDef], depth: int) -> dict[str, Any]:
    """Return what a function of the registry returns, as nested mappings."""
    if depth > len(functions):
        raise FrameworkConfigError(f"torchtitan: {name}: calls itself")
    values: dict[str, dict[str, Any]] = {}
    for node in functions[name].body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=other))) if (
                other in functions
            ):
                values[target] = _configured(other, functions, depth + 1)
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                made = _value(value)
                values[target] = made if isinstance(made, dict) else {"__value__": made}
            case ast.Assign(targets=[ast.Attribute() as place], value=value):
                _put(values, ast.unparse(place).split("."), _value(value))
            case ast.Return(value=ast.Name(id=target)) if target in values:
                return values[target]
            case ast.Return(value=ast.Call(func=ast.Name(id=other))) if other in functions:
                return _configured(other, functions, depth + 1)
            case ast.Return(value=ast.Call() as call):
                made = _value(call)
                return _resolved(made, values) if isinstance(made, dict) else {}
            case _:
                continue
    raise FrameworkConfigError(f"torchtitan: {name}: returns no Trainer.Config that can be read")


def _resolved(made: Mapping[str, Any], values: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return keywords with the names of local variables looked up."""
    return {
        key: values[value["__name__"]]
        if isinstance(value, dict) and value.get("__name__") in values
        else value
        for key, value in made.items()
    }


def _put(values: dict[str, dict[str, Any]], path: list[str], value: Any) -> None:
    """Set a value in nested mappings, by the attributes that lead to it."""
    place: Any = values
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else {}
    if isinstance(place, dict):
        place[path[-1]] = value


def _value(node: ast.expr) -> Any:
    """Return a literal, or a call as its keywords under the name of what is called."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, (int, float)):
            return -value
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _value(left), _value(right)
            return first * second if isinstance(first, int) and isinstance(second, int) else None
        case ast.Call(func=called, args=arguments, keywords=keywords):
            made = {word.arg: _value(word.value) for word in keywords if word.arg}
            first = _value(arguments[0]) if arguments else None
            return {"__class__": ast.unparse(called), **({"__first__": first} if arguments else {}), **made}
        case ast.Name(id=name):
            return {"__name__": name}
        case _:
            return None


def _tables_of(raw: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a configuration of the registry as tables of a job file."""
    spec = raw.get("model_spec")
    flavor = spec.get("__first__") if isinstance(spec, dict) else None
    tables = {
        key: value
        for key, value in raw.items()
        if isinstance(value, (dict, str)) and not key.startswith("__")
    }
    if "activation_checkpoint" in raw and raw["activation_checkpoint"] is None:
        tables["activation_checkpoint"] = {"mode": "none"}
    if isinstance(spec, dict) and isinstance(spec.get("converters"), list):
        tables["model_converters"] = {"converters": spec["converters"]}
    checkpoint = tables.get("activation_checkpoint")
    if isinstance(checkpoint, dict):
        name = str(checkpoint.get("__class__", "")).removesuffix(".Config").rsplit(".", 1)[-1]
        tables["activation_checkpoint"] = {**checkpoint, "__class__": name}
    model = {"name": folder, "flavor": flavor if isinstance(flavor, str) else ""}
    return {**tables, "model": model, "training": tables.get("training") or {}}
