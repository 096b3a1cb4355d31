"""Figures of results: `est.plot.time()`, `plan.plot.pareto()`, `validation.plot.predicted()`.

Each draws with matplotlib and returns the figure, which a notebook shows by itself.
"""
