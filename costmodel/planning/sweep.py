"""Sweeps over models, clusters, scales and link speeds, on one core or on any executor.

A sweep is a list of points, each the keywords of one `costmodel.plan` (or of one estimate, where a
layout is given). What is finished is kept in a file, so that a killed sweep goes on where it
stopped. The rows are those of a loop, in the order of the points, whoever computed them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, LayoutError, NoLayoutError, shown
from costmodel.base.version import __version__
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.fields import FIELD, FIELDS, LAYOUT_FIELDS, SWEEP_FIELDS, names, shows
from costmodel.describe.jobs.job import DEFAULT_CLUSTER, default_recipe
from costmodel.describe.jobs.merge import with_own_prices
from costmodel.describe.jobs.reading import keywords, read, require_complete
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.estimates.frame import wide_columns
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.estimates.samples import SAMPLE_COLUMNS, require_count, sample_columns
from costmodel.physics.network.mesh import DEFAULT_ORDER
from costmodel.planning.plan import plan
from costmodel.whole_run.run import step_power_w

Point = Mapping[str, Any]
Row = dict[str, Any]
Progress = Callable[[int, int], None]

AXES = names(field for field in FIELDS if field.swept)
"""Keywords of which a list means one point a value."""

_FIGURES = (
    "step_time_s",
    "mfu",
    "tokens_per_s_per_gpu",
    "memory_bytes_per_gpu",
    *names(LAYOUT_FIELDS),
    "choices",
)
_SPENT = ("days", "gpu_hours", "energy_kwh", "dollars", "price_usd_per_gpu_hour")
"""What the whole run takes while nothing fails; none without tokens, dollars none without a price."""
_SAMPLED = tuple(column.name for column in SAMPLE_COLUMNS)
COLUMNS = (*AXES, "status", "problem", "num_layouts_priced", *_FIGURES, *_SPENT, *_SAMPLED)
"""Columns of the result, always all of them."""
_WAIT_S = 60.0
"""How long to wait for another process that is writing."""


class KeptPointsError(CostModelError):
    """A file of finished points that cannot be read or written."""


class KeptPoints:
    """Finished points in a file, by the inputs of each: any number of sweeps may have the file at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as database:
            database.execute("CREATE TABLE IF NOT EXISTS point (key TEXT PRIMARY KEY, row TEXT)")
            found = {key: json.loads(row) for key, row in database.execute("SELECT * FROM point")}
        self.done: dict[str, Row] = {key: row for key, row in found.items() if set(row) == set(COLUMNS)}

    def append(self, key: str, row: Row) -> None:
        """Keep one more point; it is on the disk when this returns."""
        with self._opened() as database:
            database.execute("INSERT OR REPLACE INTO point VALUES (?, ?)", (key, json.dumps(row)))
        self.done[key] = row

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction: a worker that is forked meanwhile inherits no connection."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_S)) as database, database:
                yield database
        except (sqlite3.Error, ValueError) as error:
            is_other = "not a database" in str(error)
            reason = "is not the file of a sweep" if is_other else f"cannot be used ({error})"
            raise KeptPointsError(f"{self.path}: {reason}") from None


class SweepError(CostModelError):
    """A sweep that cannot go on; what is finished is kept."""


@dataclass(frozen=True, repr=False)
class Sweep(Answer):
    """Rows of a sweep, one a point, in the order of the points."""

    rows: tuple[Row, ...]

    @property
    def failed(self) -> tuple[Row, ...]:
        """Rows of points whose worker failed every time, with their inputs."""
        return tuple(row for row in self.rows if row["status"] == "failed")

    @property
    def refused(self) -> tuple[Row, ...]:
        """Rows of points whose input is wrong."""
        return tuple(row for row in self.rows if row["status"] == "wrong input")

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns."""
        return {name: [row[name] for row in self.rows] for name in COLUMNS}

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as numbers and texts."""
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "points": [dict(row) for row in self.rows],
        }

    def __len__(self) -> int:
        return len(self.rows)


