"""Pipeline schedules: one record each, their closed forms, and the engine that plays them step by step."""
