"""The section ``traces`` of a topology file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from replicator.topology import Topology, TopologyError, dump
from replicator.topology.diff import diff, digest, refusals
from replicator.topology.reader import parse_topology
from replicator.topology.traces import TracesSettings

FILE = Path("/etc/replicator/topology.yaml")
CLUSTER = "clusters: {us-east: {address: '127.0.0.1:7101', data: /data}}\n"
URL = "http://localhost:4318"


def read(traces: str = "") -> Topology:
    return parse_topology(f"{CLUSTER}traces: {traces}\n" if traces else CLUSTER, FILE)


def test_without_the_section_there_are_no_traces_and_the_digest_is_as_before() -> None:
    assert read().traces.endpoint is None
    assert "traces" not in dump(read())
    assert digest(read()) != digest(read(f"{{endpoint: '{URL}'}}"))


def test_what_is_written_is_read_again() -> None:
    settings = TracesSettings(endpoint=URL, sample=0.25, per_second=7, notes=50, queue=60)
    written = dump(replace(read(), traces=settings))
    assert parse_topology(written, FILE).traces == settings
    assert read(f"{{endpoint: '{URL}', sample: 1}}").traces.sample == 1.0


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{endpoint: localhost}", "traces.endpoint: 'localhost' is not the URL of a collector (for example http://"),
        ("{endpoint: 'grpc://h:4317'}", "is not the URL of a collector"),
        (
            "{endpoint: 'http://me:secret@h'}",
            "must have no user and no password, since it is shown: set OTEL_EXPORTER_OTLP",
        ),
        ("{endpoint: 4318}", "traces.endpoint: must be text, not a number"),
        ("{sample: 1.5}", "traces.sample: 1.5 is too large; the most is 1"),
        ("{sample: -1}", "traces.sample: -1 is too small; the least is 0"),
        ("{sample: many}", "traces.sample: must be a number, not text"),
        ("{per_second: 0}", "traces.per_second: 0 is too small; the least is 1"),
        ("{notes: 1}", "traces.notes: 1 is too small; the least is 2"),
        ("{queue: 1.5}", "traces.queue: must be a whole number, not 1.5"),
        ("{endpont: x}", "traces.endpont: unknown key; did you mean 'endpoint'?"),
        ("[]", "traces: must be a mapping, not a list"),
    ],
)
def test_each_mistake_is_one_line_that_names_field_and_remedy(section: str, expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(section)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{FILE}:2: ")
    assert expected in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("field", "restarts"), [("sample", False), ("per_second", False), ("notes", True), ("queue", True)]
)
def test_a_running_worker_takes_another_rate_and_no_other_size(field: str, restarts: bool) -> None:
    before = read(f"{{endpoint: '{URL}'}}")
    after = read(f"{{endpoint: '{URL}', {field}: {0.5 if field == 'sample' else 50}}}")
    (change,) = diff(before, after)
    assert str(change).startswith(f"traces.{field}: ")
    assert bool(refusals((change,), "us-east")) is restarts


def test_turning_traces_on_needs_a_restart() -> None:
    (change,) = diff(read(), read(f"{{endpoint: '{URL}'}}"))
    (problem,) = refusals((change,), "us-east")
    assert problem.startswith(f"traces.endpoint: default → {URL} needs a restart of the worker of us-east")


def test_the_reference_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "topology.md").read_text()
    assert re.findall(r"^\| `traces\.(\w+)` \|", page, re.MULTILINE) == list(TracesSettings.model_fields)
