"""What publishes a topic's messages to brokers, where a worker of ours plays the brokers, and a test answers for their
admin API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from answering_admin import Answering, answering, asked
from engine_support import opened
from gateway_support import serving_clients

from replicator.apache.confirmed import Confirmed
from replicator.apache.outgoing import Outgoing
from replicator.apache.publish_room import publish_room
from replicator.apache.published import load_map
from replicator.apache.reading_cursor import ReadingCursor
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL

TOPIC: Final = "persistent://public/default/t"
NOTHING_STORED: Final = {
    "lastConfirmedEntry": "0:-1",
    "pendingAddEntriesCount": 0,
    "lastLedgerCreatedTimestamp": "",
    "ledgers": [],
    "numberOfEntries": 0,
    "cursors": {},
}
"""The internal statistics of a new topic."""


class Publishing(NamedTuple):
    outgoing: Outgoing
    topic: Topic
    """In the engine of cluster ``a``."""
    at_brokers: Topic
    """The same at the brokers, which are cluster ``b``."""
    connector: BrokerConnector


@asynccontextmanager
async def publishing(path: Path, answer: Answering, *, fences: bool = False, **how: Any) -> AsyncIterator[Publishing]:
    """It runs; ``how`` is how :class:`Outgoing` is told of what goes on."""
    async with (
        answering(answer) as url,
        opened(path / "brokers", "b") as brokers,
        serving_clients(brokers) as served,
        opened(path / "a", "a") as engine,
        asked(url) as admin,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        topic = await engine.topic(TOPIC, by_link=True)
        entries = load_map(engine.store, topic.topic_id, "a.pulsar")
        how["has_read"] = ReadingCursor(admin, "a", topic, entries, read_through=lambda: BEFORE_ALL).has_read
        outgoing = Outgoing(connector, admin, "a", topic, entries, engine.schemas, Confirmed(), publish_room(), **how)
        outgoing.fence(fences)
        running = asyncio.create_task(outgoing.publish())
        try:
            yield Publishing(outgoing, topic, await brokers.topic(TOPIC), connector)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await connector.close()
