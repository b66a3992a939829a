# Every target makes its own virtual environment in .venv and installs what it needs, once.
# Another interpreter: PYTHON=python3.12 make test

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

# One thread for each test worker: the workers already fill the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help try test test-all fuzz lint types format docs bench bench-gpu gpu-verify checkpoints corpora clean test-oldest test-newest

help: ## print this list
	@echo "make <target>, where target is one of:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

try: $(VENV)/installed-base ## train a small Transformer to pronounce English (a minute or two) and show its attention
	$(BIN)/python recipes/pronounce.py

# A room is a folder below tests/, such as parts or train/optimizers, or a file there.
ROOM_TESTS = $(wildcard tests/$(ROOM) tests/test_$(ROOM).py)

test: $(if $(ROOM),$(VENV)/installed-test,lint types) ## lint, formatting, types and the fast tests; ROOM=parts: those of one room alone
	$(PYTEST) $(if $(ROOM),$(or $(ROOM_TESTS),$(error There is no room tests/$(ROOM))))

test-all: lint types ## the same, with the slow tests
	$(PYTEST) -m "slow or not slow"

# Versions at both ends of what pyproject.toml allows, each in an environment of its own. That of torch brings CUDA along
# on Linux, 5 GB of it. What passed is noted in tools/tested_versions.json, to be committed with what was changed.
OLDEST_PYTHON ?= python3.11
ENDS_TESTS := tests/cli/test_config_file.py tests/cli/test_main.py tests/cli/test_plain.py tests/look tests/test_files.py \
	tests/data/test_tokenizer.py tests/generate/test_text.py tests/weights/test_load.py tests/api/test_training.py \
	tests/data/test_sources.py tests/data/test_table.py tests/generate/test_constrain.py tests/train/test_metrics.py \
	tests/train/test_watchers.py tests/weights/test_hub.py

test-oldest: $(VENV)-oldest/bin/python ## some tests with the oldest versions that pyproject.toml allows (three minutes)
test-newest: $(VENV)-newest/bin/python ## the same with the newest versions
test-oldest test-newest: test-%:
	@echo "Installing qkv with the $* versions into $(VENV)-$* (some minutes when they are not there yet)"
	@$(VENV)-$*/bin/python -m tools.version_ranges $* > $(VENV)-$*/requirements.txt
	@$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
		--upgrade --upgrade-strategy eager --requirement $(VENV)-$*/requirements.txt
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
		$(VENV)-$*/bin/python -m pytest -n $(JOBS) --dist loadfile $(ENDS_TESTS)
	@$(VENV)-$*/bin/python -m tools.version_ranges record $*

fuzz: $(VENV)/installed-test ## read a million damaged files (an hour or less); goes on where an earlier run was stopped
	$(BIN)/python -m tests.fuzz --workers $(JOBS) --page docs/results/fuzzing.md

lint: $(VENV)/installed-test ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff check --preview --select PLW1514 # every text file is opened with its encoding
	$(BIN)/ruff format --check

types: $(VENV)/installed-test ## mypy
	$(BIN)/mypy

format: $(VENV)/installed-test ## rewrite the files the way lint wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/installed-docs ## build the site with its API reference into site/
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q --fresh-env --jobs $(JOBS) -b html -c docs -d build/doctrees . site
	@echo "Open site/index.html"

# The others in bench/ are what these share.
BENCH_SCRIPTS = $(shell grep -l '^if __name__' bench/*.py)

bench: $(VENV)/installed-peers ## run every benchmark that needs no GPU (bench/*.py but not bench/*_gpu.py)
	@set -e; for script in $(filter-out %_gpu.py,$(BENCH_SCRIPTS)); do \
		echo "== $$script"; $(BIN)/python $$script; done

# On a machine that has all that is needed, but no way to install it: make bench-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
GPU_SCRIPTS ?= $(filter %_gpu.py,$(BENCH_SCRIPTS))

bench-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/installed-test) ## run every benchmark on a GPU, and write docs/performance.md
	@failed=0; for script in $(GPU_SCRIPTS); do \
		echo "== $$script"; PYTHONPATH=src $(GPU_PYTHON) $$script || failed=1; done; \
	PYTHONPATH=src $(GPU_PYTHON) bench/write_page.py; exit $$failed

gpu-verify: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/installed-test) ## verify on a GPU what is due, for nine minutes, or PART=name; writes docs/gpu.md
	PYTHONPATH=src $(GPU_PYTHON) -m tools.gpu_verify $(PART)

checkpoints: $(VENV)/installed-base ## fetch published models and vocabularies for the slow tests into checkpoints/ (570 MB)
	$(BIN)/python -m tools.fetch_checkpoints

corpora: $(VENV)/installed-base ## fetch texts, pictures and speech to train on into corpora/ (950 MB)
	$(BIN)/python -m tools.fetch_data

clean: ## remove the virtual environment, the site and every cache
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest site build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Some systems ship Python without ensurepip; then the pip that is there fills the environment.
new_venv = $(1) -m venv $(2) >/dev/null 2>&1 || \
	{ $(1) -m venv --clear --without-pip $(2) && \
	  $(1) -m pip --python $(2)/bin/python install --quiet --disable-pip-version-check pip; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "qkv needs Python 3.11 or newer; name one, for example: PYTHON=python3.12 make test" >&2; exit 1; }
	@$(call new_venv,$(PYTHON),$(VENV))

$(VENV)-oldest/bin/python $(VENV)-newest/bin/python: $(VENV)-%/bin/python:
	@$(call new_venv,$(OLDEST_PYTHON),$(VENV)-$*)

$(VENV)/installed-base: $(SOURCES) | $(BIN)/python
	@echo "Installing qkv into $(VENV) (once; a few minutes at most)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: $(SOURCES) | $(BIN)/python
	@echo "Installing qkv and its test tools into $(VENV) (once; a few minutes at most)"
	@$(INSTALL) --editable ".[test]"
	@touch $(VENV)/installed-base $@

$(VENV)/installed-peers: $(SOURCES) | $(BIN)/python
	@echo "Installing qkv and the libraries it is measured beside into $(VENV) (once; some minutes, one is compiled)"
	@$(INSTALL) --editable ".[test,peers]"
	@touch $(VENV)/installed-base $(VENV)/installed-test $@

$(VENV)/installed-docs: $(SOURCES) | $(BIN)/python
	@echo "Installing qkv and its documentation tools into $(VENV) (once; a few minutes at most)"
	@$(INSTALL) --editable ".[docs]"
	@touch $(VENV)/installed-base $@
