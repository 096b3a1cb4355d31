"""What all tests share: two runs of one commit try the same examples, and none is timed."""

import os

from hypothesis import settings

# pytest-xdist says 80 columns to its workers, which piped output would obey.
os.environ.pop("COLUMNS", None)

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]
"""They hold no doctests, and two modules of one name cannot both be collected."""
