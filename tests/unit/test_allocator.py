"""A long search keeps the memory that its arrays give back, where the C library lets it."""

import ctypes
from types import SimpleNamespace

from costmodel.base.allocator import keep_freed_memory


def test_both_thresholds_are_set(monkeypatch):
    """M_MMAP_THRESHOLD is -3 and M_TRIM_THRESHOLD -1 in glibc's malloc.h; it takes no more than 32 MB of the first."""
    told = {}
    library = SimpleNamespace(mallopt=lambda what, size: told.update({what: size}))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    keep_freed_memory()
    assert told == {-3: 32 * 2**20, -1: 2**30}


def test_other_c_libraries_are_left_alone(monkeypatch):
    """One without mallopt, and one that does not load at all: both are asked, once, and nothing is raised."""
    asked = []

    def without_mallopt(name):
        asked.append(("without mallopt", name))
        return SimpleNamespace()

    def not_loaded(name):
        asked.append(("not loaded", name))
        raise TypeError("bad argument type for built-in operation")

    for load in (without_mallopt, not_loaded):
        monkeypatch.setattr(ctypes, "CDLL", load)
        keep_freed_memory()
    assert asked == [("without mallopt", None), ("not loaded", None)]
