"""The pick of a plan as a job file that every command reads."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.base.yaml_files import parse_mapping
from costmodel.describe.jobs.short_form import job_file_text
from costmodel.estimates.estimate import Estimate, estimate

_ENDINGS = (".yaml", ".yml", ".json")


def job_file_of(est: Estimate, files: Mapping[str, str]) -> str:
    """Return the job of an estimate as a job file, read back and priced again before it is handed out.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    files : mapping
        How models and clusters were given, by their names; paths become absolute.

    Raises
    ------
    CostModelError
        If a file cannot say the job: its model, cluster or recipe was composed in code.
    """
    named = {
        name: os.path.realpath(given) if given.endswith(_ENDINGS) else given for name, given in files.items()
    }
    text = job_file_text(est.job, named)
    try:
        back = estimate(**parse_mapping(text, "job file", example="model: llama3-405b"))
    except CostModelError as error:
        raise CostModelError(f"emit: a job file cannot say this job ({error})") from None
    ours, theirs = ((float(one.step_time_s), float(one.memory_bytes_per_gpu)) for one in (est, back))
    if not np.allclose(ours, theirs, rtol=1e-12):
        raise CostModelError(
            f"emit: a job file cannot say this job: model {est.job.model.name}, cluster {est.job.cluster.name} or "
            f"recipe {est.job.recipe.name} is not the one that is found under its name"
        )
    return text
