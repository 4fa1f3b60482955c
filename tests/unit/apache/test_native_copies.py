"""Messages that native replication and a link bring to the same brokers: the bridge recognises or publishes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, entries_of, eventually, make_block
from publishing_support import NOTHING_STORED, Publishing, publishing

from replicator.apache import native_copies
from replicator.apache.native_copies import key_of
from replicator.apache.native_replication import NativeReplication
from replicator.apache.published_extents import load_map, native_row
from replicator.apache.stamps import Identity, marks_of, stamped, with_schema_version
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.log.requests import CopiedBlock
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

ORIGIN = "c.pulsar"


def entry(number: int, *, native: bool = False, producer: str = "p", payload: bytes = b"", at_ms: int = 0) -> bytes:
    """Return message ``number`` of cluster c, or, if ``native``, its copy by native replication."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=number, publish_time=PUBLISH_TIME_MS + at_ms + number
    )
    if native:
        metadata.replicated_from = "brokers-of-c"
    return encode_entry(metadata, payload or b"%d" % number)


class Replicated(NativeReplication):
    """Namespaces that the brokers replicate themselves; a test turns that on by :meth:`replicate`."""

    def __init__(self) -> None:
        self.found = {}

    def replicate(self) -> None:
        self.found = {"public/default": ["brokers-of-a", "brokers-of-c"]}

    async def know(self, topic: str) -> None:
        """Do nothing: the test has said which namespaces the brokers replicate."""

    def origin_of(self, name: str) -> str | None:
        return ORIGIN if name == "brokers-of-c" else None


@asynccontextmanager
async def beside_native(
    path: Path, native: Replicated, fails: Callable[[Exception], None] | None = None, bytes_max: int = 0
) -> AsyncIterator[Publishing]:
    """Publish beside ``native``; the brokers take entries up to ``bytes_max``, if it is given."""

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/maxMessageSize") and bytes_max:
            return web.json_response(bytes_max)
        return web.json_response(NOTHING_STORED)

    how: dict[str, Any] = {"begins": lambda: None, "missing": frozenset, "fails": fails or _fail, "native": native}
    async with publishing(path, answer, **how) as made:
        yield made


def _fail(error: Exception) -> None:
    raise error


async def brought(made: Publishing, entries: Sequence[bytes], first: int = 0) -> None:
    """Have the bridge read what native replication brought to the brokers, from place 1:``first`` on."""
    await _copy(made, "a.pulsar", Position(1, first), entries)
    through = Position(1, first + len(entries) - 1)
    await made.topic.writer.put_many([native_row(made.topic.topic_id, ORIGIN, through)])
    made.entries.native_through[ORIGIN] = through


async def linked(made: Publishing, entries: Sequence[bytes], first: int = 0) -> None:
    """Have a link bring ``entries`` of cluster c, from origin position 5:``first`` on."""
    await _copy(made, ORIGIN, Position(5, first), entries)
    made.outgoing.wake()


async def _copy(made: Publishing, origin: str, first: Position, entries: Sequence[bytes]) -> None:
    previous = Position(first.ledger, first.entry - 1) if first.entry else BEFORE_ALL
    before = made.topic.log.last
    await made.topic.writing.copy([CopiedBlock(previous, make_block(first, entries, origin=origin))])
    following = made.topic.log.next_after(before)
    assert following is not None
    made.entries.copied(origin, first, following, len(entries), incarnation=7)


def published(made: Publishing) -> list[int]:
    """Return the numbers of the messages of cluster c that the bridge has published at the brokers, in order."""
    found = [marks_of(each).identity for each in entries_of(made.at_brokers, "b")]
    return [identity.position.entry for identity in found if identity is not None]


def test_a_copy_has_the_key_of_its_message_and_no_other_message_has_it() -> None:
    key = key_of(entry(1))
    assert key is not None
    assert key[1] == ""
    versioned = with_schema_version(entry(1, native=True), b"\7")
    assert key_of(versioned) == (key[0], "brokers-of-c")
    assert key_of(stamped(entry(1), Identity(ORIGIN, 7, Position(5, 1)), b"")) == (key[0], ORIGIN)
    metadata, payload = decode_entry(entry(1))
    metadata.chunk_id = 1
    others = [
        entry(1, producer="q"),
        entry(1, payload=b"another"),
        entry(1, at_ms=1),
        entry(0, at_ms=1, payload=b"1"),
        encode_entry(metadata, payload),
    ]
    keys = [key_of(each) for each in others]
    assert None not in keys
    assert key[0] not in {each[0] for each in keys if each is not None}
    assert key_of(b"nothing") is None


