# Python 3.11+ and Java 17+ are all it takes. `make demo` shows what it does, `make test` proves it.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin

# Spark would take the python3 of PATH for its workers.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
export PYTHON

# Many short-lived Pythons are started: whatever the surroundings say, each module is compiled once.
export PYTHONDONTWRITEBYTECODE :=

# As `cache_folder` in spark_kafka_source/local_kafka/jars.py.
CACHE := $(or $(SPARK_KAFKA_SOURCE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/spark-kafka-source)

KAFKA_VERSIONS := 2.8.2 3.9.1 4.1.0 4.2.0 4.3.1 4.4.0

.PHONY: help setup demo test test-fast test-real test-computing test-on-fake class-archive compiled-tests lint style types format bench simulation simulation-coverage same-seed soak matrix versions dist docs links kafka clean
.PHONY: clean-downloads
.DEFAULT_GOAL := help

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## .venv with the pinned packages (does nothing when it is there)
	@bash .ci/setup

demo: setup ## a local Kafka, a Spark query, and its lag as Kafka's own tool sees it; SECURITY=sasl_ssl: with TLS and SASL
	$(BIN)/python -m spark_kafka_source.demo $(if $(SECURITY),--security $(SECURITY))

# `test-real` waits for brokers and Spark half of the time. All that only computes runs beside it, with less priority.
test: setup ## lint and all tests (starts local Kafkas and a Spark)
	$(MAKE) --no-print-directory -j2 style class-archive compiled-tests
	$(MAKE) --no-print-directory -j2 test-real test-computing

test-computing: setup
	nice -n 4 $(MAKE) --no-print-directory test-fast simulation types

GUARDED := $(BIN)/python -m tests.support.guarded_run
WORKERS := --max-worker-restart 0 --durations 20

# Four workers: they wait for replies or time-outs for more than half of the time.
test-fast: setup ## only the tests that need neither Kafka nor Spark
	$(GUARDED) -m "not kafka and not spark" -n 4 -o faulthandler_timeout=330 $(WORKERS)

# Two workers own a Spark each, the third the three brokers (tests/support/worker_groups.py).
# Up to two failed tests have a second try, and are named at the end (tests/support/guarded_run.py).
test-real: setup ## only the tests that need Kafka or Spark
	$(GUARDED) --second-try -m "kafka or spark" -n 3 --dist loadgroup --no-loadscope-reorder $(WORKERS)

# Halves the time that Spark's JVMs take to start. Made once, in build/.
class-archive: setup
	$(BIN)/python -m tests.support.spark_home

# pytest compiles test modules its own way. Otherwise each worker does it.
compiled-tests: setup
	@$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider >/dev/null || true

test-on-fake: setup ## the client's tests that need a real Kafka, on the in-memory cluster
	SPARK_KAFKA_SOURCE_ON_FAKE=1 $(BIN)/python -m pytest -m "kafka and not soak" \
		tests/protocol/fetch tests/protocol/cluster tests/protocol/producer tests/protocol/group \
		tests/protocol/consumer tests/protocol/transaction

lint: style types ## ruff, import direction, mypy --strict

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: setup
	$(BIN)/mypy

format: setup ## rewrites the files as `make lint` wants them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: setup ## measures against the peers; BENCH="source --rounds 6": one section
	$(BIN)/python -m benchmarks.run $(BENCH)

# Other seeds for each state of the code, and the same for all who test it: a red run is red everywhere. FIRST has others.
FIRST_SEED = $(or $(FIRST),$(shell printf '%d' 0x$$(git rev-parse 'HEAD^{tree}' | cut -c 1-7)))

simulation: setup ## each scenario of tests/simulation with new seeds (SEEDS), for a minute at most
	$(BIN)/python -m tests.simulation --seeds $${SEEDS:-6} --minutes 0.9 --first $(FIRST_SEED)

# Runs of one commit add up: stages that have passed are not repeated (tests/support/stages.py).
soak: setup ## the tests that kill, cut off, count and spoil, for longer; simulations for an hour (MINUTES), or SEEDS of each
	@printf '%s\n' \
		"simulation: MINUTES=$${MINUTES:-60} $(BIN)/python -m tests.simulation --failures build/failed-seeds.txt \
			--log build/simulation-$$(git describe --always --dirty).jsonl" \
		"tests: SPARK_KAFKA_SOURCE_SOAK=1 $(BIN)/python -m pytest -s -m soak --timeout 7200 -o faulthandler_timeout=7300" \
		"deliberate faults: $(BIN)/python -m tests.simulation --broken all" \
	| $(BIN)/python -m tests.support.stages soak

same-seed: setup ## equal digests in processes with other hash seeds: SEEDS="1 2", REPETITIONS, INTERPRETERS, VIRTUAL_SECONDS of a run
	for python in $${INTERPRETERS:-$(BIN)/python}; do \
		$$python -m tests.simulation.same_seed --seeds $${SEEDS:-1 2} --repetitions $${REPETITIONS:-100} \
			--virtual-seconds $${VIRTUAL_SECONDS:-900} \
			--log build/same-seed-$$(git describe --always --dirty).jsonl || exit 1; \
	done

simulation-coverage: setup ## docs/simulation-coverage.md: what no seed has reached, after SEEDS more of each scenario
	$(BIN)/python -m tests.simulation.coverage --seeds $${SEEDS:-20} --page docs/simulation-coverage.md

MATRIX_CLIENT := $(addprefix tests/protocol/,fetch cluster producer group consumer transaction sasl security) \
	tests/cli/test_broker_versions.py
MATRIX_GROUPS := tests/driver $(patsubst %,tests/spark/driver/test_%.py,membership group_commits group_start other_members)

matrix: setup ## the client's tests, and those of Spark's groups, against Kafka 2.8, 3.9 and 4.1 to 4.4 (KAFKA_VERSIONS)
	@for version in $(KAFKA_VERSIONS); do \
		kafka="SPARK_KAFKA_SOURCE_KAFKA_VERSION=$$version"; \
		echo "$$version, client: $$kafka $(BIN)/python -m pytest -q -m kafka $(MATRIX_CLIENT)"; \
		echo "$$version, groups: $$kafka SPARK_KAFKA_SOURCE_SOAK=1 $(BIN)/python -m pytest -q -m kafka -rs \
			--timeout 900 -o faulthandler_timeout=1000 $(MATRIX_GROUPS)"; \
	done | $(BIN)/python -m tests.support.stages matrix

dist: setup ## wheel and source distribution in dist/, checked as the package index does
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*

docs: setup ## the documentation as a site in build/docs, without warnings
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site . build/docs
	@echo "file://$(CURDIR)/build/docs/index.html"

links: setup ## the links of README and docs to other sites (needs the internet)
	$(BIN)/python -m sphinx -q -b linkcheck -c docs/site . build/links

versions: setup ## seven jobs with each Spark and each Python, and each deployment of each Spark; docs/versions.md
	$(BIN)/python -m tests.versions --table docs/versions.md

kafka: setup ## three local brokers, until Ctrl-C
	$(BIN)/python -m spark_kafka_source.local_kafka --brokers 3

clean: ## .venv, and all that these commands have left in this folder (not the downloads: make clean-downloads)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse artifacts metastore_db derby.log .dmypy.json *.egg-info
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +

clean-downloads: ## the Kafka of the user's cache folder, which all checkouts share; Ivy keeps its own copy in ~/.ivy2
	rm -rf $(CACHE)/kafka-* $(CACHE)/jvm-connector-*
