# Everything runs in .venv, made on first use: `make suites` and `make test` need Python and make alone.
# Other versions have a folder of their own: `make test CONSTRAINTS=constraints-oldest.txt` has the oldest ones that are
# supported, in .venv-oldest, and `make test CONSTRAINTS=` the newest ones that there are, in .venv-newest.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := $(if $(CONSTRAINTS),.venv$(patsubst constraints%.txt,%,$(CONSTRAINTS)),.venv-newest)
BIN := $(VENV)/bin
ARGS ?=
# Each of some hundred processes of a run would compile the package anew if this were set.
export PYTHONDONTWRITEBYTECODE =

.PHONY: docs install suites quick smoke mutations beside references launchers test test-all compiled lint types format ci clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile $(addprefix --constraint ,$(CONSTRAINTS)) --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # pip would do it on one core, and skips as well what is for a newer Python: a file of torch
	touch $@

# The main job: the suites. On CPUs with gloo; on GPUs with ARGS='--gpus 8 -m perf', for example, or correctness alone,
# four tests at a time on the same GPUs: ARGS='--gpus 2 -m "not perf" -n 4'.
suites: install
	$(BIN)/python -m pytest suites $(ARGS)

# A first look in some two minutes on 2 cores: each test in its largest world, with few examples, and none that is
# marked long.
quick: install
	$(BIN)/python -m pytest suites -m "not perf and not long" --largest-worlds --hypothesis-profile=quick -n 2 --dist worksteal $(ARGS)

# Every perf test's body once, unjudged: notices on CPUs that a perf test has rotted.
smoke: install
	$(BIN)/python -m pytest suites --smoke -m perf $(ARGS)

# The plugin's own tests for a change at hand, without those that take long. Much of their time is waiting: five workers,
# a module to each.
test: install
	$(BIN)/python -m pytest tests -m "not long" -n 5 --dist loadfile $(ARGS)

# All of them, with whole clusters, races and installations: what CI runs.
test-all: install
	$(BIN)/python -m pytest tests -n 5 --dist loadfile $(ARGS)

# The tests' bytecode, which each worker of `make test-all` would make anew on a clean checkout, five seconds each.
compiled: install
	$(BIN)/python -m pytest tests --collect-only -q > /dev/null

# Real launchers on hosts in namespaces of this machine: needs root, and Debian's slurm-wlm, openmpi-bin and the like.
launchers: install
	GPUPERF_TEST_LAUNCHERS=1 $(BIN)/python -m pytest tests/everywhere/test_launchers.py tests/hosts/test_clusters.py $(ARGS)

# Realistic faults in programs and in torch, and whether the suites catch them: all of them take a while.
mutations: install
	$(BIN)/python benchmarks/mutations.py $(ARGS)

# What else runs of the suites and their faults while tests wait for clusters and for each other: the bodies of perf
# tests on 2 ranks, and two faults, one process at a time.
beside: install
	$(BIN)/python -m pytest suites --smoke -m perf -k "not 4ranks and not 8ranks"
	$(BIN)/python benchmarks/mutations.py --sample 2 --jobs 1

# The references that the package brings, made from baselines/: after each recording.
references: install
	$(BIN)/python -m pytest_gpuperf.features.day_zero.references.making baselines pytest_gpuperf/features/day_zero/references/data

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github/workflows examples/guarded_benchmark/.github/workflows

types: install
	$(BIN)/mypy

# The site of docs/, in build/site; a warning is an error.
docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ci: lint types test suites smoke

clean:
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
