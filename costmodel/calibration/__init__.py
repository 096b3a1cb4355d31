"""Constants from published micro-benchmarks: rows read, fits, and the blocks written to profiles."""
