"""The same job with something different: comparisons, sensitivities, sliders."""
