# make run      engine and sidecar on this machine, ready for an OpenAI client
# make test     everything: lint, types, unit, integration and real-engine tests
# make test-fast  lint and what needs neither an engine nor patience: about a minute
# make test-long  what takes long, the soak included; short forms are in `make test`
# make soak       clients and faults by chance, for MINUTES (20): what must never happen
# make install  the environment alone
# make compiled  a wheel with a request's way compiled, for each Python on this machine
# make docs     the pages of docs/ as a site, in build/site
# make k8s      renders the manifests: the code and profiles that pods get, and the flat files

# Or each of the processes that tests start would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

# Of `make run` and `make check`; those left out are as of `orch up`.
PROFILE ?=
PORT ?=
SLOTS ?=
MINUTES ?= 20
SEED ?=
MODEL ?=
UP = $(if $(PROFILE),--profile $(PROFILE)) $(if $(PORT),--port $(PORT)) $(if $(SLOTS),--slots $(SLOTS)) $(if $(MODEL),--model $(MODEL))

.PHONY: install run check test test-fast test-long static test-engine engines-shared engines-own test-unit unit-serving unit-tools unit-rest test-integration fast-unit fast-integration lint types bench-proxy bench-scale bench-engine bench-plugin bench-policy bench-traffic bench-three bench-import bench-queue bench-sidecars bench-entry bench-published bench-idle soak docs k8s compiled test-compiled clean

install: $(STAMP)

# The engine for CPUs pins the CPU build of torch, which is not on PyPI: pip must be configured
# to find it. The torchvision, torchaudio and torchcodec that come along are CUDA builds that
# break `import transformers`; text models need none of them. No module is compiled ahead: of the
# hundred seconds that all of them take, those that are imported are a third. The pip of Python 3.11
# takes two minutes of a core to choose what a newer one chooses in a half.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the engine for CPUs into $(VENV): about 3.5 GB, some minutes"
	@$(BIN)/python -m pip install --quiet --no-compile --upgrade pip || true  # an older one is slower
	@$(BIN)/python -m pip install --quiet --no-compile --editable '.[cpu,dev]' || { \
	  echo; echo "If pip found no torch==...+cpu above: it is in PyTorch's package index for CPUs"; \
	  echo "(pytorch.org, Get Started, Pip, CPU). Set PIP_EXTRA_INDEX_URL to it, and try again."; \
	  exit 1; }
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

run: $(STAMP)
	@exec $(BIN)/orch up $(UP)

check: $(STAMP)
	@$(BIN)/orch up --check $(UP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Four side by side on two cores: engines and integration wait for much of their time. Those that
# take longest come first, and all is in parts, so that one is left for each core until the end.
# Each prints when it has ended. Two cores need half of the processor time in all at least.
SIDE_BY_SIDE := --no-print-directory --output-sync=target --keep-going
PYTEST := $(BIN)/python -m pytest -q

test: $(STAMP)
	@bash -c 'TIMEFORMAT="all parts: %0R s; processor time: %0U s, and %0S s in the kernel"; \
	  time $(MAKE) $(SIDE_BY_SIDE) --jobs=4 engines-shared engines-own test-integration static unit-tools unit-serving unit-rest'

test-fast: lint
	@$(MAKE) $(SIDE_BY_SIDE) --jobs=2 fast-unit fast-integration

static: lint types

test-engine: engines-shared engines-own

# Tests that start engines for themselves, or only import vLLM; those of the others run on and on.
OWN := tests/k8s/test_running.py $(wildcard tests/engine/test_*_agree*.py) \
  $(patsubst %,tests/engine/test_%.py,enforcement inert up)

engines-shared: $(STAMP)
	$(PYTEST) -m "engine and not long" tests/engine $(addprefix --ignore=,$(OWN))

engines-own: $(STAMP)
	$(PYTEST) -m "engine and not long" $(OWN)

test-unit: unit-serving unit-tools unit-rest

unit-serving: $(STAMP)
	$(PYTEST) -m "not long" tests/orch_sidecar --ignore=tests/orch_sidecar/tools

unit-tools: $(STAMP)
	$(PYTEST) -m "not long" tests/orch_sidecar/tools

unit-rest: $(STAMP)
	$(PYTEST) -m "not engine and not long" --ignore=tests/integration --ignore=tests/engine --ignore=tests/orch_sidecar

test-integration: $(STAMP)
	$(PYTEST) -m "not long" tests/integration

fast-unit: $(STAMP)
	$(PYTEST) -m "not engine and not long and not slow" --ignore=tests/integration --ignore=tests/engine

fast-integration: $(STAMP)
	$(PYTEST) -m "not long and not slow" tests/integration

test-long: $(STAMP)
	$(PYTEST) -m long
	EXAMPLES=all $(PYTEST) -m hypothesis
	$(BIN)/python -m tests.compiled
	$(BIN)/python -m tests.benchmarks.published --size tiny --rounds 1
	$(BIN)/python -m tests.benchmarks.short_waits
	$(BIN)/python -m tests.benchmarks.sidecars crashes --minutes 10
	$(BIN)/python -m tests.benchmarks.sidecars crashes --minutes 10 --scripted
	$(BIN)/python -m tests.benchmarks.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench-proxy: $(STAMP)
	$(BIN)/python -m tests.benchmarks.proxy

bench-scale: $(STAMP)
	$(BIN)/python -m tests.benchmarks.scale

bench-engine: $(STAMP)
	$(BIN)/python -m tests.benchmarks.engine

bench-plugin: $(STAMP)
	$(BIN)/python -m tests.benchmarks.plugin

bench-three: $(STAMP)
	$(BIN)/python -m tests.benchmarks.three_ways

bench-import: $(STAMP)
	$(BIN)/python -m tests.benchmarks.imports

bench-queue: $(STAMP)
	$(BIN)/python -m tests.benchmarks.queue

bench-sidecars: $(STAMP)
	$(BIN)/python -m tests.benchmarks.sidecars throughput
	$(BIN)/python -m tests.benchmarks.sidecars crashes
	$(BIN)/python -m tests.benchmarks.sidecars rogue

bench-entry: $(STAMP)
	$(BIN)/python -m tests.benchmarks.entry
	$(BIN)/python -m tests.benchmarks.entry.placement

bench-published: $(STAMP)
	$(BIN)/python -m tests.benchmarks.published

bench-idle: $(STAMP)
	$(BIN)/python -m tests.benchmarks.idle

bench-policy: $(STAMP)
	$(BIN)/python -m tests.benchmarks.policy all

bench-traffic: $(STAMP)
	$(BIN)/python -m tests.benchmarks.traffic

soak: $(STAMP)
	$(BIN)/python -m tests.benchmarks.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir build/site

k8s: $(STAMP)
	$(BIN)/python -m k8s.render

# One wheel for each interpreter: compiled modules run under no other.
compiled: $(STAMP)
	@for version in 3.11 3.12 3.13; do \
	  if python$$version -c '' 2>/dev/null; then \
	    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m pip --python "$$(command -v python$$version)" wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	  else echo "there is no Python $$version on this machine: no wheel for it"; fi; \
	done; ls dist/*.whl

test-compiled: $(STAMP)
	$(BIN)/python -m tests.compiled

clean:
	rm -rf $(VENV) .cache build dist
