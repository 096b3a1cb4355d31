"""What there is, as tables: lists of models, recipes and profiles, and one of each with its numbers and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.base.answer import Listing
from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_count
from costmodel.describe.factors import bits_of
from costmodel.describe.hardware.profile_pages import ProfilePage
from costmodel.describe.jobs.recipe_page import RecipePage
from costmodel.describe.precision import PRECISIONS
from costmodel.estimates.model_facts import ModelFacts
from costmodel.interop.answer import record
from costmodel.interop.framework import Imported
from costmodel.reporting.cells import facts_grid, grid_of, table_of


def list_grids(listing: Listing) -> list[Grid]:
    """Return a list as a table."""
    if listing.what == "support":
        return [_support_grid(listing.to_dict()["support"])]
    if listing.what != "models":
        title, titles = "Hardware profiles", columns("Kind", "Name", "Or", "Title")
        if listing.what == "recipes":
            title, titles = "Recipes", columns("Recipe", "Description")
        return [Grid(title, titles, list(zip(*listing.table.values(), strict=True)))]
    models = [
        {
            **model,
            "active": model["num_active_params"]
            if model["num_active_params"] < model["num_params"]
            else None,
            "experts": model["num_experts"] or None,
        }
        for model in listing.to_dict()["models"]
    ]
    return [table_of("models", models)]


def _support_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Return the frameworks of one machine, or of all machines how many runs each precision has by family."""
    if len({row["accelerator"] for row in rows}) == 1:
        missing = dict.fromkeys(row["precision"] for row in rows if row["status"] == "not modelled")
        note = f"Not modelled, for want of matrix units: {', '.join(missing)}." if missing else ""
        shown = [row for row in rows if row["status"] != "not modelled"]
        if (
            len({row["family"] for row in rows}) > 1
        ):  # of several families what was measured is enough to choose one
            shown = [row for row in shown if row["status"] == "measured"]
            note += " All else is estimated; costmodel support MODEL MACHINE has it."
        return table_of("support", shown, title=f"Support of {rows[0]['accelerator']}", note=note.strip())
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        if row["runs"]:
            bits = bits_of(PRECISIONS[row["precision"]].matmul_dtype)
            of = counts.setdefault(row["accelerator"], {}).setdefault(bits, {})
            of[row["family"]] = of.get(row["family"], 0) + row["runs"]
    widths = dict.fromkeys(bits for of in counts.values() for bits in of)

    def cell(chip: str, bits: str) -> str:
        return ", ".join(f"{runs} {family}" for family, runs in counts[chip].get(bits, {}).items())

    chips = sorted(counts, key=lambda chip: -sum(sum(of.values()) for of in counts[chip].values()))
    others = len({row["accelerator"] for row in rows}) - len(chips)
    note = (
        f"Empty, and of {others} other accelerators: estimated, or not modelled without such matrix units; "
        "costmodel support MODEL MACHINE says which."
    )
    cells = [[chip, *(cell(chip, bits) for bits in widths)] for chip in chips]
    title = "Published runs that prices are held against, by width of matrix products"
    return Grid(title, columns("Accelerator", *widths), cells, note=note)


def model_grids(found: ModelFacts) -> list[Grid]:
    """Return one model as tables: counts, components, dimensions."""
    facts = found.to_dict()
    total, components = facts["num_params"], facts["params_by_component"]
    layers = ", ".join(f"{count} {name}" for name, count in facts["layer_kinds"].items())
    head = facts_grid("model", facts, facts["name"], layers=layers)
    parts = [{"name": name, "count": count, "share": count / total} for name, count in components.items()]
    on_top = {
        "mtp": "mtp.* (multi-token prediction)",
        "vision": "vision.* (its tower)",
        "audio": "audio.* (its tower)",
    }
    there = [
        words for part, words in on_top.items() if any(name.startswith(f"{part}.") for name in components)
    ]
    note = f"{' and '.join(there)} are on top" if there else ""
    dimensions = {k: str(v) for k, v in facts["dimensions"].items() if v and k != "tower"}
    whole = ["all", f"{total:,.0f}", "100.00%"]
    return [
        head,
        table_of("components", parts, sums=[whole], note=note),
        pairs("Dimensions", ("Field", "Value"), dimensions),
    ]


def page_grids(page: ProfilePage) -> list[Grid]:
    """Return one profile as tables: the tiers of a cluster, then the numbers of the file."""
    numbers = table_of("numbers of a profile", page.numbers, title=f"{page.kind} {page.name}")
    if page.cluster is None:
        return [numbers]
    title = f"{page.name}: {page.cluster.title} ({page.cluster.accelerator.name})"
    return [table_of("tiers of a cluster", page.cluster.tiers, title=title), numbers]


def recipe_grids(page: RecipePage) -> list[Grid]:
    """Return the switches as a table; those that differ from the default stand out."""
    facts = page.to_dict()
    changed = frozenset(i for i, row in enumerate(facts["switches"]) if row["value"] != row["default"])
    title = f"{facts['name']}: {facts['description']}"
    note = f"source: {facts['source']}" if facts["source"] else ""
    return [table_of("recipe", facts["switches"], title=title, strong=changed, note=note)]


def import_grids(found: Imported) -> list[Grid]:
    """Return what was read of another program's file: job, model, sweeps, then what was noted and what is missing."""
    answer = record(found)
    grids, titles = [], ("Name", "Value")
    if answer["job"]:
        job = {key: value for key, value in answer["job"].items() if key != "switches"}
        job |= {f"set {name}": value for name, value in (answer["job"].get("switches") or {}).items()}
        if job.get("tokens"):
            job["tokens"] = format_count(float(job["tokens"]))
        grids.append(pairs(f"Job, from a file of {found.framework or found.kind}", titles, job))
    if answer["model"]:
        shape = {k: v for k, v in answer["model"].items() if v not in (0, "", None, (), {}) or k == "priced"}
        if tower := shape.get("tower"):
            shape["tower"] = f"{tower['name']}: {tower['num_layers']} layers of width {tower['hidden_size']}"
        grids.append(pairs("Model", titles, shape))
    if answer["sweeps"]:
        names = [name for name in answer["sweeps"][0] if name not in ("sizes", "time_s")]
        cells = {**{name: name for name in names}, "sizes": lambda sweep: str(len(sweep.get("sizes", ())))}
        grids.append(grid_of("Sweeps", answer["sweeps"], cells))
    notes = {f"note {number}": note for number, note in enumerate(answer["notes"], 1)}
    if answer["missing"]:
        notes["missing"] = ", ".join(answer["missing"])
    return [*grids, pairs("How it was read", titles, notes)] if notes else grids


def pairs(title: str, titles: tuple[str, str], values: Mapping[str, Any]) -> Grid:
    """Return names and their values as a table."""
    rows = [(key, f"{value:,}" if type(value) is int else str(value)) for key, value in values.items()]
    return Grid(title, columns(*titles), rows)
