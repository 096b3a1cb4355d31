# For people who have make: the README's two commands.
PYTHON ?= python3.11

.PHONY: estimate test lint
estimate:
	sed -n '/^# set up, and price/,/^$$/p' README.md | sed 's/python3.11/$(PYTHON)/' | sh -e
test:
	sed -n '/^# set up, and run/,/^```/p' README.md | grep -v '```' | sed 's/python3.11/$(PYTHON)/' | sh -e
lint:
	.venv/bin/python -m ruff check . && .venv/bin/python -m ruff format --check . && .venv/bin/python -m mypy && .venv/bin/lint-imports
