# Every command a developer needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup java browser postgres run demo test check docs bench torture fuzz advisories releases sbom lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Build .venv for development from requirements-dev.lock; quick when nothing changed
	@PYTHON=$(PYTHON) scripts/setup dev

java: ## Install Java for Spark where it is missing; nothing else needs it
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java
	version() { "$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p;T;q'; }
	found=$$(version || true)
	if [[ "$${found:-0}" -ge 17 ]]; then exit 0; fi
	if [[ -n "$${JAVA_HOME:-}" ]]; then
		echo "Spark needs Java 17 or newer, but JAVA_HOME is $$JAVA_HOME, which has $${found:-no bin/java that runs}." >&2
		echo "Correct it or unset it. Until then the broker works, and Spark and its tests do not." >&2
		exit 0
	fi
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

browser: ## Install chromium for the tests of the console where it is missing; nothing else needs it
	@for name in chromium chromium-browser google-chrome; do
		if command -v "$$name" >/dev/null; then exit 0; fi
	done
	echo "The tests of the console need a browser. Installing chromium."
	log=$$(mktemp)
	if ! bench/install.sh chromium >"$$log" 2>&1; then
		tail -n 3 "$$log" >&2
		echo "No browser here: the tests of the console's pages are skipped." >&2
		echo "Install one yourself, on Debian and Ubuntu: apt-get install chromium" >&2
	fi
	rm -f "$$log"

postgres: ## Install PostgreSQL for the tests of the store where it is missing; nothing else needs it
	@if command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then exit 0; fi
	echo "The tests of the store need PostgreSQL. Installing it; nothing is started."
	log=$$(mktemp)
	if ! bench/install.sh postgresql >"$$log" 2>&1; then
		tail -n 3 "$$log" >&2
		echo "No PostgreSQL here: the tests of the store are skipped." >&2
		echo "Install it yourself, on Debian and Ubuntu: apt-get install postgresql" >&2
	fi
	rm -f "$$log"

demo: java ## Run a small web shop on a broker with console and tables; Ctrl-C removes it
	@PYTHON=$(PYTHON) scripts/setup run
	exec $(BIN)/penstock demo

run: java ## Start a broker on ./data, and the pipeline that fills ./lake
	@PYTHON=$(PYTHON) scripts/setup run
	exec $(BIN)/penstock up --data ./data --lake ./lake

test: setup java browser postgres ## Run every test; shows progress, and the output of a part only if it fails
	@exec $(BIN)/python -m tests

check: setup ## Format, lint, types, import contracts, and advisories about pinned packages
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/audit.py

docs: setup ## Build the documentation as a site in ./site
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	echo "open site/index.html"

bench: setup ## Run the benchmarks
	@$(BIN)/python -m bench

torture: setup java postgres ## Kill brokers 3,300 times under load, fail PostgreSQL over, live 14,000 simulated lives, spoil every bit of a log; about 2.5 hours
	@TORTURE=long $(BIN)/python -m pytest tests/torture tests/simulation tests/pipeline tests/conformance -m torture --timeout=14400

fuzz: setup ## Look for bytes that break a decoder, a minute for each; guided by coverage if atheris is installed
	@$(BIN)/python -m tests.fuzz all --seconds 60

advisories: setup ## Renew security/advisories.json: make advisories DATABASE=checkout-of-the-PyPA-advisory-database
	@$(BIN)/python scripts/audit.py --refresh "$${DATABASE:?give the folder that has vulns/: make advisories DATABASE=...}"

releases: setup ## Write security/releases.json, when what is pinned was released: make releases INDEX=address-of-a-package-index
	@$(BIN)/python -m scripts.releases "$${INDEX:?give the address of a package index: make releases INDEX=...}"

sbom: setup ## Write the bill of materials of requirements.lock to security/sbom.cdx.json
	@tool=$$(mktemp -d)
	trap 'rm -rf "$$tool"' EXIT
	$(PYTHON) -m venv "$$tool"
	"$$tool/bin/pip" install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	PYTHONWARNINGS=ignore "$$tool/bin/cyclonedx-py" requirements requirements.lock --pyproject pyproject.toml \
		--output-reproducible --spec-version 1.6 --output-file "$$tool/sbom.json"
	$(BIN)/python scripts/audit.py --sbom "$$tool/sbom.json"

lock: ## Pin every dependency anew in requirements.lock and requirements-dev.lock; then make sbom and make releases
	@tool=$$(mktemp -d)
	trap 'rm -rf "$$tool"' EXIT
	$(PYTHON) -m venv "$$tool"
	"$$tool/bin/pip" install --quiet --disable-pip-version-check uv
	compile() {
		"$$tool/bin/uv" --no-config pip compile pyproject.toml --group build --extra spark --extra tls --upgrade --quiet \
			--universal --python-version 3.11 --generate-hashes \
			--no-header --no-emit-index-url --no-emit-find-links "$$@"
	}
	compile --output-file requirements.lock
	compile --extra dev --extra bench --extra jwt --extra postgresql --constraint requirements.lock --output-file requirements-dev.lock

clean: ## Remove caches and build output; .venv and data stay
	@rm -rf build dist site bench/scratch .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
