"""Kernels on one accelerator: the roofline with its launch and efficiency terms."""
