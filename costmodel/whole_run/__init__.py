"""Days and dollars: whole trainings with failures and checkpoints, and budgets solved backwards."""
