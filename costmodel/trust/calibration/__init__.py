"""Measurements to constants: kernels, fabrics, clusters; measuring needs torch, nothing else does."""
