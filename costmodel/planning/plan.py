"""`costmodel.plan`: the best layout of all that divide and fit, the runners-up, and why the rest is out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.base.answer import Answer, rows_of
from costmodel.base.errors import CostModelError, NoLayoutError, shown
from costmodel.base.units import format_days
from costmodel.base.version import __version__
from costmodel.base.words import chance_text, common_device
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.fields import PLAN_FIELDS, shows
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.describe.jobs.positional import file_and_keywords
from costmodel.describe.jobs.short_form import job_file_text
from costmodel.describe.models.model import Model
from costmodel.estimates.estimate import Estimate, assumed_sentences, estimate
from costmodel.estimates.record import SCHEMA_VERSION, input_record
from costmodel.interop.answer import JobFile, job_of_file
from costmodel.planning import advice as explanation
from costmodel.planning.found import MAX_KEPT, SearchResult
from costmodel.planning.launch import launch_files
from costmodel.planning.machines import machine_columns, machines, several_machines
from costmodel.planning.preference import TIE_SHARE
from costmodel.planning.request import requested
from costmodel.planning.tuning import Progress, fixed_text, searched_values
from costmodel.planning.uncertain import odds_record
from costmodel.whole_run.run import run_of


class Plan(SearchResult, Answer):
    """The answer of a search: the best layouts, the front, and why the others are out."""

    why_not = explanation.why_not
    advice = explanation.advice
    gains = explanation.relaxed_gains

    @property
    def assumptions(self) -> list[str]:
        """What of the job was assumed where nobody named it, and what of its file was not understood, in sentences."""
        notes = self.question.file.remarks if self.question.file else ()
        return [*notes, *assumed_sentences(self.question.jobs[0], self.assumed)]

    @property
    def searched(self) -> dict[str, str]:
        """What was searched, by knob, switch or order of the axes, as texts."""
        return searched_values(self.question, self._ladders[0] if self._ladders else ())

    @property
    def fixed(self) -> str:
        """What was not searched, in a sentence."""
        return fixed_text(self.question)

    def commands(self, count: int = 10) -> list[str]:
        """Return the command line of each of the layouts of `top`."""
        return [self.command_of(row) for row in self.shown(count)]

    def command_of(self, row: int) -> str:
        """Return the command line of a kept row."""
        return self.question.command_of(self.estimate_of(self.candidates.top, row).job)

    def job_file(self, est: Estimate | None = None) -> str:
        """Return the best layout, or another of the plan, as a job file; it is priced again first.

        Parameters
        ----------
        est : Estimate, optional
            Of the layout to write, as `top` and `trials` have them; the best if left out.

        Raises
        ------
        CostModelError
            If a file cannot say the job: a model, cluster or recipe that was composed in code.
        """
        est = est or self.best
        job, endings = est.job, (".yaml", ".yml", ".json")
        named = {
            name: os.path.realpath(path) if path.endswith(endings) else path
            for name, path in self.question.files.items()
        }
        text = job_file_text(job, named)
        try:
            back = estimate(**parse_mapping(text, "job file", example="model: llama3-405b"))
        except CostModelError as error:
            file, is_given = self.question.file, job.model.name in self.question.files
            source = file.path if file is not None and file.path else "code"
            unnamed = f"the model that {source} describes is no preset and no model file"
            why = unnamed if str(error).startswith("model:") and not is_given else str(error)
            raise CostModelError(f"emit: a job file cannot say this job: {why}") from None
        ours, theirs = ([one.step_time_s, one.memory_bytes_per_gpu] for one in (est, back))
        if not np.allclose(ours, theirs, rtol=1e-12):
            raise CostModelError(
                f"emit: a job file cannot say this job: model {job.model.name}, cluster {job.cluster.name} or "
                f"recipe {job.recipe.name} is not the one that is found under its name"
            )
        return text

    def launch_folders(self, framework: str = "") -> dict[str, str]:
        """Return the files that launch each of the layouts to try, a folder each, by its number in the plan's tables.

        A folder has the framework's configuration, the job file that prices it where a file can say the job, and
        ``README.md`` with what is left to the person. ``changes.diff`` is what to change in the planned file where that is
        a launch script of Megatron-LM; else what the configuration changes in that of the file's own layout.

        Parameters
        ----------
        framework : str, optional
            A name in `FRAMEWORKS`; that of the recipe if left out, and none where nobody writes its configurations.

        Returns
        -------
        files : dict of str to str
            Texts by path, such as ``1-tp4-pp2/launch.sh``.

        Raises
        ------
        FrameworkConfigError
            If the framework cannot launch a layout.
        """
        launches = self.best.job.recipe.launches
        framework = framework or (launches.framework if launches is not None else "")
        today = self.yours.est if self.yours else None
        files: dict[str, str] = {}
        for est, trial in self.trials():
            degrees = layout_text(est.job.layout).partition(",")[0]
            texts: dict[str, str] = {}
            missing: dict[str, str] = {}
            try:
                texts["job.yaml"] = self.job_file(est)
            except CostModelError as error:  # a file cannot say every model, cluster or recipe
                missing["job.yaml"] = str(error).removeprefix("emit: ").partition("; known: ")[0]
            command, file = self.command_of(trial.row), self.question.file
            if file is not None and file.path:
                missing["changes.diff"] = (
                    self.current_problem or "the layout that your file has cannot be written"
                )
            texts = launch_files(
                est, trial, command, texts, framework, today=today, file=file, missing=missing
            )
            folder = f"{self.ranks[trial.row]}-{degrees.replace(' ', '-')}"
            files |= {f"{folder}/{name}": text for name, text in texts.items()}
        return files

    def to_dict(
        self,
        *,
        count: int = 10,
        gains: Sequence[tuple[str, float]] | None = None,
        answers: Sequence[tuple[str, str]] = (),
    ) -> dict[str, Any]:
        """Return a plan as numbers, texts and lists of them.

        Parameters
        ----------
        count : int
            Of the best layouts. [-]
        gains : sequence of (str, float)
            What `gains` says; found where it is not given, which is further searches.
        answers : sequence of (str, str)
            Layouts, and what `why_not` says about them.
        """
        top = rows_of(self.columns(count))
        for row, est, command in zip(top, self.top(count), self.commands(count), strict=True):
            row["command"] = command
            for what in ("category", "axis"):
                row[f"exposed_s_by_{what}"] = {
                    name: float(seconds) for name, seconds in est.exposed_by(what).items()
                }
        tried = [trial.row for trial in self.odds.trials()]
        trials = {
            row: {**record, "command": self.command_of(row)}
            for row, record in zip(tried, rows_of(self.columns_of(tried)), strict=True)
        }
        yours: dict[str, Any] | None = {"problem": self.current_problem} if self.current_problem else None
        if self.yours is not None:
            row = next(row for row in top if "yours" in row["mark"])
            yours = {**row, "slower": self.yours.slower, "fits": bool(self.yours.est.fits)}
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "objective": self.question.objective,
            "inputs": input_record(self.best.job),
            "tie_share": TIE_SHARE,
            "fastest_step_time_s": float(self.fastest.step_time_s),
            "searched": self.searched,
            "fixed": self.fixed,
            "num_layouts_considered": self.num_considered,
            "num_layouts_priced": self.num_priced,
            "num_layouts_fit": self.num_fit,
            "rejected": dict(self.rejected.most_common()),
            "top": top,
            "yours": yours,
            "try": odds_record(self.odds, trials),
            "pareto": rows_of(self.pareto_columns()),
            "machines": rows_of(machine_columns(self.machines)) if self.has_machines else [],
            "relaxed_gain_by_constraint": dict(self.gains() if gains is None else gains),
            "advice": self.advice(),
            "why_not": dict(answers),
        }

    machines = cached_property(machines)
    """The best of every cluster, number of GPUs and precision, with its whole run where the tokens are known."""

    @property
    def has_machines(self) -> bool:
        """Whether several clusters, numbers of GPUs or precisions are compared."""
        return several_machines(self.question)

    @property
    def device_word(self) -> str:
        """What the devices are called where all are called alike."""
        return common_device(job.cluster.accelerator.called for job in self.question.jobs)

    def finished(self, start: str) -> list[str]:
        """Say when the whole run of the pick is done if it starts on a day.

        Raises
        ------
        CostModelError
            If that is no date, the job has no tokens, or its run cannot be priced.
        """
        days = run_of(self.best, self._tokens("start")).finishing_dates(start)
        return [f"Started on {start}, done by {', '.join(f'{at} {day}' for at, day in days.items())}."]

    def in_time(self, days: float) -> list[str]:
        """Say whether the whole run is done in so many days on each machine, and how surely.

        Parameters
        ----------
        days : float
            Calendar days, with what failures take. [d]

        Raises
        ------
        CostModelError
            If the job has no tokens, or no run can be priced.
        """
        tokens = self._tokens("days")
        runs = (
            [one.run for one in self.machines if one.run is not None]
            if self.has_machines
            else [run_of(self.best, tokens)]
        )
        sentences = []
        for run in runs:
            within = replace(run, limit_days=days).within()["days"]
            gpus, cluster = float(run.est.job.layout.gpus), run.est.job.cluster
            sentences.append(
                f"Deadline {format_days(days)} on {gpus:,.0f} of {cluster.name}: expected {format_days(within.expected)}, "
                f"{chance_text(within.probability)} likely to meet it."
            )
        return sentences

    def _tokens(self, field: str) -> float:
        tokens = self.best.job.tokens
        if tokens is None:
            raise CostModelError(f"{field}: needs tokens, for a run that ends")
        return tokens

    def __repr__(self) -> str:
        return f"Plan({self.num_priced:,} layouts priced, {self.num_fit:,} fit; best: {self.best!r})"


@shows(PLAN_FIELDS, searched=True)
def plan(
    model_or_job: str | Path | Model | None = None,
    machine: str | Cluster | None = None,
    /,
    *,
    job: JobFile | str | Path | Mapping[str, Any] | None = None,
    num_candidates: int = MAX_KEPT,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """Find the best layout of a job by pricing every one that divides.

    Parameters
    ----------
    model_or_job, machine : optional
        Without their names: a model or a file, as `job`, and a machine such as ``"256xH100"`` or a cluster.
    model, cluster, gpus, global_batch, seq_len, precision, optimizer, recipe, switches, axis_order, slice, tokens
        As in `costmodel.estimate`. Lists of clusters, gpus, batches, precisions, optimizers, axis orders
        or slices are searched together.
    offload_optimizer : bool or sequence of bool, optional
        Optimizer states on the CPU; both to let the search choose. Default: the recipe's.
    objective : str
        One of `OBJECTIVES`: step-time, mfu, tokens-per-dollar, gpu-hours, or p50, p75, p90, p95 of the step time.
    max_memory_bytes : float
        Memory limit besides what the device offers. [B]
    headroom : float
        Share of the device's memory to leave free, in place of `risk`. [-]
    risk : float
        Probability of running out of memory that is accepted, by published runs: 10 % by default. [-]
    tp_in_domain : bool
        Keep tensor parallelism in the innermost domain; by default unless values of tp are given.
    fix : mapping, optional
        Knobs that are decided: ``{"pp": 1, "schedule": "1f1b"}``.
    framework : str
        Keep to what one of `FRAMEWORKS` can launch; ``any`` for every layout that divides.
        By default to what the recipe's framework launches, where knobs are not given.
    choose : bool
        Also turn the switches and axis orders that the recipe's framework leaves to its users (overlaps,
        dispatcher, graphs, context method), where they are not given; not with ``framework="any"``.
    pipeline_layout : str
        ``balanced`` balances layers to offset the LM head, ``even``
        as the recipe does. Default: balanced where the framework lets a user choose.
    tp, sequence_parallel, cp, ep, etp, micro_batch, pp, vp, schedule, recompute, zero_stage, shard_group
        Values to try of a knob, numbers or names; every sensible one where not given, or ``"any"``.
    job : path or mapping, optional
        A file of any kind that `costmodel.read` reads, or keywords of `costmodel.estimate`: its layout is free, and is
        a row of the answer (`Plan.yours`); the other keywords go on top.
    keep : str or sequence of str
        Fields of its layout that stay as they are, such as ``"tp,pp"``.
    num_candidates : int
        Layouts to keep. [-]
    progress : callable, optional
        Called with layouts priced and layouts to price.

    Returns
    -------
    Plan
        ``.best``, ``.top(n)``, ``.pareto()``, ``.why_not(layout)``, ``.to_frame()``.

    Raises
    ------
    CostModelError
        For wrong input, and where no layout is left: which constraint bites, and what would do.

    Examples
    --------
    >>> found = plan(model="llama3-8b", cluster="dgx-h100-ndr", gpus=8, global_batch=128, seq_len=8192,
    ...              fix={"pp": 1, "recompute": "none"})
    >>> found.num_considered == found.num_priced + sum(
    ...     count for reason, count in found.rejected.items() if reason != "does_not_fit")
    True
    """
    path, request = file_and_keywords(model_or_job, machine, options, who="plan")
    if path and job is not None:
        raise CostModelError(f"plan: job is given twice, as {shown(path)} and as {shown(job)}")
    if path or isinstance(job, str | Path):
        job, request = job_of_file(path or str(job), request, layout=False)
    try:
        return Plan.search(requested(job, request), num_candidates=num_candidates, progress=progress)
    except NoLayoutError as error:
        # What the file leaves open may be why.
        left = [one for one in job.remarks if "; give " in one] if isinstance(job, JobFile) else []
        raise type(error)("; ".join([str(error), *left])) from None
