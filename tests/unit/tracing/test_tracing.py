"""The spans of a message's way, made without a worker around it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import batch, make_block, message, serving
from frame_support import framed, streamed
from pyroaring import BitMap

from replicator.api.link_streams import BLOCKS_AT_ONCE
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import TopicTerminated
from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.producing.traced_entries import LOOKED_AT_BYTES, choose
from replicator.engine.types import DUPLICATE, Ack, Delivery
from replicator.metadata.metadata_pb2 import LZ4, KeyValue, MessageMetadata, SingleMessageMetadata
from replicator.tracing.context import TraceContext, traceparent
from replicator.tracing.notes import CarriedNotes, Note, NoteTable, decode_notes, encode_notes
from replicator.tracing.sampling import Sampler
from replicator.tracing.spans import Span
from replicator.tracing.tracing import AWAITED_MAX, TracedMessage, Tracing
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

T = "persistent://public/default/t"
PRODUCED = TraceContext(0xABC, 0xDEF)
UNSAMPLED = traceparent(PRODUCED)[:-2] + "00"


@dataclass
class Sink:
    spans: list[Span] = field(default_factory=list)

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def named(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.name == f"{operation} {T}"]


def traced(rate: float = 0, *, per_second: int = 1000, cluster: str = "us-east") -> tuple[Tracing, Sink]:
    ids = iter(range(1, 1_000_000))
    times = iter(range(1, 1_000_000))
    sink = Sink()
    sampler = Sampler(rate, per_second, lambda: 0.0, lambda: 0.5)
    made = Tracing(cluster, sampler, NoteTable(1000), sink, now_ns=lambda: next(times), bits=lambda _: next(ids))
    return made, sink


def single(properties: dict[str, str], payload: bytes = b"x") -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.properties.extend(KeyValue(key=key, value=value) for key, value in properties.items())
    return encode_entry(metadata, payload)


def batched(*contexts: str | None, payload: bytes = b"x", compressed: bool = False, beside: str = "") -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(contexts))
    if beside:
        metadata.properties.append(KeyValue(key="traceparent", value=beside))
    body = bytearray()
    for context in contexts:
        one = SingleMessageMetadata(payload_size=0)
        if context is not None:
            one.properties.append(KeyValue(key="traceparent", value=context))
        append_to_batch(body, one, payload)
    if compressed:
        metadata.compression, metadata.uncompressed_size = LZ4, len(body)
        return encode_entry(metadata, compress(bytes(body), LZ4))
    return encode_entry(metadata, body)


def test_a_producers_context_decides() -> None:
    made, _ = traced()
    entries = [
        single({"traceparent": traceparent(PRODUCED)}),
        single({"traceparent": UNSAMPLED}),
        single({}),
        batched(None, traceparent(PRODUCED), UNSAMPLED, None),
        single(
            {"note": f"traceparent is {traceparent(PRODUCED)}"}, b"traceparent\x127" + traceparent(PRODUCED).encode()
        ),
    ]
    assert choose(made, entries, [1, 1, 1, 4, 1]) == [TracedMessage(0, 0, PRODUCED), TracedMessage(3, 1, PRODUCED)]


def test_the_sampler_picks_among_the_others() -> None:
    made, _ = traced(1.0)
    entries = [single({"traceparent": UNSAMPLED}), single({}), batched(None, UNSAMPLED, traceparent(PRODUCED))]
    assert choose(made, entries, [1, 1, 3]) == [
        TracedMessage(2, 2, PRODUCED),
        TracedMessage(1, 0, None),
        TracedMessage(2, 0, None),
    ]


@pytest.mark.parametrize("position", range(12))
def test_what_is_picked_is_the_message_of_that_number(position: int) -> None:
    made, _ = traced()
    made.sampler._passed_over = position
    (picked,) = choose(made, [batch([b"a"] * 5), message(), batch([b"b"] * 6)], [5, 1, 6])
    expected = [(0, index) for index in range(5)] + [(1, 0)] + [(2, index) for index in range(6)]
    assert (picked.entry, picked.batch_index) == expected[position]


def test_a_large_batch_is_looked_through_when_its_beginning_or_the_batch_itself_has_a_context() -> None:
    made, _ = traced()
    payload = bytes(LOOKED_AT_BYTES)
    late = (None, None, traceparent(PRODUCED))
    assert choose(made, [batched(*late, payload=payload)], [3]) == ()
    assert choose(made, [batched(*late, payload=payload, beside=traceparent(PRODUCED))], [3]) == [
        TracedMessage(0, 2, PRODUCED)
    ]
    early = (UNSAMPLED, None, traceparent(PRODUCED))
    assert choose(made, [batched(*early, payload=payload)], [3]) == [TracedMessage(0, 2, PRODUCED)]


def test_a_compressed_batch_is_looked_through_when_the_batch_itself_has_a_context() -> None:
    made, _ = traced()
    contexts = [None] * 50 + [traceparent(PRODUCED)]
    assert choose(made, [batched(*contexts, compressed=True)], [51]) == ()
    with_hint = batched(*contexts, compressed=True, beside=traceparent(PRODUCED))
    assert choose(made, [with_hint], [51]) == [TracedMessage(0, 50, PRODUCED)]


def test_no_more_are_traced_than_may_be() -> None:
    made, _ = traced(1.0, per_second=2)
    assert len(choose(made, [message()] * 5, [1] * 5)) == 2
    assert (made.sampler.traced, made.sampler.skipped) == (2, 3)


def test_what_deduplication_dropped_has_a_span_and_no_note() -> None:
    made, sink = traced()
    made.publication(T, [TracedMessage(0, 0, PRODUCED), TracedMessage(1, 2, None)]).durable([DUPLICATE, Position(5, 1)])
    duplicate, stored = sink.named("publish")
    assert duplicate.attributes["replicator.duplicate"] is True
    assert (duplicate.context.trace_id, duplicate.parent, stored.parent) == (PRODUCED.trace_id, PRODUCED, None)
    assert [note.position for note in made.notes.between(T, "us-east", Position(0, 0), Position(9, 9))] == [
        Position(5, 1)
    ]


def carried(made: Tracing) -> CarriedNotes:
    return CarriedNotes(T, "us-east", TraceContext(1, 2), [Note(Position(5, 1), 0, PRODUCED)])


def test_an_append_that_is_refused_is_a_span_with_the_reason() -> None:
    made, sink = traced(cluster="eu-west")
    with pytest.raises(OSError, match="full"), made.appending(T, [carried(made)]):
        raise OSError("full")
    (span,) = sink.named("append")
    assert (span.error, span.links) == ("full", (TraceContext(1, 2),))


def test_a_links_blocks_end_when_their_frame_is_answered() -> None:
    made, sink = traced()
    made.publication(T, [TracedMessage(0, 0, None), TracedMessage(1, 0, None)]).durable(
        [Position(5, 1), Position(6, 0)]
    )
    link = made.link("us-east>eu-west", "eu-west")
    link.block(T, "us-east", Position(5, 0), Position(5, 9))
    link.block(T, "us-east", Position(5, 10), Position(5, 19))  # nothing in it is traced
    (block,) = decode_notes(link.frame())[T]
    link.sent()
    assert link.frame() == b""
    link.sent()
    link.block(T, "us-east", Position(6, 0), Position(6, 0))
    link.sent()
    assert not sink.named("copy")
    link.answered({})
    (first,) = sink.named("copy")
    publish = sink.named("publish")[0].context
    assert (first.context, list(first.links), first.error) == (block.block, [publish], None)
    assert [note.context for note in block.notes] == [publish]
    link.answered({})
    link.answered({T: ("CopyGap", "lost")})
    assert [span.error for span in sink.named("copy")] == [None, "CopyGap: lost"]


def test_what_was_in_flight_on_a_lost_connection_is_an_error_and_travels_again() -> None:
    made, sink = traced()
    made.publication(T, [TracedMessage(0, 0, None)]).durable([Position(5, 1)])
    link = made.link("us-east>eu-west", "eu-west")
    for error in ("the connection was lost", None):
        link.block(T, "us-east", Position(5, 0), Position(5, 9))
        assert link.frame()
        link.sent()
        if error is not None:
            link.restart()
        else:
            link.answered({})
        assert sink.named("copy")[-1].error == error
    assert len(sink.named("copy")) == 2


def delivery(entry: int, *, redelivered: int = 0) -> Delivery:
    return Delivery(Position(8, entry), redelivered, 4, None, b"", "us-east", Position(5, entry))


async def saved() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


@asynchronous
async def test_messages_of_a_batch_end_with_the_acknowledgement_that_has_them() -> None:
    made, sink = traced(cluster="eu-west")
    for index in range(4):
        made.notes.put(T, "us-east", Note(Position(5, 1), index, TraceContext(100 + index, 1)))
    subscription = made.subscription(T, "s")
    subscription.delivered("c", [delivery(0), delivery(1)])
    assert [span.parent for span in sink.named("deliver")] == [TraceContext(100 + index, 1) for index in range(4)]

    async def ended(*traces: int) -> None:
        await asyncio.sleep(0)
        assert [span.context.trace_id - 100 for span in sink.named("acknowledge")] == list(traces)

    subscription.acknowledged([Ack(Position(8, 0)), Ack(Position(8, 1), (1,))], await saved())
    await ended(1)
    subscription.acknowledged([Ack(Position(8, 1), (0, 1))], await saved())
    await ended(1, 0)
    subscription.acknowledged_through(Position(8, 1), 2, await saved())
    await ended(1, 0, 2)
    subscription.acknowledged_among(PositionSet(), {Position(8, 1): BitMap([3])}, await saved())
    await ended(1, 0, 2, 3)
    subscription.acknowledged_through(Position(9, 0), None, await saved())
    await ended(1, 0, 2, 3)
    assert len({span.parent for span in sink.named("acknowledge")}) == 4


@asynchronous
async def test_only_so_many_deliveries_wait_for_their_acknowledgement() -> None:
    made, sink = traced(cluster="eu-west")
    subscription = made.subscription(T, "s")
    for entry in range(AWAITED_MAX + 1):
        made.notes.put(T, "us-east", Note(Position(5, entry), 0, PRODUCED))
        subscription.delivered("c", [delivery(entry)])
    subscription.acknowledged_through(Position(8, AWAITED_MAX), None, await saved())
    await asyncio.sleep(0)
    assert len(sink.named("acknowledge")) < len(sink.named("deliver")) == AWAITED_MAX + 1


def test_a_message_of_another_origin_at_the_same_position_is_another() -> None:
    made, sink = traced(cluster="eu-west")
    made.notes.put(T, "elsewhere", Note(Position(5, 1), 0, PRODUCED))
    made.subscription(T, "s").delivered("c", [delivery(1)])
    assert sink.spans == []


@asynchronous
async def test_a_publish_that_is_refused_is_a_span_with_the_reason(tmp_path: Path) -> None:
    made, sink = traced()
    engine = await Engine.open(tmp_path / "data", cluster="us-east", settings=EngineSettings(tracing=made))
    try:
        topic = await engine.topic(T)
        await topic.publish([single({"traceparent": traceparent(PRODUCED)})])
        await topic.terminate()
        with pytest.raises(TopicTerminated):
            await topic.publish([single({"traceparent": traceparent(PRODUCED)}), single({})])
    finally:
        await engine.close()
    stored, refused = sink.named("publish")
    assert (stored.error, stored.parent, refused.parent) == (None, PRODUCED, PRODUCED)
    assert "terminated" in str(refused.error)
    assert "messaging.message.id" in stored.attributes.keys() - refused.attributes.keys()
    assert len(made.notes) == 1


@asynchronous
async def test_blocks_of_a_topic_that_a_link_appends_in_pieces_stay_in_order_if_the_first_are_traced(
    tmp_path: Path,
) -> None:
    made, sink = traced(cluster="eu-west")
    engine = await Engine.open(tmp_path / "data", cluster="eu-west", settings=EngineSettings(tracing=made))
    previous = [BEFORE_ALL, *(Position(9, entry) for entry in range(2 * BLOCKS_AT_ONCE))]
    blocks = [Outgoing(T, each, make_block(Position(9, entry), [message()])) for entry, each in enumerate(previous)]
    notes = encode_notes([CarriedNotes(T, "us-east", PRODUCED, [Note(Position(9, 0), 0, PRODUCED)])])
    engine.turns.clock = lambda: 0.0  # no slice is used up, so nothing pauses for that
    try:
        async with serving(engine, {"us-east"}) as server:
            _, answers = await streamed(f"{server.url}/append", framed(b"".join(encode_rows(blocks, notes))))
    finally:
        await engine.close()
    assert answers == [{"extents": len(blocks), "refused": {}}]
    assert len(sink.named("append")) == 1
