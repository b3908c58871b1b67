# `make demo` and `make test` do everything on a machine with Python 3.11+ and make; each sets up what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Three at a time, since many wait for a disk or a process, each with a PostgreSQL of its own; the tests of a file stay
# together.
PARALLEL := -n 3 --dist loadfile
SHORT := 'not slow and not chaos and not packaging'

# `make bench BENCH=quick` takes a minute, and writes no page.
BENCH := full

.PHONY: help demo test test-slow test-lowest chaos fuzz soak bench bench-peers lint format dist clean

help:  ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Made anew when the project's needs change. pip takes dependency groups from 25.1 on.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group test --group lint
	touch $@

demo: .venv/ready  ## Record, kill, resume, list and delete, on SQLite; HOME_DIR=… copies JSONL sessions too
	$(BIN)/python examples/quickstart.py

test: .venv/ready  ## All tests but the long ones, on SQLite and on a PostgreSQL 18 of their own
	$(PYTEST) $(PARALLEL) -m $(SHORT)

test-slow: .venv/ready  ## The long forms of the tests; SLOW=… are further options of pytest
	$(PYTEST) $(PARALLEL) -m slow $(SLOW)

# Another seed each time, which is told; a fault tells how to see its input again.
FUZZ ?= 1000000
FUZZ_SEED ?= $(shell date +%s)
fuzz: .venv/ready  ## Mutated inputs by every door, FUZZ=… of them, which takes minutes; FUZZ_SEED=… repeats
	FUZZ=$(FUZZ) FUZZ_SEED=$(FUZZ_SEED) $(PYTEST) -n 2 --dist load tests/test_fuzz.py

chaos: .venv/ready  ## Kill, crash, cut, fill and lock under writers, and count what they lost
	$(PYTEST) $(PARALLEL) -m chaos

# The oldest releases that pyproject.toml allows, resolved by uv.
test-lowest: .venv-lowest/ready  ## The tests against the lowest supported versions of every dependency
	.venv-lowest/bin/python -m pytest $(PARALLEL) -m $(SHORT)

.venv-lowest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --upgrade pip uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[all]' --group test
	touch $@

soak: .venv/ready  ## Load on both databases for SECONDS each, and what verify says of it
	$(BIN)/python benchmarks/soak.py --seconds $(or $(SECONDS),60)

bench: .venv/bench-ready  ## Beside the bare drivers, and docs/performance.md anew, in some minutes; BENCH=quick in one
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(if $(filter quick,$(BENCH)),--quick,--page)

.venv/bench-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

bench-peers: .venv-peers/ready  ## Beside other stores of conversations, in an environment of their own
	PYTHONPATH=tests .venv-peers/bin/python -m benchmarks.peers $(if $(filter quick,$(BENCH)),--quick,--page)

.venv-peers/ready: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --upgrade pip
	.venv-peers/bin/python -m pip install --quiet --editable '.[all]' --group test --group peers
	touch $@

lint: .venv/ready  ## Ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/ready  ## Let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

dist: .venv/ready  ## Build wheel and sdist, and use them outside the checkout
	$(PYTEST) -m packaging

clean:  ## Remove what the targets above made
	rm -rf .venv .venv-lowest .venv-peers dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
