# Two commands do all the set-up: `make quickstart` and `make test`. Another interpreter: `PYTHON=python3.12 make test`,
# after `make clean` if there is a .venv already.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-network test-slow bench lint format clean
.DELETE_ON_ERROR:

help: ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(INSTALLED) ## Train a small CoDA-Net on handwritten digits and draw what its decisions are made of
	$(BIN)/codanet train digits --output quickstart
	@echo "The trained model and its contribution maps are in the folder quickstart."

test: lint ## Lint, types, and every test that needs neither network nor minutes
	$(BIN)/python -m pytest -m "not network and not slow"

test-network: $(INSTALLED) ## The tests that fetch real data
	$(BIN)/python -m pytest -m network

test-slow: $(INSTALLED) ## The tests that take minutes
	$(BIN)/python -m pytest -m "slow and not network"

bench: $(INSTALLED) ## Speed and memory against Algorithm 1, into benchmarks/bench.json
	$(BIN)/codanet bench --output benchmarks/bench.json

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## Let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove the environment, caches and what quickstart made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist quickstart
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted set-up is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "'$(PYTHON)' was not found: install Python 3.10 or newer, or name one, as in PYTHON=python3.12 make test." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "'$(PYTHON)' is older than Python 3.10 or does not start: name a newer one, as in PYTHON=python3.12 make test." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module: install it (on Debian and Ubuntu, the package python3-venv)." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "Making .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing codanet and what it needs into .venv: a few minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
