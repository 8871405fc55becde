# Everything here needs only Python (3.10 or newer), make and git. `make` alone lists the targets.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# Which build of PyTorch a new .venv gets: cpu, default (what pip takes by itself: on Linux the one with CUDA, some
# gigabytes), or auto: cpu on Linux where there is no NVIDIA GPU, else default.
TORCH  ?= auto
# Tests run in two processes, those of a file in the same one, which share its fixtures, and files in the order of
# tests/conftest.py: the long ones first, and not those with the most tests. In one: make test WORKERS=
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
# Written when an installation has finished; a rule that needs the environment depends on it: on RUNS if it runs the
# program, on READY if it needs what tests and checks need, too.
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
# There while an installation is under way, with the number of the make that does it. Found at the start, it tells
# that another make is at it, or that one was cut short.
UNFINISHED := $(VENV)/.unfinished

.DEFAULT_GOAL := help
.PHONY: help setup demo unit test gpu nightly lint format bench leaderboard pages notebooks site clean

help: ## list the targets
	@echo "usage: make TARGET [ARGS=\"...\"] [PYTHON=python3.12]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(READY) ## make .venv with the tested versions of everything, if it is missing or out of date

demo: $(RUNS) ## run run.py, with what it needs and no more, e.g. make demo ARGS="editor=rome"
	$(BIN)/python run.py $(ARGS)

unit: $(READY) ## run the tests that take seconds (tiny models, in-process)
	$(BIN)/python -m pytest tests/unit tests/golden --quick $(WORKERS) $(ARGS)

test: $(READY) ## run all tests, e.g. make test ARGS="-m 'not slow' -k rome"
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

gpu: $(READY) ## run golden values and all editors on a GPU, in four processes, e.g. make gpu ARGS="-n 12 -k rome"
	$(BIN)/python -m pytest tests/gpu -n 4 $(ARGS)

nightly: $(READY) ## run the deep versions of property tests and fault injections, and plant faults (an hour or two)
	$(BIN)/python -m pytest --nightly $(WORKERS) $(ARGS)
	$(BIN)/python tests/mutants

lint: $(READY) ## check style (ruff) and types (mypy)
	@status=0; for check in "ruff check ." "ruff format --check ." mypy; do \
	    echo "$$check"; $(BIN)/python -m $$check || status=1; \
	done; exit $$status

format: $(READY) ## rewrite the code in the project's style
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(READY) ## run every benchmark, and write docs/speed.md (half an hour; let nothing else run meanwhile)
	$(BIN)/python docs/reports/speed.py collect $(ARGS)
	$(BIN)/python docs/reports/speed.py page

leaderboard: $(READY) ## make docs/leaderboard.* anew (hours on a CPU; may be stopped and given again)
	$(BIN)/python docs/reports/leaderboard.py collect $(ARGS)
	$(BIN)/python docs/reports/leaderboard.py page

# A page whose data are in docs/data, from the command in docs/reports that has this page's name in its first line.
pages: $(READY) ## make the pages of figures anew from docs/data (seconds; runs no model)
	@set -e; for data in docs/data/*.json; do \
	    [ -e "$$data" ] || { echo "there are no data in docs/data yet" >&2; exit 1; }; \
	    name=$$(basename "$$data" .json); \
	    command=$$(grep -l "^\"\"\"docs/$$name\.md" docs/reports/*.py) || { \
	        echo "error: no command of docs/reports begins with docs/$$name.md" >&2; exit 1; }; \
	    echo "== $$command page"; $(BIN)/python "$$command" page; \
	done

notebooks: $(READY) ## run the notebooks of docs/notebooks anew, and keep what they show
	$(BIN)/python docs/site/run_notebooks.py $(ARGS)

# The variable leaves out what the theme says of its successor.
site: $(READY) ## build the documentation as a site, in build/site (nothing is fetched; any warning is an error)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

clean: ## remove the environment, caches and builds; what runs wrote stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Makes .venv if it is missing, with pip's arguments in $(1). $(2) is the file that says that it has finished.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "error: '$(PYTHON)' is missing or older than Python 3.10; name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: '$(PYTHON)' lacks the modules venv and ensurepip (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@if [ -e $(UNFINISHED) ]; then \
	    other=$$(cat $(UNFINISHED)); \
	    if kill -0 "$$other" 2>/dev/null; then \
	        echo "error: process $$other is installing into $(VENV); wait for it, or stop it and run make clean" >&2; exit 1; \
	    fi; \
	    echo "The last installation was cut short; starting anew."; rm -rf $(VENV); \
	fi
	@mkdir -p $(VENV) && echo $$PPID > $(UNFINISHED) && rm -f $(2)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(cpu_torch)
	$(PIP) --constraint constraints.txt --editable "$(1)"
	@mv $(UNFINISHED) $(2)
endef

PIP = $(BIN)/python -m pip install --disable-pip-version-check --quiet

# The CPU build of PyTorch lies on an index of its own. Where that one cannot be reached, pip's own build is taken.
define cpu_torch
torch=$(TORCH); \
if [ "$$torch" = auto ]; then \
    torch=default; \
    if [ "$$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ]; then torch=cpu; fi; \
fi; \
if [ "$$torch" = cpu ] && [ -z "$$(find $(VENV)/lib -maxdepth 3 -name 'torch-*.dist-info' 2>/dev/null)" ]; then \
    echo "Installing the CPU build of PyTorch (TORCH=default for the other one)"; \
    $(PIP) --no-deps --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu \
        "$$(grep '^torch==' constraints.txt)" || \
        echo "download.pytorch.org does not give it; going on with the build that pip finds elsewhere"; \
fi
endef

$(RUNS): pyproject.toml constraints.txt
	$(call install,.,$(RUNS))

$(READY): pyproject.toml constraints.txt
	$(call install,.[dev],$(READY))
	@touch $(RUNS)
