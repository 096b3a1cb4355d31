# For people who have make; dev.py does the work and needs only Python.
PYTHON ?= python3

.PHONY: estimate test lint
estimate test lint:
	$(PYTHON) dev.py $@
