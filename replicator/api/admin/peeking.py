"""Looking at single messages: ``…/subscription/{subscription}/position/{n}`` and ``…/ledger/{ledger}/entry/{entry}``.

The answer is the payload, uncompressed, and the metadata in headers, as Pulsar's tools read them. A batch comes whole:
a tool that finds ``X-Pulsar-num-batch-message`` takes it apart by itself.

A few bytes may become 64 MiB, so they are decompressed within the budget of clients
(:mod:`replicator.engine.unpacking`). What is on its way to readers counts with the pages of the data plane, too
(invariant 11).
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Final
from urllib.parse import quote

from aiohttp import web

from replicator.api.admin.errors import InternalCorruption, MessageNotFound, PreconditionFailed
from replicator.api.admin.requests import number_of, one_topic
from replicator.api.admin.subscriptions import SUBSCRIPTION, TOPIC, find_subscription
from replicator.api.admin.topic_stats import iso_time
from replicator.api.data_plane import ENGINE
from replicator.api.pages import check_room_for_page, send_page
from replicator.engine.errors import BlockCorrupt, EntryCorrupt, MessageTooLarge
from replicator.engine.log.entry import decode_entry
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import LoggedEntry
from replicator.metadata.metadata_pb2 import NONE, MessageMetadata
from snapshots.position import Position

PEEK_POSITION_MAX: Final = 100_000
"""Finding the n-th message reads those before it."""
HEADER_CHARS_MAX: Final = 6_000
"""A longer one is left out: readers refuse headers over 8 KiB, and the message with them."""
PAGE_ENTRIES: Final = 500
PAGE_BYTES: Final = 4 * 1024 * 1024


def routes() -> list[web.RouteDef]:
    """Return the routes of single messages."""
    return [
        web.get(f"{SUBSCRIPTION}/position/{{number}}", peek),
        web.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", message_by_id),
        web.get(f"{TOPIC}/examinemessage", examine),
    ]


async def peek(request: web.Request) -> web.StreamResponse:
    """Answer with the n-th entry that the subscription has not consumed, counted from 1."""
    number = number_of(request.match_info["number"], "number", least=1, most=PEEK_POSITION_MAX)
    subscription = await find_subscription(request)
    try:
        found = await _unconsumed(subscription, number)
    except BlockCorrupt as error:
        raise InternalCorruption(str(error)) from None
    if found is None:
        raise MessageNotFound(
            f"subscription {subscription.name!r} has fewer than {number} entries in its backlog; ask for a smaller "
            "number"
        )
    return await _answer(request, found)


async def message_by_id(request: web.Request) -> web.StreamResponse:
    """Answer with the entry at a position."""
    topic = await one_topic(request)
    position = Position(
        number_of(request.match_info["ledger"], "ledger"), number_of(request.match_info["entry"], "entry")
    )
    return await _entry_at(request, topic, position)


async def examine(request: web.Request) -> web.StreamResponse:
    """Answer with the n-th entry of the topic, counted from 1, from its beginning or its end. If there are fewer,
    answer with the last one.
    """
    number = number_of(request.query.get("messagePosition", "1"), "messagePosition", least=1, most=PEEK_POSITION_MAX)
    from_start = request.query.get("initialPosition", "latest") == "earliest"
    topic = await one_topic(request)
    found = await _nth(topic, number, from_start=from_start)
    if found is None:
        raise PreconditionFailed(f"{topic.name} has fewer than {number} messages; ask for a smaller number")
    return await _entry_at(request, topic, found)


async def _nth(topic: Topic, number: int, *, from_start: bool) -> Position | None:
    log, found = topic.log, None
    position = log.next_after(log.trimmed) if from_start else log.last
    for step in count(1):
        if position is None or position <= log.trimmed:
            return found if from_start else None
        if log.is_delivered(position):
            found, number = position, number - 1
            if not number:
                return found
        position = log.next_after(position) if from_start else log.last_before(position)
        if step % PAGE_ENTRIES == 0:
            await asyncio.sleep(0)
    return None


async def _entry_at(request: web.Request, topic: Topic, position: Position) -> web.StreamResponse:
    found: LoggedEntry | None = None
    try:
        if position in topic.log and position not in topic.log.markers:
            (found,) = topic.reading.entries(Position(position.ledger, position.entry - 1), position, 1, PAGE_BYTES)
        else:
            found = topic.compaction.find(position)
    except BlockCorrupt as error:
        raise InternalCorruption(str(error)) from None
    if found is None:
        raise MessageNotFound(f"{topic.name} has no message at {position}")
    return await _answer(request, found)


async def _unconsumed(subscription: Subscription, number: int) -> LoggedEntry | None:
    cursor, read = subscription.cursor, subscription.read_entries
    position = cursor.mark_delete
    while entries := read(position, None, PAGE_ENTRIES, PAGE_BYTES):
        for entry in entries:
            if not entry.marker and not cursor.passes_over(entry.position):
                number -= 1
                if number == 0:
                    return entry
        position = entries[-1].position
        await asyncio.sleep(0)
    return None


async def _answer(request: web.Request, entry: LoggedEntry) -> web.StreamResponse:
    check_room_for_page(request.app)
    unpacking, claim = request.app[ENGINE].unpacking, None
    try:
        metadata, payload = decode_entry(entry.entry, check=False)
        encrypted = bool(metadata.encryption_keys)
        body: memoryview | bytes = payload
        headers = {"Content-Type": "application/octet-stream", **_headers(entry, metadata, encrypted=encrypted)}
        if not encrypted and metadata.compression != NONE:
            transport, size_bytes = request.transport, metadata.uncompressed_size
            if transport is None:
                raise ConnectionResetError("the reader has gone")
            body, claim = await unpacking.decompressed(
                transport, payload, metadata.compression, size_bytes, transport.abort
            )
        return await send_page(request, body, headers)
    except (EntryCorrupt, MessageTooLarge) as error:
        raise InternalCorruption(
            f"the stored entry at {entry.position} is damaged, or its producer wrote it wrongly: {error}; "
            "`replicator store check` names damaged blocks"
        ) from None
    finally:
        if claim is not None:
            unpacking.clients.give_back(claim)


def _headers(entry: LoggedEntry, metadata: MessageMetadata, *, encrypted: bool) -> dict[str, str]:
    properties = json.dumps({each.key: each.value for each in metadata.properties})
    headers = {
        "X-Pulsar-Message-ID": str(entry.position),
        "X-Pulsar-publish-time": iso_time(metadata.publish_time),
        "X-Pulsar-producer-name": _header_text(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-PROPERTY": properties,
        "X-Replicator-Origin": f"{entry.origin} {entry.origin_position}",
    }
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _header_text(metadata.partition_key)
    if metadata.event_time:
        headers["X-Pulsar-event-time"] = iso_time(metadata.event_time)
    if metadata.deliver_at_time:
        headers["X-Pulsar-deliver-at-time"] = iso_time(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["X-Pulsar-batch-size"] = str(len(entry.entry))
    if metadata.null_value:
        headers["X-Pulsar-null-value"] = "true"
    headers["X-Pulsar-Is-Encrypted"] = str(encrypted).lower()
    headers["X-Pulsar-txn-uncommitted"] = "false"
    return {name: text for name, text in headers.items() if len(text) <= HEADER_CHARS_MAX}


def _header_text(text: str) -> str:
    """Return ``text`` for use in a header. Percent-encode it if it is not printable ASCII: producers choose names and
    keys freely.
    """
    return text if text.isascii() and text.isprintable() else quote(text, safe="", errors="surrogatepass")
