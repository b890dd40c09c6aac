# hwsim: `make demo` and `make test` do all the set-up themselves; Python 3.11 or newer, pip and make are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS   ?= 2
LOWEST_TESTS := tests/cli tests/unit/test_units.py tests/unit/spec tests/contract/test_caches.py tests/property/test_formulas.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check golden golden-update extras fuzz lowest format lint types docs images notebooks site bench clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready  ## set up, then show what hwsim does
	@$(BIN)/python examples/demo.py

test: $(VENV)/.ready-dev  ## set up, then run every test
	@$(BIN)/python -m pytest -n $(JOBS)

check: $(VENV)/.ready-dev lint types  ## before you push: format, lint, types, fast tests
	@$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

golden: $(VENV)/.ready-dev  ## compare every machine with every workload against the golden rows (some minutes)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/golden/test_runs.py tests/golden/test_commands.py --golden-all

golden-update: $(VENV)/.ready-dev  ## write the golden rows and screens again; then look at git diff
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/golden/test_runs.py tests/golden/test_commands.py --update-golden

extras: $(VENV)/.ready-extras  ## the tests that need Dask, pandas, Optuna or a browser
	@$(BIN)/python -m pytest -rs tests/unit/sweep tests/cli/test_sweep.py tests/browser

fuzz: $(VENV)/.ready-dev  ## 20,000 mutated files, command lines, traces, results and stores; none may break hwsim
	@$(BIN)/python -m tests.fuzz --cases 20000 --jobs $(JOBS)

lowest: .venv-lowest/.ready  ## a quick part of the tests with the oldest versions that pyproject.toml allows
	@.venv-lowest/bin/python -m pytest -m "not slow" $(LOWEST_TESTS)

format: $(VENV)/.ready-dev  ## rewrite the code in the common format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only --quiet .

lint: $(VENV)/.ready-dev  ## check format and style
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(VENV)/.ready-dev  ## check types, strictly
	@$(BIN)/mypy

docs: $(VENV)/.ready-dev  ## write the generated pages of docs again
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/generate_learning.py

images: $(VENV)/.ready-dev  ## draw the pictures of README and docs again, by the commands that stand under them
	@mkdir -p out && rm -f out/images.db
	@$(BIN)/hwsim sweep course_cpu matmul_tiled n=256 tile=8..256:x2 precision=fp32,bf16,int8 vector=true \
	    --out out/images.db --plot docs/images/tiles.png > /dev/null
	@$(BIN)/hwsim sweep skylake_avx512,h100,tpu_v4 matmul,attention_naive n=256 \
	    precision=fp64,fp32,tf32,bf16,fp16,fp8_e4m3,fp8_e5m2,int8 scale=auto distribution=normal \
	    --kind pareto --metric energy --metric error_rms_rel --out out/images.db --plot docs/images/precision.png > /dev/null
	@$(BIN)/hwsim run a100_40 matmul n=4096 precision=fp16 --no-math --timeline docs/images/blocks.png > /dev/null
	@$(BIN)/python examples/ladder.py > /dev/null
	@$(BIN)/python examples/specialisation.py > /dev/null

notebooks: $(VENV)/.ready-dev  ## run the notebooks of docs again and keep their outputs
	@$(BIN)/python docs/notebooks/make.py

site: $(VENV)/.ready-site  ## the documentation as a site in out/site: lessons, notebooks, explorer, search; no network
	@mkdir -p out
	@$(BIN)/python -m sphinx -q -b html -c docs/site docs out/site
	@echo "open out/site/index.html"

bench: $(VENV)/.ready-bench  ## measure speed, beside other simulators
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean:  ## remove what make and the tools made
	@rm -rf $(VENV) .venv-lowest build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is older than pyproject.toml exactly when there is something to install.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("hwsim needs Python 3.11 or newer, and this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --disable-pip-version-check --quiet --python $(VENV) install pip; }

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo "Installing hwsim and what it needs (a minute or two the first time) ..."
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(BIN)/python
	@echo "Installing hwsim and its test tools (a minute or two the first time) ..."
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.ready $@

$(VENV)/.ready-extras: pyproject.toml | $(BIN)/python
	@echo "Installing hwsim, its test tools and its extras ..."
	@$(PIP) install --editable '.[dev,dask,frames,optuna]'
	@touch $(VENV)/.ready $(VENV)/.ready-dev $@

$(VENV)/.ready-site: pyproject.toml | $(BIN)/python
	@echo "Installing hwsim and what makes its site ..."
	@$(PIP) install --editable '.[site]'
	@touch $(VENV)/.ready $@

.venv-lowest/.ready: pyproject.toml tests/lowest.py
	@echo "Installing the oldest versions of what hwsim needs ..."
	@$(PYTHON) -m venv --clear .venv-lowest
	@$(PYTHON) tests/lowest.py pyproject.toml > .venv-lowest/lowest.txt
	@.venv-lowest/bin/python -m pip --disable-pip-version-check --quiet install --editable . -r .venv-lowest/lowest.txt
	@touch $@

$(VENV)/.ready-bench: pyproject.toml | $(BIN)/python
	@echo "Installing hwsim and what it is compared with ..."
	@$(PIP) install --editable '.[compare]'
	@touch $(VENV)/.ready $@
