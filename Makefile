# Everything runs in a virtual environment that the first target to need it sets up; later ones reuse it.
# The demo needs the package alone; whatever checks it needs the development extras too.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.installed
INSTALLED := $(VENV)/.installed-dev
ARVIZ_VENV ?= .venv-arviz
ARVIZ_BIN := $(ARVIZ_VENV)/bin
ARVIZ_INSTALLED := $(ARVIZ_VENV)/.installed

# Tests start many processes, and each would compile the package again if no bytecode were kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo examples test coverage slow ledger figures arviz lint types doctest docs package clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

# Stamps are written last, so that an interrupted installation is taken up again.
$(PLAIN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || \
		{ echo "$(PYTHON) must be Python 3.11 to 3.14. Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing pyro_mbde and what it needs into $(VENV): PyTorch is the largest part."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	@touch $@

$(INSTALLED): $(PLAIN)
	@echo "Installing what tests, checks and documentation need into $(VENV)."
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(PLAIN)  ## Fit a private density to a real medical table, draw rows of it as one batch, run and check chains
	$(BIN)/python examples/demo.py

examples: $(INSTALLED)  ## Run every example at full size and draw the pictures into examples/output
	set -e; for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example; done

test: $(INSTALLED)  ## Run the tests
	$(BIN)/python -m pytest -n 2 -m "not slow"

coverage: $(INSTALLED)  ## Run the same tests and measure their coverage, which takes a third longer
	$(BIN)/python -m pytest -n 2 -m "not slow" --cov --cov-report=term

slow: $(INSTALLED)  ## Run the longer tests, except the ledger's
	$(BIN)/python -m pytest -n 2 -m slow --ignore tests/ledger

ledger: $(INSTALLED)  ## Run the ledger's longer tests, and all of them on a PostgreSQL server made for it
	.ci/postgresql $(BIN)/python -m pytest tests/ledger -n 2 -m "slow or postgresql"

figures: $(INSTALLED)  ## Draw every figure from small tables and short training, to see that it works
	rm -rf results/quick
	$(BIN)/python -m pyro_mbde.experiments --quick --results results/quick

# Sees the first environment's packages, with the other ArviZ before them. ArviZ 1 declares Python 3.12 and runs on 3.11.
$(ARVIZ_INSTALLED): $(INSTALLED)
	$(BIN)/python -m venv --clear $(ARVIZ_VENV)
	@first=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	second=$$($(ARVIZ_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$first')" > "$$second/first.pth"
	other=$$($(BIN)/python -c 'from importlib.metadata import version as v; print("arviz" + ("<1" if v("arviz")[:2] != "0." else ">=1,<2"))'); \
	$(ARVIZ_BIN)/python -m pip install --quiet --ignore-requires-python --constraint constraints.txt "$$other"
	@touch $@

arviz: $(ARVIZ_INSTALLED)  ## Run the chain tests with the other major version of ArviZ
	@first=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("arviz"))'); \
	$(ARVIZ_BIN)/python -W ignore -c 'import os, sys, arviz, pyro_mbde; \
	print("ArviZ", arviz.__version__, "in place of", sys.argv[1]); \
	assert arviz.__version__.split(".")[0] != sys.argv[1].split(".")[0], arviz.__file__; \
	assert os.path.samefile(pyro_mbde.__path__[0], "pyro_mbde"), pyro_mbde.__path__' "$$first"
	$(ARVIZ_BIN)/python -m pytest tests/diagnostics/test_diagnostics.py tests/mcmc/test_chains.py tests/mcmc/test_chains_in_arviz.py tests/mcmc/test_kernels_in_stock_mcmc.py tests/mcmc/test_run.py -n 2 -m "not slow"

lint: $(INSTALLED)  ## Check style
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(INSTALLED)  ## Check types
	$(BIN)/python -m mypy

doctest: $(INSTALLED)  ## Run the examples in docstrings, the README and the page on handing out rows
	$(BIN)/python -m pytest --doctest-modules --doctest-glob='*.md' pyro_mbde README.md docs/handing_out.md

docs: $(INSTALLED)  ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

package: $(INSTALLED)  ## Build the wheel and the source archive into dist/, and try both in a fresh environment
	.ci/package $(BIN)/python

clean:  ## Remove what the targets made
	rm -rf $(VENV) $(ARVIZ_VENV) dist docs/_build results/quick .pytest_cache .mypy_cache .ruff_cache .coverage
