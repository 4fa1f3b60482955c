"""The start of a subscription takes nothing away from other clusters, over real links (DESIGN 4.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from duplicates_support import ON, numbered
from engine_support import eventually, message, opened, subscribed
from restored_support import Cluster as Restarted
from restored_support import carry, carry_until
from starts_support import Type, apart, copied, joined, left, made, said
from sync_node_support import FAST, TOPIC, Node, RecordingIndex, backlog
from sync_support import clusters, quiet

from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import BacklogQuota, QuotaPolicy, TopicPolicies
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.types import Ack, InitialPosition, SubscriptionType
from replicator.sync.routes import DirectRoutes
from replicator.sync.service import SubscriptionSync
from snapshots import markers
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Start


@pytest.mark.parametrize("kind", [Type.SHARED, Type.KEY_SHARED, Type.EXCLUSIVE, Type.FAILOVER])
@pytest.mark.parametrize("latest_first", [True, False])
def test_a_subscription_made_at_latest_takes_away_nothing_of_another_clusters_backlog(
    tmp_path: Path, kind: SubscriptionType, latest_first: bool
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            if latest_first:
                await made(us, InitialPosition.LATEST, kind)
            consumer, inbox = await made(eu, InitialPosition.EARLIEST, kind)
            await inbox.holds(10)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[:3]])
            consumer.close()
            if not latest_first:
                await made(us, InitialPosition.LATEST, kind)
            async with joined(nodes):
                await left(nodes, 7)
                here = us.subscription()
                assert here is not None
                for each in list(here.consumers.values()):
                    each.close()
                consumer, inbox = await made(us, InitialPosition.LATEST, kind)
                await inbox.holds(7)
                assert said(inbox) == [str(number) for number in range(3, 10)]
                await consumer.acknowledge([Ack(position) for position in inbox.positions])
                await left(nodes, 0)

    asyncio.run(main())


@pytest.mark.parametrize("exact", [True, False])
def test_a_subscription_made_elsewhere_begins_where_it_was_made(tmp_path: Path, exact: bool) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu", exact=exact) as nodes:
            us, eu = nodes
            await made(us, InitialPosition.LATEST)
            async with joined(nodes):
                await left(nodes, 0)
                await us.topic().publish([message(b"later")])
                await left(nodes, 1)
                _, inbox = await made(eu, InitialPosition.EARLIEST)
                await inbox.holds(1)
                assert said(inbox) == ["later"]

    asyncio.run(main())


def test_mark_delete_positions_alone_take_nothing_away_either(tmp_path: Path) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu", exact=False) as nodes:
            us, eu = nodes
            await made(us, InitialPosition.LATEST, Type.EXCLUSIVE)
            consumer, inbox = await made(eu, InitialPosition.EARLIEST, Type.EXCLUSIVE)
            await inbox.holds(10)
            await consumer.acknowledge_cumulative(inbox.positions[2])
            async with joined(nodes):
                await eventually(lambda: backlog(us) in (7, 10), "the start of eu in us")
                await us.topic().publish([message(b"later")])
                await eventually(lambda: backlog(eu) == 8, "the message in eu")
                await quiet(*nodes)
                assert backlog(eu) == 8
                here = us.subscription()
                assert here is not None
                await here.moves.clear_backlog()
                await left(nodes, 0)

    asyncio.run(main())


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_three_clusters_that_make_a_subscription_the_earliest_start_counts_in_all(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """One at the latest message, one in the middle, and one from the earliest on, whose consumer acknowledges two."""

    async def main() -> None:
        async with apart(tmp_path, "us", "eu", "ap") as nodes:
            us, eu, ap = nodes

            async def latest() -> None:
                await made(us, InitialPosition.LATEST)

            async def middle() -> None:
                topic = eu.topic()
                fifth = topic.reading.entries(BEFORE_ALL, None, 5, 1 << 20)[-1].position
                await topic.subscriptions.create("sub", fifth, replicated=True)

            async def earliest() -> None:
                consumer, inbox = await made(ap, InitialPosition.EARLIEST)
                await inbox.holds(10)
                await consumer.acknowledge([Ack(inbox.positions[number]) for number in (1, 6)])
                consumer.close()

            for number in order:
                await (latest, middle, earliest)[number]()
            async with joined([us, eu]):
                await left([us, eu], 5)  # the start of eu: nobody has heard of ap
            async with joined(nodes):
                await left(nodes, 8)

    asyncio.run(main())


def test_over_a_one_way_link_the_start_of_the_source_counts_at_the_destination_and_not_the_other_way(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            await made(us, InitialPosition.EARLIEST)
            await made(eu, InitialPosition.LATEST)
            await eu.topic().publish([message(b"theirs")])
            async with joined(nodes, ("us", "eu")):
                await eventually(lambda: backlog(eu) == 11, "everything in eu")
                await quiet(*nodes)
                assert (backlog(us), backlog(eu)) == (10, 11)

    asyncio.run(main())


def test_a_cumulative_acknowledgement_claims_nothing_that_lies_before_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, inbox = await made(us, InitialPosition.LATEST, Type.EXCLUSIVE)
            await us.topic().publish([message(b"10"), message(b"11")])
            await inbox.holds(2)
            await consumer.acknowledge_cumulative(inbox.positions[-1])
            await made(eu, InitialPosition.EARLIEST)
            async with joined(nodes):
                await left(nodes, 10)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Type.EXCLUSIVE, Type.FAILOVER])
def test_a_late_cumulative_acknowledgement_covers_nothing_that_came_back_and_was_not_delivered_yet(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, inbox = await made(us, InitialPosition.LATEST, kind)
            await us.topic().publish([message(b"10"), message(b"11")])
            await inbox.holds(2)
            held = inbox.positions[-1]
            consumer.close()  # its client has the messages, and acknowledges them when it is here again
            await made(eu, InitialPosition.EARLIEST)
            async with joined(nodes):
                await left(nodes, 12)
                subscription = us.subscription()
                assert subscription is not None
                await subscription.acknowledge_cumulative(held, None)
                await left(nodes, 10)
                consumer, inbox = await made(us, InitialPosition.LATEST, kind)
                await inbox.holds(10)
                await consumer.acknowledge_cumulative(inbox.positions[-1])
                await left(nodes, 0)

    asyncio.run(main())


def test_what_was_trimmed_before_the_start_moved_back_stays_in_the_backlog_of_the_other_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu", by="eu") as nodes:
            us, eu = nodes
            await made(us, InitialPosition.LATEST)
            topic = us.topic()
            await topic.publish([message(b"last")])  # the last block stays
            await topic.trimming.trim(topic.reading.entries(BEFORE_ALL, None, 10, 1 << 20)[-1].position)
            assert topic.log.trimmed > BEFORE_ALL
            await made(eu, InitialPosition.EARLIEST)
            async with joined(nodes):
                await eventually(lambda: backlog(eu) == 11, "everything in eu")
                await quiet(*nodes)
                assert backlog(eu) == 11
                assert backlog(us) == 1

    asyncio.run(main())


async def _nothing(subscription: Subscription) -> None:
    """Leaves it where it was made."""


async def _acknowledge_through(subscription: Subscription) -> None:
    await subscription.acknowledge_cumulative(_messages(subscription)[11], None)


async def _acknowledge(subscription: Subscription) -> None:
    await subscription.acknowledge([Ack(position) for position in _messages(subscription)[10:12]])


async def _skip(subscription: Subscription) -> None:
    assert await subscription.moves.skip(2) == 2


async def _clear(subscription: Subscription) -> None:
    await subscription.moves.clear_backlog()


async def _expire(subscription: Subscription) -> None:
    await subscription.moves.expire(1 << 50)


async def _seek(subscription: Subscription) -> None:
    await subscription.moves.seek(_messages(subscription)[12])


async def _reset_by_time(subscription: Subscription) -> None:
    await subscription.moves.seek(1 << 50)


async def _reset_to_the_first(subscription: Subscription) -> None:
    await subscription.moves.seek(_messages(subscription)[0])


async def _replicate_no_more_and_again(subscription: Subscription) -> None:
    await subscription.set_replicated(False)
    await subscription.set_replicated(True)


def _messages(subscription: Subscription) -> list[Position]:
    entries = subscription.topic.reading.entries(BEFORE_ALL, None, 100, 1 << 20)
    return [entry.position for entry in entries if not entry.marker]


MOVES: dict[str, tuple[Callable[[Subscription], Awaitable[None]], int]] = {
    "made at the latest message": (_nothing, 14),
    "acknowledged, one by one": (_acknowledge, 12),
    "acknowledged up to a message": (_acknowledge_through, 12),
    "skipped": (_skip, 12),
    "cleared": (_clear, 10),
    "expired": (_expire, 10),
    "put at a message": (_seek, 2),
    "put at a time": (_reset_by_time, 0),
    "put at the first message": (_reset_to_the_first, 14),
    "switched off and on": (_replicate_no_more_and_again, 14),
}
"""Changes of a subscription that was made at the latest of ten messages, before four more come. The number says how
many of the fourteen are left for one of the same name that another cluster made from the earliest on."""


@pytest.mark.parametrize("move", MOVES)
def test_each_way_in_which_a_position_moves_tells_what_somebody_decided_and_not_where_the_subscription_began(
    tmp_path: Path, move: str
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, _ = await made(us, InitialPosition.LATEST, Type.EXCLUSIVE)
            consumer.close()
            for number in range(10, 14):
                await us.topic().publish([message(b"%d" % number)])
            consumer, _ = await made(eu, InitialPosition.EARLIEST)
            consumer.close()
            subscription = us.subscription()
            assert subscription is not None
            moves, remaining = MOVES[move]
            await moves(subscription)
            async with joined(nodes):
                await copied(nodes, 14)
                await left(nodes, remaining)

    asyncio.run(main())


def test_a_backlog_quota_that_evicts_claims_what_it_passes_over_and_not_what_lies_before_the_start(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            await made(us, InitialPosition.LATEST)
            for number in range(10, 14):
                await us.topic().publish([message(b"%d" % number)])
            evict = BacklogQuota(bytes_max=1, policy=QuotaPolicy.CONSUMER_BACKLOG_EVICTION)
            await us.topic().policies.set(TopicPolicies(backlog_quota=evict))
            await us.engine.maintenance.run_once()
            assert backlog(us) == 0
            await us.topic().policies.set(TopicPolicies())
            consumer, _ = await made(eu, InitialPosition.EARLIEST)
            consumer.close()
            async with joined(nodes):
                await copied([eu], 14)
                await eventually(lambda: backlog(eu) == 10, "what came before the start in eu")
                await quiet(*nodes)
                assert backlog(eu) == 10

    asyncio.run(main())


def test_a_subscription_that_reads_compacted_takes_nothing_away_by_its_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, _ = await subscribed(
                us.topic(), "sub", Type.EXCLUSIVE, initial=InitialPosition.LATEST, replicated=True, read_compacted=True
            )
            consumer.close()
            consumer, _ = await made(eu, InitialPosition.EARLIEST)
            consumer.close()
            async with joined(nodes):
                await left(nodes, 10)

    asyncio.run(main())


@pytest.mark.parametrize("maker", ["us", "eu"])
def test_a_message_that_came_by_two_ways_is_delivered_everywhere_if_it_lies_after_the_start_by_one_of_them(
    tmp_path: Path, maker: str
) -> None:
    """A producer sends the same to all. One cluster begins at the latest message, before it has the others' entries."""

    async def main() -> None:
        async with clusters(tmp_path, "us", "eu", "ap", links=(), settings=ON) as nodes:
            await _published_in([nodes[0], nodes[1]], 5)
            here = next(node for node in nodes if node.engine.cluster == maker)
            await made(here, InitialPosition.LATEST)
            async with joined(nodes):
                await eventually(lambda: all(node.subscription() is not None for node in nodes), "the subscription")
                await eventually(lambda: all(node.topic().log.has_duplicates for node in nodes), "duplicates")
                await left(nodes, 10)
                consumer, inbox = await made(nodes[2], InitialPosition.LATEST)
                await inbox.holds(5)
                assert len(set(said(inbox))) == 5
                await consumer.acknowledge([Ack(position) for position in inbox.positions])
                await left(nodes, 0)

    asyncio.run(main())


