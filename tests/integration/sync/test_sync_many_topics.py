"""Subscription sync of many topics at once: what it writes, what it reads, and what is left when they rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import eventually, make_block, message, opened, serving
from sync_node_support import Node, mesh
from turns_support import IN_A_TURN_MAX, STEP_SECONDS, Counted, Ticking

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store import Store
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.sync import service
from replicator.sync.marker_log import MarkerLog
from replicator.sync.shared import monotonic_ms
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ControllerSettings
from snapshots.markers import LocalSnapshot, Marker, SubscriptionsUpdate, SubscriptionUpdate, encode_marker
from snapshots.pacing import BURST_SNAPSHOTS, SNAPSHOT_AGE_INTERVALS_MAX, SNAPSHOTS_A_SECOND
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

TOPICS = 25
ROUNDS = 10
NAMES = [f"persistent://public/default/t{number}" for number in range(TOPICS)]
SETTINGS = ControllerSettings(snapshot_interval_ms=40)
"""A topic that moves all the time has a snapshot every 2 s where many do: 50 intervals."""


async def acknowledging(topic: Topic) -> None:
    """Connect a consumer to the replicated subscription ``sub`` that acknowledges each message at once."""
    tasks: set[asyncio.Task[Any]] = set()

    def deliver(deliveries: Sequence[Delivery]) -> None:
        acks = [Ack(delivery.position) for delivery in deliveries]
        task = asyncio.get_running_loop().create_task(consumer.acknowledge(acks))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=True)
    consumer = await topic.subscribe("sub", options, deliver)
    consumer.flow(1_000_000)


def backlogs(node: Node) -> int:
    """Entries that are not consumed, in all topics; a topic or subscription that is not there counts as one."""
    found = 0
    for name in NAMES:
        topic = node.engine.find(name)
        subscription = None if topic is None else topic.subscriptions.get("sub")
        found += 1 if subscription is None else subscription.cursor.backlog_entries()
    return found


def totals(nodes: dict[str, Node]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes.values():
        for name, count in node.sync.counters().items():
            found[name] = found.get(name, 0) + count
    return found


def marker_entry(marker: Marker) -> bytes:
    marker_type, payload = encode_marker(marker)
    metadata = MessageMetadata(producer_name="a", sequence_id=0, publish_time=1, marker_type=int(marker_type))
    return encode_entry(metadata, payload)


def at_rest(node: Node) -> bool:
    """Return whether nothing is left to do for any topic, now or later: no task, and no timer."""
    return node.sync.is_idle and all(sync._checkpoint._timer is None for sync in node.sync._topics.values())


def test_many_topics_that_move_write_few_markers_and_cost_nothing_when_they_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_back: list[Any] = []
    decoded: list[tuple[str, str]] = []
    read_blocks, markers = Store.read_blocks, MarkerLog.markers

    def reading(store: Store, *asked: Any, origins: Any = None, **how: Any) -> Any:
        if origins is None:  # links name the origins that they carry
            read_back.append(asked)
        return read_blocks(store, *asked, origins=origins, **how)

    def decoding(log: MarkerLog, stored: StoredBlock) -> Iterator[tuple[Position, Marker]]:
        decoded.append((log._topic.cluster, stored.header.origin))
        return markers(log, stored)

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west", settings=SETTINGS) as nodes:
            us = nodes["us-east"]
            topics = [await us.engine.topic(name) for name in NAMES]
            for topic in topics:
                await acknowledging(topic)
            before, began_ms = totals(nodes), monotonic_ms()
            monkeypatch.setattr(Store, "read_blocks", reading)
            monkeypatch.setattr(MarkerLog, "markers", decoding)
            for _ in range(ROUNDS):
                for topic in topics:
                    await topic.publish([message()])
                await asyncio.sleep(0.1)  # the rate at which the topics move
            await eventually(lambda: not any(map(backlogs, nodes.values())), "all that was acknowledged, everywhere")
            moved, took_ms = totals(nodes), monotonic_ms() - began_ms
            written = {name: moved[name] - before[name] for name in moved}

            assert not read_back, "a marker was read from the store that was committed a moment ago"
            seldom = TOPICS * (1 + took_ms / (SNAPSHOT_AGE_INTERVALS_MAX * SETTINGS.snapshot_interval_ms))
            assert written["requests"] <= BURST_SNAPSHOTS + SNAPSHOTS_A_SECOND * took_ms / 1000 + seldom, written
            assert written["updates_sent"] <= TOPICS * ROUNDS + written["requests"] + TOPICS, written
            assert decoded
            assert all(by != here for here, by in decoded), "nobody decodes what he has just written himself"

            # Whoever was asked and is not sure that the answer has everything asks itself, once the timeout is over.
            rest_seconds = SETTINGS.snapshot_timeout_ms / 1000 + 30
            await eventually(lambda: all(map(at_rest, nodes.values())), "rest, without a task or a timer", rest_seconds)
            entries = [node.engine.find(name).log.entries for node in nodes.values() for name in NAMES]  # type: ignore[union-attr]
            rested = totals(nodes)
            await asyncio.sleep(0.3)  # more than seven snapshot intervals
            assert totals(nodes) == rested
            assert entries == [
                node.engine.find(name).log.entries  # type: ignore[union-attr]
                for node in nodes.values()
                for name in NAMES
            ]
            # Each topic's last messages are mapped, too.
            for name in NAMES:
                last = us.engine.find(name)
                assert last is not None
                beyond = last.log.next_after(us.sync.mappings_of(name, "eu-west")[-1].local)
                assert beyond is None or beyond in last.log.markers

    asyncio.run(main())


def test_invariant_7_a_start_that_takes_many_turns_announces_nothing_that_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Node.start

    async def paced(node: Node, addresses: dict[str, str]) -> None:
        monkeypatch.setattr(node.engine.turns, "clock", Ticking(1.0))  # each step has a turn of its own
        await start(node, addresses)

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west", settings=SETTINGS) as nodes:
            topics = [await nodes["us-east"].engine.topic(name) for name in NAMES]
            for topic in topics:
                await acknowledging(topic)
                await topic.publish([message()])
            await eventually(lambda: not any(map(backlogs, nodes.values())), "all that was acknowledged, everywhere")
            await eventually(lambda: all(map(at_rest, nodes.values())), "rest")
        sent = []
        for starting in (start, paced):  # the first one tells the positions that only the other moved
            monkeypatch.setattr(Node, "start", starting)
            async with mesh(tmp_path, "us-east", "eu-west", settings=SETTINGS) as nodes:
                await eventually(lambda: all(map(at_rest, nodes.values())), "rest after a restart")
                sent.append(totals(nodes)["updates_sent"])
        assert sent[1] == 0

    asyncio.run(main())


@pytest.mark.parametrize("limit", [100_000, 400])
def test_invariant_11_a_start_reads_markers_in_many_turns_of_the_event_loop_and_no_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The peer never answered, so no topic finds a mapping, and each would read back all that it has."""
    counts, topics = {"few": 30, "more": 600, "most": 1500}, list[Topic]()

    async def written(engine: Engine, topic: Topic, number: int) -> None:
        await topic.publish([message()])
        await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        # After the mark-delete position, so each is read and none is enough.
        snapshot = LocalSnapshot("s", topic.log.last, {"us-west": Position(1, 1)})
        entry = marker_entry(snapshot)
        for _ in range(number // 10):
            await asyncio.gather(*(topic.writing.marker(entry, local=True) for _ in range(10)))
        await topic.publish([message()])
        await engine.remember(f"{MARKERS_HANDLED} {topic.topic_id}", list(topic.log.last))

    async def main() -> None:
        async with opened(tmp_path, "us-east") as engine, serving(engine, ["us-east"]) as server:
            topics.extend([await engine.topic(f"persistent://public/default/{name}") for name in counts])
            await asyncio.gather(*(written(engine, topic, counts[topic.name.rpartition("/")[2]]) for topic in topics))
            node = Node(engine, server, ["us-east", "us-west", "eu-west"])
            monkeypatch.setattr(service, "ALL_MARKERS_MAX", limit)
            monkeypatch.setattr(engine.turns, "clock", Ticking(STEP_SECONDS))
            loop, read = asyncio.get_running_loop(), MarkerLog.markers
            decoded, by_topic = Counted(loop), dict[str, int]()

            def counting(log: MarkerLog, stored: StoredBlock, *sought: Any) -> Iterator[tuple[Position, Marker]]:
                decoded.add()
                name = log._topic.name.rpartition("/")[2]
                by_topic[name] = by_topic.get(name, 0) + stored.header.entries
                return read(log, stored, *sought)

            monkeypatch.setattr(MarkerLog, "markers", counting)
            starting = asyncio.create_task(node.start({}))
            await asyncio.sleep(0)
            # Something happens in a topic whose turn has not come.
            first = PositionSet([Position(topics[-1].log.last.ledger, 0)])
            update = SubscriptionUpdate(
                "sub", {}, 1, AckVector({"us-east": OriginAcks(topics[-1].incarnation, [], first)})
            )
            entries = [marker_entry(SubscriptionsUpdate((update,)))]
            block = make_block(Position(1, 0), entries, origin="us-west", kind=BlockKind.MARKERS)
            await topics[-1].writing.copy([CopiedBlock(BEFORE_ALL, block)])
            await starting
            await eventually(lambda: topics[-1].subscriptions["sub"].cursor.backlog_entries() == 1, "the update")
            assert decoded.most <= IN_A_TURN_MAX
            if limit < sum(counts.values()):
                assert by_topic["few"] == 30, "who has few markers reads them all"
                assert sum(by_topic.values()) <= limit + 10 * len(counts) + 1, "blocks of ten are read as a whole"
            else:
                assert by_topic == {**counts, "most": counts["most"] + 1}
            await node.stop()

    asyncio.run(main())
