# Each target is one command on a fresh machine: it first makes .venv, if need be (tools/setup.sh).
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
READY := .venv/.ready
MEMBERS := crds operator trainer

# make lock resolves as of this day, so it gives everybody the same answer until the date is moved.
LOCK_DATE := 2026-11-21

.PHONY: help setup run test verify format generate lock bench bench-learning chaos-local clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv from the locked requirements

$(READY): tools/setup.sh requirements/setup.txt requirements/cpu.txt $(MEMBERS:%=%/pyproject.toml)
	@tools/setup.sh
	@touch $@

run: $(READY)  ## Train a model on this machine and draw its curves
	$(BIN)/rljob run examples/reverse-text.yaml
	$(BIN)/rljob plot runs/reverse-text

test: $(READY)  ## Run the tests; make test ARGS="-k losses" runs some
	$(BIN)/python -m pytest $(ARGS)

bench: $(READY)  ## Time a step against TRL's, in turns (half an hour); writes docs/benchmarks/cpu.md
	$(BIN)/python -m bench.step $(ARGS)

bench-learning: $(READY)  ## Train every task, control and algorithm (hours; goes on where it stopped); writes docs/benchmarks/learning.md
	$(BIN)/python -m bench.learning $(ARGS)

chaos-local: $(READY)  ## Kill and freeze processes of runs, 100 times; writes docs/benchmarks/recovery.md
	$(BIN)/python -m e2e.chaos --output docs/benchmarks $(ARGS)

verify: $(READY)  ## Format, lint, types, import contracts, generated files; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m rljob_api.crd /dev/stdout | diff -u crds/rljobs.rljob.dev.yaml - || (echo "run make generate"; false)
	$(BIN)/python -m rljob_api.reference /dev/stdout | diff -u docs/api.md - || (echo "run make generate"; false)

format: $(READY)  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

generate: $(READY)  ## Write the CRD and the API reference from the models
	$(BIN)/python -m rljob_api.crd
	$(BIN)/python -m rljob_api.reference

lock:  ## Resolve dependencies as of LOCK_DATE into requirements/
	tools/lock.sh $(LOCK_DATE)

clean:  ## Remove .venv and caches; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(MEMBERS) tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