def test_a_start_takes_nothing_away_of_what_lies_after_it_by_another_way(tmp_path: Path) -> None:
    """us begins at the latest message; eu has the same messages from their producer, and acknowledges two."""

    async def main() -> None:
        async with clusters(tmp_path, "us", "eu", links=(), settings=ON) as nodes:
            us, eu = nodes
            await _published_in(nodes, 5)
            consumer, inbox = await made(us, InitialPosition.LATEST)
            there, arrived = await made(eu, InitialPosition.EARLIEST)
            await arrived.holds(5)
            await there.acknowledge([Ack(position) for position in arrived.positions[:2]])
            async with joined(nodes, ("us", "eu")):
                await eventually(lambda: eu.topic().log.has_duplicates, "duplicates in eu")
                await quiet(us, eu)
                assert backlog(eu) == 6
                async with joined(nodes, ("eu", "us")):
                    await left(nodes, 6)
                    await inbox.holds(3)
                    await consumer.acknowledge([Ack(position) for position in inbox.positions])
                    await left(nodes, 0)

    asyncio.run(main())


async def _published_in(nodes: Sequence[Node], messages: int) -> None:
    """Publish the same messages of one producer in each of these clusters."""
    for node in nodes:
        topic = await node.engine.topic(TOPIC)
        await topic.publish([numbered(number) for number in range(messages)])


