"""Entries that the brokers refuse: nothing that follows is lost, and they follow when they are let in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, entries_of, eventually, make_block, message
from publishing_support import NOTHING_STORED, Publishing, publishing

from replicator.apache.errors import BridgeHalted
from replicator.apache.left_out import RefusedEntry
from replicator.apache.published_extents import left_out_row, load_map
from replicator.apache.stamps import Identity, marks_of
from replicator.client import NotAllowedError
from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.engine import unpacking
from replicator.engine.log.compression import Buffer, compress, decompress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry
from replicator.engine.log.requests import CopiedBlock
from replicator.metadata.metadata_pb2 import ZSTD, CompressionType, MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position

LARGE = 4


class Brokers:
    """Their admin API, and what they refuse though no limit of theirs is known."""

    def __init__(self) -> None:
        self.bytes_max = 0
        self.delay_ms_max = 0
        self.refused: set[int] = set()
        """Entries of the origin."""
        self.tries: list[int] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/maxMessageSize"):
            return web.json_response(self.bytes_max) if self.bytes_max else web.Response(status=204)
        if request.path.endswith("/delayedDelivery"):
            assert request.query["applied"] == "true"
            policy = {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": self.delay_ms_max}
            return web.json_response(policy)
        return web.json_response(NOTHING_STORED)

    def by(self, connector: BrokerConnector) -> Any:
        return Refusing(connector, self)


class Refusing:
    """Refuses at once, as brokers do, and takes what is behind."""

    def __init__(self, connector: BrokerConnector, brokers: Brokers) -> None:
        self._connector = connector
        self._brokers = brokers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    async def open_producer(self, settings: ProducerSettings) -> Any:
        return RefusingChannel(await self._connector.open_producer(settings), self._brokers)


class RefusingChannel:
    def __init__(self, channel: Any, brokers: Brokers) -> None:
        self._channel = channel
        self._brokers = brokers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def start(self, events: Any) -> None:
        self._events = events
        self._channel.start(events)

    def publish(self, number: int, entry: bytes) -> None:
        identity = marks_of(entry).identity
        assert identity is not None
        self._brokers.tries.append(identity.position.entry)
        if identity.position.entry in self._brokers.refused:
            asyncio.get_running_loop().call_soon(
                self._events.on_refused, number, NotAllowedError("Exceed maximum message size")
            )
        else:
            self._channel.publish(number, entry)


class Halts:
    """Collects what publishing says of itself."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.begun = 0

    def begins(self) -> None:
        self.begun += 1

    def how(self) -> dict[str, Any]:
        return {"begins": self.begins, "fails": self.errors.append, "missing": frozenset}


async def copy(made: Publishing, entries: Sequence[bytes], first: int = 0) -> None:
    """Copy entries of cluster c, as a link does."""
    at = made.topic.log.last
    previous = Position(1, first - 1) if first else BEFORE_ALL
    await made.topic.writing.copy([CopiedBlock(previous, make_block(Position(1, first), entries, origin="c"))])
    for index in range(len(entries)):
        local = Position(made.topic.log.last.ledger, made.topic.log.last.entry - len(entries) + 1 + index)
        assert local > at
        made.entries.copied("c", Position(1, first + index), local, 1, incarnation=1)
    made.outgoing.wake()


def delayed(delay_ms: int) -> bytes:
    metadata, payload = decode_entry(message(b"delayed"))
    metadata.deliver_at_time = metadata.publish_time + delay_ms
    return encode_entry(metadata, payload)


def published(made: Publishing) -> list[int]:
    found = [marks_of(entry).identity for entry in entries_of(made.at_brokers, "b")]
    return [identity.position.entry for identity in found if identity is not None]


