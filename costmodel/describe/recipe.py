"""Recipes: how a training framework of some era runs a step.

A recipe is a list of documented behaviours (kernels, fusions, dtypes, overlaps, host overhead),
never a speed. Presets live in ``describe/data/recipes/*.yaml`` and say what differs from the defaults, or from the
recipe that they name as ``base``; a user overrides single switches.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, field_validator

from costmodel.base.csv_text import read_rows
from costmodel.base.errors import RecipeError, choices_hint, shown
from costmodel.base.words import error_sentence
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.frameworks import FRAMEWORKS, RELEASES, UNWRITTEN, Launches
from costmodel.describe.hardware.cluster import OPEN_KERNELS, Accelerator
from costmodel.describe.switch_table import (
    GROUP_OF,
    GROUPS,
    SWITCHES,
    DtypeSizes,
    OverlapWays,
    Switch,
    Switches,
)

LABELS = ("name", "description", "source", "launches", "prints")
"""What of a recipe is no switch."""

NUMERIC = frozenset(GROUPS["dtypes"].model_fields) | {
    *("gradient_compression", "sync_every", "sync_overlap_steps", "outer_compression", "outer_momentum"),
}
"""Switches that change what is computed: the model that comes out is another one."""

_FOLDER = files("costmodel") / "describe" / "data" / "recipes"


class Prints(BaseModel):
    """How a framework counts the FLOPs behind the utilisation that it prints."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mfu: Literal["full", "causal", "hardware"]
    """full: the whole attention matrix, no recomputation; causal: half of it; hardware: recomputation counted too."""
    source: str


_defaults: dict[str, Any] = {group: (model, model()) for group, model in GROUPS.items()}
_Groups: Any = create_model("_Groups", **_defaults)