def test_a_reader_that_is_not_durable_tells_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            await subscribed(us.topic(), "reader", Type.EXCLUSIVE, initial=InitialPosition.LATEST, durable=False)
            await made(eu, InitialPosition.EARLIEST)
            async with joined(nodes):
                await left(nodes, 10)
                assert "reader" not in eu.topic().subscriptions

    asyncio.run(main())


def test_a_cursor_of_an_earlier_version_claims_its_whole_position_as_it_did(tmp_path: Path) -> None:
    """The old cursor has no start. Its acknowledgements stay when it hears of a start, and of an earlier one."""

    async def main() -> None:
        async with apart(tmp_path, "us", "eu", "ap") as nodes:
            us, eu, ap = nodes
            consumer, inbox = await made(us, InitialPosition.EARLIEST, Type.EXCLUSIVE)
            await inbox.holds(10)
            await consumer.acknowledge_cumulative(inbox.positions[7])
            consumer.close()
            subscription = us.subscription()
            assert subscription is not None
            subscription.cursor.state.starts = {}
            await made(eu, InitialPosition.LATEST)
            await made(ap, InitialPosition.EARLIEST)
            async with joined([us, eu]):
                await eventually(lambda: bool(subscription.cursor.state.starts), "the start of eu in us")
                assert backlog(us) == 0
            async with joined(nodes):
                await left(nodes, 2)

    asyncio.run(main())


