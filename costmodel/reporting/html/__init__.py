"""One self-contained page about a job: figures with hover, bills, sources, and sliders that are already priced."""
