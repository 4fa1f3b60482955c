"""Work of the pump beside its dispatcher's decisions: failing consumers, budgets, unreadable entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine_support import PUBLISH_TIME_MS, TOPIC, batch, eventually, make_block, message, opened, subscribed

from replicator.engine.log.entry import ENTRY_BYTES_MAX, encode_entry
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.subscriptions import pump
from replicator.engine.types import Ack, Delivery, LoggedEntry, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

NEVER_MS = 4_000_000_000_000


def delayed() -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS, deliver_at_time=NEVER_MS)
    return encode_entry(metadata, b"later")


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.FAILOVER])
def test_what_a_consumer_fails_to_take_goes_to_others_and_what_is_theirs_comes(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        def fails(_: Sequence[Delivery]) -> None:
            raise RuntimeError("a bug of whoever owns the consumer")

        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            broken = await topic.subscribe("sub", SubscribeOptions(type=kind, consumer_name="a"), fails)
            told: list[str] = []
            broken.on_closed = lambda code, reason: told.append(reason)
            _, inbox = await subscribed(topic, "sub", kind, consumer_name="b")
            broken.flow(1_000)
            positions = await topic.publish([message()] * 300)
            await inbox.holds(300)
            assert sorted(inbox.positions) == positions
            assert broken.closed
            assert len(told) == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_everything_that_is_sent_again_comes_in_however_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    monkeypatch.setattr(pump, "DISPATCH_SECONDS_MAX", 0.0)  # one run of neighbours at a time

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind)
            positions = [(await topic.publish([message()]))[0] for _ in range(20)]
            await inbox.holds(20)
            consumer.redeliver(positions[::2])
            again = positions if kind.one_active else positions[::2]
            await inbox.holds(20 + len(again))
            assert inbox.positions[20:] == again

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_delayed_messages_that_are_skipped_do_not_hold_up_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    monkeypatch.setattr("replicator.engine.subscriptions.dispatch.delayed.DELAYED_MAX", 10)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", kind)
            subscription = topic.subscriptions["sub"]
            await topic.publish([delayed()] * 20)
            await eventually(lambda: subscription.status()["delayed_entries"] == 10, "as many delayed as may be")
            await subscription.moves.clear_backlog()
            await topic.publish([message()])
            await inbox.holds(1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_an_entry_of_a_peer_that_is_too_large_is_for_the_consumer_to_refuse(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            copied = make_block(Position(3, 0), [bytes(ENTRY_BYTES_MAX + 1)], origin="eu-west")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            await topic.publish([message()])
            _, inbox = await subscribed(topic, "sub", kind)
            await inbox.holds(2)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_consumed_batches_are_passed_over_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    read: list[int] = []
    entries = TopicReading.entries

    def counted(
        reading: TopicReading, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]:
        read.append(entries_max)
        return entries(reading, after, upto, entries_max, bytes_max)

    monkeypatch.setattr(TopicReading, "entries", counted)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind, permits=100_000)
            positions = await topic.publish([batch([b"m"] * 100)] * 300)
            await inbox.holds(300)
            await topic.subscriptions["sub"].acknowledge([Ack(position) for position in positions[1:]])
            consumer.close()
            consumer, inbox = await subscribed(topic, "sub", kind, permits=100)
            await inbox.holds(1)
            read.clear()
            consumer.flow(100)
            await topic.publish([message()])
            await inbox.holds(2)
            assert len(read) < 20

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_a_due_message_does_not_keep_the_event_loop_busy_while_nobody_has_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind, permits=1)
            tested = topic.subscriptions["sub"]._pump
            await topic.publish([delayed()])
            await topic.publish([message()])
            await inbox.holds(1)
            alarms: list[int | None] = []
            monkeypatch.setattr(tested, "_wall_clock_ms", lambda: NEVER_MS + 60_000)
            monkeypatch.setattr(tested, "_set_alarm", lambda at_ms, _: alarms.append(at_ms))
            tested.schedule()
            await eventually(lambda: not tested.scheduled, "the pump has run")
            assert set(alarms) <= {None}
            consumer.flow(1)
            await inbox.holds(2)

    asyncio.run(main())
