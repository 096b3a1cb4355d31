"""What all tests share: how long an example takes says something about the machine, not about the program."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

collect_ignore_glob = ["conftest.py", "*/conftest.py"]
"""They hold no doctests, and two modules of one name cannot both be collected."""