def test_a_worker_of_an_earlier_version_that_hears_no_start_repeats_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            await made(us, InitialPosition.LATEST)
            monkeypatch.setattr(markers, "_update_to_wire", without_starts)
            async with joined(nodes, ("us", "eu")):
                await eventually(lambda: eu.subscription() is not None, "the subscription in eu")
                await quiet(*nodes)
                assert (backlog(us), backlog(eu)) == (0, 10)

    to_wire = markers._update_to_wire

    def without_starts(update: markers.SubscriptionUpdate) -> Any:
        return to_wire(replace(update, starts={}))

    asyncio.run(main())


def test_a_worker_that_starts_again_delivers_nothing_that_lies_before_the_start(tmp_path: Path) -> None:
    """eu hears of the start, and stops. The messages before it come while nobody there may say so."""

    async def main() -> None:
        async with clusters(tmp_path, "us", links=()) as [us], opened(tmp_path / "eu", "eu") as engine:
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % number) for number in range(10)])
            there = await engine.topic(TOPIC)
            ends = {"us": Start(topic.incarnation, topic.log.last)}
            await there.subscriptions.create("sub", BEFORE_ALL, replicated=True, generation=1, starts=ends)
            for stored in topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 20)[0]:
                await there.writing.copy([CopiedBlock(BEFORE_ALL, stored.block, False)])
            assert there.subscriptions["sub"].cursor.backlog_entries() == 10
            sync = SubscriptionSync(
                engine, peers=["us"], reachable_origins=["us"], settings=FAST, index=RecordingIndex()
            )
            await sync.start()
            assert there.subscriptions["sub"].cursor.backlog_entries() == 0
            await sync.stop()

    asyncio.run(main())


