"""Profiles of real training steps: read, classed by kernel, measured, and laid beside the bill."""
