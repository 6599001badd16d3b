# Everything sets itself up: each target depends on the environment, which is made from the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# A second environment, with the oldest versions that pyproject.toml allows.
MINIMUM_VENV := .venv-minimum
MINIMUM_READY := $(MINIMUM_VENV)/.ready

AUDIT_VENV := .venv-audit
# tests/test_dependencies.py imports every module; the others use what the dependencies are for. Long statistical
# tests and the documentation's pages say little of versions.
MINIMUM_TESTS := $(addprefix tests/,test_dependencies.py test_sampling.py run targets masses devices reproduce cli \
	em/test_em.py em/test_e_steps.py em/test_m_steps.py em/test_schedules.py xla/test_keys.py xla/test_compile.py \
	topics/test_corpus.py topics/test_readers.py bridges/test_numpyro.py bridges/test_pymc.py \
	test_conformance.py::test_kernel test_conformance.py::test_stochastic_kernel)
MINIMUM_LEAVES_OUT := page or memory_does_not_grow or posterior_is_that_of_all_rows or window_held_too_long or whiten

# Pages are looked at in a browser. It is installed where that is possible without asking, and where it is not, those
# tests are skipped and say so.
BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome
define get_browser
@if ! { $(BROWSER); } > /dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	echo "installing chromium for the tests of pages"; \
	(timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 600 \
	apt-get install --yes --no-install-recommends chromium fonts-dejavu-core) > /dev/null 2>&1 || echo "it could not be installed: those tests are skipped"; \
fi
endef

.PHONY: demo test test-minimum validate bench reliability reproduce lint docs lock audit build sbom clean

# Wheels of the lock alone, each with its SHA-256; then the project itself, which needs nothing more.
PIP := -m pip --disable-pip-version-check install --quiet
$(READY): pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --require-hashes --only-binary :all: --requirement requirements-dev.txt
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --no-index --editable .
	touch $(READY)

$(MINIMUM_READY): pyproject.toml requirements-minimum.txt
	$(PYTHON) -m venv --clear $(MINIMUM_VENV)
	$(MINIMUM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements-minimum.txt --editable '.[plots,pymc,storage,topics]' pytest pytest-xdist beartype hypothesis
	touch $(MINIMUM_READY)

demo: $(READY)  ## sample a small real problem, print a table, save a picture
	$(BIN)/python examples/demo.py

test: $(READY)  ## every test but the long ones, under 12 minutes on 2 cores
	$(get_browser)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not validate'

# Old libraries warn of each other, which is no error of ours.
test-minimum: $(MINIMUM_READY)  ## part of the tests, with the oldest versions that are allowed
	$(MINIMUM_VENV)/bin/python -m pytest -n 2 -m 'not validate' -o filterwarnings=default -k 'not ($(MINIMUM_LEAVES_OUT))' $(MINIMUM_TESTS)

validate: $(READY)  ## the long statistical checks
	$(get_browser)
	$(BIN)/python -m pytest -n 2 -m validate

bench: $(READY)  ## every benchmark, one after the other
	for script in hmc_overhead mass_learning stochastic_overhead stochastic_headline riemannian topics_speed topics_scale out_of_core race; do $(BIN)/python benchmarks/$$script.py || exit 1; done

reliability: $(READY)  ## crashes, mutated files, kills, memory, NaN, exceptions, threads, hostile files, overhead and lost processes, counted; 90 minutes and 9 GB of disk
	$(BIN)/python benchmarks/reliability.py --page docs/durable.md

reproduce: $(READY)  ## the paper's tables, in full, into tables/
	$(BIN)/momentem reproduce all --out tables

lint: $(READY)  ## format, lint, types, and that pins, pyproject.toml and environment agree
	$(BIN)/python tools/check_lock.py
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: $(READY)  ## the documentation, into site/
	$(BIN)/mkdocs build --strict

lock: $(READY)  ## the versions and hashes of requirements-dev.txt again; UPGRADE="--upgrade ruff" for newer ones
	$(BIN)/python tools/lock.py $(UPGRADE)

# --strict: what could not be looked up is a failure, not a pass
audit:  ## known vulnerabilities of what is pinned; needs the network
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python $(PIP) pip-audit==2.10.1
	$(AUDIT_VENV)/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements-dev.txt

build: $(READY) sbom  ## wheel, source and bill of materials, into dist/
	$(BIN)/python -m build --no-isolation

sbom: $(READY)  ## software bill of materials (CycloneDX), into dist/
	$(BIN)/python tools/sbom.py dist/momentem.cdx.json

clean:
	rm -rf $(VENV) $(MINIMUM_VENV) $(AUDIT_VENV) site demo dist tables
