"""A model that generates: what a decode step and a prefill take on a split of GPUs, and what fits beside the weights."""
