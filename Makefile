# For people who have make: the README's two commands.
PYTHON ?= python3.11

.PHONY: estimate test lint approve
estimate:
	sed -n '/^# set up, and price/,/^$$/p' README.md | sed 's/python3.11/$(PYTHON)/' | sh -e
test:
	sed -n '/^# set up, and run/,/^```/p' README.md | grep -v '```' | sed 's/python3.11/$(PYTHON)/' | sh -e
lint:
	.venv/bin/python -m ruff check . && .venv/bin/python -m ruff format --check . && .venv/bin/python -m mypy && .venv/bin/lint-imports

# Write again what pages, notebooks and tables show of the program; git diff then says what moved.
approve: export PYTHONPATH = .:tools/fit:tools/pages
approve:
	.venv/bin/python tests/measured/test_against_timings.py
	.venv/bin/python tests/measured/test_against_runs.py
	.venv/bin/python tools/pages/readme_tables.py $(RUNS)
	.venv/bin/python tools/pages/profile_table.py
	.venv/bin/python tools/pages/readme_plans.py
	$(if $(RUNS),.venv/bin/python tools/pages/published_layouts.py $(RUNS))
	.venv/bin/python tools/pages/machines_table.py
	.venv/bin/python tools/pages/new_models.py
	.venv/bin/python tools/pages/concepts.py
	.venv/bin/python tools/pages/readme_output.py
	.venv/bin/python tools/pages/notebook_numbers.py
