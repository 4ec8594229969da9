# `make demo` and `make test` work on a fresh machine that has Python 3.11 or newer, make and git.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test test-cluster test-stress test-seeds test-flow test-plans test-chaos test-browser test-kubelet lint types docs-check bench clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOG := $(VENV)/install.log

# The newest first. `make setup PYTHON=/path/to/python` takes another one.
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.14 python3.13 python3.12 python3.11 python3)

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv and install Rota, the demo's needs and the development tools
	@:

# A candidate counts if it starts (a version manager's stand-in may not) and is new enough.
$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	if ! $(BIN)/python -c 'import pip' >/dev/null 2>&1; then \
	  python=; found=; \
	  for candidate in $(CANDIDATES); do \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    found=$$candidate; \
	    if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "Rota needs Python 3.11 or newer, and none of these is one: $(CANDIDATES)." >&2; exit 1; \
	  fi; \
	  if [ -z "$$python" ]; then \
	    echo "$$found can't make virtual environments: install its venv package" \
	      "(on Debian and Ubuntu: apt install python3-venv), then run make again." >&2; exit 1; \
	  fi; \
	  echo "==> making $(VENV) ($$python)"; \
	  rm -rf $(VENV); \
	  if ! message=$$("$$python" -m venv $(VENV) 2>&1); then \
	    rm -rf $(VENV); \
	    echo "$$message" >&2; \
	    echo "$$python could not make $(VENV); its message is above." >&2; exit 1; \
	  fi; \
	fi; \
	echo "==> installing Rota and what it needs (the first time takes some minutes)"; \
	if ! $(BIN)/python -m pip --disable-pip-version-check --no-input install \
	    -c constraints.txt -e '.[demo,dev]' >$(LOG) 2>&1; then \
	  cat $(LOG) >&2; \
	  echo "The installation failed; pip's words are above and in $(LOG)." >&2; exit 1; \
	fi; \
	touch $@; \
	echo "==> ready"

# Tests start hundreds of processes. Each would compile the package anew without its bytecode.
unexport PYTHONDONTWRITEBYTECODE

# More tests run at once than there are cores, since some wait, and those of real clusters mostly do.
# A process that has none left takes some of another's: no long file is left to the end.
CORES := $(shell c=$$(nproc); echo $$((c < 8 ? c : 8)))
PYTEST := $(BIN)/python -m pytest --dist worksteal --durations=25
FEW_AT_ONCE := -n $(shell echo $$(($(CORES) + 1)))
MANY_AT_ONCE := -n $(shell echo $$((2 * $(CORES))))

demo: $(STAMP) ## run the demo, a minute: a small cluster here, and other policies foretold
	@$(BIN)/python -m rota.demo

demo-full: $(STAMP) ## run a longer demo, four minutes: three policies, and what was foretold
	@$(BIN)/python -m rota.demo --full

test: $(STAMP) ## run the tests, of real clusters one for each live path
	@$(PYTEST) $(FEW_AT_ONCE) -m "not cluster and not browser"

BESIDE := tests/contract/test_providers.py tests/docs/test_examples.py tests/differential
# Of a test with a case for each point at which something dies, some run, unless CASES is all: `make
# test-seeds` has anything die anywhere, in virtual time.
CASES := sampled
test-cluster: $(STAMP) ## run the other tests of real clusters; CASES=all for each case of each
	@$(PYTEST) $(MANY_AT_ONCE) -m cluster $(if $(filter-out all,$(CASES)),--sampled) tests/process tests/parity tests/hosts tests/engines $(BESIDE)

test-browser: $(STAMP) ## run the tests of the dashboard in Chromium; installs it if it is not there
	@tests/browser/set-up.sh
	@ROTA_BROWSER=required $(PYTEST) tests/browser

test-kubelet: $(STAMP) ## run pods of agents by a real kubelet, as root; builds it if it is not there
	@tests/engines/kubernetes.sh
	@tests/engines/kubelet.sh
	@ROTA_REAL_KUBELET=1 $(PYTEST) tests/engines/test_real_kubelet.py

# For example: make test-stress TESTS="tests/parity tests/process/test_nodes.py" TIMES=20 WORKERS=2
TESTS :=
TIMES := 5
WORKERS := 1
BURNERS := 4
test-stress: $(STAMP) ## run TESTS, TIMES times each, beside processes that burn CPU
	@if [ -z "$(TESTS)" ]; then \
	  echo 'Say which tests: make test-stress TESTS="tests/parity tests/process/test_nodes.py"' >&2; \
	  exit 2; \
	fi
	@$(BIN)/python tests/stress.py --times $(TIMES) --workers $(WORKERS) --burners $(BURNERS) $(TESTS)

# The stories of seeds FIRST to FIRST + SEEDS - 1: a cluster in virtual time, of which anything dies,
# and in every third ten of them machines that have joined.
FIRST := 0
SEEDS := 3000
test-seeds: $(STAMP) ## run SEEDS stories of crashes and cut cables in virtual time, from seed FIRST on
	@FIRST=$(FIRST) SEEDS=$(SEEDS) $(PYTEST) -n $(CORES) tests/virtual

# Stories FIRST to FIRST + STORIES - 1: clients of one island, some 12 random programs each story.
STORIES := 850
test-flow: $(STAMP) ## run STORIES stories of random programs on shared devices, from FIRST on
	@FLOW_FIRST=$(FIRST) FLOW_STORIES=$(STORIES) $(PYTEST) -n $(CORES) tests/flow/test_programs.py

# Random stories of a live cluster under each policy, from story FIRST on, until so many decisions.
DECISIONS := 10000
test-plans: $(STAMP) ## take DECISIONS random decisions with each policy, from story FIRST on
	@PLANS_FIRST=$(FIRST) PLANS_DECISIONS=$(DECISIONS) $(PYTEST) -n $(CORES) tests/property/test_any_cluster.py

# For example: make test-chaos SEED=7 SECONDS=60 POLICY=gandiva MIX=trained,gang,restarts
SEED := 1
SECONDS := 25
POLICY :=
MIX :=
test-chaos: $(STAMP) ## kill processes of a cluster at random, as SEED draws it, for SECONDS
	@$(BIN)/python -m pytest tests/process/test_chaos.py -s --chaos-seed $(SEED) --chaos-seconds $(SECONDS) \
	  $(if $(POLICY),--chaos-policy $(POLICY)) $(if $(MIX),--chaos-mix $(MIX))

lint: $(STAMP) ## check style, formatting, and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(STAMP) ## check the types
	@$(BIN)/python -m mypy

docs-check: $(STAMP) ## check that the documentation is complete and that its examples run
	@$(PYTEST) $(FEW_AT_ONCE) tests/docs

bench: $(STAMP) ## measure speed, and hold results against published ones
	@set -eu; for bench in bench/[a-z]*.py; do echo "==> $$bench"; $(BIN)/python "$$bench"; done

clean: ## remove caches, builds and the demo's output (.venv stays)
	@rm -rf build dist reports .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .rota-demo*
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
