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
    def refuse(name):
        raise TypeError("bad argument type for built-in operation")

    for load in (lambda name: SimpleNamespace(), refuse):
        monkeypatch.setattr(ctypes, "CDLL", load)
        keep_freed_memory()
