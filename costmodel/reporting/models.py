"""Models for people: a list with sizes, and one with its parameters by component and its FLOPs."""

from __future__ import annotations

from typing import Any

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_si
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import list_models, load_model
from costmodel.step.anatomy.params import (
    model_flops_per_token,
    num_active_params,
    num_params,
    params_by_component,
)

DEFAULT_SEQ_LEN = 4096


def list_columns() -> dict[str, list[Any]]:
    """Return the shipped models as columns."""
    models = [load_model(name) for name in list_models()]
    return {
        "name": [model.name for model in models],
        "num_params": [num_params(model) for model in models],
        "num_active_params": [num_active_params(model) for model in models],
        "num_layers": [model.num_layers for model in models],
        "hidden_size": [model.hidden_size for model in models],
        "num_heads": [model.num_heads for model in models],
        "num_kv_heads": [model.num_kv_heads for model in models],
        "attention": [model.attention for model in models],
        "num_experts": [model.num_experts for model in models],
        "vocab_size": [model.vocab_size for model in models],
    }


def list_grid(table: dict[str, list[Any]]) -> Grid:
    """Return the list as a table."""
    rows = [
        [
            name,
            f"{params:,.0f}",
            f"{active:,.0f}" if active < params else "",
            str(layers),
            str(hidden),
            f"{heads}/{kv}",
            attention,
            str(experts or ""),
        ]
        for name, params, active, layers, hidden, heads, kv, attention, experts in zip(
            *(
                table[key]
                for key in (
                    "name",
                    "num_params",
                    "num_active_params",
                    "num_layers",
                    "hidden_size",
                    "num_heads",
                    "num_kv_heads",
                    "attention",
                    "num_experts",
                )
            ),
            strict=True,
        )
    ]
    titles = (
        "Model",
        "Parameters >",
        "Active >",
        "Layers >",
        "Hidden >",
        "Heads/KV >",
        "Attention",
        "Experts >",
    )
    return Grid("Models", columns(*titles), rows, note="also dense-<N>b, a model file, or a config.json")


def model_record(model: Model, seq_len: int) -> dict[str, Any]:
    """Return a model's dimensions, exact parameter counts and FLOPs per token as plain data."""
    return {
        "schema_version": 1,
        "name": model.name,
        "source": model.source,
        "num_params": num_params(model),
        "num_active_params": num_active_params(model),
        "params_by_component": params_by_component(model),
        "layer_kinds": {
            kind.name: model.kind_of_layer.count(i) for i, kind in enumerate(model.layer_kinds())
        },
        "seq_len": seq_len,
        "flops_per_token": float(model_flops_per_token(model, seq_len)),
        "flops_per_token_causal": float(model_flops_per_token(model, seq_len, True)),
        "dimensions": {
            key: value
            for key, value in model.model_dump(mode="json").items()
            if key not in ("name", "source")
        },
    }


def component_columns(record: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the parameters by component as columns."""
    parts = record["params_by_component"]
    return {"component": list(parts), "params": list(parts.values())}


def model_grids(record: dict[str, Any]) -> list[Grid]:
    """Return one model as tables: counts, components, dimensions."""
    total = record["num_params"]
    head = [
        ("parameters", f"{total:,.0f}"),
        ("active a token", f"{record['num_active_params']:,.0f}"),
        ("layers", ", ".join(f"{count} {name}" for name, count in record["layer_kinds"].items())),
        (
            f"training FLOPs per token at {record['seq_len']:,} tokens",
            f"{format_si(record['flops_per_token'], 'FLOP', 4)}, full attention matrix "
            f"(causal half: {format_si(record['flops_per_token_causal'], 'FLOP', 4)})",
        ),
        ("source", record["source"]),
    ]
    parts = [
        [name, f"{count:,.0f}", f"{count / total:.2%}"]
        for name, count in record["params_by_component"].items()
    ]
    note = "mtp.* (multi-token prediction) are on top" if any(p[0].startswith("mtp.") for p in parts) else ""
    parts.append(["all", f"{total:,.0f}", "100.00%"])
    given = [[key, str(value)] for key, value in record["dimensions"].items() if value not in (0, False, "")]
    return [
        Grid(record["name"], columns("", ""), head),
        Grid(
            "Parameters by component",
            columns("Component", "Parameters >", "Share >"),
            parts,
            frozenset([len(parts) - 1]),
            note,
        ),
        Grid("Dimensions", columns("Field", "Value"), given),
    ]
