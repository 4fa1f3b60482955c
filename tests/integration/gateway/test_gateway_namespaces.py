"""Namespaces that are not there, in a cluster that does not make them by use: the answers of a Pulsar broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from admin_support import administered
from gateway_support import serving_clients

from replicator.engine.engine import EngineSettings

pulsar = pytest.importorskip("pulsar")

TOPIC = "persistent://acme/shop/orders"
AS_MADE = EngineSettings(namespaces_by_use=False)


def refusals(url: str) -> list[str]:
    """Return the errors of everybody who uses the topic."""
    client: Any = pulsar.Client(url, operation_timeout_seconds=5, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    found = []
    try:
        for use in (
            lambda: client.create_producer(TOPIC),
            lambda: client.subscribe(TOPIC, "s"),
            lambda: client.create_reader(TOPIC, pulsar.MessageId.earliest),
            lambda: client.get_topic_partitions(TOPIC),
        ):
            try:
                use()
                found.append("")
            except pulsar.PulsarException as error:
                found.append(type(error).__name__)
    finally:
        client.close()
    return found


def test_a_namespace_that_is_not_there_is_named_as_by_a_broker_and_not_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path, AS_MADE) as admin, serving_clients(admin.engine) as served:
            assert await asyncio.to_thread(refusals, served.url) == ["TopicNotFound"] * 4
            await admin.refused(404, "PUT", "persistent/acme/shop/orders")
            await admin.refused(404, "PUT", "persistent/acme/shop/many/partitions", 3)
            assert admin.engine.catalog.tenants() == []
            await admin.engine.catalog.create_namespace("acme/shop")
            assert await asyncio.to_thread(refusals, served.url) == [""] * 4
            await admin.done("PUT", "persistent/acme/shop/many/partitions", 3)

    asyncio.run(main())


def test_links_bring_namespaces_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path, AS_MADE) as admin, serving_clients(admin.engine) as served:
            await admin.engine.topic(TOPIC, by_link=True)
            assert await asyncio.to_thread(refusals, served.url) == [""] * 4

    asyncio.run(main())
