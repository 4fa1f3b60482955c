"""A reader of a compacted topic sees each key's newest message, after any publishes, compactions, trims,
acknowledgements and restarts."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compaction_support import Keyed, keyed, keyed_batch, messages_in
from engine_support import TOPIC, Inbox, eventually, marker, opened
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.client.message import messages_of
from replicator.engine.engine import Engine
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

Place = tuple[Position, int]
"""A position and a batch index."""

keyed_messages = st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from([b"", b"x", b"yy"]))
steps = st.lists(
    st.one_of(
        keyed_messages,
        st.lists(keyed_messages, min_size=1, max_size=4),
        st.tuples(
            st.sampled_from(["flow", "ack", "ack one", "ack up to", "ack into", "seek", "merge"]), st.integers(0, 5)
        ),
        st.sampled_from(["compact", "trim", "restart", "reconnect", "marker", "compact", "trim"]),
    ),
    max_size=40,
)


class Run:
    """Topic with a subscription that reads compacted from the earliest message; checks each message that it is sent."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.newest: dict[str, Place] = {}
        self.seen: set[Place] = set()
        self.acked: set[Place] = set()
        self.shown: list[Place] = []
        """Deliveries to the present consumer, in order."""

    async def connect(self, engine: Engine) -> None:
        self.topic = await engine.topic(TOPIC)
        self.inbox = Inbox()
        options = SubscribeOptions(
            type=SubscriptionType.EXCLUSIVE, initial=InitialPosition.EARLIEST, read_compacted=True
        )
        self.consumer: EngineConsumer = await self.topic.subscribe("sub", options, self.inbox)
        self.shown = []

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions["sub"]

    async def settled(self) -> None:
        """Wait until nothing is on its way; note and check what was sent."""
        pump = self.subscription._pump
        await asyncio.sleep(0)
        await eventually(lambda: not pump.scheduled, "dispatch comes to rest")
        for delivery in self.inbox.deliveries:
            for message in messages_of(delivery, TOPIC, -1):
                place = delivery.position, max(0, message.message_id().batch_index())
                assert place not in self.acked, f"{place} is shown again"
                assert not self.shown or self.shown[-1] < place, f"{place} is shown out of order, or twice"
                self.shown.append(place)
        self.inbox.deliveries.clear()
        self.seen |= set(self.shown)
        self.check()

    def check(self) -> None:
        cursor = self.subscription.cursor
        entries = [entry for entry in self.topic.compaction.read(BEFORE_ALL, None, 10**6, 10**9) if not entry.marker]
        there = {(position, index) for _, _, position, index in messages_in(entries)}
        assert all(cursor.mark_delete < position for position, _ in there - self.acked), "mark-delete skips"
        assert cursor.backlog_entries() == sum(not cursor.is_consumed(entry.position) for entry in entries)
        assert self.subscription.backlog_messages() >= 0
        assert not any(position in self.topic.log.markers for position in cursor.state.individually_deleted)

    async def publish(self, step: Keyed | list[Keyed]) -> None:
        content = keyed_batch(step) if isinstance(step, list) else keyed(*step)
        (position,) = await self.topic.publish([content])
        for index, (key, payload) in enumerate(step if isinstance(step, list) else [step]):
            if key is not None and payload:
                self.newest[key] = (position, index)
            elif key is not None:
                self.newest.pop(key, None)

    async def acknowledge(self, how: str, number: int) -> None:
        unacked = [place for place in self.shown if place not in self.acked]
        if not unacked:
            return
        position, index = unacked[number % len(unacked)]
        if how == "ack":
            await self.consumer.acknowledge([Ack(position)])
            self.acked |= {place for place in self.shown if place[0] == position}
        elif how == "ack one":
            await self.consumer.acknowledge([Ack(position, (index,))])
            self.acked.add((position, index))
        elif how == "ack up to":
            await self.consumer.acknowledge_cumulative(position)
            self.acked |= {place for place in self.shown if place[0] <= position}
        else:
            await self.consumer.acknowledge_cumulative(position, index)
            self.acked |= {place for place in self.shown if place <= (position, index)}

    async def seek(self, number: int) -> None:
        """Seek to the earliest, or to a message that was shown once, whether or not it is trimmed or compacted away."""
        target = sorted({BEFORE_ALL, *(position for position, _ in self.seen)})[-number - 1 :][0]
        self.shown = []  # first: what is wanted again may come before the seek has been saved
        await self.consumer.seek(target)
        entries = self.topic.compaction.read(BEFORE_ALL, None, 10**6, 10**9)
        places = self.seen | {(position, index) for _, _, position, index in messages_in(entries)}
        self.acked = {place for place in places if place[0] < target}

    async def merge(self, number: int) -> None:
        """Merge acknowledgements of other clusters for messages that are or were here; nobody needs to see those any
        more."""
        entries = self.topic.compaction.read(BEFORE_ALL, None, 10**6, 10**9)
        places = self.seen | {(position, index) for _, _, position, index in messages_in(entries)}
        chosen = sorted({position for position, _ in places})[number::3]
        self.subscription.merging.acks(PositionSet(chosen), {}, announce=False)
        await self.subscription.saved()
        merged = {place for place in places if place[0] in chosen}
        self.acked |= merged
        self.seen |= merged

    async def step(self, step: Any) -> None:
        match step:
            case "compact":
                await self.topic.compaction.run()
            case "trim":
                if self.topic.compaction.state.generation:  # of one that is never compacted, trimming takes all
                    await self.topic.trimming.trim(self.topic.log.last)
            case "marker":
                await self.topic.writing.marker(marker())
            case "reconnect":
                self.consumer.close()
                await self.connect_again()
            case ("flow", number):
                self.consumer.flow(number + 1)
            case ("merge", number):
                await self.merge(number)
            case ("seek", number):
                await self.seek(number)
            case (str(how), int(number)):
                await self.acknowledge(how, number)
            case _:
                await self.publish(step)

    async def connect_again(self) -> None:
        self.inbox, self.shown = Inbox(), []
        options = SubscribeOptions(type=SubscriptionType.EXCLUSIVE, read_compacted=True)
        self.consumer = await self.topic.subscribe("sub", options, self.inbox)

    async def finish(self) -> None:
        """Read all; acknowledge what was shown, in any order; then nothing may be left."""
        self.consumer.flow(10**6)
        await self.settled()
        missed = {key: place for key, place in self.newest.items() if place not in self.seen}
        assert not missed, f"never shown: {missed}"
        left = [place for place in self.shown if place not in self.acked]
        self.random.shuffle(left)
        for position, index in left:
            await self.consumer.acknowledge([Ack(position, (index,))])
            self.acked.add((position, index))
        await self.settled()
        assert self.subscription.cursor.mark_delete == self.topic.log.last
        assert not self.subscription.cursor.state.individually_deleted
        assert not self.subscription.cursor.state.batch_acks
        assert self.subscription.backlog_messages() == self.subscription.cursor.backlog_entries() == 0


async def run(path: Path, script: Sequence[Any], seed: int) -> None:
    state = Run(seed)
    left = list(script)
    while True:
        async with opened(path) as engine:
            await state.connect(engine)
            await state.settled()
            while left and (step := left.pop(0)) != "restart":
                await state.step(step)
                await state.settled()
            if not left:
                await state.finish()
                return


@settings(max_examples=examples(50), deadline=None)
@given(steps, st.integers(0, 2**32))
@example([[("a", b"x"), ("b", b"x")], ("flow", 5), ("ack one", 0), "restart", ("b", b"yy"), "compact"], 0)
@example([("a", b"x"), ("b", b"x"), "compact", ("flow", 0), ("a", b"yy"), "compact", "trim", ("ack", 0)], 0)
@example([("a", b""), ("flow", 2), ("seek", 0), ("a", b""), ("ack up to", 0)], 0)
def test_who_reads_compacted_sees_each_keys_newest_message_once(script: list[Any], seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), script, seed))
