"""Workers beside Apache Pulsar brokers with transactions, by the official Java client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from peers.apache_support import Beside, backlog, beside, brokers_of, drain, read_all, until
from peers.client_programs import java_program
from pulsar import ConsumerType

from replicator.drills.peers.pulsar.broker import PulsarBroker

MESSAGES = 20
"""Messages of each kind: outside of transactions, in a committed one, in an aborted one, and outside again."""
PROGRAM_SECONDS_MAX = 240


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    path = tmp_path_factory.mktemp("pair")
    with (
        brokers_of(path, "A", "B", transactionCoordinatorEnabled="true") as brokers,
        beside(path, "AB", brokers, "[{between: [A, B]}]") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return java_program(tmp_path_factory.mktemp("program"), "Transactions.java")


def transactions(program: list[str], broker: PulsarBroker, topic: str) -> tuple[list[str], set[str]]:
    """Run the program; return what a reader of the topic must see, in order, and what ``work`` has acknowledged."""
    command = [*program, broker.url, topic, "work", str(MESSAGES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    acknowledged = {line.removeprefix("acknowledged ") for line in lines if line.startswith("acknowledged ")}
    return [line for line in lines if not line.startswith("acknowledged ")], acknowledged


def test_what_transactions_committed_and_nothing_of_aborted_ones_is_at_the_other_broker(
    pair: Beside, program: list[str]
) -> None:
    """Messages and acknowledgements; the ends of transactions, which brokers show nobody, are no gap, also after a
    worker was killed between them."""
    topic = "persistent://public/default/transacted"
    published, acknowledged = transactions(program, pair.brokers["A"], topic)
    assert len(published) == 3 * MESSAGES
    assert len(acknowledged) == len(published) // 2
    assert read_all(pair.brokers["B"], topic, len(published)) == published
    left = len(published) - len(acknowledged)
    until(lambda: backlog(pair.brokers["B"], topic, "work") == left, lambda: (pair.apache("A"), pair.apache("B")))
    pair.kill("A")
    pair.start("A")
    more, _ = transactions(program, pair.brokers["B"], topic + "-back")
    assert read_all(pair.brokers["A"], topic + "-back", len(more)) == more
    open_there = [body for body in published if body not in acknowledged]
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == open_there
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: (pair.apache("A"), pair.apache("B")))
    for name in "AB":
        shown = pair.apache(name)
        assert [each["errors"] for each in shown["topics"] if each["errors"]] == []
        # Topics in which brokers keep transactions are theirs.
        assert [each["topic"] for each in shown["topics"] if "transaction" in each["topic"]] == []
