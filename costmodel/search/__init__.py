"""Search: every layout that divides, priced on open meshes; the best, the front, and the reasons."""

from costmodel.search.plans import NoLayoutError, Plan, make_question, plan, search

__all__ = ["NoLayoutError", "Plan", "make_question", "plan", "search"]
