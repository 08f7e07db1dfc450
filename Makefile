# make demo   install, then replay the shipped example trace
# make test   install, lint, type-check, all tests (what .ci/run calls)
# make browser  Chromium for the tests of the pages, where apt is and none is there; without it they are skipped
# make explore  the tests once more, with new examples for every property test
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PYTHON ?= python3
EXTRAS ?= dev
DEMO_DB ?= demo.duckdb

.PHONY: setup demo test test-fast explore bench lint docs browser clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(STAMP)

# An existing .venv is adopted; it is only installed into again when pyproject.toml changes.
# uv takes seconds where pip takes a minute; without it plain pip does. uv ignores pip's find-links unless told.
$(STAMP): pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check uv || echo "uv cannot be had; pip does it"
	@if $(PY) -m uv --version >/dev/null 2>&1; then \
	   UV_FIND_LINKS="$$PIP_FIND_LINKS" $(PY) -m uv pip install -q --python $(PY) -e '.[$(EXTRAS)]'; \
	 else \
	   $(PY) -m pip install -q --disable-pip-version-check -e '.[$(EXTRAS)]'; \
	 fi
	@touch $@

demo: setup
	$(VENV)/bin/tracekit replay examples/demo_trace.jsonl.gz --slo ttft=500ms,tpot=50ms --db $(DEMO_DB)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m mypy --strict

test: lint
	$(PY) -m pytest -n 2

test-fast: setup
	$(PY) -m pytest -n 2 -m "not slow" -x

# New examples for every property test, where `make test` draws the same ones each time.
explore: setup
	TRACEKIT_EXPLORE=1 $(PY) -m pytest -n 2

bench: setup
	$(PY) -m benchmarks.all

browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	   as_root=$$(test "$$(id -u)" = 0 || echo sudo -n); \
	   $$as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq --no-install-recommends chromium; }

docs: setup
	$(PY) -m tracekit.cli.reference --write docs/cli.md
