# Needs a CPython of version 3.11 or newer, and nothing else: the rest goes into .venv.

# The first that is new enough and can make virtual environments; `make PYTHON=...` decides otherwise.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
	done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

VERSIONS ?= 3.12 3.13
SANS_IO := core wire protocol
SOAK_ROUNDS ?= 10
# Processes that the unit tests are divided among.
WORKERS ?= auto
# Event loops that the unit tests run on: both in `make test` and `make test-versions`, one where it has to be quick.
LOOPS ?= asyncio

.PHONY: help demo demo-venv docs venv check test test-unit test-programs test-interop coverage coverage-report test-versions bench soak clean

help:
	@echo "make demo           real data into the embedded broker and back; BOOTSTRAP=host:9092 for your own Kafka"
	@echo "make venv           a virtual environment in $(VENV) with everything below"
	@echo "make check          ruff, mypy, and the arrows between the rooms"
	@echo "make test           the whole suite; what needs Java or Maven skips where they are missing"
	@echo "make test-unit      without brokers that this project did not write, and without whole programs"
	@echo "make test-programs  the tool, the demo, the examples and the documentation's blocks, run as a user does"
	@echo "make test-interop   against Apache Kafka and librdkafka's mock cluster alone"
	@echo "make coverage       the unit tests with branch coverage; fails below 95 % of $(SANS_IO)"
	@echo "make test-versions  the unit tests on CPython $(VERSIONS), where they are installed"
	@echo "make docs           the documentation as a site, in site/"
	@echo "make bench          this producer and others side by side, against Apache Kafka"
	@echo "make soak           kills, restarts and leader moves, SOAK_ROUNDS=$(SOAK_ROUNDS) times each"

venv: $(STAMP)

$(BIN)/python:
	@test -n "$(PYTHON)" || { \
		echo "aioproducer needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv); found none." \
			"Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aioproducer needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@echo '*' > $(VENV)/.gitignore

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,bench,docs]'
	touch $@

$(DEMO_STAMP): pyproject.toml examples/demo/requirements.txt | $(BIN)/python
	@echo "installing into $(VENV), once"
	@{ $(BIN)/python -m pip install --editable '.[demo]' \
		&& $(BIN)/python -m pip install --no-deps --requirement examples/demo/requirements.txt; } \
		> $(VENV)/install.log 2>&1 \
		|| { echo "demo: pip failed: $$(sed -n 's/^ *ERROR: //p' $(VENV)/install.log | head -n 1) (more in" \
			"$(VENV)/install.log; PIP_INDEX_URL names a mirror of PyPI)" >&2; exit 1; }
	@touch $@

demo-venv: $(DEMO_STAMP)

demo: demo-venv
	@$(BIN)/python examples/demo $(if $(BOOTSTRAP),--bootstrap "$(BOOTSTRAP)")

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_arrows.py

test: LOOPS = asyncio uvloop
test: test-unit test-programs test-interop

test-unit: venv
	AIOPRODUCER_LOOPS="$(LOOPS)" $(BIN)/pytest -q -m "not interop and not programs" -n $(WORKERS) $(PYTEST_ARGS)

test-programs: venv
	$(BIN)/pytest -q -m "programs and not interop" -n $(WORKERS) $(PYTEST_ARGS)

# One process: they share brokers that take seconds to start.
test-interop: venv
	$(BIN)/pytest -q -m interop $(PYTEST_ARGS)

coverage:
	$(MAKE) test-unit PYTEST_ARGS="--cov=aioproducer --cov-branch --cov-report= $(PYTEST_ARGS)"
	$(MAKE) coverage-report

# From the data that the last run left: the whole, then what has to reach 95 %.
coverage-report: venv
	$(BIN)/coverage report --skip-covered
	@for room in $(SANS_IO); do \
		printf '\n%s\n' "aioproducer/$$room"; \
		$(BIN)/coverage report --skip-covered --fail-under=95 --include="aioproducer/$$room/*" || exit 1; \
	done

test-versions:
	@tested=; \
	for version in $(VERSIONS); do \
		python=; \
		for candidate in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
			if "$$candidate" -c 'import venv' 2>/dev/null; then python=$$candidate; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "CPython $$version: not installed here, not tested"; continue; \
		fi; \
		echo "CPython $$version: $$python"; \
		$(MAKE) --no-print-directory test-unit LOOPS="asyncio uvloop" PYTHON="$$python" VENV=".venv-$$version" || exit 1; \
		tested="$$tested $$version"; \
	done; \
	echo "tested on CPython:$${tested:- none of $(VERSIONS)}"

bench: venv
	$(BIN)/python bench/peers.py $(BENCH_ARGS)

soak: venv
	AIOPRODUCER_SEEDS=0-999 $(BIN)/pytest -q tests/simulation/test_seeds.py $(PYTEST_ARGS)
	AIOPRODUCER_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/pytest -q tests/interop/test_faults.py tests/interop/test_embedded_sigkill.py --timeout=3600 $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(VERSIONS:%=.venv-%) .demo site build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
