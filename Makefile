# Needs a CPython of version 3.11 or newer, and nothing else: the rest goes into .venv.

# The first that is new enough and can make virtual environments; `make PYTHON=...` decides otherwise.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
	done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
COMPILED_STAMP := $(VENV)/.compiled
OPTIMIZED_STAMP := $(VENV)/.optimized
WHEEL_STAMP := $(VENV)/.installed-wheel

VERSIONS ?= 3.12 3.13
VERSION_LOOPS ?= asyncio uvloop
WHEEL_VERSIONS ?= 3.11 3.12 3.13 3.14
# The target that `make test-versions` runs with each of them.
VERSION_TARGET ?= test-unit
# The Spark tests run with the newest version, and with these.
SPARK_VERSIONS ?= 4.1
SPARK_VERSION ?= 4.1
SANS_IO := core wire protocol
COVERED ?= all
SOAK_ROUNDS ?= 10
# The first and the last seed of `make simulate`.
SEEDS ?= 0-199
TRANSACTION_VERSION ?= 2
# The size of its stories: small ones find most bugs sooner, large ones have more clients and last longer.
SIZE ?= small
# The build under test: the modules in COMPILED_MODULES of aioproducer/_build.py compiled, or with BUILD=pure their sources.
BUILD ?= $(if $(shell sh -c 'command -v $(CC)'),compiled,pure)
OF_BUILD = AIOPRODUCER_BUILD=$(BUILD) AIOPRODUCER_PURE=$(if $(filter pure,$(BUILD)),1,0)
# Number of processes for the unit tests.
WORKERS ?= auto
# Files with program tests and interop tests. Collecting the whole suite would take each process 8 s of CPU time.
PROGRAM_TESTS := $(addprefix tests/,$(shell sed -n '/^_PROGRAMS = /s/.*(\(.*\))/\1/p' tests/conftest.py | tr -d '",')) \
	$(shell grep -rl 'pytest\.mark\.programs' tests --include 'test_*.py')
INTEROP_TESTS := tests/interop $(filter-out tests/interop/%,\
	$(shell grep -rl 'pytest\.mark\.interop' tests --include 'test_*.py'))
INTEROP_WORKERS ?= 2
# Files and folders of programs, each of which imports modules beside it.
EXAMPLES := examples/pipeline.py examples/consume_transform_produce.py examples/demo examples/http_service examples/transactional_service examples/outbox_service examples/spark
# Event loops of the unit tests: both in `make test` and `make test-versions`, one in quick runs.
LOOPS ?= asyncio

# The sources of the compiled modules.
COMPILED_MODULES := $(shell sed -n 's/^    "\(aioproducer\..*\)",$$/\1/p' aioproducer/_build.py)
COMPILED_SOURCES := setup.py aioproducer/_build.py $(addsuffix .py,$(subst .,/,$(COMPILED_MODULES))) \
	$(shell find aioproducer -name "*.pxd")

# A copy of the package, compiled with AddressSanitizer and UndefinedBehaviorSanitizer; one for each virtual environment.
SANITIZED := build/sanitized/$(notdir $(VENV))
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SANITIZER_TESTS ?= tests

.PHONY: help demo demo-venv demo-spark-venv docs venv compiled optimized check test test-unit test-programs test-interop test-rdma coverage coverage-report \
	test-versions test-spark-versions test-spark test-sanitizers sanitized build-under-test simulate planted-bugs bench wheels wheel test-wheels soak clean

