"""Keeping subscriptions in step, comparison after comparison: what is as it was is left alone, and nothing else is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import make_block, marker, message, opened

from replicator.apache.admin import TopicInternals
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.engine_side import EngineSide
from replicator.apache.entry_map import EntryMap
from replicator.apache.published import load_map
from replicator.apache.state import SubscriptionStates
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.log.block import BlockKind
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.topic import Topic
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

TOPIC: Final = "persistent://public/default/t"
NAMES: Final = ("one", "two")
NOWHERE: Final = "pulsar://127.0.0.1:1"


class Brokers:
    """One ledger, 1, and what each subscription has acknowledged of it: nobody has a consumer of them."""

    def __init__(self) -> None:
        self.entries = 0
        self.acknowledged: dict[str, set[int]] = {name: set() for name in NAMES}

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/expireMessages"):
            through = (await request.json())["entryId"]
            self.acknowledged[request.path.split("/")[-2]] |= set(range(through + 1))
            return web.Response(status=204)
        if request.path.endswith("/internalStats"):
            return web.json_response(
                {
                    "lastConfirmedEntry": f"1:{self.entries - 1}",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": "once",
                    "ledgers": [{"ledgerId": 1, "entries": self.entries}],
                    "numberOfEntries": self.entries,
                    "cursors": {name: self._shown(acked) for name, acked in self.acknowledged.items()}
                    | {"replicator.bridge.a": self._shown(set(range(self.entries)))},
                }
            )
        return web.json_response({"subscriptions": {name: {"type": "None"} for name in self.acknowledged}})

    def _shown(self, acknowledged: set[int]) -> dict[str, str]:
        through = next(entry for entry in range(self.entries + 1) if entry not in acknowledged) - 1
        beyond = sorted(entry for entry in acknowledged if entry > through)
        runs = [[entry for _, entry in run] for _, run in groupby(enumerate(beyond), lambda each: each[1] - each[0])]
        ranges = ",".join(f"(1:{run[0] - 1}..1:{run[-1]}]" for run in runs)
        return {"markDeletePosition": f"1:{through}", "individuallyDeletedMessages": f"[{ranges}]"}


class Bridge:
    """The engine's side, of cluster ``a``."""

    def __init__(self, brokers: Brokers, topic: Topic, entries: EntryMap, states: SubscriptionStates) -> None:
        self.brokers = brokers
        self.topic = topic
        self.entries = entries
        self.states = states

    async def publish(self, entries: int) -> None:
        """At the brokers; all is read at once."""
        first = self.brokers.entries
        previous = Position(1, first - 1) if first else BEFORE_ALL
        block = make_block(Position(1, first), [message()] * entries, origin="a.pulsar")
        before = self.topic.log.last
        await self.topic.writing.copy([CopiedBlock(previous, block)])
        following = self.topic.log.next_after(before)
        assert following is not None
        self.entries.copied("a.pulsar", Position(1, first), following, entries)
        self.brokers.entries += entries

    async def mark(self, number: int) -> None:
        """A marker comes into the engine's log."""
        previous = Position(9, number - 1) if number else BEFORE_ALL
        block = make_block(Position(9, number), [marker()], origin="b", kind=BlockKind.MARKERS)
        before = self.topic.log.last
        await self.topic.writing.copy([CopiedBlock(previous, block)])
        following = self.topic.log.next_after(before)
        assert following is not None
        self.entries.copied("b", Position(9, number), following, 1, messages=False)

    async def settle(self) -> None:
        async with asyncio.timeout(20):
            while await self.states.compare():
                pass
        assert self.states.errors == {}

    def acknowledged(self, name: str) -> set[int]:
        """In the engine, as entries of the brokers."""
        cursor = self.topic.subscriptions[name].cursor.state
        everything = self.entries.to_broker(self.topic.log.messages_after(BEFORE_ALL, PositionSet()))
        opened_ = self.topic.log.messages_after(cursor.mark_delete, cursor.individually_deleted)
        everything.difference_update(self.entries.to_broker(opened_))
        return {position.entry for position in everything}

    async def merge(self, name: str, entries: int) -> None:
        """Another cluster has acknowledged so many, from the first on."""
        there = PositionSet(Position(1, entry) for entry in range(entries))
        subscription = self.topic.subscriptions[name]
        subscription.merging.acks(self.entries.to_local(there), {}, announce=False)
        await subscription.saved()


@asynccontextmanager
async def bridging(path: Path) -> AsyncIterator[Bridge]:
    brokers = Brokers()
    async with answering(brokers.answer) as url, opened(path, "a") as engine, asked(url) as admin:
        topic = await engine.topic(TOPIC, by_link=True)
        entries = load_map(engine.store, topic.topic_id, "a.pulsar")
        connector = BrokerConnector(NOWHERE, connection_timeout_seconds=1, operation_timeout_seconds=1)
        fence = ConsumerFence(connector, admin, "a", TOPIC, bridged=lambda _: True, unloaded=lambda: None)
        settings = ApacheSettings(service_url=NOWHERE, admin_url=url)
        async def has_read(position: Position, _: TopicInternals) -> bool:
            return position < Position(1, brokers.entries)

        states = SubscriptionStates(settings, connector, admin, "a", topic, engine.store, entries, fence, has_read)
        yield Bridge(brokers, topic, entries, states)
        await connector.close()


@asynchronous
async def test_what_is_as_it_was_is_not_worked_out_again_and_markers_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridging(tmp_path) as bridge:
        await bridge.publish(10)
        await bridge.settle()
        bridge.brokers.acknowledged["one"] = {0, 1, 4}
        await bridge.settle()
        subscription = bridge.topic.subscriptions["one"]
        assert bridge.states.knows(subscription)
        worked_out: list[str] = []
        whole = EngineSide.in_engine

        def noted(side: EngineSide, *which: object) -> object:
            worked_out.append(str(which[0]))
            return whole(side, *which)  # type: ignore[arg-type]

        monkeypatch.setattr(EngineSide, "in_engine", noted)
        await bridge.mark(0)
        assert not await bridge.states.compare()
        assert bridge.states.knows(subscription)
        assert worked_out == []
        bridge.brokers.acknowledged["one"].add(2)
        await bridge.settle()
        assert worked_out == ["one"]
        assert bridge.acknowledged("one") == {0, 1, 2, 4}
        await bridge.merge("one", 6)
        assert not bridge.states.knows(subscription)
        await bridge.settle()
        assert bridge.brokers.acknowledged["one"] == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", range(3))
@asynchronous
async def test_invariants_5_and_6_both_sides_have_the_same_after_whatever_happened(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with bridging(tmp_path) as bridge:
        await bridge.publish(5)
        await bridge.settle()
        acknowledged: dict[str, set[int]] = {name: set() for name in NAMES}
        markers = 0
        for _ in range(120):
            name = chance.choice(NAMES)
            match chance.randrange(5):
                case 0:
                    await bridge.publish(chance.randrange(1, 4))
                case 1:
                    await bridge.mark(markers)
                    markers += 1
                case 2:
                    entry = chance.randrange(bridge.brokers.entries)
                    bridge.brokers.acknowledged[name].add(entry)
                    acknowledged[name].add(entry)
                case 3:
                    through = chance.randrange(bridge.brokers.entries + 1)
                    await bridge.merge(name, through)
                    acknowledged[name] |= set(range(through))
                case 4:
                    await bridge.states.compare()
            if chance.random() < 0.3:
                await bridge.settle()
                for each in NAMES:
                    assert bridge.brokers.acknowledged[each] == bridge.acknowledged(each) == acknowledged[each]
        assert bridge.states.counters["resets"] == 0
