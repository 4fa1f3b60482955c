"""Keeping subscriptions in step, comparison after comparison: what is as it was is left alone, and nothing else is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import make_block, marker, message, opened

from replicator.apache import state
from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.engine_side import EngineSide
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeError
from replicator.apache.published_extents import load_map
from replicator.apache.reconciling import SyncState
from replicator.apache.shown import TopicInternals
from replicator.apache.state import SubscriptionStates
from replicator.apache.sync_states import load_sync_states, write_of
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.errors import StoreFull
from replicator.engine.log.block import BlockKind
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.topic import Topic
from replicator.topology.apache import ApacheSettings
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start

TOPIC: Final = "persistent://public/default/t"
NAMES: Final = ("one", "two")
NOWHERE: Final = "pulsar://127.0.0.1:1"


class Brokers:
    """One ledger, 1, and what each subscription has acknowledged of it: nobody has a consumer of them."""

    def __init__(self) -> None:
        self.entries = 0
        self.acknowledged: dict[str, set[int]] = {name: set() for name in NAMES}
        self.load = "once"
        self.has_bridge = True
        """Whether the brokers have the subscription by which the bridge reads."""
        self.resets: list[int] = []
        self.deleted: list[str] = []
        self.waiting: set[int] = set()
        """Entries that a consumer acknowledges as soon as a cursor was reset."""
        self.fails_after: int | None = None
        """Number of the request that is carried out but answered with an error; all later requests fail."""

    async def answer(self, request: web.Request) -> web.Response:
        if self.fails_after == 0:
            return web.Response(status=500)
        answer = await self._answer(request)
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after == 0:
                return web.Response(status=500)
        return answer

    async def acknowledge(self, *asked: Any) -> list[Position]:
        """Acknowledge in the place of a consumer."""
        name, positions = asked[3], asked[5]
        if self.fails_after == 0:
            raise BridgeError("the broker is away")
        self.acknowledged[name] |= {each.entry for each in positions}
        return list(positions)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path.endswith("/resetcursor"):
            first = (await request.json())["entryId"]
            self.resets.append(first)
            self.acknowledged[request.path.split("/")[-2]] = set(range(first)) | self.waiting
            return web.Response(status=204)
        if request.method == "PUT":
            self.acknowledged[request.path.split("/")[-1]] = set()
            return web.Response(status=204)
        if request.path.endswith("/expireMessages"):
            through = (await request.json())["entryId"]
            self.acknowledged[request.path.split("/")[-2]] |= set(range(through + 1))
            return web.Response(status=204)
        if request.method == "DELETE":
            self.deleted.append(request.path.split("/")[-1])
            del self.acknowledged[self.deleted[-1]]
            return web.Response(status=204)
        if request.path.endswith("/internalStats"):
            return web.json_response(
                {
                    "lastConfirmedEntry": f"1:{self.entries - 1}",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": self.load,
                    "ledgers": [{"ledgerId": 1, "entries": self.entries}],
                    "numberOfEntries": self.entries,
                    "cursors": {name: self._shown(acked) for name, acked in self.acknowledged.items()}
                    | ({"replicator.bridge.a": self._shown(set(range(self.entries)))} if self.has_bridge else {}),
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

    def __init__(
        self, brokers: Brokers, topic: Topic, entries: EntryMap, begun: Callable[[], SubscriptionStates]
    ) -> None:
        self.brokers = brokers
        self.topic = topic
        self.entries = entries
        self._begun = begun
        self.states = begun()

    def restart(self) -> None:
        """Restart the worker after a kill, with what it has stored."""
        self.states = self._begun()

    async def publish(self, entries: int) -> None:
        """Publish at the brokers; the bridge reads all at once."""
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
        """Write a marker into the engine's log."""
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
        """Return the brokers' entries that are acknowledged in the engine."""
        cursor = self.topic.subscriptions[name].cursor.state
        everything = self.entries.to_broker(self.topic.log.messages_after(BEFORE_ALL, PositionSet()))
        opened_ = self.topic.log.messages_after(cursor.mark_delete, cursor.individually_deleted)
        everything.difference_update(self.entries.to_broker(opened_))
        return {position.entry for position in everything}

    async def start_earlier(self, name: str, entry: int) -> None:
        """Another cluster has a start before that entry; nobody has acknowledged what that opens."""
        subscription = self.topic.subscriptions[name]
        state = subscription.cursor.state
        at = state.starts["a.pulsar"]
        opened_ = PositionSet(Position(1, each) for each in range(entry, at.position.entry + 1))
        earlier = {**state.starts, "a.pulsar": Start(at.incarnation, Position(1, entry - 1))}
        subscription.merging.start(earlier, self.entries.to_local(opened_), None)
        await subscription.saved()

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
        entries = load_map(engine.store, topic, "a.pulsar")
        connector = BrokerConnector(NOWHERE, connection_timeout_seconds=1, operation_timeout_seconds=1)
        fence = ConsumerFence(connector, admin, "a", TOPIC, bridged=lambda _: True, unloaded=lambda: None)
        settings = ApacheSettings(service_url=NOWHERE, admin_url=url)

        async def has_read(position: Position, _: TopicInternals) -> bool:
            return (entries.beyond(BEFORE_ALL).last() or BEFORE_ALL) >= position

        async def same_life(_: TopicInternals) -> None:
            """Say that the brokers were never put back."""

        def begun() -> SubscriptionStates:
            return SubscriptionStates(
                settings, connector, admin, "a", topic, engine.store, entries, fence, has_read, same_life
            )

        yield Bridge(brokers, topic, entries, begun)
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
        assert bridge.states.status()["resets"] == 0


