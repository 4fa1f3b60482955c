"""Short path of one small message through a subscription: what is left out of it, and that nothing is lost by it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from engine_support import (
    PUBLISH_TIME_MS,
    TOPIC,
    all_sent,
    batch,
    eventually,
    make_block,
    make_log,
    marker,
    message,
    opened,
    subscribed,
)
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import EngineError, InvalidAck
from replicator.engine.log.entry import decode_entry, encode_entry, may_be_delayed, varint
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CursorRows
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.pump import ALONE_BYTES_MAX, Pump
from replicator.engine.types import SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Start

NEVER_MS = 4_000_000_000_000
positions = st.builds(Position, st.integers(0, 2**63), st.integers(-1, 2**32))
names = st.text(max_size=5)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_an_acknowledgement_does_not_run_dispatch_if_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    runs: list[Pump] = []
    run = Pump._run

    def counted(pump: Pump) -> None:
        runs.append(pump)
        run(pump)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind)
            published = [(await topic.publish([message()]))[0] for _ in range(3)]
            await inbox.holds(3)
            monkeypatch.setattr(Pump, "_run", counted)
            told: list[EngineError | None] = []
            for position in (published[1], published[0], published[2]):
                consumer.acknowledge_entries([position], told.append)
            await eventually(lambda: len(told) == 3, "all are durable")
            assert told == [None] * 3
            assert topic.subscriptions["sub"].mark_delete == published[2]
            assert runs == []
            await topic.publish([message()])
            await inbox.holds(4)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER, SubscriptionType.SHARED])
def test_a_message_that_was_just_committed_is_delivered_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", kind)
            published = await topic.publish([message(b"first")])
            await inbox.holds(1)
            monkeypatch.setattr(TopicReading, "entries", None)
            for payload in (b"second", b"third"):
                published += await topic.publish([message(payload)])
                await inbox.holds(len(published))
            published += await topic.publish([batch([b"m"] * 3)])
            await inbox.holds(4)
            assert inbox.positions == published
            assert [each.batch_size for each in inbox.deliveries] == [1, 1, 1, 3]
            assert [each.origin_position for each in inbox.deliveries] == published
            payloads = [bytes(decode_entry(each.entry)[1]) for each in inbox.deliveries[:3]]
            assert payloads == [b"first", b"second", b"third"]
            observed = engine.writer.latencies.dispatch[engine.cluster]
            assert sum(observed.counts) == 4

    asyncio.run(main())


@pytest.mark.parametrize("entry", ["marker", "delayed", "large", "copied", "two"])
def test_whatever_is_committed_next_messages_are_delivered_once_and_in_order(tmp_path: Path, entry: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", SubscriptionType.SHARED)
            expected = await topic.publish([message(b"first")])
            await inbox.holds(1)
            if entry == "marker":
                await topic.writing.marker(marker())
            elif entry == "delayed":
                await topic.publish([delayed()])
            elif entry == "large":
                expected += await topic.publish([message(b"x" * ALONE_BYTES_MAX)])
            elif entry == "two":
                expected += await topic.publish([message(), message()])
            else:
                block = make_block(Position(7, 3), [message(b"other")], origin="eu-west")
                (extent,) = await topic.writing.copy([CopiedBlock(BEFORE_ALL, block, left_out=True)])
                expected.append(extent.local_first)
            expected += await topic.publish([message(b"last")])
            await inbox.holds(len(expected))
            assert inbox.positions == expected

    asyncio.run(main())


def test_a_consumer_without_permits_gets_a_new_message_once_it_has_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", SubscriptionType.SHARED, permits=1)
            published = [(await topic.publish([message()]))[0] for _ in range(3)]
            await all_sent(consumer)
            assert inbox.positions == published[:1]
            consumer.flow(5)
            await inbox.holds(3)
            assert inbox.positions == published

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize(
    "policies",
    [TopicPolicies(max_unacked_messages_per_consumer=4), TopicPolicies(max_unacked_messages_per_subscription=4)],
    ids=["consumer", "subscription"],
)
def test_an_acknowledgement_lets_a_consumer_go_on_that_had_too_much(
    tmp_path: Path, kind: SubscriptionType, policies: TopicPolicies
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(policies)
            consumer, inbox = await subscribed(topic, "sub", kind)
            published = [(await topic.publish([message()]))[0] for _ in range(12)]
            for held in (4, 6, 8, 10, 12):
                await inbox.holds(held)
                consumer.acknowledge_entries(published[held - 4 : held - 2], lambda error: None)
            assert inbox.positions == published

    asyncio.run(main())


def test_none_of_several_entries_is_acknowledged_if_one_is_invalid(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", SubscriptionType.SHARED)
            (first,) = await topic.publish([message()])
            await inbox.holds(1)
            told: list[EngineError | None] = []
            with pytest.raises(InvalidAck):
                consumer.acknowledge_entries([first, Position(first.ledger, 7)], told.append)
            assert told == []
            assert topic.subscriptions["sub"].mark_delete == BEFORE_ALL
            assert consumer.held() == (1, False)

    asyncio.run(main())


def test_what_is_acknowledged_one_by_one_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", SubscriptionType.SHARED)
            published = [(await topic.publish([message()]))[0] for _ in range(6)]
            await inbox.holds(6)
            for at in (3, 0, 1, 5):
                saved: asyncio.Future[EngineError | None] = asyncio.get_running_loop().create_future()
                consumer.acknowledge_entries([published[at]], saved.set_result)
                assert await saved is None
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", SubscriptionType.SHARED)
            await inbox.holds(2)
            assert inbox.positions == [published[2], published[4]]

    asyncio.run(main())


@given(
    state=st.builds(
        CursorState,
        mark_delete=positions,
        generation=st.integers(1, 2**40),
        replicated=st.booleans(),
        properties=st.dictionaries(names, names, max_size=2),
        read_compacted=st.booleans(),
        to_announce=st.booleans(),
        unclaimed=st.none() | st.dictionaries(names, positions, max_size=2),
        starts=st.dictionaries(names, st.builds(Start, st.integers(0, 9), positions), max_size=2),
        rewound=st.none() | positions,
    )
)
def test_the_head_row_of_a_cursor_is_what_a_json_encoder_writes(state: CursorState) -> None:
    ((_, _, head),) = CursorRows(1, "sub").changes(state).writes
    assert head is not None
    expected = {
        "format": 2,
        "generation": state.generation,
        "mark_delete": list(state.mark_delete),
        "replicated": state.replicated,
        "properties": dict(state.properties),
        **({"read_compacted": True} if state.read_compacted else {}),
        **({"untold": True} if state.to_announce else {}),
        **({"unclaimed": {name: list(upto) for name, upto in state.unclaimed.items()}} if state.unclaimed else {}),
        **(
            {"starts": {name: [start.incarnation, *start.position] for name, start in state.starts.items()}}
            if state.starts
            else {}
        ),
        **({"rewound": list(state.rewound)} if state.rewound is not None else {}),
    }
    assert head.decode() == json.dumps(expected, separators=(",", ":"))


@given(
    deliver_at=st.none() | st.integers(-(2**63), 2**63 - 1),
    tag_bytes=st.integers(2, 5),
    properties=st.binary(max_size=20),
    payload=st.binary(max_size=20),
)
def test_no_entry_with_a_time_of_delivery_is_taken_for_one_without(
    deliver_at: int | None, tag_bytes: int, properties: bytes, payload: bytes
) -> None:
    plain = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, ordering_key=properties)
    encoded = plain.SerializeToString()
    if deliver_at is not None:  # with a tag as long as any parser takes
        tag = bytes((0x98, *([0x81] if tag_bytes > 2 else [0x01]), *[0x80] * (tag_bytes - 3)))
        encoded += tag + (b"\0" if tag_bytes > 2 else b"") + varint(deliver_at & (2**64 - 1))
    entry = _framed(encoded, payload)
    metadata, _ = decode_entry(entry, check=False)
    assert metadata.HasField("deliver_at_time") is (deliver_at is not None)
    if deliver_at is not None:
        assert may_be_delayed(memoryview(entry))


@given(
    runs=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8),
    acknowledged=st.lists(st.tuples(st.integers(-1, 20), st.booleans()), max_size=25),
    replicated=st.booleans(),
)
def test_an_acknowledgement_of_the_next_message_changes_what_any_acknowledgement_changes(
    runs: list[tuple[int, bool]], acknowledged: list[tuple[int, bool]], replicated: bool
) -> None:
    log = make_log(*((1, entries, is_marker) for entries, is_marker in runs))
    short, usual = (Cursor(log, CursorState(replicated=replicated)) for _ in range(2))
    for entry, in_order in acknowledged:
        following = log.next_message(usual.mark_delete)
        position = following if in_order and following is not None else Position(1, entry)
        if position in log and position not in log.markers:
            if not short.acknowledge_next(position):
                short.acknowledge(position, None, 1)
            usual.acknowledge(position, None, 1)
        else:
            assert not short.acknowledge_next(position)
        assert short.state == usual.state
        assert short.state.dirty == usual.state.dirty
        assert short.state.to_announce == usual.state.to_announce
        told, expected = short.state.unannounced, usual.state.unannounced
        assert (told is None) == (expected is None)
        if told is not None and expected is not None:
            assert told.positions == expected.positions


@given(
    acknowledged=st.lists(
        st.tuples(st.integers(0, 11), st.none() | st.sets(st.integers(0, 3), min_size=1)), max_size=8
    ),
    through=st.none() | st.integers(0, 11),
    at=st.integers(0, 11),
    duplicates=st.none() | st.tuples(st.integers(0, 5), st.integers(6, 11)),
)
def test_entries_that_are_taken_for_untouched_are_delivered_whole(
    acknowledged: list[tuple[int, set[int] | None]],
    through: int | None,
    at: int,
    duplicates: tuple[int, int] | None,
) -> None:
    log = make_log((1, 12, False))
    if duplicates is not None:
        log.link_duplicates([(Position(1, duplicates[0]), Position(1, duplicates[1]))])
    cursor = Cursor(log, CursorState())
    for entry, indexes in acknowledged:
        cursor.acknowledge(Position(1, entry), indexes, 4)
    if through is not None:
        cursor.acknowledge_cumulative(Position(1, through), None, 4)

    def whole(entry: int) -> bool:
        position = Position(1, entry)
        return not cursor.passes_over(position) and cursor.acked_indexes(position) is None

    assert all(whole(entry) for entry in range(at, 12)) or not cursor.is_unconsumed_from(Position(1, at))
    if not any(indexes for _, indexes in acknowledged) and duplicates is None:
        assert cursor.is_unconsumed_from(Position(1, at)) == all(whole(entry) for entry in range(at, 12))


def delayed() -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS, deliver_at_time=NEVER_MS)
    return encode_entry(metadata, b"later")


def _framed(metadata: bytes, payload: bytes) -> bytes:
    usual = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"")
    return usual[:6] + len(metadata).to_bytes(4, "big") + metadata + payload
