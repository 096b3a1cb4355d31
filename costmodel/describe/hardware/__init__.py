"""Accelerators, links, clusters and storage, read from YAML profiles."""
