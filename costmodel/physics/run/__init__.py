"""Whole runs: failures, checkpoints, stragglers, energy, scaling laws."""
