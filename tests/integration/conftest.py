"""Fixtures for tests of many files: a served engine, an official client of it, a topic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_support import ServedEngine, served_engine

from replicator.links import link as links
from replicator.links import transfer


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """Yield an engine that serves Pulsar's binary protocol. The tests of a module share it, each with topics of its
    own."""
    with served_engine(tmp_path_factory.mktemp("gateway") / "data") as served:
        yield served


@pytest.fixture(scope="module")
def official(gateway: ServedEngine) -> Iterator[Any]:
    """Yield the official client, connected to the gateway."""
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(gateway.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic of the test's own."""
    return f"persistent://public/default/{re.sub(r'[^a-z0-9_]+', '-', request.node.name.lower())[:100]}"


@pytest.fixture
def short_link_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links retry soon."""
    monkeypatch.setattr(transfer, "RETRY_SECONDS_MIN", 0.005)
    monkeypatch.setattr(transfer, "RETRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(transfer, "FULL_RETRY_SECONDS_MAX", 0.05)


@pytest.fixture
def shortest_link_pauses(short_link_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let links retry soon, and look often at topics that wait."""
    monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)
