"""The bill: lines, sums, and the language of their formulas."""
