"""Models as tables: a list with sizes, and one with its parameters by component and its FLOPs."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_si
from costmodel.estimates.model_facts import ModelFacts


def model_grids(found: ModelFacts) -> list[Grid]:
    """Return one model as tables: counts, components, dimensions."""
    record = found.to_dict()
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
