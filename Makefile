# Each target is one command on a fresh machine: it first makes .venv, if need be (tools/setup.sh).
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
READY := .venv/.ready
MEMBERS := crds operator trainer
CRD := crds/rljobs.rljob.dev.yaml
CHART_CRD := charts/rljob-operator/files/rljobs.rljob.dev.yaml
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# make lock takes no package that was uploaded on this day or later. To upgrade, move the date and name what to upgrade:
# make lock ARGS="ray vllm", or ARGS=all.
LOCK_DATE := 2026-11-21

.PHONY: help root go setup run test-fast test test-slow verify format generate lock bench bench-agents bench-gpu bench-learning bench-operator bench-queue models chaos chaos-local chaos-operator fuzz cluster-up cluster-down demo e2e-smoke e2e clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Make .venv from the locked requirements

$(READY): tools/setup.sh requirements/setup.txt requirements/cpu.txt requirements/reasoning-gym.txt $(MEMBERS:%=%/pyproject.toml)
	@tools/setup.sh
	@touch $@

root:  # before $(READY), as the next one
	@tools/root.sh $(MAKECMDGOALS) $(ARGS)

go:  # before $(READY), which takes minutes
	@tools/go.sh $(MAKECMDGOALS) $(ARGS)

run: $(READY)  ## Train a model on this machine and draw its curves
	$(BIN)/rljob run examples/reverse-text.yaml
	$(BIN)/rljob plot runs/reverse-text

test-fast: $(READY)  ## Run units that start no process and wait for nothing (tests/fast.txt); under a minute
	$(PYTEST) -m "not slow" @tests/fast.txt $(ARGS)

test: go $(READY)  ## Run the tests, three files at a time; make test ARGS="-k losses" runs some
	$(BIN)/python -m e2e.cluster build
	$(PYTEST) --numprocesses 3 -m "not slow" $(ARGS)

test-slow: go $(READY)  ## Run those that are left out there: larger examples, vLLM servers, waiting for real time-outs
	$(BIN)/python -m e2e.cluster build
	$(PYTEST) --numprocesses 3 -m slow $(ARGS)
	RLJOB_SCHEDULES=100 $(PYTEST) --dist load tests/rljob_operator/test_world_schedules.py

bench: $(READY)  ## Time a step against TRL's, in turns (half an hour to an hour); writes docs/benchmarks/cpu.md
	$(BIN)/python -m bench.step $(ARGS)

bench-agents: $(READY)  ## Time episodes of several turns on this machine's CPU (20 minutes); writes docs/benchmarks/agents.md
	$(BIN)/python -m bench.agents $(ARGS)

bench-gpu: $(READY)  ## Time whole steps on this machine's GPU beside TRL's (half an hour); writes docs/benchmarks/gpu.md
	$(BIN)/python -m bench.gpu $(ARGS)

bench-learning: $(READY)  ## Train every task, control and algorithm, best on GPUs (dozens of runs, 3 to 10 minutes each on an H200 that several share; not timed on CPUs; goes on where it stopped); writes docs/benchmarks/learning.md
	$(BIN)/python -m bench.learning $(ARGS)

bench-operator: go $(READY)  ## Time the operator at 10,000 jobs on a real API server; writes docs/benchmarks/operator.md
	$(BIN)/python -m e2e.cluster build
	$(BIN)/python -m bench.operator $(ARGS)

bench-queue: go $(READY)  ## Time 1,000 queued jobs under Kueue, beside RayJobs; writes docs/benchmarks/queue.md
	$(BIN)/python -m e2e.cluster build
	$(BIN)/python -m bench.queue $(ARGS)

models: $(READY)  ## Compare every architecture in both engines with transformers (half an hour); writes docs/models.md
	$(BIN)/python -m bench.models $(ARGS)

chaos-local: $(READY)  ## Kill and freeze processes of runs, 100 times; writes its part of docs/benchmarks/recovery.md
	$(BIN)/python -m e2e.chaos --output docs/benchmarks $(ARGS)

chaos: root go $(READY)  ## Kill processes, pods and the operator on a cluster with real nodes, 50 times (root); writes its part of docs/benchmarks/recovery.md
	$(BIN)/python -m e2e.cluster_chaos --output docs/benchmarks $(ARGS)

chaos-operator: go $(READY)  ## Kill the operator at every single write of a job's life, on a real control plane (hundreds of lives, four at a time)
	RLJOB_EVERY_WRITE=1 $(PYTEST) --numprocesses 4 --dist load -rP tests/rljob_operator/test_world_deaths.py tests/e2e/test_operator_deaths.py -k "last_one or death_at_any_write" $(ARGS)

fuzz: go $(READY)  ## Give 10,000 malformed RLJobs to a real API server, to rljob validate and to the operator
	$(BIN)/python -m e2e.fuzz $(ARGS)

cluster-up: root go $(READY)  ## Start a Kubernetes control plane with KubeRay and fake GPU nodes (the first time builds it: 20 minutes)
	$(BIN)/python -m e2e.cluster up $(ARGS)

cluster-down: $(READY)  ## Stop it and remove all that it left
	$(BIN)/python -m e2e.cluster down $(ARGS)

demo: root go $(READY)  ## Train in a Kubernetes cluster on this machine, from nothing (root; the first time builds images, 30 minutes)
	$(BIN)/python -m e2e.nodes.demo $(ARGS)

e2e-smoke: go $(READY)  ## Train on a cluster with real nodes: success, suspension, losses (root; the first time builds images, 30 minutes)
	$(BIN)/python -m e2e.nodes build
	$(BIN)/python -m pytest e2e/scenarios/test_images.py e2e/scenarios/test_life.py $(ARGS)

e2e: go $(READY)  ## The page of samples in Chromium, if it is installed, and every scenario on a cluster with real nodes (hours; goes on where it stopped); writes its part of docs/benchmarks/recovery.md
	$(BIN)/python -m pytest e2e/pages
	$(BIN)/python -m e2e.nodes build
	$(BIN)/python -m e2e.scenarios $(ARGS)

verify: $(READY)  ## Format, lint, types, import contracts, generated files; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m rljob_api.crd /dev/stdout | diff -u $(CRD) - || (echo "run make generate"; false)
	cmp $(CRD) $(CHART_CRD) || (echo "run make generate"; false)
	$(BIN)/python -m rljob_api.reference /dev/stdout | diff -u docs/api.md - || (echo "run make generate"; false)
	$(BIN)/python -m rljob_api.conditions_reference /dev/stdout | diff -u docs/conditions.md - || (echo "run make generate"; false)
	$(BIN)/python -m rljob_trainer.algorithms_reference /dev/stdout | diff -u docs/algorithms.md - || (echo "run make generate"; false)

format: $(READY)  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

generate: $(READY)  ## Write the CRD, also into the chart, the API reference, the tables of conditions and of algorithms
	$(BIN)/python -m rljob_api.crd
	cp $(CRD) $(CHART_CRD)
	$(BIN)/python -m rljob_api.reference
	$(BIN)/python -m rljob_api.conditions_reference
	$(BIN)/python -m rljob_trainer.algorithms_reference

lock:  ## Write requirements/ for the dependencies of today's pyproject.toml files; upgrades nothing but ARGS="PACKAGE..." (or all)
	tools/lock.sh $(LOCK_DATE) $(ARGS)

clean:  ## Remove .venv and caches; runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(MEMBERS) bench e2e tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
