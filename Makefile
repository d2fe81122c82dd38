# Each target does its own set-up: on a machine with Python 3.11+ and make, `make test` alone is enough.
#
#   make test                     what every change has to pass, within three minutes
#   make test-slow                real parties in processes of their own; CI runs it
#   make test-nightly             long explorations, whole matrices, the benches' commands; CI leaves it out
#   make test-all                 all three
#   make lint                     ruff and mypy --strict
#   make coverage                 which lines of the package `make test` runs, in parties' processes too
#   make demo                     the main job, end to end
#   make docs                     the guide and the API reference as a site: site/index.html; a warning is an error
#   make docs-serve               the same at http://127.0.0.1:8000, made anew when a page changes
#   make figures                  the README's pictures and numbers, from one run of the demo (needs chromium)
#   make bench-crypto             our operations beside other libraries' (BENCH_ARGS="--quick --json out.json")
#   make hashes                   deploy/requirements.txt: what a container installs, with hashes
#   make sbom                     sbom.json: every distribution of .venv (CycloneDX)
#   make container PYTHON_IMAGE=python@sha256:...   the container of a party (needs podman or docker)
#   make test EXTRAS=dev,torch    with more of pyproject's extras installed
#   make test PYTHON=/path/python with a Python of your choice

# Where this is set, every process of a demo or a test would compile some 200 modules anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
# One worker a core and one more, since tests of the network mostly wait. BLAS gets one thread in each, so that the workers
# do not fight over the cores. A test that hangs is named after ten minutes, with the stacks of its threads; none that ends
# takes that long.
CORES := $(shell getconf _NPROCESSORS_ONLN)
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $(CORES) + 1)
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal --timeout 600 --durations 15
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

comma := ,
# One stamp for each set of extras: asking for another one installs it, asking again does nothing.
INSTALLED := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
WITH_PEERS := $(VENV)/.installed-peers
WITH_DOCS := $(VENV)/.installed-docs
WITH_RELEASE := $(VENV)/.installed-release

# Runs each candidate, because a name on PATH can be a shim for a version that is not there.
FIND_PYTHON = for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done

.PHONY: help test test-all test-slow test-nightly coverage lint demo docs docs-serve figures bench-crypto hashes sbom container \
	install clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not nightly"

test-all: $(INSTALLED)
	$(PYTEST)

# Most of the slow ones start processes and wait for them: two workers a core.
test-slow: $(INSTALLED)
	PYTEST_XDIST_AUTO_NUM_WORKERS=$$((2 * $(CORES))) $(PYTEST) -m "slow and not nightly"

test-nightly: $(INSTALLED)
	$(PYTEST) -m nightly

coverage: $(INSTALLED)
	$(PYTEST) -m "not slow and not nightly" --cov --cov-report=term:skip-covered

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check securefed research bench tests examples .ci
	$(BIN)/mypy --strict securefed research bench

demo: $(INSTALLED)
	$(BIN)/securefed demo

# The theme's word about its successor is no warning about these pages.
docs: $(INSTALLED) $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "site/index.html"

docs-serve: $(INSTALLED) $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

figures: $(INSTALLED)
	$(BIN)/python docs/.site/figures.py

bench-crypto: $(INSTALLED) $(WITH_PEERS)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m bench crypto $(BENCH_ARGS)

# Of a report of pip: the files that it would install, looked at and not installed.
hashes: $(INSTALLED)
	$(PIP) install --dry-run --ignore-installed --no-build-isolation -c constraints.txt --report build-report.json . hatchling
	$(BIN)/python deploy/hashes.py build-report.json deploy/requirements.txt
	@rm build-report.json

sbom: $(INSTALLED) $(WITH_RELEASE)
	$(BIN)/python -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.json $(BIN)/python
	@echo "sbom.json"

container:
	@case "$(PYTHON_IMAGE)" in *@sha256:*) ;; *) echo "name the image by its digest: make container PYTHON_IMAGE=python@sha256:..." >&2; exit 1;; esac
	$$(command -v podman || command -v docker) build -t securefed -f deploy/Containerfile --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) .

install: $(INSTALLED)

clean:
	rm -rf $(VENV) build dist site sbom.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python="$(PYTHON)"; [ -n "$$python" ] || python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "securefed needs Python 3.11 or newer and found none on PATH; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "securefed needs Python 3.11 or newer; $$python is not" >&2; exit 1; }; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "could not make $(VENV): does $$python have its venv and ensurepip modules (package python3-venv)?" >&2; exit 1; }

# The build backend is installed first, pinned, and used without isolation: every version comes from constraints.txt.
$(INSTALLED): $(BIN)/python pyproject.toml constraints.txt
	@echo "installing securefed[$(EXTRAS)], versions from constraints.txt"
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

# What the bench compares with; where it cannot be installed the bench says so and goes on.
$(WITH_PEERS): $(INSTALLED)
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[peers]" || echo "note: the extra 'peers' could not be installed"
	@touch $@

$(WITH_DOCS): $(INSTALLED)
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[docs]"
	@touch $@

$(WITH_RELEASE): $(INSTALLED)
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[release]"
	@touch $@
