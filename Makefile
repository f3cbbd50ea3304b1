# capsid: set-up, demo, checks. Needs make, bash and Python 3.11 or newer with pip; all else goes into $(VENV).

SHELL := bash
VENV ?= .venv
# PYTHON=/path/to/python chooses the interpreter of a new environment; otherwise the first suitable one is taken.
PYTHON ?=

STAMP := $(VENV)/.installed
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
PACKAGE := '.[text,plots,serve,onnx,scale,tune,dev]'
BENCHMARKS = $(filter-out benchmarks/common.py benchmarks/_% faults/_%,$(wildcard benchmarks/*.py faults/*.py))

# Relative, because pip splits this variable at spaces and a clone may stand in a folder whose name has some.
# Old and new pip differ in which of the two rules the isolated environment that builds the package.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What pip says goes to a log; the screen shows package names as they come, and the log's end after a failure.
define pip_install
set -o pipefail; \
$(BIN)/python -m pip install --no-input -c constraints.txt $(1) 2>&1 | tee -a $(LOG) \
	| awk '/^(Collecting|Processing) / { sub(/.*\//, "", $$2); \
			sub(/[<>=!~;\[].*|-[0-9].*/, "", $$2); printf " %s", $$2; fflush() } \
		/^Installing collected/ { printf "\n  unpacking ..."; fflush() } END { print "" }' \
	|| { echo "installation failed; the end of $(LOG):" >&2; tail -n 15 $(LOG) >&2; exit 1; }
endef

.PHONY: help setup demo test browser lint bench clean

help:  ## list the targets
	@echo "usage: make TARGET [PYTHON=python3.11] [VENV=.venv]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## create the virtual environment and install everything into it, with pinned versions
	@echo "capsid is ready: $(BIN)/capsid --help"

demo: $(STAMP)  ## run the whole pipeline on the built-in films: ids, training, metrics, recommendations
	@$(BIN)/capsid demo

test: lint browser  ## lint, types and all tests
	@echo "pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

browser:  ## install chromium for the tests of the explorer page, if it is missing (Debian and Ubuntu, as root)
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		root=""; [ "$$(id -u)" = 0 ] || root="sudo -n"; \
		echo "installing chromium for the tests of the explorer page"; \
		{ $$root apt-get update && $$root apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 \
			|| echo "chromium could not be installed (no root, no network or no apt): its tests will be skipped"; \
	}

lint: $(STAMP)  ## ruff (rules and format) and mypy
	@echo "ruff check"; $(BIN)/ruff check .
	@echo "ruff format --check"; $(BIN)/ruff format --check .
	@echo "mypy"; $(BIN)/mypy

bench: $(STAMP)  ## the quick mode of every benchmark and fault campaign
	@[ -n "$(BENCHMARKS)" ] || { echo "there is no benchmark in benchmarks/" >&2; exit 1; }
	@set -e; for file in $(BENCHMARKS); do echo "$$file --quick"; $(BIN)/python "$$file" --quick; done

clean:  ## remove caches and build products; the environment and runs/ stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks faults -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp is written last: a set-up stopped half-way is done again, a finished one costs nothing and no network.
# A python without ensurepip (some Linux distributions split it off) still makes an environment: its own pip fills it.
$(STAMP): pyproject.toml constraints.txt
	@new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	python="$(PYTHON)"; \
	for name in python3.11 python3.12 python3.13 python3 python; do \
		[ -n "$$python" ] && break; \
		"$$name" -c "$$new_enough" 2>/dev/null && python="$$name"; \
	done; \
	if [ -z "$$python" ] || ! "$$python" -c "$$new_enough" 2>/dev/null; then \
		python="$${python:-python3}"; \
		echo "error: capsid needs Python 3.11 or newer; $$python is $$("$$python" --version 2>&1 | tail -n 1)" >&2; \
		echo "hint: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "[1/3] virtual environment $(VENV) with $$("$$python" --version)"; \
	mkdir -p $(VENV); \
	"$$python" -m venv $(VENV) >$(LOG) 2>&1 \
		|| { "$$python" -m venv --clear --without-pip $(VENV) \
			&& "$$python" -m pip --python $(BIN)/python install --quiet pip; }
	@printf "[2/3] torch:"; $(call pip_install,torch==2.13.0)
	@printf "[3/3] capsid and its libraries:"; $(call pip_install,-e $(PACKAGE))
	@touch $@
