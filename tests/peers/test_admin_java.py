"""Pulsar's own admin client, in Java, against an Apache Pulsar broker and against a worker: it must see the same."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from served_worker import served_worker

from replicator.drills.peers.jvm import find_java, jars_of
from replicator.drills.peers.pulsar.broker import PulsarBroker

PROGRAM: Final = Path(__file__).parent / "java" / "AdminCalls.java"
SECONDS_MAX: Final = 240

DIFFERENCES: Final = {
    "precise stats": "a backlog is counted in messages, where a broker counts entries",
    "left": "a backlog is counted in messages, where a broker counts entries",
}
"""Calls whose result differs from a broker's, and why."""
SOMETIMES: Final = {
    "expired by time": "a broker refuses it while it is still about the expiry before, here they wait in turn"
}
"""Calls whose result differs from a broker's only at times, by a race at the broker; and why."""


def admin_calls(directory: Path, http_url: str, pulsar_url: str, cluster: str) -> dict[str, tuple[str, str]]:
    """Run the Java admin client; return for each call ``ok`` and the result, or the exception and its status."""
    java = find_java()
    if java is None or not jars_of("pulsar").is_dir():
        pytest.skip("no Java 17, or no jars: make peers")
    logging = directory / f"log4j2-{http_url.rpartition(':')[2]}.xml"
    logging.write_text("<Configuration><Loggers><Root level='off'/></Loggers></Configuration>")
    command = [java, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars_of('pulsar')}/*", str(PROGRAM)]
    done = subprocess.run(
        [*command, http_url, pulsar_url, cluster], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: (outcome, result) for name, outcome, result in lines}


def test_the_admin_client_sees_the_same_of_both(pulsar_broker: PulsarBroker, tmp_path: Path) -> None:
    with served_worker(cluster=pulsar_broker.cluster) as worker, ThreadPoolExecutor() as threads:
        sides = [(pulsar_broker.admin_url, pulsar_broker.url), (worker.url, worker.pulsar_url)]
        theirs, ours = threads.map(lambda side: admin_calls(tmp_path, *side, pulsar_broker.cluster), sides)
    assert len(theirs) > 170
    assert list(ours) == list(theirs)
    differing = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    assert {name: both for name, both in differing.items() if name not in DIFFERENCES | SOMETIMES} == {}
    assert set(differing) - set(SOMETIMES) == set(DIFFERENCES), "a difference that is named is none"
