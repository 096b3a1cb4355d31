"""Benchmarks of the search: run ``python -m benchmarks``. Nothing here is a test."""
