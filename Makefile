# Everything is installed into .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types golden fuzz bench clean

$(BIN)/tokenwork: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(BIN)/tokenwork $@

# Replay the bundled trace and write a report.
demo: $(BIN)/tokenwork
	$(BIN)/tokenwork replay chat-1k --slo ttft=1 --slo tpot=0.03 --out demo --force
	@echo "open demo/report.html"

# The whole suite.
test: $(VENV)/dev
	$(BIN)/pytest -n auto

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# Compare our decisions with the recorded ones.
golden: $(BIN)/tokenwork
	$(BIN)/tokenwork conformance

# The longer differential fuzz (2,000 scenarios and more).
fuzz: $(VENV)/dev
	$(BIN)/pytest -m long tests/golden tests/laws

bench: $(BIN)/tokenwork
	$(BIN)/python benchmarks/replay_speed.py

clean:
	rm -rf $(VENV) demo
