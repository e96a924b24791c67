# Needs a CPython of version 3.11 or newer as PYTHON, and nothing else: the rest goes into .venv.

PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

VERSIONS ?= 3.12 3.13
SANS_IO := core wire protocol
SOAK_ROUNDS ?= 10

.PHONY: help venv check test test-unit test-interop coverage coverage-report test-versions bench soak clean

help:
	@echo "make venv           a virtual environment in $(VENV) with everything below"
	@echo "make check          ruff, mypy, and the arrows between the rooms"
	@echo "make test           the whole suite; what needs Java or Maven skips where they are missing"
	@echo "make test-unit      without brokers that this project did not write"
	@echo "make test-interop   against Apache Kafka and librdkafka's mock cluster alone"
	@echo "make coverage       the unit tests with branch coverage; fails below 95 % of $(SANS_IO)"
	@echo "make test-versions  the unit tests on CPython $(VERSIONS), where they are installed"
	@echo "make bench          this producer and others side by side, against Apache Kafka"
	@echo "make soak           kills, restarts and leader moves, SOAK_ROUNDS=$(SOAK_ROUNDS) times each"

venv: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aioproducer needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	echo '*' > $(VENV)/.gitignore
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,bench]'
	touch $@

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_arrows.py

test: venv
	$(BIN)/pytest -q $(PYTEST_ARGS)

test-unit: venv
	$(BIN)/pytest -q -m "not interop" $(PYTEST_ARGS)

test-interop: venv
	$(BIN)/pytest -q -m interop $(PYTEST_ARGS)

coverage: venv
	$(BIN)/pytest -q -m "not interop" --cov=aioproducer --cov-branch --cov-report= $(PYTEST_ARGS)
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
		$(MAKE) --no-print-directory test-unit PYTHON="$$python" VENV=".venv-$$version" || exit 1; \
		tested="$$tested $$version"; \
	done; \
	echo "tested on CPython:$${tested:- none of $(VERSIONS)}"

bench: venv
	$(BIN)/python bench/peers.py $(BENCH_ARGS)

soak: venv
	AIOPRODUCER_SEEDS=0-999 $(BIN)/pytest -q tests/simulation/test_seeds.py $(PYTEST_ARGS)
	AIOPRODUCER_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/pytest -q tests/interop/test_faults.py tests/interop/test_embedded_sigkill.py --timeout=3600 $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) $(VERSIONS:%=.venv-%) build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
