"""Plans: every layout that divides, priced on open meshes; the best, the front, and the reasons."""
