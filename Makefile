# make demo   set up, then train on real handwritten digits
# make test   set up, then run every check
# make docs   set up, then build the pages, into .site/
# make gpu    with an NVIDIA GPU: set up MXNet's wheel for GPUs, then check on it; a page to paste, into gpu-page.txt
# All take PYTHON=python3.13 and the like; each Python has a virtual environment of its own.

PYTHON ?= python3
INTERPRETER := $(shell .ci/find-python $(PYTHON))
ifeq ($(INTERPRETER),)
$(error PYTHON=$(PYTHON) does not run here: install it, with its venv module, or name another, like PYTHON=python3.11)
endif
TAG := $(shell $(INTERPRETER) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv/$(TAG)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint unit long clean torture memory zoo notebooks benchmarks torch docs gpu schedulers horovod

demo: $(VENV)/.installed
	$(BIN)/mxkit train digits_lenet

# Side by side: mypy's first run takes one core for half a minute.
test: $(VENV)/.tested
	$(MAKE) --jobs=2 lint unit

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Few processes: each runs MXNet, which takes half of the processors for itself. Each begins with its part of the files,
# so that what the tests of a file share is made once, and whoever has done takes tests from the other.
PYTEST := python -m pytest -n auto --dist worksteal
PROCESSES ?= 2
unit: $(VENV)/.tested
	$(BIN)/$(PYTEST) --maxprocesses=4

# What .ci/run adds to the short versions inside the tests.
long: $(VENV)/.tested
	MXKIT_LONG=1 $(BIN)/$(PYTEST) --maxprocesses=$(PROCESSES) -m "long or hypothesis"

torture: $(VENV)/.tested
	PYTHONPATH=. $(BIN)/python tests/storage/torture.py --kills 24 --seed 0
	PYTHONPATH=.:tests:tests/recipe $(BIN)/python tests/recipe/torture_runs.py --each 1 --seed 0
	PYTHONPATH=.:tests:tests/recipe $(BIN)/python tests/recipe/torture_runs.py --family ssd yolo3 fcn pose --kinds SIGKILL --each 1 --seed 0

# Short trainings, one after the other, under glibc's debug allocator: a program that damages memory ends there. Twice, with
# other numbers in freed memory and in another order. glibc before 2.34 has the check in itself.
memory: $(VENV)/.tested
	LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 MALLOC_PERTURB_=165 PYTHONPATH=. $(BIN)/python tests/training/damaged_memory.py --seed 0
	LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 MALLOC_PERTURB_=91 PYTHONPATH=. $(BIN)/python tests/training/damaged_memory.py --seed 1

# Features of every layer of 91 real nets; 15 of MXNet's zoo described, built and compared; an epoch of each model. Without
# --families, the first script also takes the nets that are only deeper or wider.
zoo: $(VENV)/.tested
	$(BIN)/python tests/zoo/check_features.py --families
	PYTHONPATH=.:tests $(BIN)/python tests/models/heavy_epochs.py

# Training through the real Open MPI, MPICH and SLURM, where they are or can be installed; it says which were skipped.
schedulers: $(VENV)/.tested
	$(BIN)/python .ci/schedulers $(CURDIR)/$(BIN)/python

# `fit` through the real Horovod, built in an environment of its own; it says if that cannot be.
horovod:
	@.ci/horovod

# All twelve, each in a kernel of its own.
notebooks: $(VENV)/.tested
	$(BIN)/$(PYTEST) --maxprocesses=$(PROCESSES) -m notebooks tests/test_notebooks.py

# The PyTorch code, in an environment of its own: torch is large, and not every Python has a build without CUDA.
torch: .venv/torch/.tested
	.venv/torch/bin/$(PYTEST) --maxprocesses=$(PROCESSES) -m torch tests/exporting tests/test_notebooks.py

.venv/torch/.tested: pyproject.toml
	$(INTERPRETER) -m venv .venv/torch
	.venv/torch/bin/python -m pip install --quiet --disable-pip-version-check -e '.[cpu,test,onnx]' 'torch==2.13.0'
	touch $@

# Every question of the benchmarks once, with few rounds and small sizes; what was measured is not kept.
benchmarks: $(VENV)/.tested
	MXKIT_BENCHMARKS=all $(BIN)/python -m pytest tests/test_benchmarks.py

# Strict: a warning of a link, an anchor or a docstring is an error.
docs: $(VENV)/.documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Its own environment, because MXNet's two wheels are one package. 77: no usable GPU, which it says, and nothing done.
gpu:
	@$(INTERPRETER) .ci/gpu .venv/gpu-$(TAG) || [ $$? -eq 77 ]

clean:
	rm -rf .venv

$(VENV)/bin/python:
	$(INTERPRETER) -m venv $(VENV)

# MXNet's wheel pins numpy<2, for which Python 3.13 has no wheel: there it is installed without its pins.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
ifeq ($(shell $(INTERPRETER) -c 'import sys; print(sys.version_info >= (3, 13))'),True)
	$(PIP) --no-deps mxnet==1.9.1
	$(PIP) -e .
else
	$(PIP) -e '.[cpu]'
endif
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) -e '.[test,onnx]'
	touch $@

$(VENV)/.documented: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	touch $@
