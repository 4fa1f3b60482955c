"""Authentication with the official Python client: what is shown where nobody asks, and challenges over time."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateway_support import BareClient, ServedEngine, served_engine

from replicator.protocol.authentication import Admitted, Challenge
from replicator.protocol.errors import NotAuthenticated

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000


def test_a_token_is_taken_where_nobody_asks_for_one(gateway: ServedEngine, topic: str) -> None:
    client = pulsar.Client(
        gateway.url,
        authentication=pulsar.AuthenticationToken("whoever"),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"1")
    assert consumer.receive(WAIT_MS).data() == b"1"
    client.close()


class Tokens:
    """Lets in who shows a token that begins with "good", for a fifth of a second."""

    shown: list[bytes] = []  # noqa: RUF012 - of all connections

    def authenticate(self, method: str, credentials: bytes, now: float) -> Admitted | Challenge:
        if method != "token" or not credentials.startswith(b"good"):
            raise NotAuthenticated("the token is not good")
        self.shown.append(credentials)
        return Admitted("somebody", now + 0.2)


def test_a_token_that_expires_is_asked_for_anew_and_the_connection_goes_on(tmp_path: Path, topic: str) -> None:
    Tokens.shown.clear()
    tokens = (f"good {number}" for number in range(1_000_000))
    with served_engine(tmp_path, authenticator=Tokens) as served:
        client = pulsar.Client(
            served.url,
            authentication=pulsar.AuthenticationToken(lambda: next(tokens)),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        producer = client.create_producer(topic)
        connections = served.ask(lambda: set(served.gateway._connections))
        served.until(lambda: len(Tokens.shown) >= 4, "newer tokens were shown")
        producer.send(b"1")
        assert served.ask(lambda: set(served.gateway._connections)) == connections
        assert len(set(Tokens.shown)) == len(Tokens.shown)
        (connection,) = connections
        assert connection.state.name == "somebody"
        client.close()


def test_who_shows_no_good_token_is_refused_with_the_official_error(tmp_path: Path, topic: str) -> None:
    with served_engine(tmp_path, authenticator=Tokens) as served:
        with pytest.raises(NotAuthenticated, match="the token is not good"):
            BareClient(served.port)
        client = pulsar.Client(  # which tries again until its time is over, whatever it hears
            served.url,
            authentication=pulsar.AuthenticationToken("bad"),
            operation_timeout_seconds=1,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
        client.close()
