# Everything sets itself up: each target depends on the environment, which is made from the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test validate bench reliability reproduce lint docs clean

$(READY): pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements-dev.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## sample a small real problem, print a table, save a picture
	$(BIN)/python examples/demo.py

test: $(READY)  ## every test but the long ones, under 12 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 -m 'not validate'

validate: $(READY)  ## the long statistical checks
	$(BIN)/python -m pytest -n 2 -m validate

bench: $(READY)  ## every benchmark, one after the other
	for script in hmc_overhead mass_learning stochastic_overhead stochastic_headline riemannian topics_speed topics_scale out_of_core race; do $(BIN)/python benchmarks/$$script.py || exit 1; done

reliability: $(READY)  ## kills, memory, NaN, hostile files, overhead and lost processes, counted; 40 minutes and 9 GB of disk
	$(BIN)/python benchmarks/reliability.py

reproduce: $(READY)  ## the paper's tables, in full, into tables/
	$(BIN)/momentem reproduce all --out tables

lint: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: $(READY)  ## the documentation, into site/
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site demo dist tables
