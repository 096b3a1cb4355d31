"""The ground: errors, units, the version, text tables; imports nothing of the package."""
