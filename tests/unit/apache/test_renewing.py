"""A renewal lets the reading of a halted topic go on where nothing is lost by it, and refuses elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, make_block, message, opened

from replicator.apache.admin import BrokerAdmin
from replicator.apache.entry_map import ReadEntry
from replicator.apache.errors import AdminFailed, RenewalRefused
from replicator.apache.published_extents import load_map, read_row, write_of
from replicator.apache.reading_cursor import ReadingCursor
from replicator.apache.renewing import Renewal, Renewing, ResumeMode, plan_of
from replicator.apache.shown import TopicInternals
from replicator.apache.stamps import Identity
from replicator.apache.topic_at_brokers import TopicAtBrokers
from replicator.engine.engine import Engine
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.topic import Topic
from snapshots.extents import Extent
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


def at_brokers(last: Position, *ledgers: int) -> TopicInternals:
    return TopicInternals(last, 0, "", {}, dict.fromkeys(ledgers, 9) | {last.ledger: last.entry}, frozenset(ledgers))


def planned(
    reached: Position, internals: TopicInternals | None, *, same: bool = False, matches: bool = True
) -> Renewal:
    return plan_of(TOPIC, reached, internals, same=same, matches=matches)


def test_reading_goes_on_right_behind_what_was_read_as_long_as_the_brokers_have_it() -> None:
    for same in (False, True):
        renewal = planned(Position(3, 4), at_brokers(Position(5, 2), 3, 5), same=same)
        assert (renewal.way, renewal.first) == (ResumeMode.BEHIND, Position(3, 5))


def test_what_brokers_have_deleted_before_it_was_read_is_named_as_missing() -> None:
    renewal = planned(Position(3, 4), at_brokers(Position(5, 2), 5), same=True)
    assert (renewal.way, renewal.first) == (ResumeMode.EARLIEST, None)
    assert "after 3:4" in renewal.text


def test_a_worker_that_has_read_nothing_reads_all_that_the_brokers_have() -> None:
    renewal = planned(BEFORE_ALL, at_brokers(Position(5, 2), 4, 5), same=True)
    assert (renewal.way, renewal.first) == (ResumeMode.EARLIEST, None)
    assert "missing" not in renewal.text


def test_a_topic_that_is_another_one_gets_what_other_clusters_published() -> None:
    assert planned(Position(3, 4), at_brokers(Position(5, 2), 5)).way is ResumeMode.ANEW
    assert planned(Position(3, 4), None).way is ResumeMode.ANEW


@pytest.mark.parametrize(
    ("internals", "matches"),
    [
        (at_brokers(Position(3, 2), 3), True),  # it ends before what was read
        (at_brokers(Position(2, 9), 2), True),
        (at_brokers(Position(5, 2), 1, 5), True),  # an earlier ledger, without the one that was read
        (at_brokers(Position(5, 2), 3, 5), False),  # another entry is there
    ],
)
def test_invariant_2_a_renewal_that_would_take_new_messages_for_those_that_were_read_is_refused(
    internals: TopicInternals, matches: bool
) -> None:
    for same in (False, True):
        with pytest.raises(RenewalRefused, match="keeps both"):
            planned(Position(3, 4), internals, same=same, matches=matches)


class Brokers:
    """One topic with ledgers of ten entries, and the subscription by which the bridge reads, if there is one."""

    def __init__(self, incarnation: str | None, *ledgers: int) -> None:
        self.incarnation = incarnation
        self.ledgers = ledgers
        self.next: tuple[int, int] | None = None
        """The entry to which the subscription was put."""
        self.steps_left = 100
        self.changes_properties = True
        self.shows_entries = True
        self.was_without = incarnation is None

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if request.method != "GET":
            self.steps_left -= 1
            if self.steps_left < 0:
                return web.Response(status=500)  # the worker is killed before this step
            return await self.change(request)
        if "/entry/" in path:
            if not self.shows_entries:
                return web.Response(status=403)
            return web.Response(headers={"X-Pulsar-sequence-id": "99"})
        if path.endswith("/internalStats"):
            return web.json_response(
                {
                    "lastConfirmedEntry": f"{self.ledgers[-1]}:9",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": "",
                    "ledgers": [{"ledgerId": each, "entries": 10} for each in self.ledgers],
                    "numberOfEntries": 10,
                    "cursors": {},
                }
            )
        shown = {"subscriptionProperties": {"incarnation": self.incarnation}}
        return web.json_response({"subscriptions": {} if self.incarnation is None else {"replicator.bridge.a": shown}})

    async def change(self, request: web.Request) -> web.Response:
        path, body = request.path, await request.json() if request.can_read_body else {}
        if request.method == "DELETE":
            self.incarnation, self.was_without = None, True
        elif path.endswith("/properties"):
            if not self.changes_properties:
                return web.Response(status=405)
            self.incarnation = body["incarnation"]
        elif path.endswith("/resetcursor"):
            self.next = (body["ledgerId"], body["entryId"])
        else:
            self.incarnation, self.next = body["properties"]["incarnation"], (body["ledgerId"], body["entryId"])
        return web.Response(status=204)


class Worker:
    """A worker that has read the entry 3:4 and published one of another cluster at 3:5; its reading halted."""

    def __init__(self, engine: Engine, topic: Topic, admin: BrokerAdmin) -> None:
        self.engine, self.topic = engine, topic
        self.entries = load_map(engine.store, topic, "a.pulsar")
        cursor = ReadingCursor(admin, "a", topic, self.entries, lambda: None, may_be_missing=[])
        at_brokers = TopicAtBrokers(admin, engine, TOPIC, lambda: True)
        self.renewing = Renewing(admin, engine, topic, "a.pulsar", cursor, at_brokers)

    def published(self) -> bool:
        return self.entries.published_through("b") > BEFORE_ALL


@asynccontextmanager
async def halted(path: Path, brokers: Brokers) -> AsyncIterator[tuple[Engine, Topic, BrokerAdmin]]:
    async with answering(brokers.answer) as url, opened(path, "a") as engine, asked(url) as admin:
        topic = await engine.topic(TOPIC, by_link=True)
        block = make_block(Position(3, 4), [message(sequence_id=99)], origin="a.pulsar", incarnation=7)
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        identity = Identity("b", 5, Position(8, 0))
        await topic.writing.copy(
            [CopiedBlock(BEFORE_ALL, make_block(Position(8, 0), [message()], origin="b", incarnation=5))]
        )
        rows = [
            write_of(topic.topic_id, identity, Extent(Position(8, 0), Position(3, 5), 1)),
            read_row(topic.topic_id, 3, ReadEntry(5, PUBLISH_TIME_MS, 99)),
        ]
        await topic.writer.put_many(rows)
        yield engine, topic, admin


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("changes_properties", [True, False])
@pytest.mark.parametrize(
    ("incarnation", "ledgers", "way", "first"),
    [
        ("7", (3, 5), ResumeMode.BEHIND, (3, 6)),
        ("7", (5,), ResumeMode.EARLIEST, (5, 0)),
        ("6", (5,), ResumeMode.ANEW, (5, 0)),
        ("6", (3, 5), ResumeMode.BEHIND, (3, 6)),
        (None, (5,), ResumeMode.ANEW, (-1, -1)),
        (None, (3, 5), ResumeMode.BEHIND, (3, 6)),
    ],
)
@asynchronous
async def test_invariant_2_a_renewal_that_was_killed_between_its_steps_is_ended_by_the_next_one(
    tmp_path: Path,
    incarnation: str | None,
    ledgers: tuple[int, ...],
    way: ResumeMode,
    first: tuple[int, int],
    changes_properties: bool,
    steps: int,
) -> None:
    """It decides the same, and the brokers keep what was not read all the while."""
    brokers = Brokers(incarnation, *ledgers)
    brokers.changes_properties = changes_properties
    async with halted(tmp_path, brokers) as (engine, topic, admin):
        brokers.steps_left = steps
        try:
            renewal = await Worker(engine, topic, admin).renewing.plan()
            assert renewal.way is way
            await Worker(engine, topic, admin).renewing.carry_out(renewal)
        except AdminFailed:
            brokers.steps_left = 100
            renewal = await Worker(engine, topic, admin).renewing.plan()
            assert renewal.way is way
            await Worker(engine, topic, admin).renewing.carry_out(renewal)
        made = incarnation is None or (incarnation == "6" and not changes_properties)
        if made and way is ResumeMode.ANEW:
            first = (-1, -1)  # the first entry that the brokers have
        assert (brokers.incarnation, brokers.next) == ("7", first)
        assert Worker(engine, topic, admin).published() is (way is not ResumeMode.ANEW)
        assert brokers.was_without is made


@pytest.mark.parametrize("incarnation", [None, "6"])
@asynchronous
async def test_invariant_2_a_renewal_is_refused_where_nobody_can_tell_whether_the_topic_is_another_one(
    tmp_path: Path, incarnation: str | None
) -> None:
    """The brokers may have been set up anew: the entry at that position is another message then."""
    brokers = Brokers(incarnation, 3, 5)
    brokers.shows_entries = False
    async with halted(tmp_path, brokers) as (engine, topic, admin):
        with pytest.raises(RenewalRefused, match="Let the role view messages"):
            await Worker(engine, topic, admin).renewing.plan()
        brokers.incarnation = "7"
        assert (await Worker(engine, topic, admin).renewing.plan()).way is ResumeMode.BEHIND


@asynchronous
async def test_a_renewal_of_a_worker_that_has_read_nothing_begins_a_life_that_no_other_cluster_has(
    tmp_path: Path,
) -> None:
    """Another cluster may have a newer life than the subscription at the brokers names: then it would halt again."""
    brokers = Brokers("7", 3)
    async with answering(brokers.answer) as url, opened(tmp_path, "a") as engine, asked(url) as admin:
        worker = Worker(engine, await engine.topic(TOPIC, by_link=True), admin)
        await worker.renewing.carry_out(await worker.renewing.plan())
        assert int(brokers.incarnation or 0) > 1_700_000_000_000
        assert brokers.next == (3, 0)
