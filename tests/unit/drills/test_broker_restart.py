"""A broker whose bookie comes and goes without end after a kill is told by what it logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.drills.peers.pulsar import broker as brokers
from replicator.drills.peers.pulsar.broker import PulsarBroker

LINE = "03:10:31.201 WARN  [pulsar-registration-client-42-1] Policy - using default rack for it : /default-rack.\n"


@pytest.mark.parametrize(("lines", "for_ever"), [(2, False), (brokers.REGISTERED_MAX + 1, True)])
def test_only_what_is_said_while_it_is_looked_at_counts(
    tmp_path: Path, lines: int, for_ever: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "broker.log"
    log.write_text(LINE * 1_000)

    def pause(_: float) -> None:
        with log.open("a") as more:
            more.write(LINE * lines)

    monkeypatch.setattr(brokers.time, "sleep", pause)
    assert PulsarBroker(tmp_path, "peer")._is_registration_flapping() is for_ever


def test_a_broker_without_a_log_is_taken_as_it_is(tmp_path: Path) -> None:
    assert not PulsarBroker(tmp_path, "peer")._is_registration_flapping()
