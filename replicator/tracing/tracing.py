"""Tracing of a worker: it makes the spans of a message from its publish to its acknowledgement.

A message's trace here, and in every cluster that it reaches::

    publish   at the origin; continues the producer's span, or begins the trace
    append    at each destination of a link; has a link to the span of the block that it came with
    deliver   to a consumer; begins when the message arrived here
    acknowledge

Each block that a link carries with traced messages is also a span ``copy``, in a trace of its own with links to theirs.

1. At publish the sampler chooses the traced messages. When they are durable, notes are made of them, before anybody is
   told of the block.
2. Links look notes up by a block's header, and dispatch by a set of positions. No message is read for it.
3. A delivered message waits for its acknowledgement, up to a number of them for each subscription.

It is called on the event loop, and only if traces are on: a worker without them has no such object.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from pyroaring import BitMap

from replicator.tracing.context import TraceContext
from replicator.tracing.notes import CarriedNotes, Note, NoteTable, encode_notes
from replicator.tracing.sampling import Sampler
from replicator.tracing.spans import Attribute, Kind, Span, SpanSink
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

AWAITED_MAX: Final = 1_000
"""Limit, for each subscription, of entries with traced messages that wait for their acknowledgement.

Past it the oldest are not waited for."""


class TracedMessage(NamedTuple):
    """Traced message among those that are published in one call."""

    entry: int
    """Index of the entry in the call."""
    batch_index: int
    parent: TraceContext | None
    """Producer's span, if the message brought one."""


class Delivered(Protocol):
    """Entry on its way to a consumer."""

    @property
    def position(self) -> Position: ...
    @property
    def redelivery_count(self) -> int: ...
    @property
    def origin(self) -> str: ...
    @property
    def origin_position(self) -> Position: ...


class Tracing:
    """Traces of one worker."""

    def __init__(
        self,
        cluster: str,
        sampler: Sampler,
        notes: NoteTable,
        sink: SpanSink,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        bits: Callable[[int], int] = random.getrandbits,
    ) -> None:
        self.cluster = cluster
        self.sampler = sampler
        self.notes = notes
        self.now_ns = now_ns
        self._sink = sink
        self._bits = bits

    def publication(self, topic: str, chosen: Sequence[TracedMessage]) -> Publication:
        """Begin to trace the publication of the messages ``chosen``; the result makes their spans when it ends."""
        return Publication(self, topic, chosen)

    @contextmanager
    def appending(self, topic: str, blocks: Sequence[CarriedNotes]) -> Iterator[None]:
        """Trace the appending of blocks that a link brought with these notes. It must happen inside this context."""
        start_ns = self.now_ns()
        began: list[tuple[CarriedNotes, Note, TraceContext]] = []
        for block in blocks:
            for note in block.notes:
                context = self.span_within(note.context)
                began.append((block, note, context))
                self.notes.put(topic, block.origin, note._replace(context=context, at_ns=start_ns))
        error: str | None = None
        try:
            yield
        except Exception as failure:
            error = str(failure)
            raise
        finally:
            end_ns = self.now_ns()
            for block, note, context in began:
                attributes = self.attributes(topic, note.position, note.batch_index, block.origin)
                self._sink.add(
                    Span(
                        f"append {topic}",
                        Kind.CONSUMER,
                        context,
                        note.context,
                        start_ns,
                        end_ns,
                        attributes,
                        (block.block,),
                        error,
                    )
                )

    def link(self, key: str, destination: str) -> LinkTraces:
        """Return the traces of a link."""
        return LinkTraces(self, key, destination)

    def subscription(self, topic: str, name: str) -> SubscriptionTraces:
        """Return the traces of a subscription."""
        return SubscriptionTraces(self, topic, name)

    # For the classes below.

    def add(self, span: Span) -> None:
        self._sink.add(span)

    def span_within(self, parent: TraceContext | None) -> TraceContext:
        """Return a new span of the parent's trace, or of a new trace."""
        trace_id = self._new_id(128) if parent is None else parent.trace_id
        return TraceContext(trace_id, self._new_id(64))

    def _new_id(self, bits: int) -> int:
        return self._bits(bits) or 1  # 0 is no id

    def attributes(self, topic: str, position: Position, index: int, origin: str) -> dict[str, Attribute]:
        """Return the attributes of a message's spans."""
        return {
            "messaging.system": "pulsar",
            "messaging.destination.name": topic,
            "messaging.message.id": f"{position}:{index}",
            "replicator.cluster": self.cluster,
            "replicator.origin": origin,
        }


