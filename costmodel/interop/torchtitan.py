"""torchtitan's configurations: job files of three ages read, a function of its Python registry written.

Job files are TOML of 2024 to February 2026 and the JSON that torchtitan saves since; what their keys mean stands in
``keys/torchtitan.yaml``. Since February 2026 torchtitan takes a Python function by ``--module`` and ``--config``
(torchtitan 0.3.0, ``torchtitan/config/manager.py``), and no TOML: such functions are read and written. Sizes of the model live in
torchtitan's Python; family and flavor name a preset here where one is known.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from costmodel.base.errors import shown
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import RECOMPUTE_POLICIES
from costmodel.describe.models.model import Model, same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.draft import Draft
from costmodel.interop.framework import (
    FrameworkConfigError,
    Imported,
    base_recipe,
    changed_switches,
    comments_of,
    counts_of,
    data_degrees,
    known_model,
    own_head,
    steps_of,
)
from costmodel.interop.keys import Values, key_table
from costmodel.interop.text_file import TextFile, parse_json
from costmodel.physics.pipeline.schedules import schedule_at

if TYPE_CHECKING:
    from costmodel.describe.jobs.job import Job

_RECORD = FRAMEWORKS["torchtitan"]
_KEYS = key_table("torchtitan")
_CONVERTERS: Mapping[str, str] = _KEYS.more["words"]["converters"]
_SCHEDULES = {theirs.lower(): ours for ours, theirs in _RECORD.schedules.items() if theirs}
_FLAVORS = {
    (family.lower(), flavor.lower()): name for name, (family, flavor, *_) in _KEYS.more["models"].items()
}
_WRITTEN = "# settings of torchtitan"
"""What stands at the head of a module that is written here."""
_DEEPEST = 8
"""Functions of a registry that stand on one another."""
_LARGEST = 2**40
"""Of the factors of a product."""
_SEVERAL_STAGES: Sequence[str] = _KEYS.more["words"]["several_stages"]


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job file; ``gpus`` is given beside it where the shard degree is -1."""
    text = file.text
    if "from torchtitan." in text:
        tables = module_tables(file, str((given.get("env") or {}).get("config", "")))
        return _imported(tables, {"recipe": own_head(text).get("recipe"), **given})
    try:
        raw = parse_json(text, "torchtitan") if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameworkConfigError(
            f"torchtitan: neither TOML nor JSON: {str(error).splitlines()[0][:80]}"
        ) from None
    if "parallelism" not in raw and "training" not in raw:
        raise FrameworkConfigError("torchtitan: neither [parallelism] nor [training] in the file")
    return _imported(raw, given)


def _imported(raw: Mapping[str, Any], given: Mapping[str, Any]) -> Imported:
    """Read a job file's content."""
    config = Values(_KEYS, raw, "torchtitan")
    draft = Draft(given, config)
    draft.put(recipe=_RECORD.recipe, **{axis: config[axis] for axis in ("tp", "cp", "pp", "ep", "etp")})
    ranks = _take_data_ranks(config, draft)
    draft.put(**_batch_of(config, draft["pp"], ranks))
    if not config.has("tokens_per_rank"):
        draft.facts["local_batch"] = config["local_batch"]
    if draft["model"] is None:
        draft.put(model=_model_of(config, draft.notes))
    _take_stages(config, draft)
    draft.put(recompute=_recompute_of(config, draft.notes))
    if draft["precision"] is None:
        draft.put(precision=_precision_of(config, draft.warnings))
    _take_optimizer(config, draft)
    if config["cpu_offload"]:
        draft.facts["offload_param"] = True
    draft.put_switches(_switches_of(config, draft))
    draft.put_steps(config["steps"])
    return draft.answer()


