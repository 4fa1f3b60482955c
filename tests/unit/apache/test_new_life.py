"""Brokers that were put back to an older copy of their data, or set up anew: what begins then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, make_block, message, opened

from replicator.apache.admin import BrokerAdmin
from replicator.apache.copies_elsewhere import Copies, Copy, EntryFingerprint
from replicator.apache.entry_map import READ_LEDGERS_MAX, EntryMap, ReadEntry
from replicator.apache.errors import BridgeError, BridgeHalted, BrokersPutBack
from replicator.apache.new_life import NewLife, last_common
from replicator.apache.published_extents import FIRST_READ, load_map, read_row, write_of
from replicator.apache.reading_cursor import ReadingCursor
from replicator.apache.stamps import Identity
from replicator.apache.state import SubscriptionStates
from replicator.engine.engine import Engine
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

TOPIC: Final = "persistent://public/default/t"
NAME: Final = "replicator.bridge.a"


class Brokers:
    """Entries by ledger, each known by its sequence id, and the subscription by which the bridge reads."""

    def __init__(self, **ledgers: list[int]) -> None:
        self.ledgers = {int(name[1:]): list(ids) for name, ids in ledgers.items()}
        self.cursor: str | None = "1:-1"
        self.incarnation = 7
        self.loads = 0
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if "/entry/" in path:
            self.asked += 1
            ledger, entry = (int(part) for part in path.split("/ledger/")[1].split("/entry/"))
            ids = self.ledgers.get(ledger, [])
            if entry >= len(ids):
                return web.Response(status=404)
            return web.Response(headers={"X-Pulsar-sequence-id": str(ids[entry])})
        if path.endswith("/resetcursor"):
            to = await request.json()
            self.cursor = f"{to['ledgerId']}:{to['entryId'] - 1}"
            return web.Response(status=204)
        if request.method == "PUT":
            self.cursor, self.incarnation = "1:-1", int((await request.json())["properties"]["incarnation"])
            return web.Response(status=204)
        if path.endswith("/internalStats"):
            last = max(self.ledgers)
            return web.json_response(
                {
                    "lastConfirmedEntry": f"{last}:{len(self.ledgers[last]) - 1}",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": str(self.loads),
                    "ledgers": [{"ledgerId": each, "entries": len(ids)} for each, ids in self.ledgers.items()],
                    "numberOfEntries": 1,
                    "cursors": {} if self.cursor is None else {NAME: {"markDeletePosition": self.cursor}},
                }
            )
        properties = {"subscriptionProperties": {"incarnation": str(self.incarnation)}}
        return web.json_response({"subscriptions": {} if self.cursor is None else {NAME: properties}})


class Beside:
    """A bridge that is not reading."""

    def __init__(self, engine: Engine, topic: Topic, admin: BrokerAdmin) -> None:
        self.copies = Copies()
        """Messages that other clusters have."""
        self.fails = False
        """Whether one of them does not say which it has."""
        self.engine = engine
        self.topic = topic
        self.admin = admin
        self.begin()

    def begin(self) -> None:
        """Begin as after a restart."""
        self.entries: EntryMap = load_map(self.engine.store, self.topic, "a.pulsar")

        async def elsewhere(topic: str) -> Copies:
            if self.fails:
                raise BridgeError("b does not say which is its newest message")
            return self.copies

        self.cursor = ReadingCursor(
            self.admin, "a", self.topic, self.entries, lambda: None, may_be_missing=[], elsewhere=elsewhere
        )
        unused: Any = None
        states = SubscriptionStates(
            unused, unused, self.admin, "a", self.topic, self.engine.store, self.entries, unused, unused, unused
        )
        self.life = NewLife(self.admin, self.topic, self.entries, states)

    async def copy(self, first: Position, *sequence_ids: int, origin: str = "a.pulsar", incarnation: int = 7) -> None:
        mark = self.topic.origins.high_water(origin)
        entries = [message(sequence_id=each) for each in sequence_ids]
        block = make_block(first, entries, origin=origin, incarnation=incarnation)
        await self.topic.writing.copy([CopiedBlock(BEFORE_ALL if mark is None else mark.position, block)])

    async def common(self) -> Position:
        return await last_common(self.admin, self.topic, self.entries, await self.admin.internals(TOPIC))


@asynccontextmanager
async def beside(path: Path, brokers: Brokers) -> AsyncIterator[Beside]:
    async with answering(brokers.answer) as url, opened(path, "a") as engine, asked(url) as admin:
        yield Beside(engine, await engine.topic(TOPIC, by_link=True), admin)


@pytest.mark.parametrize(
    ("ledgers", "common"),
    [
        ({"l1": [1, 2, 3], "l2": [4, 5], "l3": [6]}, Position(3, 0)),
        ({"l1": [1, 2, 3], "l2": [4, 5], "l3": [60, 61]}, Position(2, 1)),
        ({"l1": [1, 2, 3], "l2": [4, 50], "l3": [60, 61]}, Position(2, 0)),
        ({"l1": [1, 2], "l2": [40, 50, 60]}, Position(1, 1)),
        ({"l1": [1], "l4": [40, 50, 60]}, Position(1, 0)),
        ({"l2": [4], "l3": [60]}, Position(2, 0)),
        ({"l1": [10, 20]}, BEFORE_ALL),
        ({"l7": [10, 20]}, BEFORE_ALL),
    ],
)
@asynchronous
async def test_the_last_entry_that_an_older_copy_has_is_found(
    tmp_path: Path, ledgers: dict[str, list[int]], common: Position
) -> None:
    async with beside(tmp_path, Brokers(**ledgers)) as bridge:
        await bridge.copy(Position(1, 0), 1, 2, 3)
        await bridge.copy(Position(2, 0), 4, 5)
        await bridge.copy(Position(3, 0), 6)
        bridge.begin()
        assert await bridge.common() == common


@asynchronous
async def test_the_last_common_entry_of_many_is_found_by_few_questions(tmp_path: Path) -> None:
    brokers = Brokers(l1=[*range(700), *range(5_000, 5_300)])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), *range(1_000))
        bridge.begin()
        assert await bridge.common() == Position(1, 699)
        assert brokers.asked < 15


@asynchronous
async def test_invariant_2_what_comes_after_brokers_were_put_back_is_taken_as_a_new_life(tmp_path: Path) -> None:
    """Its positions are above those of the earlier one, which stays in the log."""
    brokers = Brokers(l1=[1, 2, 30, 40, 50])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), 1, 2, 3)
        bridge.begin()
        with pytest.raises(BrokersPutBack, match="at 1:2: another entry"):
            await bridge.cursor.standing()
        standing = await bridge.life.standing(bridge.cursor)
        assert standing.incarnation > 1_700_000_000_000
        assert await bridge.cursor.standing() == standing
        for _ in range(2):
            assert bridge.entries.lives.begin == Position(1, 1)
            mark = bridge.topic.origins.high_water("a.pulsar")
            assert mark is not None
            assert (mark.incarnation, mark.position) == (standing.incarnation, Position(1, 2))
            bridge.begin()  # a restart
        first = bridge.entries.lives.origin_of(Position(1, 2))
        await bridge.copy(first, 30, 40, 50, incarnation=standing.incarnation)
        bridge.begin()
        assert (await bridge.cursor.standing()).incarnation == standing.incarnation
        assert bridge.entries.beyond(BEFORE_ALL).last() == Position(1, 4)
        assert len(bridge.entries.beyond(BEFORE_ALL)) == 5
        brokers.ledgers, brokers.loads = {1: [1, 2, 30, 41]}, 1  # once more
        bridge.begin()
        again = await bridge.life.standing(bridge.cursor)
        assert again.incarnation > first.ledger
        assert bridge.entries.lives.begin == Position(1, 2)
        assert [each.ended for each in bridge.entries.lives.later] == [False, False]


@asynchronous
async def test_invariant_1_what_brokers_have_lost_of_the_bridges_own_is_to_be_published_again(tmp_path: Path) -> None:
    """Also if nothing of the topic was published at these brokers."""
    brokers = Brokers(l1=[1, 2])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(9, 0), 1, 2, 3, 4, origin="b.pulsar", incarnation=5)
        bridge.begin()
        for entry in range(4):
            identity = Identity("b.pulsar", 5, Position(9, entry))
            run = bridge.entries.seen_at_broker(identity, Position(1, entry))
            assert run is not None
            writes = [write_of(bridge.topic.topic_id, identity, run)]
            await bridge.topic.writer.put_many(writes)
        bridge.begin()
        assert bridge.entries.published_through("b.pulsar") == Position(9, 3)
        await bridge.life.standing(bridge.cursor)
        for _ in range(2):
            assert bridge.entries.published_through("b.pulsar") == Position(9, 1)
            bridge.begin()


@asynchronous
async def test_brokers_that_were_set_up_anew_begin_a_life_before_their_first_entry(tmp_path: Path) -> None:
    """Their ledgers have the numbers of the former ones."""
    brokers = Brokers(l1=[10, 20, 30])
    brokers.cursor = None
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), 1, 2, 3)
        bridge.begin()
        standing = await bridge.life.standing(bridge.cursor)
        assert standing.reached == bridge.entries.lives.begin == BEFORE_ALL
        brokers.cursor, brokers.incarnation = "1:-1", standing.incarnation  # the bridge has made it
        bridge.begin()
        assert (await bridge.cursor.standing()).incarnation == standing.incarnation


@pytest.mark.parametrize(
    ("ledgers", "begins"),
    [
        ({"l1": [10, 20]}, True),
        ({"l1": [10], "l7": [20]}, True),
        ({"l3": [10, 20]}, True),
        ({"l3": [10, 20, 30]}, False),  # the entry is that one
        ({"l3": [10, 20, 31]}, True),  # another message has its position
        ({"l3": [10, 20, 31, 40]}, True),
        ({"l5": [10]}, False),  # all positions are above
    ],
)
@asynchronous
async def test_a_new_store_beside_new_brokers_takes_no_position_that_another_cluster_has(
    tmp_path: Path, ledgers: dict[str, list[int]], begins: bool
) -> None:
    brokers = Brokers(**ledgers)
    brokers.cursor = None
    async with beside(tmp_path, brokers) as bridge:
        newest = Copy(HighWater(7, Position(3, 2)), Position(3, 2), EntryFingerprint(PUBLISH_TIME_MS, 30))
        bridge.copies = Copies((newest, Copy(HighWater(7, Position(2, 9)))))
        if not begins:
            assert (await bridge.cursor.standing()).is_first
            return
        with pytest.raises(BrokersPutBack, match="up to 3:2"):
            await bridge.cursor.standing()
        standing = await bridge.life.standing(bridge.cursor)
        assert (standing.reached, standing.is_first) == (BEFORE_ALL, False)
        for _ in range(2):
            assert bridge.entries.lives.incarnations == [7, standing.incarnation]
            assert bridge.entries.lives.origin_of(Position(1, 0)) > Position(3, 2)
            assert (await bridge.cursor.standing()) == standing
            bridge.begin()
        first = bridge.entries.lives.origin_of(Position(1, 0))
        await bridge.copy(first, *ledgers.get("l1", [10]), incarnation=standing.incarnation)
        brokers.cursor, brokers.incarnation = "1:-1", standing.incarnation  # the bridge has made it
        bridge.begin()
        assert (await bridge.cursor.standing()).incarnation == standing.incarnation


@asynchronous
async def test_invariant_2_a_new_store_beside_brokers_that_reused_positions_takes_no_message_for_a_former_one(
    tmp_path: Path,
) -> None:
    """The brokers were put back and gave the lost positions to other messages before the worker began. The cursor is
    that of the former store."""
    brokers = Brokers(l1=[1, 2, 30, 40])
    brokers.cursor = "1:1"
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies(
            (Copy(HighWater(7, Position(1, 2)), Position(1, 2), EntryFingerprint(PUBLISH_TIME_MS, 3)),)
        )
        with pytest.raises(BrokersPutBack, match="up to 1:2"):
            await bridge.cursor.standing()
        standing = await bridge.life.standing(bridge.cursor)
        assert standing.reached == Position(1, -1)
        assert bridge.entries.lives.origin_of(Position(1, 0)) > Position(1, 2)


@asynchronous
async def test_invariant_2_a_cluster_that_has_never_answered_does_not_count_as_one_that_has_nothing(
    tmp_path: Path,
) -> None:
    """Positions of a new topic begin above all that it can have, once it was waited for."""
    brokers = Brokers(l1=[10, 20])
    brokers.cursor = None
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies(silent=("b",), waits=True)
        for _ in range(2):
            with pytest.raises(BridgeError, match="b did not say yet"):
                await bridge.cursor.standing()
            assert brokers.cursor == "1:-1"  # so the brokers keep all meanwhile
        bridge.copies = Copies()
        assert (await bridge.cursor.standing()).is_first
        bridge.copies = Copies(silent=("b",))
        with pytest.raises(BrokersPutBack, match="above all former ones"):
            await bridge.cursor.standing()
        standing = await bridge.life.standing(bridge.cursor)
        first = bridge.entries.lives.origin_of(Position(1, 0))
        assert first > Position(1_700_000_000_000, 0)
        bridge.begin()
        assert await bridge.cursor.standing() == standing
        assert brokers.incarnation < standing.incarnation  # the subscription keeps the properties that it was made with
        await bridge.copy(first, 10, 20, incarnation=standing.incarnation)
        brokers.cursor = "1:1"
        bridge.begin()
        assert await bridge.cursor.standing() == (standing.incarnation, Position(1, 1), False)


@asynchronous
async def test_invariant_2_a_lost_store_is_not_replaced_while_a_cluster_has_never_answered(tmp_path: Path) -> None:
    """The brokers may be the former ones. Their cursor keeps all that was not read."""
    brokers = Brokers(l1=[1, 2, 3])
    brokers.cursor = "1:1"
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies((Copy(HighWater(7, Position(1, 1))),), silent=("c",))
        with pytest.raises(BridgeError, match="c did not say yet"):
            await bridge.cursor.standing()
        assert brokers.cursor == "1:1"


@asynchronous
async def test_invariant_2_the_brokers_keep_all_while_a_cluster_does_not_say_what_it_has(tmp_path: Path) -> None:
    brokers = Brokers(l1=[10, 20])
    brokers.cursor = None
    async with beside(tmp_path, brokers) as bridge:
        bridge.fails = True
        for _ in range(2):
            with pytest.raises(BridgeError, match="does not say"):
                await bridge.cursor.standing()
            assert brokers.cursor == "1:-1"
        bridge.fails = False
        assert (await bridge.cursor.standing()).is_first


@asynchronous
async def test_invariant_2_an_expiry_during_the_wait_for_a_silent_cluster_does_not_hold_a_new_topic(
    tmp_path: Path,
) -> None:
    """This start made the subscription, so no earlier store moved it. What it passed over is read."""
    brokers = Brokers(l1=[10, 20])
    brokers.cursor = None
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies(silent=("b",), waits=True)
        with pytest.raises(BridgeError, match="b did not say yet"):
            await bridge.cursor.standing()
        brokers.cursor = "1:1"
        bridge.copies = Copies(silent=("b",))
        standing = await bridge.life.standing(bridge.cursor)
        assert (standing.reached, brokers.cursor) == (Position(1, -1), "1:-1")
        assert bridge.entries.lives.origin_of(Position(1, 0)) > Position(1_700_000_000_000, 0)


def _raised(incarnation: int, entry: int, sequence_id: int) -> Copy:
    """Messages up to an entry of ledger 1, in a life that was begun while a cluster was silent."""
    at = Position(1 + incarnation, entry)
    return Copy(HighWater(incarnation, at), at, EntryFingerprint(PUBLISH_TIME_MS, sequence_id))


RAISED: Final = 1_700_000_000_000


@asynchronous
async def test_a_lost_store_takes_over_the_raised_life_that_the_other_clusters_have(tmp_path: Path) -> None:
    """All that the brokers have is read again under the names that it had, so no link stops."""
    brokers = Brokers(l1=[1, 2, 3, 4])
    brokers.cursor = "1:2"
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies((_raised(RAISED, 2, 3), _raised(RAISED, 0, 1)))
        standing = await bridge.life.standing(bridge.cursor)
        assert (standing.incarnation, standing.reached) == (RAISED, Position(1, -1))
        for _ in range(2):
            assert bridge.entries.lives.origin_of(Position(1, 2)) == Position(1 + RAISED, 2)
            assert await bridge.cursor.standing() == standing
            bridge.begin()
        await bridge.copy(Position(1 + RAISED, 0), 1, 2, 3, incarnation=RAISED)
        brokers.cursor = "1:2"
        bridge.begin()
        assert await bridge.cursor.standing() == (RAISED, Position(1, 2), False)


@pytest.mark.parametrize(
    "copies",
    [
        [_raised(RAISED, 2, 30)],  # another message has its place
        [_raised(RAISED, 4, 5)],  # behind the brokers' end
        [_raised(RAISED + 1, 0, 1), _raised(RAISED, 2, 3)],  # of another life
        [_raised(RAISED, 2, 3)._replace(content=None), _raised(RAISED, 1, 2)],  # nobody knows of the last one
        [_raised(RAISED, 2, 3), Copy(HighWater(RAISED, Position(1, 2)))],  # it has nothing of the life yet
    ],
)
@asynchronous
async def test_invariant_2_a_raised_life_that_other_clusters_have_ends_unless_the_brokers_have_all_of_it(
    tmp_path: Path, copies: list[Copy]
) -> None:
    brokers = Brokers(l1=[1, 2, 3, 4])
    brokers.cursor = "1:2"
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies(tuple(copies))
        standing = await bridge.life.standing(bridge.cursor)
        assert standing.incarnation > RAISED + 1
        assert bridge.entries.lives.origin_of(Position(1, 0)) > max(each.mark.position for each in copies)


@asynchronous
async def test_invariant_2_a_raised_life_is_not_taken_over_while_a_cluster_has_never_answered(tmp_path: Path) -> None:
    brokers = Brokers(l1=[1, 2, 3])
    brokers.cursor = "1:2"
    async with beside(tmp_path, brokers) as bridge:
        bridge.copies = Copies((_raised(RAISED, 2, 3),), silent=("c",))
        with pytest.raises(BridgeError, match="c did not say yet"):
            await bridge.life.standing(bridge.cursor)
        assert bridge.entries.lives.later == []


@asynchronous
async def test_a_lost_store_that_takes_over_a_life_names_what_nobody_may_have(tmp_path: Path) -> None:
    """The brokers have deleted ledgers before 3. Another cluster lacks some of that."""
    brokers = Brokers(l3=[1, 2, 3])
    brokers.cursor = "3:2"
    async with beside(tmp_path, brokers) as bridge:
        at = Position(3 + RAISED, 1)
        first = Copy(HighWater(RAISED, at), at, EntryFingerprint(PUBLISH_TIME_MS, 2))
        bridge.copies = Copies((first, Copy(HighWater(RAISED, Position(2 + RAISED, 7)))))
        assert (await bridge.life.standing(bridge.cursor)).incarnation == RAISED
        assert [each.after for each in bridge.cursor.may_be_missing()] == [Position(2, 7)]


@asynchronous
async def test_invariant_2_a_cluster_that_cannot_tell_its_newest_message_is_none_that_has_the_same(
    tmp_path: Path,
) -> None:
    """An operator decides if an earlier store has read. After a renewal, and in a new topic, a life begins."""
    brokers = Brokers(l1=[1, 2, 30, 40])
    brokers.cursor = "1:1"
    async with beside(tmp_path, brokers) as bridge:
        untold = Copy(HighWater(7, Position(1, 2)), Position(1, 2), untold=True)
        bridge.copies = Copies((untold,))
        with pytest.raises(BridgeHalted, match="bridge renew") as halted:
            await bridge.cursor.standing()
        assert not isinstance(halted.value, BrokersPutBack)
        further = Copy(HighWater(7, Position(1, 3)), Position(1, 3), EntryFingerprint(PUBLISH_TIME_MS, 40))
        bridge.copies = Copies((further, untold))
        assert (await bridge.cursor.standing()).incarnation == 7  # all before a message that is the same is the same
        bridge.copies = Copies((untold,))
        brokers.cursor = "1:-1"
        standing = await bridge.life.standing(bridge.cursor)
        assert standing.reached == Position(1, -1)
        assert bridge.entries.lives.origin_of(Position(1, 0)) > Position(1, 2)


@asynchronous
async def test_one_odd_answer_of_the_brokers_begins_no_life(tmp_path: Path) -> None:
    brokers = Brokers(l1=[1])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), 1, 2, 3)
        bridge.begin()
        with pytest.raises(BrokersPutBack):
            await bridge.cursor.standing()
        brokers.ledgers[1] = [1, 2, 3]
        await bridge.life.standing(bridge.cursor)
        assert bridge.entries.lives.later == []


@asynchronous
async def test_brokers_that_lack_the_ledger_of_what_was_read_and_have_an_earlier_one_were_put_back(
    tmp_path: Path,
) -> None:
    """Brokers delete from the front, but here their last entry is beyond what was read."""
    brokers = Brokers(l1=[1], l9=[20, 30])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), 1)
        await bridge.copy(Position(5, 0), 2)
        bridge.begin()
        with pytest.raises(BrokersPutBack, match="they have ledger 1, and not ledger 5"):
            await bridge.cursor.standing()
        brokers.ledgers = {9: [20, 30]}
        brokers.cursor = "9:-1"
        assert (await bridge.cursor.standing()).reached == Position(9, -1)


@asynchronous
async def test_invariant_2_an_older_copy_is_noticed_though_the_log_has_trimmed_what_was_read(tmp_path: Path) -> None:
    """The last entry of each ledger is known all the same."""
    brokers = Brokers(l1=[1, 2], l2=[3, 4], l3=[50, 60, 70])
    async with beside(tmp_path, brokers) as bridge:
        read = {1: ReadEntry(1, PUBLISH_TIME_MS, 2), 2: ReadEntry(1, PUBLISH_TIME_MS, 4), 3: ReadEntry(1, 7, 6)}
        await bridge.topic.writer.put_many([read_row(bridge.topic.topic_id, *each) for each in read.items()])
        bridge.begin()
        with pytest.raises(BrokersPutBack, match="at 3:1: another entry"):
            await bridge.cursor.standing()
        await bridge.life.standing(bridge.cursor)
        for _ in range(2):
            assert bridge.entries.lives.begin == Position(2, 1)
            assert sorted(bridge.entries.read) == [1, 2]
            bridge.begin()


@pytest.mark.parametrize("first", [0, 1])
@asynchronous
async def test_invariant_2_nothing_comes_twice_of_a_ledger_of_an_older_copy_though_the_log_has_trimmed_it(
    tmp_path: Path, first: int
) -> None:
    """The worker knows the first and the last entry that it read of each ledger, also after its log was trimmed. If the
    restored brokers have one of these entries, they have the same ledger, because a closed ledger never changes."""
    brokers = Brokers(l1=[1, 2], l2=[10, 11, 12, 13], l5=[50, 60])
    async with beside(tmp_path, brokers) as bridge:
        topic_id = bridge.topic.topic_id
        read = {1: ReadEntry(1, PUBLISH_TIME_MS, 2), 2: ReadEntry(9, PUBLISH_TIME_MS, 19), 3: ReadEntry(1, 7, 6)}
        rows = [read_row(topic_id, *each) for each in read.items()]
        rows.append(read_row(topic_id, 2, ReadEntry(first, PUBLISH_TIME_MS, 10 + first), FIRST_READ))
        rows.append(read_row(topic_id, 3, ReadEntry(0, 7, 5), FIRST_READ))
        await bridge.topic.writer.put_many(rows)
        bridge.begin()
        await bridge.life.standing(bridge.cursor)
        for _ in range(2):
            assert bridge.entries.lives.begin == Position(2, 3)
            assert sorted(bridge.entries.read) == [1]
            assert sorted(bridge.entries.first_read) == [2]
            bridge.begin()
        row = read_row(topic_id, 5, ReadEntry(1, PUBLISH_TIME_MS, 60))
        await bridge.topic.writer.put_many([row])
        brokers.ledgers = {1: [1, 2], 2: [10, 11, 12, 13], 6: [70, 80]}  # once more
        bridge.begin()
        assert await bridge.common() == Position(2, 3)
        brokers.ledgers[2] = [10, 99, 98, 97, 96] if first else [99, 98, 97, 96, 95]  # another ledger of that number
        assert await bridge.common() == Position(1, 1)


@asynchronous
async def test_rows_of_a_second_new_life_are_stored_though_those_of_the_first_are_being_stored(tmp_path: Path) -> None:
    brokers = Brokers(l1=[1, 2])
    async with beside(tmp_path, brokers) as bridge:
        await bridge.copy(Position(1, 0), 1, 2, 3)
        bridge.begin()
        await bridge.life.standing(bridge.cursor)
        rows = [read_row(bridge.topic.topic_id, ledger, ReadEntry(0, 1, 1)) for ledger in (7, 8)]
        bridge.life._unstored = rows[:1]
        storing = asyncio.ensure_future(bridge.life.store())
        await asyncio.sleep(0)  # it waits for the writer
        bridge.life._unstored.append(rows[1])
        await storing
        bridge.begin()
        assert {7, 8} <= bridge.entries.read.keys()


def test_the_last_entries_of_the_newest_ledgers_are_kept() -> None:
    entries = EntryMap("a.pulsar")
    forgotten = [entries.was_read(ledger, ReadEntry(0, 1, 1)) for ledger in range(1, READ_LEDGERS_MAX + 3)]
    assert forgotten[-2:] == [[1], [2]]
    assert (min(entries.read), len(entries.read)) == (3, READ_LEDGERS_MAX)