@asynchronous
async def test_invariant_5_where_a_cursor_stands_when_it_is_first_seen_is_a_start_and_acknowledges_nothing(
    tmp_path: Path,
) -> None:
    async with bridging(tmp_path) as bridge:
        await bridge.publish(10)
        bridge.brokers.acknowledged["one"] = {0, 1, 2, 5}
        await bridge.settle()
        state = bridge.topic.subscriptions["one"].cursor.state
        assert state.starts["a.pulsar"].position == Position(1, 2)
        assert bridge.acknowledged("one") == {5}
        bridge.restart()
        bridge.brokers.acknowledged["one"] |= {3}
        await bridge.settle()
        assert bridge.acknowledged("one") == {3, 5}
        assert bridge.brokers.resets == []


@asynchronous
async def test_a_local_subscription_in_the_way_says_how_many_messages_its_deletion_would_give_up(
    tmp_path: Path,
) -> None:
    async with bridging(tmp_path) as bridge:
        await bridge.publish(3)
        await bridge.topic.subscriptions.create("one", BEFORE_ALL, replicated=False)
        await bridge.states.compare()
        assert "take another name at the brokers" in bridge.states.errors["one"]
        assert "where it has 3 messages left to consume" in bridge.states.errors["one"]


@asynchronous
async def test_a_start_is_told_once_all_before_it_is_read(tmp_path: Path) -> None:
    async with bridging(tmp_path) as bridge:
        await bridge.publish(3)
        bridge.brokers.acknowledged["one"] = set(range(5))
        bridge.brokers.entries += 2  # published, and not read yet
        await bridge.states.compare()
        await bridge.states.compare()
        assert "the worker has not read all up to there yet" in bridge.states.errors["one"]
        assert "one" not in bridge.topic.subscriptions
        bridge.brokers.entries -= 2
        await bridge.publish(2)
        await bridge.settle()
        assert bridge.topic.subscriptions["one"].cursor.state.starts["a.pulsar"].position == Position(1, 4)


@pytest.mark.parametrize("load", ["once", "anew"])
@pytest.mark.parametrize("killed_after", [*range(1, 8), None])
@asynchronous
async def test_invariants_5_and_6_an_earlier_start_puts_the_cursor_back_once_wherever_the_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int | None, load: str
) -> None:
    async with bridging(tmp_path) as bridge:
        brokers = bridge.brokers
        monkeypatch.setattr("replicator.apache.applying.acknowledge_at_broker", brokers.acknowledge)
        await bridge.publish(10)
        brokers.acknowledged["one"] = set(range(5))
        await bridge.settle()
        brokers.acknowledged["one"] |= {5, 6, 8}
        await bridge.settle()
        await bridge.start_earlier("one", 2)
        generation = bridge.topic.subscriptions["one"].cursor.generation
        brokers.fails_after = killed_after
        with suppress(BridgeError):
            await bridge.states.compare()
        bridge.restart()
        brokers.fails_after = None
        open_ = {2, 3, 4, 7, 9}
        if (killed_after or 0) >= 3 and load == "anew":
            brokers.load = load
        if 7 not in brokers.acknowledged["one"]:
            brokers.acknowledged["one"].add(7)  # a consumer has gone on
            open_ -= {7}
        await bridge.settle()
        assert brokers.acknowledged["one"] == set(range(10)) - open_
        assert bridge.acknowledged("one") == {5, 6, 7, 8}
        assert bridge.topic.subscriptions["one"].cursor.generation == generation
        assert set(brokers.resets) == {2}
        assert len(brokers.resets) <= (1 if killed_after is None else 2)
        resets = len(brokers.resets)
        bridge.restart()
        await bridge.settle()
        assert len(brokers.resets) == resets


