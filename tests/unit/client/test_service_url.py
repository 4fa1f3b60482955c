"""Service URLs: what is refused before anything is connected, and which connector each kind gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.client import Client, InvalidConfiguration, InvalidUrl
from replicator.client.service_url import connector_of, following_connector
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.embedded_channel import EmbeddedConnector

WORKER = "pulsar://127.0.0.1:9"
PROVIDER = "http://127.0.0.1:9/failover/v1/service-url?cluster=a"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "ftp://localhost:6650",
        "pulsar://",
        "pulsar://a:99999",
        "pulsar://a:1,pulsar://b:1",
        "embedded:",
    ],
)
def test_a_url_that_is_not_ours_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        Client(url)


@pytest.mark.parametrize(
    ("url", "named"),
    [("http://worker:7101", "pulsar://worker:7101"), ("https://worker:7101", r"pulsar\+ssl://worker:7101")],
)
def test_who_gives_the_address_of_http_is_told_the_one_of_clients(url: str, named: str) -> None:
    with pytest.raises(InvalidUrl, match=f"use {named}"):
        Client(url)


def test_each_kind_of_url_has_its_connector(tmp_path: Path) -> None:
    assert isinstance(connector_of(WORKER, "a", 1, 1), BrokerConnector)
    assert isinstance(connector_of("pulsar+ssl://worker", "a", 1, 1), BrokerConnector)
    assert isinstance(connector_of(f"embedded:{tmp_path}", "a", 1, 1), EmbeddedConnector)


def test_a_url_or_a_provider_must_be_given() -> None:
    with pytest.raises(InvalidUrl, match="service_url_provider"):
        Client()
    with pytest.raises(InvalidConfiguration, match="empty list"):
        following_connector([], WORKER, 1, 1, 1)


@pytest.mark.parametrize(
    ("providers", "default"),
    [("worker:1", None), ([PROVIDER, "embedded:x"], None), (PROVIDER, "worker:1"), (WORKER, None)],
)
def test_every_url_is_checked_before_any_of_them_is_asked(providers: str | list[str], default: str | None) -> None:
    with pytest.raises(InvalidUrl):
        following_connector(providers, default, 1, 1, 1)
