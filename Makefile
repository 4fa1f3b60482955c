# Every target sets up .venv by itself from the pinned lock, and is idempotent.
# An interpreter that .venv is to be of. Without one it keeps what it has, and is of python3 when it is new.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
BENCH ?=
# How many processes the tests of `make test` and `make e2e` share: on two cores more than two, for many tests wait.
PROCESSES ?= 3
# How much of the lock is installed: embedded, drill or all (.ci/venv). What a drill needs takes a third of the time.
PACKAGES := all

.PHONY: help venv docs reference drill compare test e2e pictures lint bench versions soak histories fuzz peers helm-test proto lock metrics-page clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

venv:  ## set up .venv from the lock; PYTHON=… chooses its interpreter, 3.11 to 3.14
	@.ci/venv "$(VENV)" "$(PYTHON)" "$(PACKAGES)"

# A drill without Spark needs the least; one with clients or systems of others, or of somebody's own topology, all.
# Without Spark, more messages than by default could not be compared at the end.
says = $(strip $(foreach word,$(1),$(findstring $(word),$(ARGS))))
ifneq ($(filter-out drill,$(MAKECMDGOALS)),) # whatever else is made in the same run
PACKAGES := all
else ifneq ($(call says,--client --kind --system --topology --against official-clients =all),)
drill: PACKAGES := all
else ifneq ($(findstring --scenario all,$(ARGS)),)
drill: PACKAGES := all
else ifeq ($(or $(findstring --engine embedded,$(ARGS)),$(findstring --engine=embedded,$(ARGS))),)
drill: PACKAGES := drill
else ifneq ($(call says,--messages --scenario --input),)
drill: PACKAGES := drill
else
drill: PACKAGES := embedded
endif
drill: venv  ## run the failover drill; ARGS="…" passes options
	$(BIN)/replicator drill $(ARGS)

compare: venv  ## the same drill on the replicator, Pulsar's geo-replication and MirrorMaker 2, five seeds each; ARGS="--seeds 1"
	$(BIN)/python -m bench.compare $(ARGS)

test: venv lint  ## lint, type check and the tests
	$(BIN)/python -m pytest -n $(PROCESSES) --no-loadscope-reorder

e2e: venv  ## the tests of whole systems: drills, the tutorial, kills under Spark; ARGS="…" goes to pytest
	$(BIN)/python -m pytest -n $(PROCESSES) --no-loadscope-reorder $(or $(ARGS),tests/e2e)

lint: venv  ## ruff, mypy strict, import contracts, docstrings that open with a sentence
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/bare_tasks.py
	$(BIN)/python .ci/plain_docstrings.py

sbom: venv  ## write sbom.json: what the lock file installs, as CycloneDX
	@$(BIN)/python -m pip install --quiet cyclonedx-bom
	$(BIN)/cyclonedx-py requirements requirements.lock --output-format JSON --output-file sbom.json

audit: venv  ## bandit on the code, and known vulnerabilities of what the lock file installs
	@$(BIN)/python -m pip install --quiet bandit pip-audit
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive replicator snapshots migrations
	@.ci/audit $(BIN)/pip-audit requirements.lock

bench: venv  ## measure rates, beside a JetStream mirror if nats-server is here; BENCH=name picks one
	$(BIN)/python -m bench $(BENCH)

versions: venv  ## measure groups with this version and with the checkout OTHER=…, in turn; BENCH=name picks some
	$(BIN)/python -m bench.versions $(OTHER) $(BENCH)

pictures:  ## docs/assets/dashboard-*.png and drill-report*.png, which the browser tests take
	@.ci/pictures

soak: venv  ## the long property runs, a drill of every scenario, Spark clusters
	HYPOTHESIS_PROFILE=soak SOAK=1 $(BIN)/python -m pytest tests/property tests/e2e/test_drill.py tests/e2e/test_drill_topics.py tests/e2e/test_soak.py tests/integration/verify/test_verify_large.py \
		tests/e2e/test_spark_cluster.py tests/integration/links/test_copy_engines.py tests/integration/engine/test_engine_crash.py tests/integration/stores/test_lost_disk_moments.py
	for bodies in table segments; do STORE_BODIES=$$bodies $(BIN)/python -m pytest tests/property || exit 1; done
	.ci/pythons between
	tests/peers/kubernetes/fetch helm helm-3.14.4 helm-4.3.2 && $(BIN)/python -m pytest tests/helm/static/test_other_helms.py
	$(MAKE) histories N=2000

histories: venv  ## run N random histories of whole workers from SEED on, and shrink what fails; LIMIT=180 ends after so many seconds
	cd tests && PYTHONPATH=$(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support ../$(BIN)/python -m histories -n $(or $(N),100) --seed $(or $(SEED),1) \
		$(if $(COMMIT),--commit $(COMMIT)) $(if $(LIMIT),--seconds $(LIMIT)) $(ARGS)

fuzz: venv  ## fuzz the binary protocol and the HTTP data plane with atheris; SECONDS=300
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --quiet atheris
	PYTHONPATH=tests $(BIN)/python tests/fuzz/run.py $(or $(SECONDS),300)

peers:  ## fetch Pulsar and Kafka, which tests/peers, tests/differential and bench run beside; .ci/peers runs those tests
	@tests/peers/fetch

helm-test:  ## build helm and Kubernetes once, and test the chart with pods that run; ARGS="…" goes to pytest
	@.ci/helm $(ARGS)

docs:  ## build the documentation as a site, in site/; python3 -m http.server -d site shows it
	@.ci/docs

reference: venv  ## make docs/reference/, docs/limits.md and the drawings from the code
	$(BIN)/python .ci/reference/main.py

proto: venv  ## make the protobuf modules again from the .proto files
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. replicator/metadata/metadata.proto replicator/protocol/commands.proto
	# Protobuf knows files by name, for all packages of a process: this one is ours too.
	made=$$(mktemp -d) && $(BIN)/python -m grpc_tools.protoc -Ireplicator/snapshots=snapshots --python_out=$$made --pyi_out=$$made \
	  replicator/snapshots/markers.proto && mv $$made/replicator/snapshots/* snapshots/ && rm -r $$made
	sed -i "s/'replicator.snapshots.markers_pb2'/'snapshots.markers_pb2'/" snapshots/markers_pb2.py

lock: venv  ## resolve the lock file again (needs uv)
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	.ci/image-locks
	.ci/lock-parts
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" .ci/site/requirements.in -o .ci/site/requirements.lock
	echo uv | uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" - -o .ci/uv.lock

metrics-page: venv  ## write docs/metrics.md from the metrics that the code declares
	$(BIN)/python -m replicator.api.metrics.reference > docs/metrics.md

clean:
	rm -rf $(VENV) build *.egg-info