@asynchronous
async def test_where_a_cursor_was_put_back_is_stored_before_anything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker that is killed later in its round puts the cursor back again, once consumers have caught
    up."""
    async with bridging(tmp_path) as bridge:
        brokers, stored = bridge.brokers, [SyncState(1, BrokerCursor(BEFORE_ALL), returning=BEFORE_ALL)]

        async def acknowledge(*asked: Any) -> list[Position]:
            stored[0] = load_sync_states(bridge.topic.reading._store, bridge.topic.topic_id)["one"]
            return await brokers.acknowledge(*asked)

        monkeypatch.setattr("replicator.apache.applying.acknowledge_at_broker", acknowledge)
        await bridge.publish(10)
        brokers.acknowledged["one"] = set(range(5))
        await bridge.settle()
        brokers.acknowledged["one"] |= {5, 6, 8}
        await bridge.settle()
        await bridge.start_earlier("one", 2)
        await bridge.states.compare()
        assert brokers.resets == [2]
        assert (stored[0].returning, stored[0].start) == (None, Position(1, 1))
        assert bridge.states.status()["put_back"] == 1


@asynchronous
async def test_what_consumers_caught_up_with_before_that_is_stored_comes_a_second_time_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """The worker is killed right after the reset, and cannot tell afterwards that it was done (docs/adr/0077)."""
    async with bridging(tmp_path) as bridge:
        brokers = bridge.brokers
        await bridge.publish(10)
        brokers.acknowledged["one"] = set(range(10))
        await bridge.settle()
        await bridge.start_earlier("one", 3)
        brokers.fails_after = 3
        with suppress(BridgeError):
            await bridge.states.compare()
        assert brokers.acknowledged["one"] == {0, 1, 2}
        brokers.acknowledged["one"] = set(range(10))
        bridge.restart()
        brokers.fails_after = None
        await bridge.settle()
        assert brokers.resets == [3, 3]
        assert brokers.acknowledged["one"] == {0, 1, 2}
        brokers.acknowledged["one"] = set(range(10))
        await bridge.settle()
        assert brokers.resets == [3, 3], "not a third time"
        assert bridge.acknowledged("one") == set(range(3, 10)), "what lies before the start is acknowledged by nobody"


@pytest.mark.parametrize("waiting", [{2, 3}, {2, 3, 4, 5, 6}, {3}, {9}])
@asynchronous
async def test_invariants_5_and_6_acknowledgements_right_after_a_cursor_was_put_back_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: set[int]
) -> None:
    """The worker puts the cursor back, and a consumer acknowledges before the worker has read where it stands then.
    These acknowledgements are kept, and the cursor is not put back again."""
    async with bridging(tmp_path) as bridge:
        brokers = bridge.brokers
        monkeypatch.setattr("replicator.apache.applying.acknowledge_at_broker", brokers.acknowledge)
        await bridge.publish(10)
        brokers.acknowledged["one"] = set(range(5))
        await bridge.settle()
        brokers.waiting = waiting
        await bridge.start_earlier("one", 2)
        await bridge.settle()
        assert brokers.resets == [2]
        assert bridge.acknowledged("one") == waiting
        assert brokers.acknowledged["one"] == {0, 1} | waiting


@asynchronous
async def test_a_seek_of_an_application_after_the_cursor_was_put_back_is_a_seek(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridging(tmp_path) as bridge:
        monkeypatch.setattr("replicator.apache.applying.acknowledge_at_broker", bridge.brokers.acknowledge)
        await bridge.publish(10)
        bridge.brokers.acknowledged["one"] = set(range(5))
        await bridge.settle()
        await bridge.start_earlier("one", 3)
        await bridge.settle()
        assert bridge.brokers.acknowledged["one"] == {0, 1, 2}
        generation = bridge.topic.subscriptions["one"].cursor.generation
        bridge.brokers.acknowledged["one"] = {0}
        await bridge.settle()
        assert bridge.topic.subscriptions["one"].cursor.generation == generation + 1
        assert bridge.acknowledged("one") == {0}  # a seek claims what lies before


@asynchronous
async def test_rows_of_earlier_versions_name_no_start_and_rows_without_one_are_as_they_were(tmp_path: Path) -> None:
    async with opened(tmp_path, "a") as engine:
        topic = await engine.topic(TOPIC, by_link=True)
        cursor = BrokerCursor(Position(1, 4), PositionSet([Position(1, 7)]))
        old, new = (
            SyncState(1, cursor, "load"),
            SyncState(2, cursor, "load", Position(1, 2), {"b": Start(3, Position(4, 5))}, Position(1, 3)),
        )
        rows = [write_of(topic.topic_id, name, seen) for name, seen in (("old", old), ("new", new))]
        assert rows[0][2] == b'{"generation":1,"load":"load","broker":{"mark_delete":[1,4],"beyond":[[1,7,7]]}}'
        await topic.writer.put_many(rows)
        assert load_sync_states(engine.store, topic.topic_id) == {"old": old, "new": new}


@pytest.mark.parametrize("topic_goes", [True, False])
@asynchronous
async def test_invariant_5_a_subscription_that_goes_with_its_topic_is_not_deleted_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_goes: bool
) -> None:
    """Brokers that delete a topic delete its subscriptions one by one. The bridge's own one may be the last."""
    monkeypatch.setattr(state, "GONE_SECONDS", 0.2)
    async with bridging(tmp_path) as bridge:
        brokers = bridge.brokers
        await bridge.publish(3)
        brokers.acknowledged["one"] = {0, 1}
        await bridge.settle()
        gone = brokers.acknowledged.pop("one")
        assert await bridge.states.compare(), "it is looked for again"
        assert "one" in bridge.topic.subscriptions
        if topic_goes:
            brokers.has_bridge = False
            with pytest.raises(BridgeError, match="does not read this topic"):
                await bridge.states.compare()
            brokers.has_bridge = True
            await asyncio.sleep(0.25)  # longer than a subscription must be away
            assert await bridge.states.compare(), "from the beginning"
            assert "one" in bridge.topic.subscriptions
            brokers.acknowledged["one"] = gone
        await bridge.settle()
        assert ("one" in bridge.topic.subscriptions) == topic_goes


