# Everything runs in a virtual environment that the first target to need it sets up; later ones reuse it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test slow lint types doctest docs clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

# The stamp is written last, so that an interrupted installation is taken up again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || \
		{ echo "$(PYTHON) must be Python 3.11 to 3.14. Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)  ## Fit a private density to a real medical table, draw rows, run and check chains
	$(BIN)/python examples/randhie.py

test: $(INSTALLED)  ## Run the tests and measure their coverage
	$(BIN)/python -m pytest -n 2 -m "not slow" --cov --cov-report=term

slow: $(INSTALLED)  ## Run the longer tests
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(INSTALLED)  ## Check style
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(INSTALLED)  ## Check types
	$(BIN)/python -m mypy

doctest: $(INSTALLED)  ## Run the examples in the docstrings and the README
	$(BIN)/python -m pytest --doctest-modules --doctest-glob=README.md pyro_mbde README.md

docs: $(INSTALLED)  ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:  ## Remove what the targets made
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .coverage
