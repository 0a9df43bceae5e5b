# Every target works alone from a fresh clone; it needs make and a Python >= 3.11 with venv (Debian: apt-get install make python3-venv).
#   PYTHON=python3.12 make test    another interpreter (only when .venv does not exist yet)
#   make test ARGS="-k drain -x"   arguments for pytest
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
APT := apt-get install python3-venv

# Extras are installed by stamp files, so that a second run starts at once and the demo does not download the test tools.
HAVE_DEMO := $(VENV)/.have-demo
HAVE_TEST := $(VENV)/.have-test
HAVE_LINT := $(VENV)/.have-lint
HAVE_DOCS := $(VENV)/.have-docs
HAVE_BENCH := $(VENV)/.have-bench

.DEFAULT_GOAL := help
.PHONY: help demo test fast e2e databases bench matrix lint format types docs wheel ci clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

# The shell survives Ctrl-C (`trap :` is reset to the default in the child) and reports 130 as success, so that make stays silent.
demo: $(HAVE_DEMO) ## the example project in a browser; ONCE=1 runs it once and exits with its result
	@trap : INT; $(BIN)/python example_project/manage.py demo $(if $(filter-out 0,$(ONCE)),--once); code=$$?; \
	if [ $$code -eq 130 ]; then code=0; fi; exit $$code

test: $(HAVE_TEST) ## the whole test suite; what needs an absent service or browser skips and says why
	@$(BIN)/python -m pytest $(ARGS)

fast: $(HAVE_TEST) ## the tests that run on every Python and Django pair
	@$(BIN)/python -m pytest -m fast $(ARGS)

e2e: $(HAVE_TEST) ## the tests that drive a headless Chromium
	@$(BIN)/python -m pytest -m browser $(ARGS)

databases: $(HAVE_TEST) ## the tests that touch the database, on SQLite, PostgreSQL and MariaDB
	@for db in sqlite postgresql mysql; do echo "== $$db"; TEST_DB=$$db $(BIN)/python -m pytest -m database $(ARGS) || exit 1; done

bench: $(HAVE_BENCH) ## the benchmarks; fails if a target is missed. ARGS="throughput --rounds 3" chooses
	@$(BIN)/python benchmarks/engine.py $(ARGS)

matrix: ## the fast tests on each supported Python and Django pair
	@.ci/cell 3.11 5.2
	@.ci/cell 3.12 6.0
	@.ci/cell 3.13 6.1

lint: $(HAVE_LINT) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(HAVE_LINT) ## ruff: repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(HAVE_LINT) $(HAVE_TEST) ## mypy, strict
	@$(BIN)/mypy

docs: $(HAVE_DOCS) ## the documentation, as HTML in docs/_build/html
	@$(BIN)/python -m sphinx -q -W --keep-going -E -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(VENV)/.created ## the wheel, in dist/
	@$(BIN)/python -m pip --disable-pip-version-check --quiet wheel --no-deps --wheel-dir dist .
	@ls -t dist/*.whl | head -n 1

ci: ## what continuous integration runs (Debian 12, as root; installs and starts services)
	@bash .ci/run

clean: ## remove what was built, the virtual environments included
	rm -rf .venv .venv-* build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info example_project/var
	find django_boundedpool example_project tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment that works is kept, whoever made it; a half-made one (venv without ensurepip leaves one behind) is made anew.
$(VENV)/.created:
	@if $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null 2>&1; then \
	  $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(VENV) holds a Python older than 3.11: remove that directory and run make again." >&2; exit 1; }; \
	else \
	  command -v "$(PYTHON)" >/dev/null 2>&1 || \
	    { echo "$(PYTHON) was not found. Python 3.11 or newer with venv is needed: $(APT)" >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$$("$(PYTHON)" -V 2>&1) is too old: 3.11 or newer is needed. Name another one, as in: make PYTHON=python3.11 ..., or: $(APT)" >&2; exit 1; }; \
	  "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "$$("$(PYTHON)" -V 2>&1) cannot make virtual environments (its venv or ensurepip is missing): $(APT)" >&2; exit 1; }; \
	  echo "Making $(VENV) with $$("$(PYTHON)" -V 2>&1)"; \
	  "$(PYTHON)" -m venv --clear $(VENV) || \
	    { echo "$(PYTHON) could not make a virtual environment: $(APT)" >&2; exit 1; }; \
	fi
	@touch $@

$(HAVE_DEMO): pyproject.toml | $(VENV)/.created
	@echo "Installing what the demo needs (once, about a quarter of a minute)"
	@$(PIP) -e '.[demo]'
	@touch $@

$(HAVE_TEST): pyproject.toml | $(VENV)/.created
	@echo "Installing what the tests need (once, about half a minute)"
	@$(PIP) -e '.[test,databases]'
	@touch $@

$(HAVE_LINT): pyproject.toml | $(VENV)/.created
	@echo "Installing ruff and mypy (once)"
	@$(PIP) -e '.[lint]'
	@touch $@

$(HAVE_DOCS): pyproject.toml | $(VENV)/.created
	@echo "Installing Sphinx (once)"
	@$(PIP) -e '.[docs]'
	@touch $@

$(HAVE_BENCH): pyproject.toml | $(VENV)/.created
	@echo "Installing what the benchmarks need (once)"
	@$(PIP) -e '.[bench]'
	@touch $@