class Publication:
    """Traced messages from their publish until they are durable."""

    __slots__ = ("_chosen", "_start_ns", "_topic", "_tracing")

    def __init__(self, tracing: Tracing, topic: str, chosen: Sequence[TracedMessage]) -> None:
        self._tracing = tracing
        self._topic = topic
        self._chosen = chosen
        self._start_ns = tracing.now_ns()

    def durable(self, positions: Sequence[Position]) -> None:
        """End the publish spans and make notes. Call this before anybody is told of the block.

        Messages that deduplication dropped have no position, and get no note."""
        tracing, topic = self._tracing, self._topic
        end_ns = tracing.now_ns()
        for entry, index, parent in self._chosen:
            position = positions[entry]
            context = tracing.span_within(parent)
            if position == BEFORE_ALL:
                attributes = tracing.attributes(topic, position, index, tracing.cluster)
                attributes["replicator.duplicate"] = True
            else:
                tracing.notes.put(topic, tracing.cluster, Note(position, index, context, end_ns))
                attributes = tracing.attributes(topic, position, index, tracing.cluster)
            tracing.add(Span(f"publish {topic}", Kind.SERVER, context, parent, self._start_ns, end_ns, attributes))

    def refused(self, reason: str) -> None:
        """End the publish spans with an error. The messages were not stored, so their traces end here."""
        tracing, topic = self._tracing, self._topic
        end_ns = tracing.now_ns()
        for _, index, parent in self._chosen:
            attributes = tracing.attributes(topic, BEFORE_ALL, index, tracing.cluster)
            del attributes["messaging.message.id"]
            context = tracing.span_within(parent)
            tracing.add(
                Span(
                    f"publish {topic}",
                    Kind.SERVER,
                    context,
                    parent,
                    self._start_ns,
                    end_ns,
                    attributes,
                    error=reason,
                )
            )


class _BlockSpan(NamedTuple):
    """Span of a block that a link carries; it begins when the block was read."""

    carried: CarriedNotes
    start_ns: int


class LinkTraces:
    """Blocks with traced messages that a link has in flight. Frames are answered in the order of their sending."""

    def __init__(self, tracing: Tracing, key: str, destination: str) -> None:
        self._tracing = tracing
        self._key = key
        self._destination = destination
        self._read: list[_BlockSpan] = []
        self._sent: deque[Sequence[_BlockSpan]] = deque()

    def restart(self) -> None:
        """End the spans of blocks in flight with an error, because their answers are lost."""
        for blocks in self._sent:
            self._end(blocks, lambda _: "the connection was lost")
        self._sent.clear()
        self._read = []

    def block(self, topic: str, origin: str, first: Position, last: Position) -> None:
        """Begin the span of a block that was read for the next frame, if it has traced messages."""
        notes = self._tracing.notes.between(topic, origin, first, last)
        if notes:
            carried = CarriedNotes(topic, origin, self._tracing.span_within(None), notes)
            self._read.append(_BlockSpan(carried, self._tracing.now_ns()))

    def frame(self) -> bytes:
        """Return the notes on traced messages that the next frame carries with its blocks, encoded.

        Its blocks are those read since the last frame was sent. Empty if none of them has a traced message.
        """
        return encode_notes([each.carried for each in self._read]) if self._read else b""

    def sent(self) -> None:
        """Take note that the frame was sent, with or without traced messages."""
        self._sent.append(self._read or ())
        if self._read:
            self._read = []

    def answered(self, refused: Mapping[str, tuple[str, str]]) -> None:
        """End the spans of the oldest sent frame, which was answered. ``refused`` has code and reason by topic."""
        if self._sent and (blocks := self._sent.popleft()):
            self._end(blocks, lambda topic: ": ".join(refused[topic]) if topic in refused else None)

    def _end(self, blocks: Sequence[_BlockSpan], error: Callable[[str], str | None]) -> None:
        tracing = self._tracing
        end_ns = tracing.now_ns()
        for carried, start_ns in blocks:
            attributes: dict[str, Attribute] = {
                "messaging.system": "pulsar",
                "messaging.destination.name": carried.topic,
                "messaging.batch.message_count": len(carried.notes),
                "replicator.cluster": tracing.cluster,
                "replicator.destination": self._destination,
                "replicator.link": self._key,
                "replicator.origin": carried.origin,
            }
            links = [note.context for note in carried.notes]
            tracing.add(
                Span(
                    f"copy {carried.topic}",
                    Kind.PRODUCER,
                    carried.block,
                    None,
                    start_ns,
                    end_ns,
                    attributes,
                    links,
                    error(carried.topic),
                )
            )


