# Every target sets up what it needs: a virtual environment in .venv, from the locked versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python

.PHONY: help setup demo test faults lint format docs bench proto lock clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.ready  ## make .venv with everything in it

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Skiway needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep -oE '^uv==[0-9.]+' requirements.lock)"
	$(BIN)/uv pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup  ## a lake to attach from DuckDB; ARGS=--once just answers three questions
	$(BIN)/skiway demo $(ARGS)

test: setup  ## all tests
	# Spark's tests apart: Java is started by fork, which a process that served gRPC takes badly. They leave
	# half of two cores free, so they run beside the others, and what they print comes last.
	@mkdir -p .cache
	$(BIN)/pytest tests/test_stack.py tests/pipeline > .cache/spark-tests.log 2>&1 & spark=$$!; \
	trap "kill $$spark" INT TERM; \
	PYTHONPATH=tests $(RUN) -m storage.dynamodb_local & \
	$(BIN)/pytest --numprocesses auto --ignore tests/test_stack.py --ignore tests/pipeline; status=$$?; \
	wait $$spark || status=$$?; cat .cache/spark-tests.log; exit $$status

faults: setup  ## kill -9 before and after every store operation of every change; takes long
	SKIWAY_FAULTS=all $(BIN)/pytest tests/faults

lint: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## rewrite the code in the house style
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

docs: setup  ## build the documentation site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --strict

bench: setup  ## ratios against peers measured in the same run, into bench/results
	$(RUN) -m bench

proto: setup  ## generate src/skiway/model from proto/
	$(RUN) scripts/generate_model.py

lock: setup  ## resolve the dependencies in pyproject.toml into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file requirements.lock

clean:  ## remove what the other targets made
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
