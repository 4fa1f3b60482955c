"""Reading on where confirmations stay away, and where the store refuses what was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb
import pytest
from asynchronous import asynchronous
from engine_support import entries_of, eventually, message, opened
from gateway_support import serving_clients

from replicator.apache.confirmed_entries import ConfirmedEntries
from replicator.apache.entry_map import EntryMap
from replicator.apache.flow_control import PERMITS_FIRST, read_budget
from replicator.apache.incoming import Incoming
from replicator.apache.native_replication import NativeOrigins
from replicator.apache.published_extents import load_map
from replicator.apache.schemas import BrokerSchemas
from replicator.apache.skipped_messages import Gap
from replicator.apache.stamps import Identity, stamped
from replicator.client import PulsarException
from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.engine import Engine
from replicator.engine.errors import StoreFull
from replicator.engine.log.checksums import crc32c
from replicator.engine.log.commit.group import CommitGroup
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.topology import Cluster, Link, Topology
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


class _Receipts:
    """Listener of the broker's answers to the producer."""

    def __init__(self) -> None:
        self.count = 0

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        self.count += len(entry_ids)

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        raise error

    def on_lost(self, error: PulsarException) -> None:
        raise error


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker's topic, and the store of a bridge that is to read it."""

    connector: BrokerConnector
    engine: Engine
    topic: Topic
    entries: EntryMap
    confirmed: ConfirmedEntries

    def blocks(self) -> list[tuple[frozenset[str] | None, list[Position]]]:
        """Return, for each of the log's blocks, the clusters that may have it and its entries' positions at the
        brokers."""
        found = self.topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)[0]
        return [
            (
                each.header.only,
                [
                    Position(each.header.origin_first.ledger, each.header.origin_first.entry + index)
                    for index in range(each.header.entries)
                ],
            )
            for each in found
            if each.header.origin == "a.pulsar"
        ]

    def incoming(
        self,
        reached: Position = BEFORE_ALL,
        begins: Callable[[], None] = lambda: None,
        natives: NativeOrigins | None = None,
    ) -> Incoming:
        async def check(gaps: Sequence[Gap]) -> None:
            raise AssertionError(f"brokers leave nothing out here: {gaps}")

        return Incoming(
            self.connector,
            "a",
            self.topic,
            self.entries,
            BrokerSchemas(self.connector, self.engine.schemas, TOPIC),
            self.confirmed,
            read_budget(),
            incarnation=1,
            reached=reached,
            begins=begins,
            stored=lambda: None,
            check=check,
            natives=natives,
        )

    async def published(self, entries: Sequence[bytes]) -> None:
        channel = await self.connector.open_producer(ProducerSettings(TOPIC, "p", batching=None))
        receipts = _Receipts()
        channel.start(receipts)
        for number, entry in enumerate(entries):
            channel.publish(number, entry)
        await eventually(lambda: receipts.count == len(entries))
        await channel.close()


@asynccontextmanager
async def staged(path: Path) -> AsyncIterator[Stage]:
    async with (
        opened(path / "brokers", "b") as brokers,
        serving_clients(brokers) as served,
        opened(path / "a", "a") as engine,
    ):
        connector = BrokerConnector(served.url, connection_timeout_seconds=20, operation_timeout_seconds=20)
        engine.admission.clusters = {"a", "ap", "eu"}
        topic = await engine.topic(TOPIC, by_link=True)
        yield Stage(connector, engine, topic, load_map(engine.store, topic, "a.pulsar"), ConfirmedEntries())
        await connector.close()


async def read(incoming: Incoming, messages: int) -> None:
    """Return when that many were read."""
    reading = asyncio.create_task(incoming.read())
    await eventually(lambda: incoming.messages == messages)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading


def own(number: int) -> bytes:
    return stamped(message(), Identity("b", 7, Position(9, number)), b"")


@asynchronous
async def test_a_bridge_that_waits_for_a_confirmation_reads_on_without_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.confirmed.sent()  # and no broker ever confirms it
        count = 3 * PERMITS_FIRST
        await stage.published([own(number) for number in range(count)] + [message(b"an application's")])
        incoming = stage.incoming()
        reading = asyncio.create_task(incoming.read())
        await eventually(lambda: incoming.messages == count + 1)
        assert incoming.messages_confirmed == 0
        assert len(entries_of(stage.topic, "a.pulsar")) == 1
        assert stage.entries.published_through("b") == Position(9, count - 1)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize("ends", [False, True], ids=["goes-on", "ends"])