def _take_data_ranks(config: Values, draft: Draft) -> Fraction | None:
    """Read GPUs and sharding; return the data-parallel ranks, None where all that is left shards."""
    replicate, shard, gpus = config["replicate"], config["shard"], draft.job.pop("gpus", None)
    if shard == 0 or shard < -1:
        raise FrameworkConfigError(
            f"{config.key('shard')}: expected at least 1, or -1 for all that is left, got {shown(shard)}"
        )
    others = draft["tp"] * draft["cp"] * draft["pp"] * replicate
    if shard > 0 and gpus is not None and gpus != others * shard:
        draft.warnings.append(
            f"gpus = {gpus}: the degrees of the file make {others * shard} GPUs, which are priced; "
            "give --layout to place it on others"
        )
    ranks = Fraction(shard)
    if shard < 0 and gpus is not None:
        # On GPUs that the other degrees do not divide, a batch of as many sequences a GPU.
        ranks = max(Fraction(gpus, others), Fraction(1))
        shard = max(1, gpus // others)
    known = shard > 0
    sharded = not known or shard * draft["cp"] > 1
    draft.put(
        gpus=others * shard if known else None,
        zero_stage=3 if sharded or replicate == 1 else 0,
        shard_group=shard * draft["cp"] if known and replicate > 1 and sharded else 0,
    )
    return replicate * ranks if known else None


def _batch_of(config: Values, pp: int, ranks: Fraction | None) -> dict[str, Any]:
    """Read tokens and batch, of a file of any age."""
    seq, per_rank, per_step = config["seq_len"], config["tokens_per_rank"], config["tokens_per_step"]
    if per_rank is not None and seq:
        cuts = config["pipeline_micro_batches"] if pp > 1 else None
        sequences = max(1, per_rank // seq)
        steps = per_step // seq if per_step and per_step > 0 else None
        return {
            "seq_len": seq,
            "micro_batch": max(1, sequences // cuts) if cuts else sequences,
            "global_batch": steps or (ranks and int(ranks * sequences)),
        }
    local, total = config["local_batch"], config["global_batch"]
    return {
        "seq_len": seq,
        "micro_batch": config["pipeline_micro_batch"] if pp > 1 else local,
        "global_batch": total if total > 0 else ranks and int(ranks * local),
    }


def _model_of(config: Values, notes: list[str]) -> str | None:
    """Return our name of the model."""
    name, flavor = config["model"], config["flavor"]
    if known := _FLAVORS.get((name.lower(), flavor.lower())):
        return str(known)
    named = [config["hub_model"]]
    if not (name and flavor):
        # A flavor that is not known is a debugging model, whatever its tokenizer.
        named.append(str(config["hub_assets"]).rstrip("/").rsplit("/", 1)[-1])
    for candidate in filter(None, named):
        if known_model(str(candidate)):
            return str(candidate)
    notes.append(
        f"model {f'{name} {flavor}'.strip() or 'unnamed'}: sizes live in torchtitan's code; give a model"
    )
    return None


def _take_stages(config: Values, draft: Draft) -> None:
    """Read the schedule and the virtual stages."""
    pp, model = draft["pp"], draft["model"]
    if pp == 1:
        draft.put(schedule="none", vp=1)
        return
    if config["schedule"].lower() not in _SCHEDULES:
        words = [word for word in _RECORD.schedules.values() if word]
        raise config.error(config.key("schedule"), f"one of {', '.join(words)}", config["schedule"])
    schedule, each = _SCHEDULES[config["schedule"].lower()], config["layers_per_stage"]
    if schedule == "interleaved" and each:
        if isinstance(model, str):
            places = load_model(model).num_layers + config["first_less"] + config["last_less"]
            draft.put(vp=-(-places // (pp * each)))
        else:
            draft.notes.append(
                "pipeline_parallel_layers_per_stage: virtual stages need the model's layers; give vp"
            )
    draft.put(schedule=schedule, vp=2 if schedule in _SEVERAL_STAGES else 1)


def _recompute_of(config: Values, notes: list[str]) -> str:
    """Read activation checkpointing: a mode, or since 2026 the name of a class."""
    classes: Mapping[str, str] = _KEYS.more["words"]["recompute_classes"]
    kind = config["recompute_class"].rsplit(".", 1)[-1].lower()
    if kind in classes and not config.has("recompute"):
        return classes[kind]
    mode = str(config["recompute"])
    if mode == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget is priced as selective")
        return "selective"
    if mode == "selective" and config["recompute_option"] != "op":
        notes.append(f"selective_ac_option {config['recompute_option']!r} is priced as 'op'")
    return mode


def _precision_of(config: Values, warnings: list[str]) -> str:
    """Read the precision: converters decide, a [quantize…] or [float8] table alone enables nothing."""
    made = [
        each.get("_type") or each.get("__class__") if isinstance(each, dict) else each
        for each in config["converters_made"]
    ]
    for converter in (*config["converters"], *made):
        name = str(converter).lower().removesuffix(".config").rsplit("torchtitan.", 1)[-1]
        if name not in _CONVERTERS and not name.startswith("quantize"):
            name = name.rsplit(".", 1)[-1]
        if name in _CONVERTERS:
            return _scaled(_CONVERTERS[name], config)
        experts_only = name.startswith(tuple(_KEYS.more["words"]["experts_only"]))
        what = "low precision of the experts alone has no price; priced in bf16"
        warnings.append(f"converter {name}: {what if experts_only else 'is not known, and not priced'}")
    if config["float8_linear"]:
        return _scaled("fp8-current", config)
    return "fp32" if config["param_dtype"] == "float32" else "bf16"


def _scaled(precision: str, config: Values) -> str:
    """Return 8 bits with a scale a row where torchao's recipe says so."""
    by_row = precision == "fp8-current" and str(config["float8_recipe"]).startswith("rowwise")
    return "fp8-rowwise" if by_row else precision


def _switches_of(config: Values, draft: Draft) -> dict[str, Any]:
    """Read the switches that differ from those of the recipe."""
    base = load_recipe(draft["recipe"])
    # By default torchtitan keeps layers gathered where a pipeline would gather them again each time; a recipe that
    # keeps them in pipelines says so by itself.
    reshards = draft["pp"] == 1 or base.overlap.fsdp_pp_keeps_gathered
    unpipelined = "none" if base.overlap.tp_overlap == "pipelined" else base.overlap.tp_overlap
    read: dict[str, Any] = {
        "grad_reduce_dtype": "bf16" if config["reduce_dtype"] == "bfloat16" else "fp32",
        "fsdp_reshard_after_forward": reshards
        if config["reshard"] == "default"
        else config["reshard"] == "always",
        "tp_overlap": "pipelined" if config["async_tp"] else unpipelined,
    }
    if config.has("no_cuda_graphs"):
        read["cuda_graphs"] = not config["no_cuda_graphs"]
    if draft["cp"] > 1:
        read["cp_method"] = "ring" if config["rotate"] == "alltoall" else "all-gather"
    # Said even where it is the recipe's: files of all ages differ in it.
    return {
        **changed_switches(read, base),
        "compiled": config["compiled"] and "model" in config["compiled_parts"],
    }


def _take_optimizer(config: Values, draft: Draft) -> None:
    """Read the optimizer; beside one of matrices embeddings and norms keep AdamW."""
    name = str(config["optimizer"] or "AdamW")
    if name.lower().endswith(("optimizerscontainer", "optimizersinbackwardcontainer")):
        listed = [
            str(each.get("optimizer_name") or "") for each in config["param_groups"] if isinstance(each, dict)
        ]
        name = next((each for each in listed if each and not each.lower().startswith("adam")), "AdamW")
    # Functions of the registry: default_adamw, _dist_muon_optimizer.
    draft.put_optimizer(re.sub(r"^_*(?:default_)?|_optimizers?$", "", name))


_CLASSES = {"fp8-current": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter"}
_POLICIES = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


def emit_torchtitan(job: Job) -> str:
    """Return a module whose function ``job`` is the configuration of one layout."""
    counts = counts_of(job)
    family, flavor, base = _registered(job.model)
    policy = RECOMPUTE_POLICIES[int(job.layout.recompute)]
    compiled = job.recipe.kernels.compiled
    tables = _KEYS.nested(
        {
            **_training(job, counts),
            **_parallelism(job, counts),
            "compiled": compiled,
            "async_tp": job.recipe.overlap.tp_overlap == "pipelined",
        }
    )
    imports = [
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        f"from torchtitan.models.{family} import model_registry",
        f"from torchtitan.models.{family}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
    ]
    if policy != "none":
        kind = _POLICIES[policy].split(".")[0]
        imports.insert(1, f"from torchtitan.distributed.activation_checkpoint import {kind}")
    made = [f'"{flavor}"', 'attn_backend="flex"']
    if job.model.mtp_layers:
        made.append(f"num_mtp_layers={job.model.mtp_layers}")
    if converter := _CLASSES.get(job.precision.name):
        imports.insert(0, f"from torchtitan.components.quantization import {converter}")
        made.append(f"converters=[{converter}.Config(model_compile_enabled={compiled})]")
    compiles = ", ".join(f"{key}={value}" for key, value in tables["compile"].items())
    body = [
        f"config = {base}()",
        f"config.model_spec = model_registry({', '.join(made)})",
        f"config.training = {_call('TrainingConfig', tables['training'])}",
        f"config.parallelism = {_call('ParallelismConfig', tables['parallelism'])}",
        f"config.activation_checkpoint = {_POLICIES[policy]}",
        f"config.compile = CompileConfig({compiles})",
        "return config",
    ]
    back = _imported(tables, {"recipe": base_recipe(job, _RECORD.recipe)})
    notes = [
        f"# model {job.model.name} on {counts['gpus']} GPUs of {job.cluster.name}, recipe {job.recipe.name}",
        f"# settings of {_RECORD.release}",
        "# saved as costmodel_job.py: torchrun … -m torchtitan.train --module costmodel_job --config job",
    ]
    notes += comments_of(_RECORD, job, back, "setting")
    function = ["def job() -> Trainer.Config:", *(f"    {line}" for line in body)]
    return "\n".join([*notes, *imports, "", "", *function]) + "\n"


def module_tables(file: TextFile, chosen: str = "") -> dict[str, Any]:
    """Return the tables of a function of a registry, the chosen or the only one; it is parsed, never run."""
    try:
        module = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FrameworkConfigError(f"torchtitan: not a module of Python: {str(error)[:80]}") from None
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    makers = [name for name, node in functions.items() if node.returns and not node.args.args]
    if len(makers) != 1 and chosen not in makers:
        raise FrameworkConfigError(
            f"torchtitan: expected one of its configurations, such as --env config={(makers or ['NAME'])[0]}: "
            f"{', '.join(makers) or 'none is a function without arguments'}"
        )
    family = re.search(r"^from torchtitan\.models\.(\w+) import", file.text, re.M)
    folder = file.folder.absolute().name if file.folder else ""
    reader = _Registry(functions, family[1] if family else folder, whole=_WRITTEN in file.text)
    return reader.function(chosen if chosen in makers else makers[0])


class _Registry:
    """Follows the functions of a registry; `whole` is one that says all that its base does."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef], family: str, *, whole: bool) -> None:
        self.functions, self.family, self.whole = functions, family, whole

    def function(self, name: str, depth: int = 0) -> dict[str, Any]:
        """Return the tables that a function makes."""
        if name not in self.functions and self.whole:
            return {}
        if name not in self.functions or depth > _DEEPEST:
            raise FrameworkConfigError(
                f"torchtitan: {shown(name)} is not in the file; read what torchtitan saves"
            )
        tables: dict[str, Any] = {}
        held: dict[str, ast.expr] = {}
        for node in self.functions[name].body:
            match node:
                case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.FunctionDef() | ast.ImportFrom():
                    pass
                case (
                    ast.Assign(targets=[ast.Name(id="config")], value=value)
                    | ast.Return(value=ast.Call() as value)
                ):
                    tables = self.made(value, held, depth)
                case ast.Assign(targets=[ast.Name(id=local)], value=value):
                    held[local] = value
                case ast.Assign(targets=[ast.Attribute() as target], value=value) if ast.unparse(
                    target
                ).startswith("config."):
                    *path, last = ast.unparse(target).split(".")[1:]
                    here = tables
                    for part in path:
                        here = here.setdefault(part, {})
                    here |= self.table(last, value, held)
                case ast.Return(value=ast.Name(id="config")):
                    pass
                case _:
                    raise FrameworkConfigError(
                        f"torchtitan: line {node.lineno} is not followed: {shown(ast.unparse(node))}; "
                        "read what torchtitan saves as JSON"
                    )
        return tables

    def made(self, value: ast.expr, held: Mapping[str, ast.expr], depth: int) -> dict[str, Any]:
        """Return the tables of ``Trainer.Config(…)``, or of another function of the registry."""
        match value:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
                return self.function(name, depth + 1)
            case ast.Call(func=kind, args=[], keywords=words) if ast.unparse(kind).endswith("Config"):
                parts = [self.table(str(word.arg), word.value, held) for word in words]
                return {key: each for part in parts for key, each in part.items()}
        raise FrameworkConfigError(f"torchtitan: {shown(ast.unparse(value))} is not followed")

    def table(self, key: str, value: ast.expr, held: Mapping[str, ast.expr]) -> dict[str, Any]:
        """Return a key with its value: a literal, the table of a class, or the text of what only running tells."""
        value = held.get(value.id, value) if isinstance(value, ast.Name) else value
        if key == "model_spec" and isinstance(value, ast.Call):
            calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
            names = [word.value for each in calls for word in each.keywords if word.arg == "fqns"]
            if some := [each for each in names if _literal(each) != ["layers"]]:
                raise FrameworkConfigError(
                    f"torchtitan: fqns={shown(ast.unparse(some[0]))}: low precision of some layers has no price"
                )
            flavor = value.args[0] if value.args else ast.Constant("")
            converters = [
                name for each in calls if (name := ast.unparse(each.func)).endswith("Converter.Config")
            ]
            others = {
                str(word.arg): _literal(word.value) for word in value.keywords if word.arg != "converters"
            }
            named = {"name": self.family, "flavor": _literal(flavor), "converters": converters}
            return {"model": {**others, **named}}
        if isinstance(value, ast.Call) and (not value.args or key == "optimizer"):
            kind = ast.unparse(value.func).removesuffix(".Config")
            parts = [self.table(str(word.arg), word.value, held) for word in value.keywords]
            return {key: {"_type": kind, **{name: each for part in parts for name, each in part.items()}}}
        if isinstance(value, ast.List) and all(isinstance(each, ast.Call) for each in value.elts):
            return {key: [self.table(key, each, held)[key] for each in value.elts]}
        found = _literal(value)
        return {key: {"_type": "none"} if found is None and key == "activation_checkpoint" else found}


def _literal(value: ast.expr) -> Any:
    """Return a literal or a product of whole numbers, the text of another expression."""
    try:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            factors = (_literal(value.left), _literal(value.right))
            if all(type(factor) is int and 0 <= factor <= _LARGEST for factor in factors):
                return factors[0] * factors[1]
        return ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return ast.unparse(value)


def _registered(model: Model) -> tuple[str, str, str]:
    """Return family, flavor and function of a model of torchtitan's registry: its own, or one of the same shape."""
    written = {
        name: (each[0], each[1], each[2]) for name, each in _KEYS.more["models"].items() if len(each) > 2
    }
    if model.name in written:
        return written[model.name]
    for name, spelled in written.items():
        if same_shape(load_model(name), model):
            return spelled
    raise FrameworkConfigError(
        f"emit: torchtitan has no model {model.name}; it has {', '.join(sorted(written))}"
    )


def _training(job: Job, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return batch, sequence and numerics."""
    # The pipeline cuts the local batch; without one, accumulation does.
    cuts = counts["micro_batches"] if counts["pp"] > 1 else 1
    return {
        "local_batch": counts["micro_batch"] * cuts,
        "global_batch": counts["global_batch"],
        "seq_len": counts["seq_len"],
        **({"steps": steps} if (steps := steps_of(job)) else {}),
        "param_dtype": "float32" if job.precision.name == "fp32" else "bfloat16",
        "reduce_dtype": "bfloat16" if job.recipe.dtypes.grad_reduce_dtype == "bf16" else "float32",
        "no_cuda_graphs": not job.recipe.host.cuda_graphs,
    }


def _parallelism(job: Job, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return degrees, sharding and the pipeline."""
    overlap, memory, piped = job.recipe.overlap, job.recipe.memory, counts["pp"] > 1
    replicate, shard = data_degrees(counts)
    reshard = "default" if piped and overlap.fsdp_pp_keeps_gathered else "always"
    values: dict[str, Any] = {
        "replicate": replicate,
        "shard": shard,
        "reshard": reshard if overlap.fsdp_reshard_after_forward else "never",
        "tp": counts["tp"],
        "sequence_parallel": bool(job.layout.sequence_parallel) or counts["tp"] == 1,
        "cp": counts["cp"],
        "pp": counts["pp"],
        "ep": counts["ep"],
    }
    if not piped:
        return values
    schedule = schedule_at(job.layout.schedule).name
    first, last = int(memory.embedding_as_layer), int(memory.head_as_layer)
    values |= {
        "schedule": _RECORD.schedules[schedule],
        "pipeline_micro_batch": counts["micro_batch"],
        "first_less": first,
        "last_less": last,
    }
    if schedule in _SEVERAL_STAGES and counts["vp"] != 2:
        places = job.model.num_layers + first + last
        values["layers_per_stage"] = -(-places // (counts["pp"] * counts["vp"]))
    return values


def _call(name: str, values: Mapping[str, Any]) -> str:
    """Write a call with keywords, one a line."""
    lines = "".join(
        f'        {key}="{value}",\n' if isinstance(value, str) else f"        {key}={value},\n"
        for key, value in values.items()
    )
    return f"{name}(\n{lines}    )"
