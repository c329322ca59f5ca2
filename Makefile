# Cuteforge: `make demo` and `make test` are all that a fresh clone needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ROOMS := kernels profiles sandbox guidelines tools server

.PHONY: demo test check bench gpu clean

# An environment is good when its stamp is newer than what it was made from and its Python still starts.
ifneq ($(wildcard $(VENV)),)
  ifneq ($(shell $(BIN)/python -c "print(1)" 2>/dev/null),1)
    $(shell rm -rf $(VENV))
  endif
endif

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "Cuteforge needs Python 3.11 to 3.13; $$($(PYTHON) --version 2>&1) was found. Use: make PYTHON=python3.12 …"; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || \
	  { echo "Cuteforge needs a C++ compiler (Debian, Ubuntu: apt-get install g++)."; exit 1; }
	@echo "== new environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.python pyproject.toml constraints.txt
	@echo "== installing Cuteforge with GPU support and CUDA toolchain (a few minutes the first time)"
	$(PIP) install --progress-bar on -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "== installing the test tools"
	$(PIP) install --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.base
	$(BIN)/cuteforge demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python dev/check.py

bench: $(VENV)/.dev
	$(BIN)/python -m bench.run

gpu:
	$(or $(GPU_PYTHON),$(PYTHON)) bench/gpu.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
