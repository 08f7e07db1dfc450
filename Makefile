# make demo   install, replay a shipped trace whose chat is slow, say why, and leave a database for the dashboard
# make test   install, lint, type-check, all tests (what .ci/run calls)
# make browser  Chromium for the tests of the pages, where apt is and none is there; without it they are skipped
# make cluster  PostgreSQL for the tests of many machines, where apt is and none is there; without it they are skipped
# make explore  the tests once more, with new examples for every property test
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
TESTED := $(VENV)/.installed-for-tests
PYTHON ?= python3
EXTRAS ?= dev
TEST_EXTRAS ?= dev,engine,reference,cluster,serve
DEMO_DB ?= demo.duckdb
# Bytecode is kept: the tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-fast explore bench lint docs browser cluster clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(STAMP)

# An existing .venv is adopted; it is only installed into again when pyproject.toml changes.
# uv takes seconds where pip takes a minute; without it plain pip does. uv ignores pip's find-links unless told.
define install
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check uv || echo "uv cannot be had; pip does it"
	@if $(PY) -m uv --version >/dev/null 2>&1; then \
	   UV_FIND_LINKS="$$PIP_FIND_LINKS" $(PY) -m uv pip install -q --python $(PY) $(1); \
	 else \
	   $(PY) -m pip install -q --disable-pip-version-check $(1); \
	 fi
	@touch $@
endef

$(STAMP): pyproject.toml
	$(call install,-e '.[$(EXTRAS)]')

# The tests want the torch engine too. Where pip has a CPU build of torch among its find-links, that one is taken.
$(TESTED): $(STAMP)
	$(call install,-e '.[$(TEST_EXTRAS)]')

# Three commands that anybody would type, and where to look next. The experiment is for its page: its tables are left out here.
demo: setup
	$(VENV)/bin/tracekit replay examples/contracts/contracts.jsonl.gz --policy examples/contracts/slo.toml --db $(DEMO_DB)
	$(VENV)/bin/tracekit diagnose last --db $(DEMO_DB)
	$(VENV)/bin/tracekit experiment contracts --policy examples/contracts/slo.toml --vary long_prefill_token_threshold=0,4096,1024 \
	  --windows 8 --length 36s --db $(DEMO_DB) >/dev/null
	@printf '\nnext: %s\n      its pages lead from the slow chat to the cause, the change and the proof, as docs/tour.md shows\n' \
	  "$(VENV)/bin/tracekit dashboard --db $(DEMO_DB)"

lint: $(TESTED)
	$(PY) -m ruff check .
	$(PY) -m mypy --strict

# A process takes half of the files and then some of the other's (worksteal), so that what a file sets up is seldom set up twice.
# A failed test is run once more and said to have been (R). Drawn examples are the same each time, so only what hangs on timing can pass then.
test: lint browser cluster
	TRACEKIT_BROWSER=$(if $(CI),required,$$TRACEKIT_BROWSER) TRACEKIT_CLUSTER=$(if $(CI),required,$$TRACEKIT_CLUSTER) $(PY) -m pytest -n 2 --dist worksteal --reruns 1 -rR

test-fast: $(TESTED)
	$(PY) -m pytest -n 2 -m "not slow" -x

# New examples for every property test, where `make test` draws the same ones each time.
explore: $(TESTED)
	TRACEKIT_EXPLORE=1 $(PY) -m pytest -n 2

bench: setup
	$(PY) -m benchmarks.all

# As root on Debian it is installed; elsewhere its absence is said, and the tests that need it are skipped (in CI they fail).
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	   test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	   DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } || \
	 echo "no Chromium, and it cannot be installed from here: the tests of the pages are skipped"

cluster:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	   test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	   DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; } || \
	 echo "no PostgreSQL, and it cannot be installed from here: the tests of many machines are skipped"

docs: setup
	$(PY) -m tracekit.cli.reference --write docs/cli.md
