"""Frameworks that a plan can be launched with: one record each, and the registry of them.

A record says what the framework starts at all, under which words, and where its exporter stands. What
`plan` looks at, what `--emit` refuses and what a recipe's ``launches`` leaves unsaid all follow from it. A new
framework is a new record in ``describe/data/frameworks.yaml``, whose head says what each field is, and a module that
writes its configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.base.yaml_files import read_mapping

MEGATRON_2026 = "NVIDIA/Megatron-LM 002526d81b81"
"""Megatron-Core in development after 0.18: what NVIDIA's containers from 26.06 on are nearest to."""


@dataclass(frozen=True, kw_only=True)
class Launches:
    """What a framework starts at all: the values of knobs that a plan for it keeps to."""

    framework: str  # Name in `FRAMEWORKS` of the one that writes its configurations, or none
    release: str  # Whose settings and assertions hold: the framework's own, or a later one of `RELEASES`
    zero_stage: tuple[int, ...]
    schedule: tuple[str, ...]  # Pipeline schedules, none for no pipeline
    pipeline_layouts: bool
    keeps: Mapping[str, str]
    chooses: tuple[str, ...]  # Switches that its users choose by a setting, and ``axis_order``
    source: str


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework whose configurations are written."""

    name: str
    title: str
    release: str
    exporter: str
    file: str
    recipe: str
    schedules: Mapping[str, str]
    precisions: Mapping[str, str]
    optimizers: Mapping[str, str]
    adapters: tuple[str, ...]
    zero_stage: tuple[int, ...]
    pipeline_layouts: bool
    recompute_modules: tuple[str, ...]
    switches: Mapping[str, tuple[object, ...]]
    axis_orders: tuple[str, ...]
    leaves: tuple[str, ...]
    keeps: Mapping[str, str]
    source: str

    @property
    def launches(self) -> Launches:
        """What it starts, as a recipe says it."""
        return Launches(
            framework=self.name,
            release=self.release,
            zero_stage=self.zero_stage,
            schedule=tuple(self.schedules),
            pipeline_layouts=self.pipeline_layouts,
            keeps=self.keeps,
            chooses=(*self.switches, "axis_order"),
            source=self.source,
        )

    @property
    def values(self) -> dict[str, str]:
        """Values of knobs that a search keeps to for the framework to run the result."""
        return {
            "schedule": ",".join(self.schedules),
            "zero_stage": ",".join(str(stage) for stage in self.zero_stage),
            **self.keeps,
        }


def _tuples(stated: Any) -> Any:
    """Return what a file says with tuples in place of lists."""
    if isinstance(stated, dict):
        return {key: _tuples(value) for key, value in stated.items()}
    return tuple(stated) if isinstance(stated, list) else stated


def _records() -> dict[str, Framework]:
    """Read every record, over the one that it is like."""
    path = Path(__file__).parent / "data" / "frameworks.yaml"
    rows = read_mapping(path, example="megatron: {title: Megatron-LM}")
    merged = {name: {**rows.get(row.get("like", ""), {}), **row, "name": name} for name, row in rows.items()}
    return {
        name: Framework(**{key: _tuples(value) for key, value in row.items() if key != "like"})
        for name, row in merged.items()
    }


FRAMEWORKS: dict[str, Framework] = _records()
"""Every framework whose configurations are written, by name."""

UNWRITTEN = ("neuronx", "none")
"""What a recipe's ``launches`` may name beside them: frameworks whose code was read and whose configurations nobody
writes here, and none for those whose code nobody outside reads."""

RELEASES: Mapping[str, tuple[str, ...]] = {
    name: (framework.release, MEGATRON_2026) if name in ("megatron", "nemo") else (framework.release,)
    for name, framework in FRAMEWORKS.items()
}
"""Releases of each framework whose settings are written and whose assertions are known, its own first."""


def framework_of(launches: Launches | None) -> Framework | None:
    """Return the framework that writes the configurations of what is launched; None where none does."""
    return None if launches is None else FRAMEWORKS.get(launches.framework)


def launched_by(name: str, launches: Launches | None) -> Launches:
    """Return what a framework starts, in the release of a recipe where the framework has that one too."""
    own = FRAMEWORKS[name].launches
    known = launches is not None and launches.release in RELEASES[name][1:]
    return replace(own, release=launches.release) if launches is not None and known else own


def trainers_of(base_dtype: str) -> tuple[str, ...]:
    """Return the frameworks that train adapters on a base of a type, in the order of the registry."""
    return tuple(name for name, framework in FRAMEWORKS.items() if base_dtype in framework.adapters)