class Recipe(_Groups):
    """The switches of a framework, and those of a job that runs it, by group; the table of switches says what each does.

    A switch has one name wherever it stands: in its group, in a preset's file, after ``--set``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if TYPE_CHECKING:
        kernels: Switches
        dtypes: DtypeSizes
        overlap: OverlapWays
        moe: Switches
        host: Switches
        memory: Switches
        policy: Switches
        health: Switches

    name: str
    description: str = ""
    source: str = ""
    launches: Launches | None = None
    """What its framework starts; none where nobody says it, and a plan tries everything."""
    prints: Prints | None = None
    """How its framework counts the MFU that it prints; none where nobody says it."""

    @field_validator("launches")
    @classmethod
    def _has_known_members(cls, launches: Launches | None) -> Launches | None:
        """Refuse schedules, stages and frameworks that do not exist."""
        from costmodel.physics.pipeline.schedule_table import SCHEDULES

        if launches is None:
            return None
        stated: tuple[tuple[str, Iterable[object], Collection[object]], ...] = (
            ("schedule", launches.schedule, SCHEDULES),
            ("zero_stage", launches.zero_stage, (0, 1, 2, 3)),
            ("framework", (launches.framework,), (*UNWRITTEN, *FRAMEWORKS)),
            ("release", (launches.release,), RELEASES.get(launches.framework, ("",))),
        )
        for name, given, known in stated:
            for member in given:
                if member not in known:
                    raise ValueError(
                        f"{name} {shown(member)} is unknown; {choices_hint(str(member), map(str, known))}"
                    )
        return launches

    @property
    def switches(self) -> dict[str, Any]:
        """Values of all switches by name."""
        return {name: getattr(getattr(self, group), name) for name, group in GROUP_OF.items()}

    @property
    def plain_switches(self) -> dict[str, Any]:
        """The same as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in self.switches.items()
        }

    def switched(self, changes: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some switches changed."""
        if not changes:
            return self
        for name in changes:
            find_switch(name)
        labels = {key: getattr(self, key) for key in LABELS}
        # Gradients that somebody wants in fp32 are not those that fp16 training keeps by itself.
        wants_fp32 = "fp32" in (changes.get("grad_accum_dtype"), changes.get("grad_reduce_dtype"))
        own = {"fp16_gradients": False} if wants_fp32 else {}
        return make_recipe({**labels, **self.switches, **own, **changes})

    def replaced(self, name: str, value: Any) -> Self:
        """Return the recipe with one switch at a value that is not checked."""
        group = GROUP_OF[name]
        changed: Self = self.model_copy(update={group: getattr(self, group).model_copy(update={name: value})})
        return changed


def find_switch(name: str) -> Switch:
    """Return the row of a switch."""
    if name not in SWITCHES:
        raise RecipeError(f"switches: {shown(name)} is unknown; {choices_hint(name[:60], SWITCHES)}")
    return SWITCHES[name]


def switch_text(value: Any) -> str:
    """Return the value of a switch as ``--set`` takes it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


@cache
def list_recipes() -> tuple[str, ...]:
    """Return the names of the shipped recipes."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _FOLDER.iterdir() if f.name.endswith(".yaml")))


_OTHERWISE = {
    **dict.fromkeys(("megatron", "megatron-lm", "mcore"), "megatron-core"),
    **dict.fromkeys(("fsdp", "fsdp2", "ddp", "pytorch", "huggingface", "transformers"), "torchtitan"),
    **dict.fromkeys(("hf", "trl", "axolotl", "accelerate", "torchtune", "unsloth"), "torchtitan"),
    **dict.fromkeys(("zero", "zero-3"), "deepspeed"),
}
"""What people call a way of training, and the recipe that is the nearest to it."""
_ADAPTERS = {"lora": "--lora-rank 16", "qlora": "--lora-rank 16 --base-dtype nf4"}
"""Ways of training that are fields of a job, with any recipe."""


@cache
def load_recipe(name: str) -> Recipe:
    """Return a shipped recipe by name.

    Raises
    ------
    RecipeError
        If there is none of that name, or its file is malformed.
    """
    if name in list_recipes():
        return make_recipe({"name": name, **_preset(name)})
    called = name.lower().replace("_", "-")
    if called in _ADAPTERS:
        meant = f"low-rank adapters are fields of the job, with any recipe: {_ADAPTERS[called]}"
    elif called in _OTHERWISE:
        meant = f"did you mean {_OTHERWISE[called]!r}? (costmodel recipe list has all)"
    else:
        meant = choices_hint(name, list_recipes())
    raise RecipeError(f"recipe: {shown(name)} is unknown; {meant}")


def _preset(name: str) -> dict[str, Any]:
    """Read a preset: switches and launches that it does not name are those of its base."""
    raw = read_mapping(_FOLDER / f"{name}.yaml", example="zero_stage: 1", error=RecipeError)
    inherited = _preset(raw.pop("base")) if "base" in raw else {}
    return {**inherited, "prints": None, **raw}


def make_recipe(values: Mapping[str, Any]) -> Recipe:
    """Validate a recipe given as labels and switches by name, as in a preset's file."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in LABELS:
            found[key] = _launches(value) if key == "launches" else value
        elif key in GROUP_OF:
            found.setdefault(GROUP_OF[key], {})[key] = value
        else:
            raise RecipeError(f"recipe: switch {key!r} is unknown; {choices_hint(key, GROUP_OF)}")
    try:
        return Recipe(**found)
    except ValidationError as error:
        first = error.errors()[0]
        path = first["loc"][1:] if first["loc"][0] in GROUPS else first["loc"]
        key = ".".join(str(part) for part in path)
        raise RecipeError(
            f"recipe {values.get('name', '')}: {key}: {error_sentence(first['msg'])}, got {shown(first['input'])}"
        ) from None


def _launches(given: Any) -> Any:
    """Complete what a recipe launches by what the framework that it names starts."""
    if not isinstance(given, Mapping):
        return given
    named = FRAMEWORKS.get(given.get("framework", "none"))
    plain = {"framework": "none", "release": "", "pipeline_layouts": False, "keeps": {}, "chooses": ()}
    return {**(asdict(named.launches) if named else plain), **given}


@cache
def _unexplained() -> dict[tuple[str, str], float | None]:
    """Read the shares that nothing explains by recipe and kind of device, which `tools/fit/fit_overheads.py` writes. [-]"""
    rows = read_rows(Path(__file__).parent / "data" / "overheads.csv")
    return {(row["recipe"], row["on"]): float(row["share"]) if row["share"] else None for row in rows}


def is_fitted(recipe: str, generation: str) -> bool:
    """Tell whether published runs of a recipe on devices of a generation say what share of them nothing explains."""
    return (recipe, generation) in _unexplained()


def share_keys(recipe: str, accelerator: Accelerator) -> list[tuple[str, str]]:
    """Return the keys of the share that nothing explains: the recipe's, its generation's, its stack's, its kind's."""
    kinds = [accelerator.generation]
    if accelerator.is_gpu and accelerator.has_own_stack:
        kinds.append("other-stacks")
    kinds.append("gpu" if accelerator.is_gpu else "other")
    return [(recipe, accelerator.generation), *(("any", kind) for kind in kinds)]


def usual_overhead(accelerator: Accelerator, recipe: str = "any") -> float:
    """Return the share of a step's passes that nothing explains in published runs of a recipe on devices like one. [-]"""
    shares = (_unexplained().get(key) for key in share_keys(recipe, accelerator))
    return next(share for share in shares if share is not None)


def resolved_for(recipe: Recipe, accelerator: Accelerator, precision: str) -> Recipe:
    """Return the recipe as it runs on a device in a precision: what it leaves to the device, and fp16 gradients, decided."""
    software = accelerator.software
    kernels = dict(zip(OPEN_KERNELS, (software.attention, software.torch_attention), strict=True))
    kernel = recipe.kernels.attention_kernel
    if kernel in kernels:
        recipe = recipe.replaced("attention_kernel", kernels[kernel])
    if recipe.overlap.collectives_on == "auto":
        recipe = recipe.replaced("collectives_on", accelerator.software.collectives_on)
    if recipe.host.overhead_fraction is None:
        recipe = recipe.replaced("overhead_fraction", usual_overhead(accelerator, recipe.name))
    if recipe.dtypes.fp16_gradients and precision == "fp16":
        recipe = recipe.replaced("grad_accum_dtype", "fp16").replaced("grad_reduce_dtype", "fp16")
    return recipe


def require_cores(recipe: Recipe, accelerator: Accelerator) -> None:
    """Refuse a device without the cores that a recipe gives collectives to."""
    if recipe.overlap.collectives_on == "sparse-cores" and not accelerator.sparse_cores:
        raise RecipeError(
            f"collectives_on: sparse-cores needs a device that has them; {accelerator.name} has none: "
            "auto or compute-cores"
        )