help:
	@echo "make demo           send real data to the embedded broker and read it back, then with Spark (not with SPARK=no);"
	@echo "                    BOOTSTRAP=host:9092 for your own Kafka"
	@echo "make venv           create a virtual environment in $(VENV) with everything below"
	@echo "make compiled       compile the hot modules in place, if a source has changed"
	@echo "make optimized      compile them twice, the second time with a profile; takes minutes"
	@echo "make check          run ruff, mypy, pyright over the examples, and the import rules of the rooms"
	@echo "make test           run all tests, the unit tests on both builds; without Java or Maven some are skipped"
	@echo "make test-unit      run the tests without other projects' brokers and without whole programs"
	@echo "make test-programs  run the tool, the demo, the examples and the documentation's blocks, as a user does"
	@echo "make test-interop   run the tests against Apache Kafka and librdkafka's mock cluster"
	@echo "make test-rdma      run the tests over RDMA, in a guest (QEMU, soft-RoCE); installs nothing on this machine"
	@echo "                    All of these use the compiled modules if there is a C compiler; BUILD=pure: the sources."
	@echo "make simulate       simulate clusters on virtual time: SEEDS=$(SEEDS) on all processors, SIZE=large for long ones;"
	@echo "                    prints how to repeat a failure; HISTORIES=FOLDER keeps the transactions as Elle reads them"
	@echo "make planted-bugs   count the seeds until the simulation finds each planted bug"
	@echo "make coverage       run the unit tests on the sources with branch coverage; fails below 95 % of $(SANS_IO)"
	@echo "make test-sanitizers  run the unit tests with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make test-spark-versions  run the Spark tests with pyspark $(SPARK_VERSIONS)"
	@echo "make test-versions  run the unit tests on the installed ones of CPython $(VERSIONS)"
	@echo "make wheels         build profile-guided wheels for the installed ones of CPython $(WHEEL_VERSIONS); takes minutes each"
	@echo "make test-wheels    install each wheel in a system without a compiler, and run the demo there; needs root"
	@echo "make docs           build the documentation as a site, in site/"
	@echo "make bench          compare this producer with others, against Apache Kafka; WHEEL=FILE measures a wheel"
	@echo "make soak           run tests that take hours: kills, restarts and leader moves, SOAK_ROUNDS=$(SOAK_ROUNDS) times each; fuzzers"

venv: $(STAMP)

