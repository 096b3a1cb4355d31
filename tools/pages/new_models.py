"""Write docs/models.md: ten models of now from a ``config.json`` to a plan, beside what was published of training them.

    python tools/pages/new_models.py            # rewrite docs/models.md
    python tools/pages/new_models.py --check    # exit 1 if it is out of date

The models and runs stand in `new_models.yaml`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import DOCS, settle
from ruamel.yaml import YAML

import costmodel as cm
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.models.model_files import _HUB_KEYS, _hub
from costmodel.estimates.estimate import Estimate
from costmodel.step.anatomy.params import num_active_params, num_params

HERE = Path(__file__).parent
CLUSTER = "dgx-h100-ndr"


def new_models() -> list[dict[str, Any]]:
    """Return the models of `new_models.yaml`."""
    return list(YAML(typ="safe", pure=True).load((HERE / "new_models.yaml").read_text(encoding="utf-8")))


def config_of(config: str | dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a ``config.json``: those given, or the hub's of a name."""
    if not isinstance(config, str):
        return config
    row = _hub()[config]["config"]
    more = row[len(_HUB_KEYS)] if len(row) > len(_HUB_KEYS) else {}
    return {**dict(zip(_HUB_KEYS, row, strict=False)), **more}


def config_file(config: str | dict[str, Any], folder: Path) -> str:
    """Write a ``config.json`` and return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(config_of(config)), encoding="utf-8")
    return str(path)


def priced(model: str, job: dict[str, Any]) -> Estimate:
    """Price a published run."""
    return cm.estimate(model=model, cluster=CLUSTER, **job)


def _plan_row(entry: dict[str, Any], model: str) -> str:
    """Return a model and its plan as a row."""
    found = cm.plan(model=model, cluster=CLUSTER, **{"seq_len": 4096, **entry["plan"]})
    best = found.best
    total, active = num_params(best.job.model) / 1e9, num_active_params(best.job.model) / 1e9
    size = f"{total:.1f} B" + (f", {active:.1f} B" if active < 0.95 * total else "")
    return (
        f"| {entry['name']} | {entry['what']} | {size} | {entry['plan']['gpus']:,}, {best.job.precision.name} "
        f"| {found.num_priced:,} | {layout_text(best.job.layout)} | {float(best.step_time_s):.2f} s, "
        f"{best.memory_bytes_per_gpu / 2**30:.0f} GiB | {float(best.tokens_per_s_per_gpu):,.0f}, {float(best.mfu):.1%} |"
    )


def _run_rows(entry: dict[str, Any], model: str) -> list[str]:
    """Return the published runs of a model as rows."""
    rows = []
    for run in entry.get("published", ()):
        rate = float(priced(model, run["job"]).tokens_per_s_per_gpu)
        published = run["tokens_per_s_per_gpu"]
        rows.append(
            f"| {entry['name']}, {run['job']['gpus']:,} H100, {run['job']['layout']} | {published:,} | {rate:,.0f} "
            f"| {rate / published - 1:+.1%} | {run['reference']} |"
        )
    return rows


def page() -> str:
    """Return docs/models.md."""
    plans, runs = [], []
    for entry in new_models():
        with tempfile.TemporaryDirectory() as folder:
            model = config_file(entry["config"], Path(folder))
            plans.append(_plan_row(entry, model))
            runs += _run_rows(entry, model)
    return "\n".join(
        [
            "# Models of now",
            "",
            "From a `config.json` to a plan on H100, written by `python tools/pages/new_models.py` from "
            "`tools/pages/new_models.yaml`. Parameters are exact; active ones count the token table. Plans keep to what "
            "the recipe's framework launches, and leave 5 % of the memory free.",
            "",
            "| model | what is new | parameters, active | GPUs, precision | layouts priced | best layout | step | "
            "tokens/s a GPU, MFU |",
            "|---|---|---|---|---|---|---|---|",
            *plans,
            "",
            "## Against what was published",
            "",
            "The run of gpt-oss is among those that recipes are fitted on, the others are in no fit. Of the other models no "
            "training throughput on GPUs that are described here was found.",
            "",
            "| run | published tokens/s a GPU | predicted | difference | source |",
            "|---|---|---|---|---|",
            *runs,
            "",
        ]
    )


def main() -> int:
    """Rewrite or check docs/models.md."""
    return settle({DOCS / "models.md": page()})


if __name__ == "__main__":
    sys.exit(main())
