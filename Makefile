# Every target says what it does; `make` alone lists them. Needs a POSIX shell and Python 3.11 or newer.
# All paths are relative, so the checkout may stand anywhere.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
INSTALLED := .venv/.installed
CLUSTER_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longboat/cluster

# Kept even where the environment turns it off: without bytecode every process compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## print this list
	@echo "make TARGET, one of:"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1@\2/p' Makefile | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }' | sed 's/^/  /'

.PHONY: venv
venv: $(INSTALLED) ## make .venv with Longboat and the tools, as locked

# Stamped, so that it is instant until a lock changes.
$(INSTALLED): requirements/uv.txt requirements/dev.txt pyproject.toml
	@bash .ci/venv
	@touch $(INSTALLED)

.PHONY: demo
demo: $(INSTALLED) ## train the imdb recipe from data to a gated, served model (its runs are kept in .longboat)
	LONGBOAT_HOME="$$PWD/.longboat" $(BIN)/longboat run recipes/imdb --preset demo
	@echo; echo "to type a review into its page:"
	@echo "  source .venv/bin/activate; export LONGBOAT_HOME=$$PWD/.longboat"
	@echo "  longboat serve imdb    # then open http://127.0.0.1:8501/models/imdb"

.PHONY: lint
lint: $(INSTALLED) ## check style, types, layers, class names, and that the reference pages are current
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff check --quiet --preview --select PLW1514 src # files of ours are UTF-8, whatever the locale
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary
	@mkdir -p .cache
	$(BIN)/lint-imports --cache-dir .cache/import-linter > .cache/layers.txt || { cat .cache/layers.txt; exit 1; }
	$(BIN)/python .ci/unique_names.py
	$(BIN)/python docs/generate.py --check

.PHONY: format
format: $(INSTALLED) ## put the sources into shape
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

.PHONY: browser
browser: ## find the Chromium that the pages are tested in, or install it
	@bash .ci/browser >/dev/null

.PHONY: test
# For two cores: most tests wait for processes most of the time.
test: JOBS ?= 4
test: lint browser ## lint, then all tests, JOBS=4 at a time; the last line is pytest's
	$(BIN)/python -m pytest -q -n $(JOBS) --ignore tests/frameworks --ignore tests/cluster --ignore tests/e2e tests

.PHONY: test-quick
test-quick: JOBS ?= 2
test-quick: lint ## lint, then the unit tests of all but agents, clusters and images: within a minute, not a replacement for test
	$(BIN)/python -m pytest -q -n $(JOBS) -m 'not slow' $(addprefix --ignore tests/unit/,agent images kube_client kubernetes pod) tests/unit

.PHONY: dist
dist: $(INSTALLED) ## build the wheel and the source distribution into dist/, the same bytes each time
	rm -rf dist
	$(BIN)/python -m hatchling build

.PHONY: wheel-test
wheel-test: $(INSTALLED) ## install the wheel outside the checkout, then train a recipe and serve a model with it
	@bash .ci/wheel

.PHONY: chaos
chaos: $(INSTALLED) ## kill and stop real processes of real runs, KILLS=200 times; SEED=n repeats a hunt
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))

.PHONY: sim
sim: JOBS ?= 2
sim: $(INSTALLED) ## a million simulated faults against the gang's promises; SEED=n plays one seed aloud
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--jobs $(JOBS) --faults $(or $(FAULTS),1000000))

.PHONY: cluster-up
cluster-up: $(INSTALLED) ## start a real three-node Kubernetes on this machine (root; builds it the first time: 8 minutes)
	@$(BIN)/python -m tests.cluster up

.PHONY: cluster-down
cluster-down: $(INSTALLED) ## end that cluster; only the build cache stays, for all checkouts
	@$(BIN)/python -m tests.cluster down

.PHONY: e2e
e2e: JOBS ?= 6
e2e: $(INSTALLED) ## end-to-end tests, JOBS=6 at a time, on that cluster (started if need be) or the one of KUBECONFIG
	$(BIN)/python -m tests.cluster with -- $(BIN)/python -m pytest -q -n $(JOBS) -m 'not addon' tests/cluster tests/e2e

.PHONY: bench
bench: $(INSTALLED) ## measure against the peers (downloads about 9 GB into .bench the first time)
	$(BIN)/python -m bench $(BENCH)

.PHONY: bench-cluster
bench-cluster: $(INSTALLED) ## measure runs on that cluster, started if need be, or on the one that KUBECONFIG names
	$(BIN)/python -m tests.cluster with -- $(BIN)/python -m bench.cluster $(BENCH)

.PHONY: frameworks
frameworks: $(INSTALLED) ## run bare PyTorch and TensorFlow scripts (downloads about 7 GB into .bench the first time)
	$(BIN)/python -m pytest -q tests/frameworks

.PHONY: fuzz
fuzz: $(INSTALLED) ## send broken requests to the model server, CASES=100000 for each protocol
	$(BIN)/python -m tests.serve.fuzz --cases $(or $(CASES),100000)

.PHONY: docs
docs: $(INSTALLED) ## write the reference pages from the code (lint fails while they are stale)
	$(BIN)/python docs/generate.py

.PHONY: lock
lock: $(INSTALLED) ## write the locks again from pyproject.toml (UPGRADE=1: newest versions)
	@bash .ci/lock $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## remove what the targets made: .venv, caches, demo runs, bench files
	rm -rf .venv .cache .bench .longboat bench/results build dist .ruff_cache .mypy_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -d "$(CLUSTER_CACHE)" ]; then echo "kept the test cluster's build cache, which all checkouts share; to remove it:"; echo "  rm -rf $(CLUSTER_CACHE)"; fi