@asynchronous
async def test_invariants_1_and_2_blocks_and_rows_are_stored_as_one_or_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The store has no room for the rows. The bridge goes on, or its process ends and another one begins."""
    async with staged(tmp_path) as stage:
        await stage.published([own(0), message(b"an application's"), own(1)])
        put_all = CommitGroup._put_all

        def no_room(group: CommitGroup, txn: lmdb.Transaction, rows: Sequence[RowWrite]) -> None:
            if any(table == "published" for table, _, _ in rows):
                raise lmdb.MapFullError
            put_all(group, txn, rows)

        with monkeypatch.context() as patched:
            patched.setattr(CommitGroup, "_put_all", no_room)
            begun: list[int] = []
            incoming = stage.incoming(begins=lambda: begun.append(1))
            with pytest.raises(StoreFull):
                await incoming.read()
            assert begun == []  # else its failures would be forgotten, and it would be tried without a pause
        assert incoming.reached == BEFORE_ALL
        assert entries_of(stage.topic, "a.pulsar") == []
        if ends:
            stage = replace(stage, entries=load_map(stage.engine.store, stage.topic, "a.pulsar"))
        again = stage.incoming(incoming.reached)
        await read(again, 3)
        assert len(entries_of(stage.topic, "a.pulsar")) == 1
        stored = load_map(stage.engine.store, stage.topic, "a.pulsar")
        assert stored.published_through("b") == Position(9, 1)
        assert (stored.doubled, stage.entries.doubled) == (0, 0)
        assert [read.entry for read in stored.read.values()] == [2]
        assert stored.read == stage.entries.read
        assert [read.entry for read in stored.first_read.values()] == [0]
        assert stored.first_read == stage.entries.first_read


@asynchronous
async def test_what_is_for_some_clusters_lies_in_blocks_of_its_own_that_say_so(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        entries = [
            message(b"all"),
            message(b"eu", clusters=["eu"]),
            message(b"eu too", clusters=["eu", "no cluster"]),
            message(b"here", clusters=["__local__"]),
            own(0),
            message(b"all again"),
        ]
        await stage.published(entries)
        incoming = stage.incoming()
        await read(incoming, len(entries))
        found = [(only, at.entry) for only, positions in stage.blocks() for at in positions]
        eu, here = frozenset({"a", "eu"}), frozenset({"a"})
        assert found == [(None, 0), (eu, 1), (eu, 2), (here, 3), (None, 5)]
        assert len({only for only, _ in stage.blocks()}) == 3


@asynchronous
async def test_where_links_cannot_keep_to_it_or_no_name_is_known_all_get_it_and_it_is_counted(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        stage.engine.admission.passed_on_by = lambda topic: {"ap"}
        entries = [
            message(b"eu", clusters=["eu"]),
            message(b"eu and ap", clusters=["eu", "ap"]),
            message(b"here", clusters=["__local__"]),
            message(b"names of others", clusters=["cluster-1", "cluster-2"]),
        ]
        await stage.published(entries)
        incoming = stage.incoming()
        await read(incoming, len(entries))
        assert [only for only, _ in stage.blocks()] == [None, frozenset({"a", "eu", "ap"}), None]
        assert incoming.copied_to_all == 3


def _natives(*links: Link) -> NativeOrigins:
    """Clusters a and eu beside brokers; these call the latter ``europe``."""
    brokers = {"service_url": "pulsar://h", "admin_url": "http://h"}
    given: dict[str, dict[str, object]] = {
        "a": {"kind": "pulsar", "apache": brokers},
        "eu": {"kind": "pulsar", "apache": brokers | {"cluster_name": "europe"}},
        "ap": {},
    }
    clusters = [
        Cluster.model_validate({"name": name, "address": "h:1", "data": "/d", **fields})
        for name, fields in given.items()
    ]
    return NativeOrigins(Topology(tuple(clusters), links), "a")


@pytest.mark.parametrize("passes_on", [False, True])
@asynchronous
async def test_what_brokers_replicated_themselves_goes_only_to_clusters_that_no_link_brings_it(
    tmp_path: Path, passes_on: bool
) -> None:
    """Not back to where it was published, nor where a link from there brings it. Where links cannot keep to that, it is
    copied to all: twice rather than never."""
    between = (Link("a", "eu"), Link("eu", "a"), Link("a", "ap"))
    async with staged(tmp_path) as stage:
        if passes_on:
            stage.engine.admission.passed_on_by = lambda topic: {"eu"}
        names = (None, "europe", "eu", "elsewhere", None)
        entries = [message(bytes([index]), replicated_from=name) for index, name in enumerate(names)]
        entries.append(message(b"for eu", replicated_from="europe", clusters=["eu"]))
        await stage.published(entries)
        natives = _natives(*between)
        incoming = stage.incoming(natives=natives)
        await read(incoming, len(entries))
        found = [only for only, positions in stage.blocks() for _ in positions]
        kept = None if passes_on else frozenset({"a", "ap"})
        for_eu = frozenset({"a", "eu"}) if passes_on else frozenset({"a"})
        assert found == [None, kept, None, None, None, for_eu]
        assert incoming.replicated_natively == 4
        assert incoming.copied_to_all == (2 if passes_on else 0)
        natives.change(replace(natives._topology, links=(*between, Link("eu", "ap"))))
        assert natives.clusters_for(TOPIC, "europe") == {"a"}


@pytest.mark.parametrize(
    ("link", "ap_gets_it"),
    [
        (Link("eu", "ap"), False),
        (Link("eu", "ap", topics=("public/other",)), True),  # it does not carry the topic
        (Link("eu", "ap", where="payload_size > 3"), True),  # it may leave the message out
        (Link("a", "ap", forward=True), False),  # it passes on what the link from eu brings to a
        (Link("a", "ap"), True),
    ],
)
def test_a_link_counts_only_if_it_brings_the_topic_and_all_of_it(link: Link, ap_gets_it: bool) -> None:
    found = _natives(Link("eu", "a"), link).clusters_for(TOPIC, "europe")
    assert found == ({"a", "ap"} if ap_gets_it else {"a"})


@asynchronous
async def test_names_and_stamps_that_are_no_text_are_none(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        named = message(b"eu", clusters=["eu", "??"])
        forged = stamped(message(b"forged"), Identity("?", 7, Position(9, 0)), b"")
        entries = []
        for entry, sign, text in ((named, b"??", b"\xff\xfe"), (forged, b"\n\x01?", b"\n\x01\xff")):
            at = entry.index(sign)
            head = entry[6:at] + text + entry[at + len(sign) :]
            entries.append(entry[:2] + crc32c(head).to_bytes(4, "big") + head)
        await stage.published(entries)
        incoming = stage.incoming()
        await read(incoming, 2)
        assert [only for only, _ in stage.blocks()] == [frozenset({"a", "eu"}), None]
