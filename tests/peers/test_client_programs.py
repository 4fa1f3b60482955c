"""Programs with the official clients in Java and Go, each against an Apache Pulsar broker and against a worker.

They must see the same. Where they do not, the difference is named below, with its reason. What differs while both run
at once is asked again alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from peers.client_programs import go_program, java_program
from served_worker import ServedWorker, served_worker

from replicator.drills.peers.pulsar.broker import PulsarBroker

SECONDS_MAX: Final = 180
Seen = dict[str, Any]
JAVA: Final = ("Program.java", "MessagingCases.java", "SubscriptionCases.java", "SchemaCases.java")

DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "java": {"wrong-names": "namespaces-by-use"},
    "go": {"wrong-names": "namespaces-by-use"},
}
"""Cases in which the worker answers otherwise, and the difference of docs/compatibility.md that it is."""

RUNS_MAX: Final = 3
"""Limit of runs of a case that differs: even a broker's own answers vary at times (``access-modes``)."""


@pytest.fixture(scope="module")
def worker(pulsar_broker: PulsarBroker) -> Iterator[ServedWorker]:
    with served_worker(cluster=pulsar_broker.cluster) as served:
        yield served


def _seen(command: list[str], service_url: str, admin_url: str, run: int = 1, cases: Iterable[str] = ()) -> Seen:
    """Run the program against a broker, all cases or some; return what it saw, by case. Each run has its own topics."""
    arguments = [service_url, admin_url, str(run), *cases]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-4000:]
    return {line.pop("case"): line for line in lines}


def _differing(theirs: Seen, ours: Seen) -> Seen:
    assert list(ours) == list(theirs)
    return {name: {"pulsar": theirs[name], "ours": ours[name]} for name in theirs if theirs[name] != ours[name]}


@pytest.mark.parametrize("language", ["java", "go"])
def test_official_clients_see_the_same_of_both(
    language: str, pulsar_broker: PulsarBroker, worker: ServedWorker, tmp_path: Path
) -> None:
    command = java_program(tmp_path, *JAVA) if language == "java" else go_program(tmp_path)
    with ThreadPoolExecutor(2) as beside:  # both wait most of the time
        theirs_ending = beside.submit(_seen, command, pulsar_broker.url, pulsar_broker.admin_url)
        ours = _seen(command, worker.pulsar_url, worker.url)
        theirs = theirs_ending.result()
    assert len(theirs) >= 25
    differing = _differing(theirs, ours)
    named = {name for name in differing if name in DIFFERENCES[language]}
    assert named == set(DIFFERENCES[language]), "a difference that is named is none"
    for run in range(2, RUNS_MAX + 1):
        cases = set(differing) - named
        if not cases:
            break
        theirs = _seen(command, pulsar_broker.url, pulsar_broker.admin_url, run, cases)
        differing = _differing(theirs, _seen(command, worker.pulsar_url, worker.url, run, cases))
    assert {name: both for name, both in differing.items() if name not in named} == {}