@pytest.mark.parametrize("restarts", [False, True])
@asynchronous
async def test_what_native_replication_brought_is_not_published_again_and_has_the_place_of_the_copy(
    tmp_path: Path, restarts: bool
) -> None:
    async with beside_native(tmp_path, Replicated()) as made:
        await brought(made, [entry(number, native=True) for number in range(5)])
        await linked(made, [entry(number) for number in range(7)])
        await eventually(lambda: published(made) == [5, 6])
        await eventually(lambda: made.entries.published_through(ORIGIN) == Position(5, 6))
        assert made.outgoing.recognised == 5
        entries = load_map(made.store, made.topic, "a.pulsar") if restarts else made.entries
        places = PositionSet(Position(1, number) for number in range(5))
        assert entries.twins == places
        of_links = [made.entries.copied_to(ORIGIN, Position(5, number)) for number in range(5)]
        own = [made.entries.copied_to("a.pulsar", Position(1, number)) for number in range(5)]
        assert entries.to_broker(PositionSet(of_links)) == places
        assert entries.to_broker(PositionSet(own)) == PositionSet()
        assert entries.to_local(places) == PositionSet([*of_links, *own])
        assert entries.own_twins(PositionSet([Position(1, 3)])) == PositionSet([own[3]])
        assert made.entries.doubled == 0


@asynchronous
async def test_without_certainty_it_is_copied_twice_rather_than_never(tmp_path: Path) -> None:
    """Entries with another producer, payload or time are no copies, and neither are entries of another cluster."""
    async with beside_native(tmp_path, Replicated()) as made:
        copies = [
            entry(0, producer="q", native=True),
            entry(1, payload=b"x", native=True),
            entry(2, at_ms=5, native=True),
        ]
        await brought(made, [*copies, entry(3)])
        await linked(made, [entry(number) for number in range(4)])
        await eventually(lambda: published(made) == [0, 1, 2, 3])
        assert made.outgoing.recognised == 0
        assert not made.entries.twins


@asynchronous
async def test_invariant_3_a_copy_that_stands_before_earlier_messages_is_none(tmp_path: Path) -> None:
    """The copy of message 1 does not stand behind message 0 at the brokers, so message 1 is published."""
    async with beside_native(tmp_path, Replicated()) as made:
        await linked(made, [entry(0)])
        await eventually(lambda: published(made) == [0])
        await eventually(lambda: made.entries.seen_through(ORIGIN) == Position(5, 0))
        place = made.entries.last_published_of(ORIGIN)
        before = [entry(1, native=True)]
        await _copy(made, "a.pulsar", Position(place.ledger, 0), before)  # at or below the place of message 0
        made.entries.native_through[ORIGIN] = Position(place.ledger, 0)
        await linked(made, [entry(1)], first=1)
        await eventually(lambda: published(made) == [0, 1])
        assert made.outgoing.recognised == 0


@asynchronous
async def test_while_brokers_replicate_the_namespace_a_late_copy_is_waited_for(tmp_path: Path) -> None:
    native = Replicated()
    native.replicate()
    async with beside_native(tmp_path, native) as made:
        await linked(made, [entry(number) for number in range(3)])
        for number in range(3):
            assert made.outgoing.recognised == number
            await brought(made, [entry(number, native=True)], first=number)
            await eventually(lambda number=number: made.outgoing.recognised == number + 1)  # type: ignore[misc]
        assert published(made) == []


@asynchronous
async def test_a_wait_in_vain_is_not_repeated_and_what_native_replication_passed_over_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_copies, "WAIT_SECONDS", 0.3)
    waits: list[int] = []
    may_come = native_copies.NativeCopies._may_come

    def noted(copies: native_copies.NativeCopies, key: native_copies.MessageKey, now: float) -> bool:
        found = may_come(copies, key, now)
        waits.extend([key.sequence_id] if found else [])
        return found

    monkeypatch.setattr(native_copies.NativeCopies, "_may_come", noted)
    native = Replicated()
    native.replicate()
    async with beside_native(tmp_path, native) as made:
        await linked(made, [entry(number) for number in range(20)])
        await eventually(lambda: published(made) == list(range(20)))
        assert set(waits) == {0}
        monkeypatch.setattr(native_copies, "AGAIN_SECONDS", 0.0)
    waits.clear()
    async with beside_native(tmp_path / "again", native) as made:
        await brought(made, [entry(50, native=True, at_ms=native_copies.DISORDER_MS + 1)])
        await linked(made, [entry(number) for number in range(5)])
        await eventually(lambda: published(made) == list(range(5)))
        assert waits == []


@asynchronous
async def test_an_entry_that_was_refused_and_comes_natively_is_refused_no_more(tmp_path: Path) -> None:
    failed: list[Exception] = []
    async with beside_native(tmp_path, Replicated(), failed.append, bytes_max=10) as made:
        await linked(made, [entry(0)])
        await eventually(lambda: made.outgoing.refused is not None)
        await brought(made, [entry(0, native=True)])
        made.outgoing.renew()
        await eventually(lambda: made.outgoing.recognised == 1)
        await eventually(lambda: made.outgoing.refused is None)
        assert published(made) == []
