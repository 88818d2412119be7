# `make demo` and `make test` do all their own set-up. Everything lives in .venv; nothing is installed globally,
# except the servers and the browser of the tests, when root runs this on a machine with apt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Most tests wait for processes, so six at once fit on two cores. Whole files: see tests/support/file_schedule.py.
PYTEST_ARGS ?= -n 6 --dist loadfile

LOCK := pip compile --quiet --upgrade --constraint constraints.txt --generate-hashes --universal --python-version 3.12 \
	--no-header --no-annotate

# Hundreds of processes import the same modules: compiled once, each starts sooner.
unexport PYTHONDONTWRITEBYTECODE

# Draws files and cases: one number for a whole run, also for what failed in it and runs once more.
ifndef TIGHTSHIP_SLICE
export TIGHTSHIP_SLICE := $(shell od -An -N2 -tu2 /dev/urandom | tr -d ' ')
endif

.DEFAULT_GOAL := all
.PHONY: all install services demo test test-reference wheel lint types fix docs pictures bench exit-storm exactness explore injection proof readings requirements rolling chaos clean

all: lint types test  ## lint + types + tests

install: $(STAMP)  ## create or refresh .venv

# The stamp holds what was installed: an unchanged pyproject.toml and constraints.txt re-use the environment.
$(STAMP): pyproject.toml constraints.txt
	@if [ -f $@ ] && cat pyproject.toml constraints.txt | cmp -s - $@; then touch $@; else { \
	  set -e; echo "==> installing tightship and its dependencies into $(VENV) (a few minutes the first time)"; \
	  [ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --upgrade pip --quiet; \
	  $(BIN)/python -m pip install --progress-bar on -c constraints.txt -e '.[server,demo,dev,offload,integrations]'; \
	  $(BIN)/tightship --version; \
	  cat pyproject.toml constraints.txt > $@; } >&2; fi

services:
	@tests/install_services.sh

demo: install  ## train four example jobs under observation, print what they waste, keep the dashboard open
	@$(BIN)/tightship demo --home .demo $(ARGS)

test: install services  ## all tests, of the costliest files some by chance, with real PostgreSQL, Redis and Chromium
	@$(BIN)/python -m pytest $(PYTEST_ARGS) || { [ $$? = 1 ] && \
	  echo "==> what failed beside others, once more, one at a time: it counts as failed if it fails again" && \
	  $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none; }

test-reference: install  ## the tests marked `reference`; TIGHTSHIP_REFERENCE names the folder of the reference data
	@$(BIN)/python -m pytest $(PYTEST_ARGS) -m reference

wheel: install  ## sdist and wheel, and every command where only the wheel is installed: base, analyze, server
	@$(BIN)/python tools/check_wheel.py

lint: install  ## style, layers, import circles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install  ## mypy --strict
	$(BIN)/mypy

fix: install  ## repair style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install  ## regenerate the generated documents, and build the site of all of them: build/site
	$(BIN)/python tools/generate_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

pictures: install services  ## take the pictures of docs/tour.md again, by the tests of the pages
	TIGHTSHIP_PICTURES=1 TIGHTSHIP_EXPLORE=1 $(BIN)/python -m pytest -q -p no:xdist tests/browser/test_pages.py tests/browser/test_one_trace.py tests/browser/test_did_it_work.py -k "test_pages or whole_page"

# By uv, whose hashes are those of every platform.
requirements: install  ## fix what the images install, by hash: requirements/
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv $(LOCK) pyproject.toml --extra server --extra s3 --extra gcs -o requirements/server.txt
	$(BIN)/uv $(LOCK) pyproject.toml -o requirements/agent.txt
	echo 'hatchling>=1.26' | $(BIN)/uv $(LOCK) - -o requirements/build.txt

bench: install  ## every benchmark; tables on the screen, JSON under benchmarks/out
	@for b in benchmarks/*.py; do echo "==> $$b"; $(BIN)/python $$b || exit 1; done

exit-storm: install  ## 60 jobs that end at a random moment of a capture, with and without us: the same exit codes
	TIGHTSHIP_EXIT_STORM=60 $(BIN)/python -m pytest tests/collectors/kineto/test_capture_exit.py

exactness: install  ## offload: all windows and trainings bit for bit on two machines, 1,000 kills (some hours), or a PART=2/12 of it
	TIGHTSHIP_EXACTNESS=$(or $(PART),all) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/offload/runtime tests/offload/plan

explore: install services  ## every file and case, then property, fuzz and injection tests with new examples, ROUNDS times (20)
	TIGHTSHIP_EXPLORE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)
	for round in $$(seq $(or $(ROUNDS),20)); do \
	  TIGHTSHIP_EXPLORE=1 $(BIN)/python -m pytest -q -m hypothesis tests || exit 1; \
	  TIGHTSHIP_EXPLORE=1 $(BIN)/python -m pytest -q tests/analyzers/analysis/test_recorded_fuzz.py tests/injection || exit 1; done

rolling: install  ## upgrade an older release under load, and see that nothing is lost: ARGS="--old COMMIT"; needs git history
	$(BIN)/python tests/rolling/rolling.py $(ARGS)

chaos: install  ## kill, stop, fill and misdate parts of an installation, and see that nothing is lost: ARGS="--schedules 3 --seed 41"
	$(BIN)/python tests/chaos/chaos.py $(ARGS)

injection: install  ## put known defects into recordings, see what every rule says: docs/injection.md (some minutes)
	$(BIN)/python tests/injection/report.py $(ARGS)

proof: install  ## apply fixes to real jobs, measure them beside what was predicted: docs/proof.md (an hour)
	$(BIN)/python benchmarks/proof/proof.py $(ARGS)

readings: install  ## our report against what was read in traces by hand; TIGHTSHIP_REFERENCE names the reference data
	$(BIN)/python tests/readings/score.py $(ARGS)

clean:  ## remove what the other targets made
	rm -rf $(VENV) .demo build dist benchmarks/out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
