"""Hearing from brokers that topics come: what is told, and what is made of refusals and losses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import eventually, opened
from gateway_support import serving_clients

from replicator.apache.topic_watches import TopicWatches
from replicator.client.errors import ConnectError, OperationNotSupported, PulsarException, Timeout
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.engine import Engine
from replicator.running.timeouts import timeout

NAMESPACE = "public/default"


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[tuple[Engine, BrokerConnector, TopicWatches]]:
    async with opened(path, "b") as brokers, serving_clients(brokers) as served:
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        watches = TopicWatches(connector)
        yield brokers, connector, watches
        await watches.close()
        await connector.close()


async def told(watches: TopicWatches) -> list[str]:
    async with timeout(20):
        await watches.news.wait()
    return watches.take()


@asynchronous
async def test_a_topic_that_comes_or_goes_is_told_with_its_namespace_and_others_are_not(tmp_path: Path) -> None:
    async with watching(tmp_path) as (brokers, _, watches):
        await watches.keep([NAMESPACE])
        assert watches.count == 1
        assert await told(watches) == [NAMESPACE], "something may have come before"
        assert watches.take() == []
        await brokers.topic(f"persistent://{NAMESPACE}/new")
        assert await told(watches) == [NAMESPACE]
        await brokers.topic("persistent://public/other/new")
        await brokers.topic(f"persistent://{NAMESPACE}/newer")
        assert await told(watches) == [NAMESPACE]
        await watches.keep(["public/other"])
        assert await told(watches) == ["public/other"]
        await brokers.topic(f"persistent://{NAMESPACE}/newest")
        await brokers.topic("persistent://public/other/newer")
        assert await told(watches) == ["public/other"]


@asynchronous
async def test_what_is_watched_already_is_not_asked_for_again_and_a_lost_watch_is(tmp_path: Path) -> None:
    async with watching(tmp_path) as (_, connector, watches):
        await watches.keep([NAMESPACE])
        await told(watches)
        await watches.keep([NAMESPACE])
        assert not watches.news.is_set()
        await connector.lose_all(ConnectError("gone"))
        await eventually(lambda: watches.count == 0)
        await watches.keep([NAMESPACE])
        assert watches.count == 1
        assert await told(watches) == [NAMESPACE], "something may have come meanwhile"


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (OperationNotSupported("no watchers"), [NAMESPACE, "public/other"]),
        (ConnectError("nobody there"), [NAMESPACE, NAMESPACE]),
        (Timeout("no answer"), [NAMESPACE, NAMESPACE]),
    ],
    ids=lambda each: type(each).__name__,
)
@asynchronous
async def test_a_watch_that_is_refused_is_left_for_long_and_one_that_nobody_answers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PulsarException, asked: list[str]
) -> None:
    patterns: list[str] = []

    async def refuse(connector: BrokerConnector, pattern: str, known_hash: str) -> None:
        patterns.append(pattern.removesuffix("/.*"))
        raise error

    monkeypatch.setattr(BrokerConnector, "open_topic_watch", refuse)
    async with watching(tmp_path) as (_, _, watches):
        for _ in range(2):
            await watches.keep([NAMESPACE, "public/other"])
        assert patterns == asked
        assert watches.count == 0
        assert watches.take() == []
