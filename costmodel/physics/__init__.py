"""Formulas: arrays in, arrays out; no files, no names of models."""
