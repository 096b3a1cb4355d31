"""A job from several places: a YAML file below, flags on top, each value checked for its kind.

A layout text counts as its degrees, so that ``--tp 4`` on top of ``layout: tp8 pp16`` replaces the
one degree. Inside one place the text and a degree must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.base.errors import CostModelError, LayoutError, RecipeError, choices_hint
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import ProfilePath, load_cluster
from costmodel.describe.jobs.job import DEFAULT_CLUSTER, DEFAULT_RECIPE, JOB_KEYS, load_job_file
from costmodel.describe.jobs.job import _axis_order as read_axis_order
from costmodel.describe.jobs.layout import Layout, make_layout, parse_layout
from costmodel.describe.recipe import Recipe, load_recipe, with_switches
from costmodel.physics.network.mesh import DEFAULT_ORDER

REQUIRED = ("model", "gpus", "global_batch", "seq_len")

_TEXTS = ("model", "cluster", "layout", "precision", "recipe", "recompute", "schedule")
_NUMBERS = (
    "gpus",
    "dp",
    "tp",
    "cp",
    "pp",
    "vp",
    "ep",
    "etp",
    "micro_batch",
    "zero_stage",
    "shard_group",
    "global_batch",
    "seq_len",
    "tokens",
)
_MODEL_FILES = (".yaml", ".yml", ".json")
_LABELS = ("name", "description", "source")


def read_job(path: str | Path) -> dict[str, Any]:
    """Read a job file and check the kind of every value; its paths count from its own folder.

    Raises
    ------
    CostModelError
        If the file cannot be read, or a value is not of the kind that its key takes.
    """
    try:
        values = {key: value for key, value in load_job_file(path).items() if value is not None}
    except UnicodeDecodeError:
        raise CostModelError(f"{path}: the job file is not text in UTF-8") from None
    folder = Path(path).parent
    for key, value in values.items():
        expected = _kind_problem(key, value)
        if expected:
            raise CostModelError(f"{path}: {key}: expected {expected}, got {value!r}")
    for key in ("model", "cluster"):
        given = Path(values.get(key, ""))
        if given.suffix in _MODEL_FILES and not given.is_absolute():
            values[key] = str(folder / given)
    return values


def _kind_problem(key: str, value: object) -> str:
    """Return what a job's key takes if `value` is something else, an empty text if it is fine."""
    if key in _TEXTS:
        return "" if isinstance(value, str) else "a text"
    if key in _NUMBERS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if is_number else "one number (lists are for the Python API)"
    if key == "sequence_parallel":
        return "" if isinstance(value, bool) else "true or false"
    if key == "switches":
        return "" if isinstance(value, dict) else "a mapping of switches"
    if key == "axis_order":
        is_list = isinstance(value, list) and all(isinstance(axis, str) for axis in value)
        is_order = isinstance(value, str) or is_list
        return "" if is_order else "the axes, innermost first, such as 'tp cp dp pp'"
    return f"one of {', '.join(k for k in JOB_KEYS if k != key)}"


def merge_jobs(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one description of a job over another; switches are merged one by one.

    Raises
    ------
    LayoutError
        If the layout text and a degree of the same description differ.

    Examples
    --------
    >>> merge_jobs({"layout": "tp8 pp16", "gpus": 128}, {"tp": 4})
    {'gpus': 128, 'tp': 4, 'pp': 16}
    """
    lower, upper = _spell_out(below), _spell_out(above)
    merged = {**lower, **upper}
    switches = {**(lower.get("switches") or {}), **(upper.get("switches") or {})}
    return {**merged, "switches": switches} if switches else merged


def _spell_out(job: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the layout text of a job by its degrees, and drop what is not given."""
    given = {key: value for key, value in job.items() if value is not None}
    text = given.pop("layout", None)
    for axis, degree in (parse_layout(text) if text is not None else {}).items():
        if given.get(axis, degree) != degree:
            raise LayoutError(f"{axis}: given as {given[axis]} and, in the layout text, as {degree}")
        given[axis] = degree
    return given


def require_complete(job: Mapping[str, Any]) -> None:
    """Refuse a job that leaves out what has no default.

    Raises
    ------
    CostModelError
        Naming everything that is missing.
    """
    missing = [key for key in REQUIRED if key not in job]
    if missing:
        flags = " ".join(f"--{key.replace('_', '-')} …" for key in missing)
        raise CostModelError(f"job: {', '.join(missing)} missing; give {flags} or a job file with these keys")


def parse_switches(pairs: list[str] | None) -> dict[str, Any]:
    """Read ``switch=value`` texts; a switch that takes several values has them joined by commas.

    Raises
    ------
    RecipeError
        If a text is not ``switch=value``, or there is no such switch.

    Examples
    --------
    >>> parse_switches(["dp_overlap=none", "selective_modules=core_attn,mlp"])
    {'dp_overlap': 'none', 'selective_modules': ['core_attn', 'mlp']}
    """
    known = [name for name in Recipe.model_fields if name not in _LABELS]
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not value:
            raise RecipeError(f"--set: expected switch=value, such as dp_overlap=none; got {pair!r}")
        if name not in known:
            raise RecipeError(f"--set: switch {name!r} is unknown; {choices_hint(name, known)}")
        several = isinstance(Recipe.model_fields[name].default, tuple)
        found[name] = value.split(",") if several else value
    return found


def read_switches(pairs: list[str] | None, stragglers: bool | None = None) -> dict[str, Any] | None:
    """Read the switches that flags change; the flag for stragglers gives way to ``stragglers=...``.

    >>> read_switches(["straggler_variation=0.02"], True)
    {'stragglers': 'normal', 'straggler_variation': '0.02'}
    """
    flag = {} if stragglers is None else {"stragglers": "normal" if stragglers else "none"}
    return {**flag, **parse_switches(pairs)} or None


def place_job(
    job: Mapping[str, Any], *, profile_path: ProfilePath = None
) -> tuple[Layout, Cluster, tuple[str, ...], Recipe]:
    """Return what places the ranks of a job: layout, cluster, axis order and recipe, no model.

    Raises
    ------
    CostModelError
        If `gpus` is missing, a name is unknown, or a degree is not a positive whole number.
    """
    if "gpus" not in job:
        raise CostModelError("job: gpus missing; give --gpus … or a job file with this key")
    degrees = {
        key: job[key]
        for key in ("tp", "cp", "pp", "vp", "ep", "etp", "zero_stage", "shard_group", "sequence_parallel")
        if key in job
    }
    layout = make_layout(gpus=job["gpus"], **degrees)
    dp = job.get("dp")
    if dp is not None and float(layout.dp) != dp:
        raise LayoutError(
            f"layout: tp·cp·pp·dp = {float(layout.tp):.0f}·{float(layout.cp):.0f}·{float(layout.pp):.0f}·"
            f"{dp} = {float(layout.tp * layout.cp * layout.pp) * dp:.0f}, but gpus = {float(layout.gpus):.0f}"
        )
    cluster = load_cluster(job.get("cluster", DEFAULT_CLUSTER), profile_path=profile_path)
    recipe = with_switches(load_recipe(job.get("recipe", DEFAULT_RECIPE)), dict(job.get("switches") or {}))
    return layout, cluster, read_axis_order(job.get("axis_order", DEFAULT_ORDER)), recipe
