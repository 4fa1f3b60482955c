# Every target sets up .venv by itself from the pinned lock, and is idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
BENCH ?=

.PHONY: help venv drill test lint bench soak proto lock clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=… chooses one)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

venv: $(STAMP)  ## set up .venv from the lock

drill: $(STAMP)  ## run the failover drill; ARGS="…" passes options
	$(BIN)/replicator drill $(ARGS)

test: $(STAMP) lint  ## lint, type check and every test
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

lint: $(STAMP)  ## ruff, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## measure rates, beside a JetStream mirror if nats-server is here; BENCH=name picks one
	$(BIN)/python -m bench $(BENCH)

soak: $(STAMP)  ## the long property runs, a drill of every scenario, Spark clusters
	HYPOTHESIS_PROFILE=soak SYNC_MACHINE_EXAMPLES=300 SOAK=1 $(BIN)/python -m pytest tests/property tests/e2e/test_drill.py tests/integration/test_verify_large.py \
		tests/integration/test_spark_cluster.py tests/integration/test_copy_engines.py

proto: $(STAMP)  ## make the protobuf modules again from the .proto files
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. replicator/metadata/metadata.proto snapshots/markers.proto

lock: $(STAMP)  ## resolve the lock file again (needs uv)
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build *.egg-info