@pytest.mark.parametrize("first", ["us", "eu"])
def test_a_hub_delivers_nothing_that_lies_before_the_starts_at_its_spokes_whichever_it_hears_of_first(
    tmp_path: Path, first: str
) -> None:
    """A spoke says nothing of the messages of another one, which it never gets."""

    async def main() -> None:
        async with clusters(tmp_path, "us", "eu", "hub", links=()) as nodes:
            by_name = {node.engine.cluster: node for node in nodes}
            us, eu, hub = nodes
            for node in (us, eu):
                routes = DirectRoutes({"hub"}, ())
                node.sync._shared.routes = routes
                topic = await node.engine.topic(TOPIC)
                await topic.publish([message(b"%d" % number) for number in range(5)])
                await made(node, InitialPosition.LATEST)
            second = ({"us", "eu"} - {first}).pop()
            async with joined(nodes, (first, "hub")):
                await copied([hub], 5)
                await eventually(lambda: hub.subscription() is not None, "the subscription in the hub")
                async with joined(nodes, (second, "hub")):
                    await copied([hub], 10)
                    await eventually(lambda: backlog(hub) == 0, "an empty backlog in the hub")
                    await by_name[second].topic().publish([message(b"later")])
                    await eventually(lambda: backlog(hub) == 1, "the new message in the hub")
                    await quiet(hub)
                    assert [backlog(node) for node in (by_name[first], by_name[second], hub)] == [0, 1, 1]

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Type.SHARED, Type.KEY_SHARED, Type.EXCLUSIVE, Type.FAILOVER])
def test_connected_consumers_get_what_comes_back_and_many_active_ones_get_nothing_twice(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as nodes:
            us, eu = nodes
            consumer, inbox = await made(us, InitialPosition.LATEST, kind)
            await us.topic().publish([message(b"10"), message(b"11")])
            await inbox.holds(2)
            await consumer.acknowledge([Ack(inbox.positions[0])])
            other, _ = await made(eu, InitialPosition.EARLIEST)
            other.close()
            held = ["11"] if kind.one_active else []  # in order: everything that is not acknowledged comes again
            async with joined(nodes):
                await inbox.holds(12 + len(held))
                await left(nodes, 11)
                assert said(inbox)[2:] == [*map(str, range(10)), *held]
                await consumer.acknowledge([Ack(position) for position in inbox.positions[1:]])
                await left(nodes, 0)

    asyncio.run(main())


@pytest.mark.parametrize("initial", InitialPosition)
def test_a_mark_delete_position_that_includes_a_start_is_not_told_beside_the_exact_state(
    tmp_path: Path, initial: InitialPosition
) -> None:
    async def main() -> None:
        async with apart(tmp_path, "us", "eu") as [us, _]:
            consumer, inbox = await made(us, initial, Type.EXCLUSIVE)
            await us.topic().publish([message(b"10")])
            await inbox.holds(1 if initial is InitialPosition.LATEST else 11)
            await consumer.acknowledge_cumulative(inbox.positions[-1])
            claim = us.sync._topics[TOPIC].controller.updates._subscriptions["sub"].claim
            assert (claim == BEFORE_ALL) is (initial is InitialPosition.LATEST)

    asyncio.run(main())


def test_messages_before_the_start_that_come_after_a_restart_are_not_delivered(tmp_path: Path) -> None:
    """B heard of them from A, has consumed all that it has, and starts again before C brings them."""

    async def main() -> None:
        a, b, c = (Restarted(name, tmp_path) for name in "abc")
        for each in (a, b, c):
            await each.start()
        await c.topic.publish([message()] * 6)
        await carry(c, a)
        await a.topic.subscriptions.create("sub", a.topic.log.last, replicated=True)
        await carry_until(lambda: "sub" in b.topic.subscriptions and b.backlog == 0, (a, b))
        await eventually(lambda: b.subscription.mark_delete == b.topic.log.last, "nothing is left")
        await b.stop()
        await b.start()
        await carry(c, b)
        assert (b.topic.log.messages, b.backlog) == (6, 0)
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())
