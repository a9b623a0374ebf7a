# Two commands do all the set-up: `make quickstart` and `make test`. Another interpreter: `PYTHON=python3.12 make test`,
# after `make clean` if there is a .venv already.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-network test-slow campaign bench figures evaluation docs lint format clean
.DELETE_ON_ERROR:

help: ## What there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

PHOTOGRAPHS = $$($(BIN)/python -c "import skimage as s; print(*(s.__path__[0] + '/data/' + p for p in ('chelsea.png', 'rocket.jpg', 'motorcycle_left.png')))")

quickstart: $(INSTALLED) ## Explain photographs with the model of the package, train one on digits, and make a report
	@mkdir -p quickstart
	$(BIN)/codanet explain cifar10 $(PHOTOGRAPHS) -o quickstart/photographs.png
	$(BIN)/codanet train digits --output quickstart
	@echo "Why the photographs are taken for what they are: quickstart/photographs.png"
	@$(BIN)/codanet report quickstart

# Three processes of one thread each share the tests out, for two cores: some tests wait, for a browser or another program.
# A file stays in one of them, which makes its fixtures and imports once; tests/conftest.py puts the longest first.
# What is freed is kept for the next network (glibc): given back and asked for again it costs a third of the time. What is
# compiled is kept as well, wherever else it should not be: every process would compile the tests and the package anew.
# Some virtual machines offer AMX and do not execute it (training/bfloat16.py): bfloat16 is tested without.
PYTEST := ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 PYTHONDONTWRITEBYTECODE= MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 \
  $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: lint ## Lint, types, and every test that needs neither network nor minutes
	@if $(BIN)/python tests/chromium.py >/dev/null; then $(PYTEST) -m "not network and not slow"; else \
	  echo "The tests of the web page are left out; all others run." >&2; \
	  $(PYTEST) -m "not network and not slow and not browser"; fi

test-network: $(INSTALLED) ## The tests that fetch real data
	$(BIN)/python -m pytest -m network

test-slow: $(INSTALLED) ## The tests that take minutes
	$(BIN)/python -m pytest -m "slow and not network"

MINUTES ?= 60
SEED ?= 0

campaign: $(INSTALLED) ## Attacks on the package for MINUTES (60), into campaign.md; docs/robustness.md tells more
	$(BIN)/python campaign --minutes $(MINUTES) --seed $(SEED) --output campaign.md

bench: $(INSTALLED) ## Speed and memory against Algorithm 1, into benchmarks/bench.json
	$(BIN)/codanet bench --output benchmarks/bench.json

EXPERIMENTS := eigenvectors low_rank classification capsules \
  temperature regularisation rank rescaling sanity piecewise_linear

figures: $(INSTALLED) ## The paper's demonstrations in their quick setting, a figure and a JSON each, into figures/
	@for name in $(EXPERIMENTS); do \
	  echo "== $$name"; OMP_NUM_THREADS=1 $(BIN)/python experiments/$$name.py --quick --output figures || exit 1; \
	done

# RESNET56 is a weights file or `official`; REFERENCE a file of published figures to stand beside the measured ones.
RESNET56 ?= official
EVALUATE := $(BIN)/codanet evaluate cifar10
OF_IMAGES := grad:space=image,ixg:space=image,intgrad:space=image,deeplift:space=image
OF_IMAGES := contributions,gradcam,$(OF_IMAGES),occlusion5:space=image,occlusion9:space=image
# what the published code calls Occ5 and Occ9: its windows are a pixel narrower
OF_IMAGES := $(OF_IMAGES),occlusion5:window=4:space=image,occlusion9:window=8:space=image

evaluation: $(INSTALLED) ## What docs/evaluation.md measures, on more grids: hours on a CPU, into evaluations/; goes on where it stopped
	$(EVALUATE) --data cifar10 --methods contributions,gradcam --metrics accuracy,localisation -o evaluations/own
	$(EVALUATE) resnet56:$(RESNET56) --data cifar10 --grids 50 --images 1024 --points 17 -o evaluations/methods \
	  $(if $(REFERENCE),--reference $(REFERENCE))
	$(EVALUATE) --data cifar10 --grids 50 --images 1024 --points 17 -o evaluations/image --methods $(OF_IMAGES) \
	  $(if $(REFERENCE),--reference $(REFERENCE))

docs: $(INSTALLED) ## The documentation, into site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 JUPYTER_PLATFORM_DIRS=1 $(BIN)/mkdocs build --strict --quiet

lint: $(INSTALLED) ## ruff, mypy and the order of the rooms
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## Let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove the environment, caches and what quickstart and figures made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache build dist site quickstart figures
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

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
