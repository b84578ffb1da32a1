# The two commands of the README are `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN = $(BIN)/python -m pytest -n auto --dist loadgroup

.PHONY: demo test fast bench clean

demo: $(VENV)/core
	@$(BIN)/tuner demo

test: $(VENV)/test
	$(RUN)

fast: $(VENV)/test
	$(RUN) -m "not slow" -q

bench: $(VENV)/test
	$(BIN)/python -m tests.bench.verify
	$(BIN)/python -m tests.bench.prolog
	$(BIN)/python -m tests.bench.fleet

$(VENV)/core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/test: $(VENV)/core pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV)
