"""Our own job file, so that `costmodel read` shows it like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.describe.jobs.fields import REQUIRED
from costmodel.describe.jobs.merge import merge_jobs, read_job, read_job_text
from costmodel.interop.framework import Imported
from costmodel.interop.text_file import TextFile


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read a job file; `given` goes on top of it.

    Raises
    ------
    CostModelError
        If a key is no field of a job, or a value is none of its kind.
    """
    own = read_job_text(file.text, file.name) if file.folder is None else read_job(file.name)
    job = merge_jobs(own, {key: given[key] for key in given if key != "vocab_size"})
    return Imported(job, tuple(key for key in REQUIRED if key not in job))
