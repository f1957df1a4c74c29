# Every command a developer needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup java run test check bench torture lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Holds a digest of the files it was built from, so that a checkout that only touches them costs nothing.
STAMP := $(VENV)/.setup-stamp

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Build .venv from requirements.lock; quick when nothing changed
	@key=$$(cat requirements.lock pyproject.toml src/penstock/__init__.py | cksum)
	if [[ -x $(BIN)/python && -f $(STAMP) && "$$(<$(STAMP))" == "$$key" ]]; then exit 0; fi
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		found=$$($(PYTHON) --version 2>/dev/null || echo "not found")
		echo "Penstock needs Python 3.11 or newer; $(PYTHON) is $$found." >&2
		echo "Name another one: make setup PYTHON=python3.12" >&2
		exit 1
	fi
	if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then
		if [[ $$EUID -eq 0 ]] && command -v apt-get >/dev/null; then
			echo "The venv module is missing; installing python3-venv."
			apt-get install -y -qq python3-venv ||
				{ apt-get update -qq && apt-get install -y -qq python3-venv; } || true
		fi
		if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then
			echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2
			exit 1
		fi
	fi
	$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	echo "Installing the locked dependencies into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	echo "$$key" > $(STAMP)

java: ## Install Java for Spark where it is missing; nothing else needs it
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java
	version() { "$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p;T;q'; }
	found=$$(version || true)
	if [[ "$${found:-0}" -ge 17 ]]; then exit 0; fi
	echo "Spark needs Java 17 or newer; found: $${found:-none}. Installing default-jre-headless."
	log=$$(mktemp)
	if bench/install.sh default-jre-headless >"$$log" 2>&1 && found=$$(version) && [[ "$${found:-0}" -ge 17 ]]; then
		rm -f "$$log"
	else
		tail -n 3 "$$log" >&2
		rm -f "$$log"
		echo "No Java 17 here: the broker works without it, format(\"penstock\") does not, and its tests are skipped." >&2
		echo "Install one yourself, on Debian and Ubuntu: apt-get install default-jre-headless" >&2
	fi

run: setup java ## Start a broker on ./data, and the pipeline that fills ./lake
	@exec $(BIN)/penstock up --data ./data --lake ./lake

# Three at a time: tests of Spark in one session, those that start and kill Spark themselves, and all others, which mostly
# wait for a broker, and give way.
SPARK_KILLS := tests/pipeline/test_cluster.py tests/pipeline/test_up.py tests/torture/test_spark.py
SPARK_TESTS := tests/pipeline $(SPARK_KILLS)

test: setup java ## Run the tests
	@told=$$(mktemp -d)
	trap 'kill $$(jobs -p) 2>/dev/null || true; rm -rf "$$told"' EXIT
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/pipeline $(SPARK_KILLS:%=--ignore=%) > "$$told/spark" 2>&1 & spark=$$!
	$(BIN)/python -m pytest -q -p no:cacheprovider $(SPARK_KILLS) > "$$told/kills" 2>&1 & kills=$$!
	failed=0
	nice -n 10 $(BIN)/python -m pytest -q $(SPARK_TESTS:%=--ignore=%) || failed=1
	wait $$spark || failed=1
	wait $$kills || failed=1
	echo "The tests of Spark:"
	cat "$$told/spark" "$$told/kills"
	exit $$failed

check: setup ## Format, lint, types and import contracts
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup ## Run the benchmarks
	@$(BIN)/python -m bench

torture: setup java ## Kill the broker 670 times under load, and Spark jobs 20 times; about 50 minutes
	@TORTURE=long $(BIN)/python -m pytest tests/torture tests/pipeline -m torture --timeout=14400

lock: ## Pin every dependency anew in requirements.lock
	@tool=$$(mktemp -d)
	trap 'rm -rf "$$tool"' EXIT
	$(PYTHON) -m venv "$$tool"
	"$$tool/bin/pip" install --quiet --disable-pip-version-check uv
	"$$tool/bin/uv" --no-config pip compile pyproject.toml --extra spark --extra dev --extra bench --upgrade --quiet \
		--universal --python-version 3.11 --generate-hashes \
		--no-header --no-emit-index-url --no-emit-find-links --output-file requirements.lock

clean: ## Remove caches and build output; .venv and data stay
	@rm -rf build dist bench/scratch .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
