# Every target sets up what it needs in .venv; nothing is installed outside the checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := .models
NATIVE := $(wildcard native/CMakeLists.txt native/src/*)

.PHONY: setup run test lint types unit native conformance faults soak stress models bench format clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml $(NATIVE)
	@PYTHON=$(PYTHON) sh tools/check_system.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@$(BIN)/python -m compileall -q src  # as pip does for what it does not leave here: workers start twice as fast
	@touch $@

# One real, small model: voice activity detection out of a published package, on the recording kept beside the tests.
run: setup
	@$(BIN)/python tests/models/fetch_models.py --out $(MODELS) --only silero_vad
	$(BIN)/tierup run $(MODELS)/silero_vad.onnx --input tests/models/inputs/silero_vad.npz --calls 5000

test: lint types native unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# The C++ core's own tests: plain, under ThreadSanitizer, under AddressSanitizer and UBSan.
native: setup
	PATH="$(abspath $(BIN)):$$PATH" sh native/test.sh

unit: setup models
	$(BIN)/pytest -n 2 --dist worksteal

models: setup
	$(BIN)/python tests/models/fetch_models.py --out $(MODELS)

conformance: setup
	$(BIN)/python -m tests.conformance

# Every fault some hundred times under load, as a table: make faults TIMES=10 FAULTS="crashes forked" for a quick look.
TIMES ?= 200
faults: setup
	$(BIN)/python -m tests.faults $(TIMES) $(FAULTS)

# An hour of mixed traffic over five models from four threads; make soak SECONDS=120 is what the tests have.
SECONDS ?= 3600
soak: setup
	$(BIN)/python -m tests.soak $(SECONDS)

# The whole ONNX suite while variants change with every call, and while guards fail at random.
stress: setup
	TIERUP_FORCE_TIER=1 TIERUP_STRESS_SWAP_EVERY=1 $(BIN)/python -m tests.conformance
	TIERUP_FORCE_TIER=1 TIERUP_STRESS_DEOPT=0.5 $(BIN)/python -m tests.conformance

# All benchmarks; a quick look at one: make bench BENCH="models --cases mlp --rounds 3 --contenders onnxruntime".
bench: setup models
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m benchmarks $(BENCH)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
