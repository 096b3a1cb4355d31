"""Measurements on the machine at hand, in the form that `costmodel calibrate` reads; needs torch.

Nothing here is imported by the rest of the package, and torch only when something is measured.
"""