@asynchronous
async def test_nothing_is_sent_behind_an_entry_that_is_larger_than_the_topics_policy(tmp_path: Path) -> None:
    brokers, said = Brokers(), Halts()
    brokers.bytes_max = 2_000
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(bytes(9_000 if number == LARGE else 100)) for number in range(8)])
        await eventually(lambda: len(said.errors) > 2)
        assert published(made) == brokers.tries == list(range(LARGE))
        assert {type(error) for error in said.errors} == {BridgeHalted}
        text = str(said.errors[-1])
        assert "refuse the entry 1:4 of c (9" in text
        assert "maxMessageSize is 2000" in text
        begun = said.begun
        await eventually(lambda: len(said.errors) > 5)
        assert said.begun == begun  # else its failures would be forgotten, and it would be tried without a pause
        brokers.bytes_max = 0
        await eventually(lambda: published(made) == list(range(8)))
        assert made.entries.late() == []


@asynchronous
async def test_nothing_is_sent_behind_an_entry_that_is_delayed_longer_than_the_policy(tmp_path: Path) -> None:
    brokers, said = Brokers(), Halts()
    brokers.delay_ms_max = 10_000
    early, late = delayed(10_000), delayed(10_001)
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [early, late, message(b"behind")])
        await eventually(lambda: bool(said.errors))
        assert "maxDeliveryDelayInMillis" in str(said.errors[-1])
        assert published(made) == [0]
        brokers.delay_ms_max = 0
        await eventually(lambda: published(made) == [0, 1, 2])


@asynchronous
async def test_invariant_1_an_entry_that_is_refused_follows_those_that_were_under_way_behind_it(tmp_path: Path) -> None:
    """Nobody knew that it would be refused. It is tried alone from then on, and what stands there is not sent again."""
    brokers, said = Brokers(), Halts()
    brokers.refused = {3, 5}
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(b"%d" % number) for number in range(8)])
        await eventually(lambda: len(said.errors) > 3)
        assert published(made) == [0, 1, 2, 4, 6, 7]
        assert brokers.tries[8:] == [3] * len(brokers.tries[8:])
        assert "refuse the entry 1:3 of c" in str(said.errors[-1])
        assert made.outgoing.waiting()
        assert made.outgoing.done_through() < made.entries.copied_to("c", Position(1, 3))
        await copy(made, [message(b"8")], first=8)
        await eventually(lambda: len(said.errors) > 6)
        assert published(made) == [0, 1, 2, 4, 6, 7]
        brokers.refused = {5}
        await eventually(lambda: "refuse the entry 1:5 of c" in str(said.errors[-1]))
        assert published(made) == [0, 1, 2, 4, 6, 7, 3]
        brokers.refused = set()
        await eventually(lambda: published(made) == [0, 1, 2, 4, 6, 7, 3, 5, 8])
        await eventually(lambda: not made.outgoing.waiting())
        assert [run.origin_first.entry for _, run in made.entries.late()] == [3, 5]


@asynchronous
async def test_invariant_1_a_worker_that_was_killed_knows_what_was_refused(tmp_path: Path) -> None:
    """Its rows say what is at the brokers, and its log what should be."""
    brokers, said = Brokers(), Halts()
    brokers.refused = {2, 3}
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(b"%d" % number) for number in range(8)])
        await eventually(lambda: len(published(made)) == 6)
        again = load_map(made.store, made.topic, "a.pulsar")
        for index, entry in enumerate(entries_of(made.at_brokers, "b")):
            identity = marks_of(entry).identity
            assert identity is not None
            again.seen_at_broker(identity, Position(9, index))
        assert list(again.missing("c")) == [Position(1, 2), Position(1, 3)]
        assert again.published_through("c") == Position(1, 1)


@asynchronous
async def test_nothing_is_sent_behind_the_first_entry_of_an_origin_before_it_is_there(tmp_path: Path) -> None:
    """A gap before the first would look like entries that retention deleted, and these are not published again."""
    brokers, said = Brokers(), Halts()
    brokers.refused = {0}
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(b"%d" % number) for number in range(8)])
        await eventually(lambda: len(said.errors) > 3)
        assert published(made) == []
        assert set(brokers.tries) == {0}
        brokers.refused = set()
        await eventually(lambda: published(made) == list(range(8)))


