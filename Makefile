# The front door. `make demo` shows it all, `make test` runs the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= --numprocesses 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo base stand-ins test lint format schemas golden bench bench-push bench-read soak clean

help:
	@echo "make demo    build and verify the image mini on a stand-in base, from nothing"
	@echo "make test    run all tests"
	@echo "make lint    ruff and mypy"
	@echo "make base    make the stand-in base only"
	@echo "make stand-ins: what the real images need, small, for --stand-in tests/standin/images"
	@echo "make bench   measure; make bench-push: at full size, and against BuildKit, buildah, crane and skopeo"
	@echo "make bench-read: how a base is read, against the hardware and Syft"
	@echo "make soak    a thousand pushes of mini with a random fault each, and fifty that are killed"
	@echo "make clean   remove what was made in this folder (not the cache)"

$(VENV)/.runtime: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "imgbuild needs Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "the environment cannot be made; on Debian and Ubuntu it needs: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.3'
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

base: $(VENV)/.runtime
	@$(BIN)/python tests/standin/make.py --store .imgbuild/store

stand-ins: $(VENV)/.runtime
	@$(BIN)/python -m tests.standin.images

demo: base
	@$(BIN)/imgbuild lock mini
	@$(BIN)/imgbuild build mini
	@echo "the program is $(BIN)/imgbuild; for it to be found as imgbuild: . $(BIN)/activate"

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(VENV)/.runtime
	$(BIN)/python -m imgbuild.cli.schemas

golden: $(VENV)/.dev
	$(BIN)/python tests/golden/changeset/regenerate.py

bench: $(VENV)/.dev base
	$(BIN)/python bench/run.py
	$(BIN)/python -m bench.push --short

# About 20 minutes, 25 GB of disk and 200 MB of packages; as root.
bench-read: $(VENV)/.dev base
	$(BIN)/python -m bench.reading

bench-push: $(VENV)/.dev base
	$(BIN)/python -m bench.push

soak: $(VENV)/.dev demo
	$(BIN)/python -m bench.soak

clean:
	rm -rf $(VENV) .imgbuild .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist builder/*.egg-info
