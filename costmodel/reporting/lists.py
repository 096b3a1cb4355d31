"""What there is, as tables: lists of models, recipes and profiles, and one of each with its numbers and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.base.answer import Listing
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_si
from costmodel.describe.hardware.profile_pages import ProfilePage
from costmodel.describe.jobs.recipe_page import RecipePage
from costmodel.describe.recipe import switch_text
from costmodel.estimates.model_facts import ModelFacts
from costmodel.interop.answer import record
from costmodel.interop.framework import Imported
from costmodel.reporting.cells import grid_of


def list_grids(listing: Listing) -> list[Grid]:
    """Return a list as a table."""
    if listing.what != "models":
        title, titles = {
            "recipes": ("Recipes", columns("Recipe", "Description")),
        }.get(listing.what, ("Hardware profiles", columns("Kind", "Name", "Or", "Title")))
        return [Grid(title, titles, list(zip(*listing.table.values(), strict=True)))]
    models = listing.to_dict()["models"]
    cells = {
        "Model": "name",
        "Parameters >": "num_params:,.0f",
        "Active >": lambda m: (
            f"{m['num_active_params']:,.0f}" if m["num_active_params"] < m["num_params"] else ""
        ),
        "Layers >": "num_layers",
        "Hidden >": "hidden_size",
        "Heads/KV >": lambda model: f"{model['num_heads']}/{model['num_kv_heads']}",
        "Attention": "attention",
        "Experts >": lambda model: str(model["num_experts"] or ""),
    }
    return [grid_of("Models", models, cells, note="also dense-<N>b, a model file, or a config.json")]


def model_grids(found: ModelFacts) -> list[Grid]:
    """Return one model as tables: counts, components, dimensions."""
    facts = found.to_dict()
    total, components = facts["num_params"], facts["params_by_component"]
    flops = [format_si(facts[name], "FLOP", 4) for name in ("flops_per_token", "flops_per_token_causal")]
    head = [
        ("parameters", f"{total:,.0f}"),
        ("active a token", f"{facts['num_active_params']:,.0f}"),
        ("layers", ", ".join(f"{count} {name}" for name, count in facts["layer_kinds"].items())),
        ("KV cache a token", f"{facts['kv_cache_bytes_per_token']:,.0f} B in 16 bits"),
        (
            f"training FLOPs per token at {facts['seq_len']:,} tokens",
            f"{flops[0]}, full attention matrix (causal-masked: {flops[1]})",
        ),
        ("source", facts["source"]),
    ]
    parts = {
        "Component": lambda part: part[0],
        "Parameters >": lambda part: f"{part[1]:,.0f}",
        "Share >": lambda part: f"{part[1] / total:.2%}",
    }
    on_top = any(name.startswith("mtp.") for name in components)
    return [
        Grid(facts["name"], columns("", ""), head),
        grid_of(
            "Parameters by component",
            components.items(),
            parts,
            sums=[["all", f"{total:,.0f}", "100.00%"]],
            note="mtp.* (multi-token prediction) are on top" if on_top else "",
        ),
        _pairs(
            "Dimensions",
            "Field",
            {k: str(v) for k, v in facts["dimensions"].items() if v not in (0, False, "")},
        ),
    ]


def page_grids(page: ProfilePage) -> list[Grid]:
    """Return one profile as tables: the tiers of a cluster, then the numbers of the file."""
    numbers = {"Key": "key", "Value": "value", "Source": "source", "Title of the source": "title"}
    grids = [grid_of(f"{page.kind} {page.name}", page.numbers, numbers)]
    if page.cluster is None:
        return grids
    tiers = {
        "Tier": "name",
        "Link": "link",
        "GPUs >": "size:,",
        "Line rate >": "bandwidth_bytes_per_s:B/s",
        "Oversubscribed >": lambda tier: f"{tier.oversubscription:g}:1",
        "Achieved >": "efficiency:.0%",
        "Latency >": lambda tier: f"{tier.latency_s * 1e6:.2g} us",
    }
    title = f"{page.name}: {page.cluster.title} ({page.cluster.accelerator.name})"
    note = "Rates per GPU and direction, innermost tier first."
    return [grid_of(title, page.cluster.tiers, tiers, note=note), *grids]


def recipe_grids(page: RecipePage) -> list[Grid]:
    """Return the switches as a table; those that differ from the default stand out."""
    facts = page.to_dict()
    cells = {
        "Switch": "switch",
        "Value": lambda row: switch_text(row["value"]),
        "Default": lambda row: switch_text(row["default"]),
        "Choices": "choices",
        "Meaning": "meaning",
    }
    changed = frozenset(i for i, row in enumerate(facts["switches"]) if row["value"] != row["default"])
    title, note = (
        f"{facts['name']}: {facts['description']}",
        f"source: {facts['source']}" if facts["source"] else "",
    )
    return [grid_of(title, facts["switches"], cells, strong=changed, note=note)]


def import_grids(found: Imported) -> list[Grid]:
    """Return what was read of another program's file: job, model, sweeps, then what was noted and what is missing."""
    answer = record(found)
    grids = []
    if answer["job"]:
        switches = {f"set {name}": value for name, value in (answer["job"].get("switches") or {}).items()}
        plain = {key: value for key, value in answer["job"].items() if key != "switches"}
        grids.append(
            _pairs(f"Job, from a file of {found.framework or found.kind}", "Name", {**plain, **switches})
        )
    if answer["model"]:
        said = {k: v for k, v in answer["model"].items() if v not in (0, "", None, ()) or k == "priced"}
        grids.append(_pairs("Model", "Name", said))
    if answer["sweeps"]:
        names = [name for name in answer["sweeps"][0] if name not in ("sizes", "time_s")]
        cells = {**{name: name for name in names}, "sizes": lambda sweep: str(len(sweep.get("sizes", ())))}
        grids.append(grid_of("Sweeps", answer["sweeps"], cells))
    notes = {f"note {number}": note for number, note in enumerate(answer["notes"], 1)}
    if answer["missing"]:
        notes["missing"] = ", ".join(answer["missing"])
    return [*grids, _pairs("How it was read", "Name", notes)] if notes else grids


def _pairs(title: str, name: str, values: Mapping[str, Any]) -> Grid:
    rows = [(key, f"{value:,}" if type(value) is int else str(value)) for key, value in values.items()]
    return Grid(title, columns(name, "Value"), rows)
