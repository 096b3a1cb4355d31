"""Models: their fields, shipped presets, YAML files and HuggingFace configs."""
