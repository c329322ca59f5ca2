# Cuteforge: `make demo` and `make test` are all that a fresh clone needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check bench gpu clean

# An environment made here whose Python no longer starts (the system's Python moved on) is made again.
# Without the stamp it was not made here, and is not ours to remove.
ifneq ($(wildcard $(VENV)/.python),)
  ifneq ($(shell $(BIN)/python -c "print(1)" 2>/dev/null),1)
    $(shell rm -rf "$(VENV)")
  endif
endif

# Each stamp is newer than what its step was made from, so that a second run installs nothing.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "Cuteforge needs Python 3.11 to 3.13; $$($(PYTHON) --version 2>&1) was found. Use: make PYTHON=python3.12 …"; exit 1; }
	@command -v g++ >/dev/null || \
	  { echo "Cuteforge needs a C++ compiler, g++ (Debian, Ubuntu: apt-get install g++)."; exit 1; }
	@echo "== new environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "venv is missing from $(PYTHON) (Debian, Ubuntu: apt-get install python3-venv)."; exit 1; }
	@touch $@

$(VENV)/.base: $(VENV)/.python pyproject.toml constraints.txt
	@echo "== installing Cuteforge with PyTorch and the CUDA toolchain (minutes the first time)"
	$(PIP) install --progress-bar on -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "== installing the test tools"
	$(PIP) install --progress-bar on -c constraints.txt -e '.[all,dev]'
	@touch $@

demo: $(VENV)/.base
	$(BIN)/cuteforge demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python dev/check.py

bench: $(VENV)/.dev
	$(BIN)/python bench/run.py $(BENCH_ARGS)

gpu:
	$(or $(GPU_PYTHON),$(PYTHON)) bench/gpu.py

clean:
	@if [ ! -e "$(VENV)" ] || [ -e "$(VENV)/.python" ]; then rm -rf "$(VENV)"; \
	  else echo "$(VENV) was not made by make: left alone"; fi
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
