# Every target uses .venv, which `make setup` creates and updates when its inputs change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test coverage soak check format docs release-check clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY) ## Create .venv with slotmesh and pinned dependencies

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slotmesh needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group dev --editable .
	@touch $@

demo: $(READY) ## Watch MESH break a tie, train two small models, and find objects
	$(BIN)/slotmesh demo

test: $(READY) ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

coverage: $(READY) ## Run the tests and require the coverage of ops and nn
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal --cov --cov-report=term

soak: $(READY) ## Run the tests as other machines would, then long fault campaigns (two hours; ONLY="plain avx2-1" SEED=7 KEEP=folder)
	@$(BIN)/python tests/soak.py --only "$(ONLY)" $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP))

check: $(READY) ## Lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY) ## Format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## Build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

release-check: ## Build the package, check it, install the wheel into an empty environment, run its demo
	rm -rf dist .release
	$(PYTHON) -m venv .release/tools
	.release/tools/bin/pip install --quiet --disable-pip-version-check build twine
	.release/tools/bin/python -m build --quiet --outdir dist
	.release/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv .release/empty
	.release/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.release/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .release && empty/bin/slotmesh --version && empty/bin/slotmesh demo

clean: ## Remove what was built
	rm -rf .venv .release dist docs/_build docs/gallery demo .pytest_cache .ruff_cache .hypothesis .coverage*
