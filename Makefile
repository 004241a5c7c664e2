# Two commands do everything on a fresh machine with Python: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
LATEST_PYTHON ?= $(shell ls $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python 2>/dev/null | sort -V | tail -n 1 | grep . || command -v python3.14 || command -v python3.13 || command -v python3.12)
VENV := .venv
BIN := $(VENV)/bin
# jax looks for accelerators at start; the tests and the demo are for the CPU.
export JAX_PLATFORMS ?= cpu
PYTEST_ARGS ?=
# What the CPU kernels are built from, which an install does.
KERNELS := setup.py paged/backends/cpu/build.py $(wildcard paged/backends/cpu/src/*)

.PHONY: demo test test-full test-latest gpu-site gpu-check lint types format clean

demo: $(VENV)/.run
	$(BIN)/paged demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not full" $(PYTEST_ARGS)

test-full: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# The newest jax on a newer Python. No torch in this lane: there is no small build of it there.
test-latest:
ifeq ($(strip $(LATEST_PYTHON)),)
	@echo "test-latest skipped: no Python 3.12 or newer found (set LATEST_PYTHON=/path/to/python)"
else
	$(LATEST_PYTHON) -m venv .venv-latest
	.venv-latest/bin/python -m pip install --quiet --upgrade pip
	.venv-latest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e ".[test]"
	.venv-latest/bin/python -c "import sys, jax; print('Python', sys.version.split()[0], 'jax', jax.__version__)"
	.venv-latest/bin/python -m pytest -n 2 --dist worksteal -m "not full" $(PYTEST_ARGS)
endif

# For a machine with an NVIDIA GPU whose Python has torch, triton and jax, and no network: the small
# pure-Python packages that it may lack, brought along in a folder.
gpu-site:
	$(PYTHON) -m pip install --quiet --upgrade --no-deps --target .gpu-site $(GPU_SITE)

GPU_SITE := einops jaxtyping wadler-lindig jax-triton absl-py
GPU_CHECK_ARGS ?= --out benchmarks/results/gpu.json

# Without a GPU: GPU_CHECK_ARGS=--dry and PYTHON with torch and triton.
gpu-check:
	PYTHONPATH=.:.gpu-site $(PYTHON) -m benchmarks.gpu $(GPU_CHECK_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-latest build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: pyproject.toml constraints.txt $(KERNELS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(KERNELS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.run