async def leave_out(made: Publishing) -> RefusedEntry:
    """Pass over what is refused, as an operator does."""
    refused = made.outgoing.refused
    assert refused is not None
    left_out = refused._replace(at_ms=1)
    await made.topic.writer.put_many([left_out_row(made.topic.topic_id, left_out)])
    made.entries.leave_out(left_out)
    made.outgoing.passed_over()
    return left_out


@asynchronous
async def test_publishing_goes_on_behind_an_entry_that_an_operator_passes_over(tmp_path: Path) -> None:
    """Also if nothing of its origin stands behind it, and after a restart."""
    brokers, said = Brokers(), Halts()
    brokers.refused = {3, 7}
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(b"%d" % number) for number in range(8)])
        await eventually(lambda: len(said.errors) > 3)
        assert "--from c --to a --topic" in str(said.errors[-1])
        assert "--entry 1:3 --policy skip-and-record" in str(said.errors[-1])
        first = await leave_out(made)
        assert first.identity == Identity("c", 7, Position(1, 3))
        await eventually(lambda: "refuse the entry 1:7 of c" in str(said.errors[-1]))
        assert published(made) == [0, 1, 2, 4, 5, 6]
        assert made.outgoing.waiting()
        last = await leave_out(made)
        await eventually(lambda: not made.outgoing.waiting())
        assert made.outgoing.done_through() == made.topic.log.last
        again = load_map(made.store, made.topic, "a.pulsar")
        assert again.left_out() == made.entries.left_out() == [first, last]
        await copy(made, [message(b"8")], first=8)
        await eventually(lambda: published(made) == [0, 1, 2, 4, 5, 6, 8])
        assert made.entries.late() == []


@asynchronous
async def test_the_first_entry_of_an_origin_can_be_passed_over(tmp_path: Path) -> None:
    brokers, said = Brokers(), Halts()
    brokers.refused = {0, 1}
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await copy(made, [message(b"%d" % number) for number in range(3)])
        await eventually(lambda: bool(said.errors))
        await leave_out(made)
        await eventually(lambda: "refuse the entry 1:1 of c" in str(said.errors[-1]))
        assert published(made) == []
        await leave_out(made)
        await eventually(lambda: published(made) == [2])
        await eventually(lambda: not made.outgoing.waiting())


@asynchronous
async def test_a_batch_in_part_is_made_anew_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes may become 64 MiB. Decompressing them on the event loop would stop every client."""
    threads: list[int] = []

    def noted(payload: Buffer, codec: CompressionType, size_bytes: int) -> bytes:
        threads.append(threading.get_ident())
        return decompress(payload, codec, size_bytes)

    monkeypatch.setattr(unpacking, "decompress", noted)
    body = bytearray()
    for _ in range(3):
        append_to_batch(body, SingleMessageMetadata(), bytes(100_000))
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS)
    metadata.num_messages_in_batch, metadata.compression, metadata.uncompressed_size = 3, ZSTD, len(body)
    part = make_block(
        Position(1, 0), [encode_entry(metadata, compress(body, ZSTD))], origin="c", batch_sizes=[3], absent={0: {1}}
    )
    brokers, said = Brokers(), Halts()
    async with publishing(tmp_path, brokers.answer, brokers_by=brokers.by, **said.how()) as made:
        await made.topic.writing.copy([CopiedBlock(BEFORE_ALL, part)])
        made.entries.copied("c", Position(1, 0), made.topic.log.last, 3, incarnation=1)
        made.outgoing.wake()
        await eventually(lambda: published(made) == [0])
        assert decode_entry(entries_of(made.at_brokers, "b")[0])[0].num_messages_in_batch == 2
        assert len(threads) == 1
        assert threading.get_ident() not in threads