class SubscriptionTraces:
    """Traced messages of one subscription that were delivered and are not acknowledged."""

    __slots__ = ("_awaited", "_name", "_topic", "_tracing")

    def __init__(self, tracing: Tracing, topic: str, name: str) -> None:
        self._tracing = tracing
        self._topic = topic
        self._name = name
        self._awaited: dict[Position, dict[int, tuple[TraceContext, Mapping[str, Attribute]]]] = {}
        """Delivery span and message attributes, by position here and index in the batch."""

    def delivered(self, consumer: str, deliveries: Sequence[Delivered]) -> None:
        """Make the deliver spans of entries that a consumer got."""
        for notes in self._tracing.notes.of(self._topic):
            noted = notes.by_position
            for delivery in deliveries:
                if delivery.origin_position in noted:
                    self._deliver(consumer, delivery, noted[delivery.origin_position])

    def _deliver(self, consumer: str, delivery: Delivered, noted: Mapping[tuple[str, int], Note]) -> None:
        tracing = self._tracing
        now_ns = tracing.now_ns()
        for (origin, index), note in noted.items():
            if origin != delivery.origin:
                continue
            attributes = self._attributes(note, origin)
            attributes["messaging.client.id"] = consumer
            attributes["replicator.redelivery_count"] = delivery.redelivery_count
            context = tracing.span_within(note.context)
            start_ns = min(note.at_ns, now_ns)
            tracing.add(
                Span(f"deliver {self._topic}", Kind.PRODUCER, context, note.context, start_ns, now_ns, attributes)
            )
            self._await(delivery.position, index, context, self._attributes(note, origin))

    def _await(
        self, position: Position, index: int, context: TraceContext, attributes: Mapping[str, Attribute]
    ) -> None:
        waiting = self._awaited.get(position)
        if waiting is None:
            if len(self._awaited) >= AWAITED_MAX:
                del self._awaited[next(iter(self._awaited))]
            waiting = self._awaited[position] = {}
        waiting[index] = context, attributes

    def acknowledged(self, acks: Sequence[Acknowledged], durable: asyncio.Future[None]) -> None:
        """Make the acknowledge spans of entries or messages that were acknowledged individually."""
        if self._awaited:
            for ack in acks:
                if ack.position in self._awaited:
                    self._end(ack.position, ack.batch_indexes, durable)

    def acknowledged_through(self, position: Position, batch_index: int | None, durable: asyncio.Future[None]) -> None:
        """Make the acknowledge spans of everything through a position or an index in it."""
        if self._awaited:
            for each in [awaited for awaited in self._awaited if awaited <= position]:
                whole = each < position or batch_index is None
                self._end(each, None if whole else range((batch_index or 0) + 1), durable)

    def acknowledged_among(
        self,
        positions: PositionSet,
        batches: Mapping[Position, BitMap],
        durable: asyncio.Future[None],
    ) -> None:
        """Make the acknowledge spans for an acknowledgement by a position of another cluster, given its local
        positions."""
        for each in list(self._awaited):
            if each in positions:
                self._end(each, None, durable)
            elif each in batches:
                self._end(each, batches[each], durable)

    def _end(self, position: Position, indexes: Collection[int] | BitMap | None, durable: asyncio.Future[None]) -> None:
        waiting = self._awaited[position]
        ended = {index: waiting.pop(index) for index in list(waiting) if indexes is None or index in indexes}
        if not waiting:
            del self._awaited[position]
        start_ns = self._tracing.now_ns()

        def saved(future: asyncio.Future[None]) -> None:
            failure = None if future.cancelled() else future.exception()
            end_ns = self._tracing.now_ns()
            for parent, attributes in ended.values():
                self._tracing.add(
                    Span(
                        f"acknowledge {self._topic}",
                        Kind.SERVER,
                        self._tracing.span_within(parent),
                        parent,
                        start_ns,
                        end_ns,
                        attributes,
                        error=None if failure is None else str(failure),
                    )
                )

        if ended:
            durable.add_done_callback(saved)

    def _attributes(self, note: Note, origin: str) -> dict[str, Attribute]:
        attributes = self._tracing.attributes(self._topic, note.position, note.batch_index, origin)
        attributes["messaging.destination.subscription.name"] = self._name
        return attributes


class Acknowledged(Protocol):
    """Individual acknowledgement; ``batch_indexes`` is None for the whole entry."""

    @property
    def position(self) -> Position: ...
    @property
    def batch_indexes(self) -> Sequence[int] | None: ...