def points_of(grid: Mapping[str, Any], *, who: str = "sweep") -> list[dict[str, Any]]:
    """Return the points of a grid: keywords in `AXES` may be lists, all others are the same everywhere.

    Raises
    ------
    LayoutError
        If a keyword is no field, or an axis has no value; `who` asks, for messages.
    CostModelError
        If what no point can do without is missing.

    Examples
    --------
    >>> grid = {"model": "llama3-8b", "gpus": [8, 16], "global_batch": 8, "seq_len": 8192}
    >>> [point["gpus"] for point in points_of(grid)]
    [8, 16]
    """
    fields = keywords(grid, SWEEP_FIELDS, who=who)
    axes = {name: list(value) for name, value in fields.items() if name in AXES and _is_list(name, value)}
    for name, values in axes.items():
        if not values:
            raise LayoutError(f"{who}: {name} has no value")
    require_complete(fields, who=who)
    rest = {name: value for name, value in fields.items() if name not in axes}
    points = [{**rest, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]
    return with_own_prices(points)


def _is_list(name: str, value: Any) -> bool:
    """Return whether a value makes a point each of its parts; one order of axes may be a list itself."""
    if not isinstance(value, list | tuple):
        return False
    return not (name == "axis_order" and value and value[0] in DEFAULT_ORDER)


def read_grid(path: str | Path) -> dict[str, Any]:
    """Read the keywords of a grid from YAML.

    Raises
    ------
    SweepError
        If the file cannot be read or is not a mapping.
    """
    return read_mapping(Path(path), example="gpus: [64, 128]", error=SweepError)


@shows(SWEEP_FIELDS, searched=True)
def sweep(
    points: Iterable[Point] | None = None,
    *,
    executor: Executor | Callable[[], Executor] | None = None,
    retries: int = 2,
    resume: str | Path | None = None,
    samples: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
    **grid: Any,
) -> Sweep:
    """Plan every point of a sweep, on this core or on an executor.

    Parameters
    ----------
    points : iterable of mapping, optional
        Keywords of `costmodel.plan` each; with ``layout`` those of `costmodel.estimate`. Instead
        of points, keywords of a grid (`points_of`) can be given.
    executor : Executor or callable, optional
        Any `concurrent.futures.Executor` (process pool, Dask's ``client.get_executor()``,
        ``mpi4py.futures.MPIPoolExecutor``), or a function that makes one and can be called again
        when a worker dies. Without one, points are planned here.
    retries : int
        How often a point is given out again when its worker fails. [-]
    resume : path, optional
        SQLite file that keeps finished points, of one sweep or of several; these are not planned again.
    samples : int
        Of the uncertain factors, that the layout of each point is priced at again; 0 for none. [-]
    seed : int
        Of the samples: the same values of a factor for every point.
    progress : callable, optional
        Called with points done and points in all.
    **grid
        Keywords of a grid.

    Returns
    -------
    Sweep
        A row a point. A point for which no layout fits, or whose input is wrong, has the message
        in ``problem``; one whose worker failed every time has status ``failed``.

    Raises
    ------
    KeptPointsError
        If the file is no such one or cannot be written.
    SweepError
        If the executor is gone and cannot be made again.
    """
    todo = [dict(point) for point in points] if points is not None else points_of(grid)
    if points is not None and grid:
        raise LayoutError(f"sweep: give points or a grid, not both; {sorted(grid)[0]!r} is of a grid")
    if samples:
        require_count(samples)
    work = partial(price_point, samples=samples, seed=seed) if samples else price_point
    finished = None if resume is None else KeptPoints(Path(resume))
    keys = [_key(point, samples, seed) for point in todo] if finished is not None else []
    done = (
        {index: finished.done[key] for index, key in enumerate(keys) if key in finished.done}
        if finished
        else {}
    )

    def finish(index: int, row: Row) -> None:
        done[index] = row
        # Failed points are tried again by the next run.
        if finished is not None and row["status"] != "failed":
            finished.append(keys[index], row)
        if progress is not None:
            progress(len(done), len(todo))

    left = [index for index in range(len(todo)) if index not in done]
    if executor is None:
        for index in left:
            finish(index, work(todo[index]))
    else:
        _Runner(executor, todo, work, retries, finish).run(left)
    return Sweep(tuple(done[index] for index in range(len(todo))))


class _Runner:
    """Gives points to an executor, again where a worker fails."""

    def __init__(
        self,
        executor: Executor | Callable[[], Executor],
        points: Sequence[Point],
        work: Callable[[Point], Row],
        retries: int,
        finish: Callable[[int, Row], None],
    ) -> None:
        self.make = None if isinstance(executor, Executor) else executor
        self.executor = executor if isinstance(executor, Executor) else executor()
        self.mine = self.make is not None
        self.points, self.work, self.retries, self.finish = points, work, retries, finish
        self.failures = [0] * len(points)

    def run(self, left: Sequence[int]) -> None:
        """Work until every point is finished or has failed too often."""
        waiting = list(left)
        try:
            while waiting:
                waiting = self._round(waiting)
        finally:
            if self.mine:
                self.executor.shutdown(wait=True, cancel_futures=True)

    def _round(self, todo: list[int]) -> list[int]:
        """Give out points once; return those to give out again."""
        # A point that broke the pool before goes alone, so that it takes no other with it.
        batch = [index for index in todo if self.failures[index]][:1] or todo
        again = [index for index in todo if index not in batch]
        broken: BrokenExecutor | None = None
        try:
            running = {self.executor.submit(self.work, self.points[index]): index for index in batch}
        except (BrokenExecutor, RuntimeError) as error:
            self._renew(error)
            return todo
        for future in as_completed(running):
            index = running[future]
            try:
                row = future.result()
            except Exception as error:
                broken = error if isinstance(error, BrokenExecutor) else broken
                self.failures[index] += 1
                if self.failures[index] <= self.retries:
                    again.append(index)
                    continue
                problem = f"worker failed {self.failures[index]} times: {type(error).__name__}: {error}"
                row = _row(self.points[index], "failed", " ".join(problem.split()))
            self.finish(index, row)
        if broken is not None and again:
            self._renew(broken)
        return again

    def _renew(self, error: BaseException) -> None:
        if self.make is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            self.executor = self.make()
        elif isinstance(self.executor, ProcessPoolExecutor):
            self.executor = ProcessPoolExecutor(getattr(self.executor, "_max_workers", None))
            self.mine = True
        else:
            raise SweepError(
                f"sweep: the executor is gone ({type(error).__name__}: {error}); pass a function that makes "
                "one; finished points are in the resume file"
            ) from error


def _key(point: Point, samples: int, seed: int) -> str:
    """Return what tells a point, at its samples, from others in a file of finished ones."""

    def plain(value: Any) -> Any:
        return value.model_dump(mode="json") if hasattr(value, "model_dump") else repr(value)

    try:
        text = json.dumps([__version__, samples, seed, point], sort_keys=True, default=plain)
    except TypeError as error:
        raise SweepError(
            f"resume: a point cannot be written as JSON ({error}); name models and clusters"
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()


def price_point(point: Point, samples: int = 0, seed: int = 0) -> Row:
    """Plan one point and return its row, which a worker does; wrong input is a row too."""
    try:
        return _planned(keywords(point, SWEEP_FIELDS, who="sweep"), samples, seed)
    except CostModelError as error:
        return _row(point, "no layout" if isinstance(error, NoLayoutError) else "wrong input", str(error))


def _planned(inputs: Point, samples: int, seed: int) -> Row:
    point = {name: value for name, value in inputs.items() if name != "bandwidth_scale"}
    point["cluster"] = scaled_cluster(
        point.get("cluster", DEFAULT_CLUSTER), inputs.get("bandwidth_scale", FIELD["bandwidth_scale"].default)
    )
    if "layout" in point:
        return _estimated(inputs, point, samples, seed)
    found = plan(**point)
    table = found.columns(1)
    row = _row(inputs, "ok", "")
    row["num_layouts_priced"] = found.num_priced
    row |= {name: table[name][0] for name in _FIGURES}
    return row | spent_on(found.best) | _sampled(found.best, samples, seed)


def spent_on(est: Estimate) -> Row:
    """Return what the whole run of a job takes in time, energy and money while nothing fails, as far as it is known."""
    tokens, cluster = est.job.tokens, est.job.cluster
    row: Row = {"price_usd_per_gpu_hour": cluster.price_usd_per_gpu_hour}
    if tokens is None:
        return row
    hours = float(est.gpu_hours(tokens))
    row |= {"days": float(est.days(tokens)), "gpu_hours": hours}
    row["energy_kwh"] = hours * step_power_w(est) * cluster.pue / 1e3
    if cluster.price_usd_per_gpu_hour is not None:
        row["dollars"] = hours * cluster.price_usd_per_gpu_hour
    return row


def _sampled(est: Estimate, samples: int, seed: int) -> Row:
    """Return the quantiles of a point where samples were asked for."""
    if not samples:
        return {}
    return {name: value for name, (value,) in sample_columns(est.sample(samples, seed)).items()}


def _estimated(inputs: Point, point: dict[str, Any], samples: int, seed: int) -> Row:
    """Price a point whose layout is given."""
    est = estimate(**point)
    for name, value in point.items() if est.shape else ():
        if isinstance(value, list | tuple) and name not in ("axis_order", "slice"):
            raise LayoutError(f"{name}: a point that says its layout takes one value, got {shown(value)}")
    table = wide_columns(est)
    row = _row(inputs, "ok" if est.fits else "does not fit", "")
    row["num_layouts_priced"] = 1
    row |= {name: table[name][0] for name in _FIGURES if name in table}
    row["choices"] = ""
    return row | spent_on(est) | _sampled(est, samples, seed)


def _row(point: Point, status: str, problem: str) -> Row:
    """Return a row with the inputs of a point and nothing else yet."""
    return {**dict.fromkeys(COLUMNS), **_inputs(point), "status": status, "problem": problem}


def _inputs(point: Point) -> Row:
    """Return the inputs of a point as its row shows them."""
    found = {name: _input(name, point.get(name, FIELD[name].default)) for name in AXES}
    if "recipe" not in point:
        found["recipe"] = _default_recipe(point.get("cluster", DEFAULT_CLUSTER))
    return found


def _default_recipe(cluster: object) -> str | None:
    """Return the recipe of a point that names none; none where its cluster is refused."""
    try:
        named = read("cluster", cluster)
        return default_recipe(load_cluster(named) if isinstance(named, str) else named)
    except (CostModelError, AttributeError):
        return None


def _input(name: str, value: Any) -> Any:
    """Return an input as the row shows it: as it was read, or what was refused as a text."""
    try:
        readable = read(name, value)
    except CostModelError:
        return None if value is None else shown(value)
    return " ".join(readable) if isinstance(readable, tuple) else getattr(readable, "name", readable)


def scaled_cluster(cluster: object, scale: object) -> Cluster:
    """Return a cluster whose tiers outside the innermost are `scale` times as fast."""
    factor = read("bandwidth_scale", scale)
    named = read("cluster", cluster)
    whole = load_cluster(named) if isinstance(named, str) else named
    if not isinstance(whole, Cluster):
        raise CostModelError(f"cluster: expected a text or a Cluster, got {shown(cluster)}")
    if factor == 1:
        return whole
    inner, *outer = whole.tiers
    faster = [replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * factor) for tier in outer]
    return replace(whole, tiers=(inner, *faster))