$(BIN)/python:
	@test -n "$(PYTHON)" || { \
		echo "aioproducer needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv); found none." \
			"Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "aioproducer needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@echo '*' > $(VENV)/.gitignore

# A separate rule compiles the modules; pip would recompile all of them each time.
$(STAMP): pyproject.toml website/requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	AIOPRODUCER_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[test,lint,bench,docs]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement website/requirements.txt
	touch $@

compiled: $(COMPILED_STAMP)

# The stamp has the time before the start, so that a source changed during the compilation is newer.
$(COMPILED_STAMP): $(COMPILED_SOURCES) | $(STAMP)
	@touch $@.begun
	AIOPRODUCER_PURE=0 AIOPRODUCER_REQUIRE_COMPILED=1 $(BIN)/python setup.py -q build_ext --inplace
	@mv $@.begun $@

# As for a release, see setup.py. Afterwards `make compiled` recompiles only changed modules.
optimized: $(OPTIMIZED_STAMP)

$(OPTIMIZED_STAMP): $(COMPILED_SOURCES) training.py | $(STAMP)
	@touch $@.begun
	AIOPRODUCER_PURE=0 AIOPRODUCER_REQUIRE_COMPILED=1 AIOPRODUCER_PROFILE_GUIDED=1 $(BIN)/python setup.py -q build_ext --inplace
	@touch -r $@.begun $(COMPILED_STAMP)
	@mv $@.begun $@

build-under-test: venv $(if $(filter compiled,$(BUILD)),$(COMPILED_STAMP))

$(DEMO_STAMP): pyproject.toml examples/demo/requirements.txt | $(BIN)/python
	@echo "installing into $(VENV), once"
	@{ AIOPRODUCER_PURE=1 $(BIN)/python -m pip install --editable '.[demo]' \
		&& $(BIN)/python -m pip install --no-deps --requirement examples/demo/requirements.txt; } \
		> $(VENV)/install.log 2>&1 \
		|| { echo "demo: pip failed: $$(sed -n 's/^ *ERROR: //p' $(VENV)/install.log | head -n 1) (more in" \
			"$(VENV)/install.log; PIP_INDEX_URL names a mirror of PyPI)" >&2; exit 1; }
	@touch $@

demo-venv: $(DEMO_STAMP)

# Compiling takes longer than the demo, so the demo runs the sources unless the modules are already compiled.
DEMO = $(if $(wildcard $(COMPILED_STAMP)),,AIOPRODUCER_PURE=1) $(BIN)/python
DEMO_ARGS = $(if $(BOOTSTRAP),--bootstrap "$(BOOTSTRAP)")

# The second stage installs its further requirements, so that the first one does not wait for them.
demo: demo-venv $(if $(wildcard $(COMPILED_STAMP)),$(COMPILED_STAMP))
	@$(DEMO) examples/demo $(DEMO_ARGS)
	@$(if $(filter no,$(SPARK)),true,$(DEMO) examples/demo/spark_stage.py $(DEMO_ARGS))

demo-spark-venv: demo-venv
	@$(BIN)/python examples/demo/needs.py

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(EXAMPLES)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -q tests/test_arrows.py tests/docs/test_house.py

# Without compiled modules, one run is enough.
test: LOOPS = asyncio uvloop
test: test-unit test-programs test-interop
	@test "$(BUILD)" = pure || $(MAKE) --no-print-directory test-unit BUILD=pure LOOPS=asyncio

test-unit: build-under-test
	$(OF_BUILD) AIOPRODUCER_LOOPS="$(LOOPS)" $(BIN)/pytest -q -m "not interop and not programs and not soak" -n $(WORKERS) $(PYTEST_ARGS)

test-programs: build-under-test
	$(OF_BUILD) $(BIN)/pytest -q -m "programs and not interop and not soak" -n $(WORKERS) --dist worksteal $(PYTEST_ARGS) \
		$(PROGRAM_TESTS)

# Distributed by file, or group of files in tests/conftest.py: brokers take seconds to start, and each process has its own.
# Files keep their order, so that no long one runs at the end.
test-interop: build-under-test
	$(OF_BUILD) $(BIN)/pytest -q -m "interop and not soak" -n $(INTEROP_WORKERS) --dist loadfile --no-loadscope-reorder \
		$(PYTEST_ARGS) $(INTEROP_TESTS)

# A timeout ends the process in C, because pyverbs holds the GIL. Only the plugins that these tests use are loaded:
# importing all installed ones takes an emulated machine 10 s each time.
RDMA_PLUGINS := pytest_asyncio.plugin pytest_timeout aioproducer.testing.plugin
RDMA_PYTEST = PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -q -p no:cacheprovider $(addprefix -p ,$(RDMA_PLUGINS)) \
	-o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true
RDMA_SECONDS ?= 900
# Tests for the double that also run on the guest's device: all RDMA tests of the first files, and the faults of the others.
RDMA_CONTRACT := tests/transport/test_contract.py tests/transport/test_pausing.py tests/transport/test_rdma_producer.py \
	$(addprefix tests/transport/test_rdma_channel.py::,TestCredits TestFailures) \
	tests/transport/test_rdma_connecting.py::TestStrangersAtAListener
# The number of sent batches, and so of copied bytes of headers, depends on the speed of the machine. Tests of callbacks
# concern Python alone, and take an emulated machine minutes. The last five need what only the double offers: to hold
# writes back, to connect to a peer that does not exist, and to have no device.
RDMA_LEFT_OUT := ten_thousand or write_completed_may or exception_from_write_completed or while_one_is_pending \
	or until_the_card_has_read or a_wrong_token or disconnects_at_once or sends_no_ready or a_missing_device

# The first line compiles bytecode for the guest: an emulated machine compiles 30 times more slowly, and may read a file
# incompletely that is written while it runs.
# RDMA_SECONDS: limit of the guest. AIOPRODUCER_RDMA_RECORDS: number of records through the gateway to Apache Kafka.
test-rdma: build-under-test
	$(BIN)/python -m compileall -q aioproducer tests/kafka tests/rdma && \
		$(OF_BUILD) $(BIN)/pytest -q --collect-only tests/rdma $(RDMA_CONTRACT) >/dev/null
	$(OF_BUILD) AIOPRODUCER_TEST_GUEST=1 $(BIN)/pytest -q tests/rdma/test_guest.py tests/rdma/test_gateway_kafka.py
	$(OF_BUILD) AIOPRODUCER_LOOPS=asyncio $(BIN)/python -m tests.rdma.guest --limit $(RDMA_SECONDS) -- sh -c ' \
		$(RDMA_PYTEST) tests/rdma --ignore tests/rdma/test_guest.py --ignore tests/rdma/test_gateway_kafka.py $(PYTEST_ARGS) && \
		$(RDMA_PYTEST) -p tests.rdma.on_device -k "rdma and not ($(RDMA_LEFT_OUT))" $(RDMA_CONTRACT) $(PYTEST_ARGS)'

# Bugs in compiled classes cannot be planted.
simulate: build-under-test
	@$(OF_BUILD) $(BIN)/python -m tests.simulation.embedded simulate $(SEEDS) \
		--transaction-version $(TRANSACTION_VERSION) --size $(SIZE) $(if $(HISTORIES),--histories $(HISTORIES))

planted-bugs: venv
	@AIOPRODUCER_PURE=1 $(BIN)/python -m tests.simulation.embedded planted-bugs $(BUGS)

# Coverage cannot trace compiled modules. COVERED=rooms runs the same tests, but traces only those of the rooms that must
# reach 95 %, which takes less than half the CPU time.
coverage:
	AIOPRODUCER_COVERED=$(COVERED) $(MAKE) test-unit BUILD=pure PYTEST_ARGS="--cov=aioproducer --cov-branch --cov-report= $(PYTEST_ARGS)"
	$(MAKE) coverage-report

# Reports the data of the last run: everything, if it was traced, then the rooms that must reach 95 %.
coverage-report: venv
	@test "$(COVERED)" = rooms || $(BIN)/coverage report --skip-covered
	@for room in $(SANS_IO); do \
		printf '\n%s\n' "aioproducer/$$room"; \
		$(BIN)/coverage report --skip-covered --fail-under=95 --include="aioproducer/$$room/*" || exit 1; \
	done

sanitized: $(SANITIZED)/.compiled

$(SANITIZED)/.compiled: $(shell find aioproducer -name '*.py' -o -name '*.pxd') setup.py | $(STAMP)
	mkdir -p $(SANITIZED)
	find $(SANITIZED) -name '*.py' -delete
	tar --create --exclude='*.so' --exclude=__pycache__ aioproducer | tar --extract --directory $(SANITIZED)
	AIOPRODUCER_PURE=0 AIOPRODUCER_REQUIRE_COMPILED=1 CFLAGS="-O0 -g1 -fno-omit-frame-pointer -UNDEBUG $(SANITIZERS)" \
		LDFLAGS="-shared $(SANITIZERS)" $(BIN)/python setup.py -q build_ext --build-lib $(SANITIZED) --build-temp $(SANITIZED)/temp
	touch $@

# Python allocates by malloc, so that AddressSanitizer tracks every object. An error of the sanitizers ends the process;
# their report on its stderr would be lost in a file of pytest. A process that a test starts imports the same package,
# not the one in the current folder.
test-sanitizers: sanitized
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONSAFEPATH=1 \
		PYTHONPATH=$(CURDIR)/$(SANITIZED):$(CURDIR) \
		AIOPRODUCER_BUILD=sanitized AIOPRODUCER_PURE=0 AIOPRODUCER_LOOPS="$(LOOPS)" \
		$(BIN)/pytest -q --capture=sys --assert=plain -p no:cacheprovider -m "not interop and not programs and not soak" -n $(WORKERS) $(PYTEST_ARGS) \
		$(SANITIZER_TESTS)

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
		$(MAKE) --no-print-directory $(VERSION_TARGET) LOOPS="$(VERSION_LOOPS)" PYTHON="$$python" VENV=".venv-$$version" || exit 1; \
		tested="$$tested $$version"; \
	done; \
	echo "$(VERSION_TARGET) on CPython:$${tested:- none of $(VERSIONS)}"

wheels:
	@$(MAKE) --no-print-directory test-versions VERSIONS="$(WHEEL_VERSIONS)" VERSION_TARGET=wheel

# The imports of training.py beside the package, and the tool that repairs a wheel.
$(WHEEL_STAMP): pyproject.toml | $(BIN)/python
	AIOPRODUCER_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[arrow,uvloop,wheel]'
	touch $@

# From the sdist, as a release. LDSHARED: Python's default may add the folder of its library to the modules' search path.
# auditwheel fails if the wheel needs a library that other systems lack; it names the oldest glibc of the wheel.
wheel: | $(WHEEL_STAMP)
	rm -rf build/wheel-$(notdir $(VENV))
	mkdir -p build/wheel-$(notdir $(VENV)) dist
	AIOPRODUCER_PURE=1 $(BIN)/python setup.py -q sdist --dist-dir build/wheel-$(notdir $(VENV))
	LDSHARED="$(CC) -shared" AIOPRODUCER_PURE=0 AIOPRODUCER_PROFILE_GUIDED=1 $(BIN)/python -m pip wheel --no-build-isolation --no-deps --no-cache-dir \
		--wheel-dir build/wheel-$(notdir $(VENV)) build/wheel-$(notdir $(VENV))/*.tar.gz
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel-$(notdir $(VENV))/*.whl

# The wheels in dist/.
test-wheels: venv
	AIOPRODUCER_TEST_WHEELS=1 $(BIN)/pytest -q tests/fresh_root/test_wheels.py $(PYTEST_ARGS)

test-spark-versions:
	@for version in $(SPARK_VERSIONS); do \
		$(MAKE) --no-print-directory test-spark SPARK_VERSION="$$version" BUILD=pure VENV=".venv-spark-$$version" || exit 1; \
	done

test-spark: build-under-test
	$(BIN)/python -m pip install --quiet "pyspark~=$(SPARK_VERSION).0"
	$(OF_BUILD) AIOPRODUCER_REQUIRE_INTEROP=1 $(BIN)/pytest -q tests/spark/test_source.py tests/spark/test_streaming.py $(PYTEST_ARGS)

# The module to run: `bench`, or `bench.soak` and others.
BENCH_MODULE ?= bench

ifdef WHEEL
BENCH_VENV := build/bench-venv
BENCH_STAMP := $(BENCH_VENV)/.installed-$(notdir $(WHEEL))

# Installs the wheel in a separate environment. The bench comes from the checkout, which Python searches last.
$(BENCH_STAMP): $(WHEEL)
	$(PYTHON) -m venv --clear $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet '$(WHEEL)[bench]'
	echo '$(CURDIR)' > "$$($(BENCH_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/bench.pth"
	touch $@

# With a safe path, which the bench's processes inherit, Python does not import the package in the current folder.
bench: $(BENCH_STAMP)
	PYTHONSAFEPATH=1 $(BENCH_VENV)/bin/python -m $(BENCH_MODULE) $(BENCH_ARGS)
else
# With --quick, only check that it works.
bench: venv $(if $(findstring --quick,$(BENCH_ARGS)),compiled,optimized)
	$(BIN)/python -m $(BENCH_MODULE) $(BENCH_ARGS)
endif

soak: build-under-test
	$(OF_BUILD) AIOPRODUCER_SEEDS=0-999 $(BIN)/pytest -q tests/simulation/test_seeds.py $(PYTEST_ARGS)
	$(MAKE) simulate SEEDS=0-19999
	$(MAKE) simulate SEEDS=0-2999 SIZE=large
	$(MAKE) planted-bugs
	$(OF_BUILD) AIOPRODUCER_SOAK_ROUNDS=$(SOAK_ROUNDS) $(BIN)/pytest -q tests/interop/test_faults.py tests/interop/test_embedded_sigkill.py \
		tests/interop/test_embedded_sigkill_transactions.py tests/interop/test_embedded_streams.py --timeout=3600 $(PYTEST_ARGS)
	$(MAKE) test-sanitizers PYTEST_ARGS="--timeout=3600 $(PYTEST_ARGS)"
	$(MAKE) test-sanitizers SANITIZER_TESTS="tests/fuzz tests/wire" PYTEST_ARGS="--hypothesis-profile=soak --timeout=3600 $(PYTEST_ARGS)"
	$(MAKE) test-unit BUILD=pure
	$(MAKE) test-interop BUILD=pure
	AIOPRODUCER_FRESH_ROOT=1 $(MAKE) test-programs WORKERS=0 PROGRAM_TESTS=tests/fresh_root
	AIOPRODUCER_RDMA_RECORDS=100000 $(MAKE) test-rdma
	$(OF_BUILD) $(BIN)/pytest -q -m soak --timeout=3600 $(PYTEST_ARGS)
	$(OF_BUILD) AIOPRODUCER_SPARK_ROWS=5000000 $(BIN)/pytest -q tests/interop/spark/test_rows.py --timeout=3600 $(PYTEST_ARGS)
	$(MAKE) test-spark-versions
	$(MAKE) test-versions
	$(MAKE) wheels test-wheels
	$(MAKE) optimized
	$(MAKE) test-unit BUILD=compiled LOOPS="asyncio uvloop"

clean:
	find aioproducer -name '*.so' -delete
	rm -rf $(VENV) $(VERSIONS:%=.venv-%) $(SPARK_VERSIONS:%=.venv-spark-%) .demo site build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
