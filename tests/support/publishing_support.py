"""Setup that publishes a topic's messages to brokers. A worker of ours plays the brokers, and a test answers for their
admin API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from answering_admin import Answering, answering, asked
from engine_support import opened
from gateway_support import serving_clients

from replicator.apache.confirmed_entries import ConfirmedEntries
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeError
from replicator.apache.outgoing import Outgoing
from replicator.apache.publish_budget import publish_budget
from replicator.apache.published_extents import load_map
from replicator.apache.shown import TopicInternals
from replicator.apache.stamps import Identity, marks_of
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.log.block import BlockView
from replicator.engine.log.store import Store
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

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


class ReadBack(ConfirmedEntries):
    """Reader that counts messages as read as soon as the brokers confirm them."""

    def __init__(self, entries: EntryMap) -> None:
        super().__init__()
        self._entries = entries

    def confirm(self, position: Position, identity: Identity, messages: int) -> None:
        super().confirm(position, identity, messages)
        if position > BEFORE_ALL:
            self._entries.seen_at_broker(identity, position)


class Publishing(NamedTuple):
    outgoing: Outgoing
    entries: EntryMap
    topic: Topic
    """Topic in the engine of cluster ``a``."""
    at_brokers: Topic
    """Topic of the same name at the brokers, which are cluster ``b``."""
    connector: BrokerConnector
    store: Store


@asynccontextmanager
async def publishing(
    path: Path,
    answer: Answering,
    *,
    fences: bool = False,
    brokers_by: Callable[[BrokerConnector], Any] = lambda connector: connector,
    **how: Any,
) -> AsyncIterator[Publishing]:
    """Yield a running publisher, which starts again after an error; ``how`` goes to :class:`Outgoing`.

    ``brokers_by`` is put between it and the brokers.
    """
    async with (
        answering(answer) as url,
        opened(path / "brokers", "b") as brokers,
        serving_clients(brokers) as served,
        opened(path / "a", "a") as engine,
        asked(url) as admin,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        topic = await engine.topic(TOPIC, by_link=True)
        entries = load_map(engine.store, topic, "a.pulsar")
        at_brokers = await brokers.topic(TOPIC)

        async def has_read(upto: Position, internals: TopicInternals) -> bool:
            """Return True: everything is read at once."""
            for stored in at_brokers.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)[0]:
                view, first = BlockView(stored.block, stored.header), stored.header.origin_first
                for index in range(stored.header.entries):
                    identity = marks_of(view.entry(index)).identity
                    if identity is not None:
                        entries.seen_at_broker(identity, Position(first.ledger, first.entry + index))
            return True

        how["has_read"] = has_read
        reached = brokers_by(connector)
        outgoing = Outgoing(
            reached,
            admin,
            "a",
            topic,
            entries,
            engine.schemas,
            ReadBack(entries),
            publish_budget(),
            **{"ensure": partial(asyncio.sleep, 0), **how},
        )
        outgoing.fence(fences)

        async def keep() -> None:
            while True:
                try:
                    await outgoing.publish()
                except (BridgeError, PulsarException) as error:
                    how["fails"](error)
                await asyncio.sleep(0.02)

        running = asyncio.create_task(keep())
        try:
            yield Publishing(outgoing, entries, topic, at_brokers, connector, engine.store)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await connector.close()