@asynchronous
async def test_a_state_whose_storing_failed_is_stored_by_the_next_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a row that should have gone deletes the subscription that an application has made anew since."""
    async with bridging(tmp_path) as bridge:
        brokers, writer = bridge.brokers, bridge.topic.writer
        await bridge.publish(3)
        await bridge.settle()
        await bridge.topic.subscriptions.delete("one")
        put_many, failures = writer.put_many, [StoreFull("no space is left on the disk")]

        async def full_once(writes: Any, **options: Any) -> None:
            if failures and any(table == "broker_cursors" for table, _, _ in writes):
                raise failures.pop()
            await put_many(writes, **options)

        monkeypatch.setattr(writer, "put_many", full_once)
        with pytest.raises(StoreFull):
            await bridge.states.compare()
        assert brokers.deleted == ["one"]
        await bridge.settle()
        brokers.acknowledged["one"] = set()
        bridge.restart()
        await bridge.settle()
        assert brokers.deleted == ["one"]
        assert {"one", "two"} <= set(bridge.topic.subscriptions)


@pytest.mark.parametrize("at", ["expireMessages", "stats"])
@asynchronous
async def test_a_subscription_that_is_deleted_while_its_state_is_applied_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A broker makes the subscription of a consumer that connects, so the worker's own consumer would make it anew."""
    async with bridging(tmp_path) as bridge:
        brokers = bridge.brokers
        connected: list[str] = []

        async def acknowledge(*asked: Any) -> list[Position]:
            connected.append(asked[3])
            return list(asked[5])

        async def answer(self: Brokers, request: web.Request) -> web.Response:
            answered = await whole(self, request)
            if deleting and request.path.endswith(at):
                brokers.acknowledged.pop("one", None)
                return answered if at == "expireMessages" else await whole(self, request)
            return answered

        deleting = False
        whole = Brokers._answer
        monkeypatch.setattr("replicator.apache.applying.acknowledge_at_broker", acknowledge)
        monkeypatch.setattr(Brokers, "_answer", answer)
        await bridge.publish(4)
        await bridge.settle()
        deleting = True
        await bridge.merge("one", 2)
        await bridge.states.compare()
        assert "the brokers do not have it any more" in bridge.states.errors["one"]
        deleting = False
        monkeypatch.setattr(state, "GONE_SECONDS", 0.0)
        await bridge.settle()
        assert connected == []
        assert "one" not in bridge.topic.subscriptions
