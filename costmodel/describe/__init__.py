"""What goes in: hardware, models, recipes, layouts, jobs; the only place that validates."""
