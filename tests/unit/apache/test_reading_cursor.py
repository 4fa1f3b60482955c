"""The cursor by which a bridge reads: what counts as read, and where it is put back to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from answering_admin import answering, asked
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, make_block, message, opened

from replicator.apache import reading_cursor
from replicator.apache.admin import BrokerAdmin
from replicator.apache.copies_elsewhere import Copies, Copy
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import AdminFailed, BridgeError, BridgeHalted, BrokersPutBack
from replicator.apache.published_extents import load_map, load_may_be_missing
from replicator.apache.reading_cursor import ReadingCursor
from replicator.apache.skipped_messages import Gap
from replicator.apache.stamps import Identity
from replicator.engine.errors import EngineError
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from snapshots.position import BEFORE_ALL, Position

TOPIC: Final = "persistent://public/default/t"
NAME: Final = "replicator.bridge.a"
LAST: Final = 9


class Brokers:
    """One ledger, 1, of entries 0 to 9; where the bridge's cursor stands, what is hidden, and what was asked."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.hidden: set[int] = set()
        self.ledgers = [1]
        self.cursor_ledger = 0
        """Ledger of the cursor, if not the last one."""
        self.last = ""
        """The last entry, if not that of the last ledger."""
        self.refuses = 0
        """The status with which it refuses to show an entry."""
        self.reset_to: list[Any] = []
        self.shown: dict[str, str] | None = {}
        """Headers that it shows for each entry; None if it has no entry."""
        self.made: list[Any] = []
        self.has_subscription = True

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if path.endswith("/resetcursor"):
            self.reset_to.append((await request.json())["entryId"])
            return web.Response(status=204)
        if request.method == "PUT" and "/subscription/" in path:
            self.made.append(await request.json())
            return web.Response(status=204)
        if "/entry/" in path and self.shown is None:
            return web.Response(status=404)
        if "/entry/" in path and self.refuses:
            return web.Response(status=self.refuses)
        if "/entry/" in path:
            hidden = int(path.rsplit("/", 1)[1]) in self.hidden
            return web.Response(headers={"X-Pulsar-marker-type": "21"} if hidden else self.shown)
        if path.endswith("/internalStats"):
            return web.json_response(
                {
                    "lastConfirmedEntry": self.last or f"{self.ledgers[-1]}:{LAST}",
                    "pendingAddEntriesCount": 0,
                    "lastLedgerCreatedTimestamp": "",
                    "ledgers": [
                        {"ledgerId": ledger, "entries": 0 if self.last else LAST + 1} for ledger in self.ledgers
                    ],
                    "numberOfEntries": LAST + 1,
                    "cursors": {NAME: {"markDeletePosition": f"{self.cursor_ledger or self.ledgers[-1]}:{self.at}"}},
                }
            )
        subscriptions = {NAME: {"subscriptionProperties": {"incarnation": "7"}}} if self.has_subscription else {}
        return web.json_response({"subscriptions": subscriptions})


class Reading:
    """A bridge that has read, or not begun to."""

    def __init__(self, admin: BrokerAdmin, cursor: ReadingCursor, entries: EntryMap) -> None:
        self.admin = admin
        self.cursor = cursor
        self.entries = entries
        self.through: Position | None = None

    async def has_read(self, entry: int) -> bool:
        return await self.cursor.has_read(Position(1, entry), await self.admin.internals(TOPIC))


@asynccontextmanager
async def reading(
    path: Path, brokers: Brokers, *, stored: int, copies: Sequence[HighWater] = ()
) -> AsyncIterator[Reading]:
    """Its store has so many entries of applications, from the first on. Other clusters have ``copies``."""

    async def elsewhere(topic: str) -> Copies:
        return Copies(tuple(map(Copy, copies)))

    async with answering(brokers.answer) as url, opened(path, "a") as engine, asked(url) as admin:
        topic = await engine.topic(TOPIC, by_link=True)
        if stored:
            block = make_block(Position(1, 0), [message()] * stored, origin="a.pulsar")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        entries = load_map(engine.store, topic, "a.pulsar")
        kept = load_may_be_missing(engine.store, topic.topic_id)
        cursor = ReadingCursor(
            admin, "a", topic, entries, read_through=lambda: made.through, may_be_missing=kept, elsewhere=elsewhere
        )
        made = Reading(admin, cursor, entries)
        yield made


@asynchronous
async def test_invariant_2_what_the_store_has_is_not_what_was_read(tmp_path: Path) -> None:
    """A process that ended between the blocks of others and the rows of its own has not read its own, for all that the
    store goes further: they would be published a second time."""
    brokers = Brokers(at=2)
    async with reading(tmp_path, brokers, stored=6) as bridge:
        assert not await bridge.has_read(4)  # it has not begun
        bridge.through = Position(1, 2)
        assert not await bridge.has_read(4)
        bridge.through = Position(1, 4)
        assert await bridge.has_read(4)


@asynchronous
async def test_what_brokers_show_to_nobody_counts_as_read_and_what_they_passed_over_does_not(tmp_path: Path) -> None:
    brokers = Brokers(at=5)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        bridge.through = Position(1, 2)
        brokers.hidden = {3, 4}
        assert await bridge.has_read(4)
        assert not await bridge.has_read(5)
        assert not await bridge.has_read(6)


@asynchronous
async def test_the_cursor_is_put_back_to_the_first_message_that_was_passed_over(tmp_path: Path) -> None:
    """Again where it was moved again before that message came, and not where what follows came without it."""
    brokers = Brokers(at=8)
    passed = [Gap(Position(1, 2), Position(1, 6))]
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeError, match="passed over messages"):
            await bridge.cursor.check(passed)
        for times in (1, 2):
            assert (await bridge.cursor.standing()).reached == Position(1, 2)
            assert brokers.reset_to == [3] * times
        with pytest.raises(BridgeError, match="passed over messages"):
            await bridge.cursor.check(passed)
        with pytest.raises(BridgeHalted, match="may not have them any more"):
            await bridge.cursor.standing()
        assert brokers.reset_to == [3, 3]


@asynchronous
async def test_invariant_2_what_was_seen_and_not_stored_is_not_read(tmp_path: Path) -> None:
    """An entry of the bridge's own that lies behind one that the store refused."""
    brokers = Brokers(at=5)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        bridge.entries.seen_at_broker(Identity("b", 7, Position(9, 0)), Position(1, 5))
        bridge.through = Position(1, 2)
        assert (await bridge.cursor.standing()).reached == Position(1, 2)
        assert brokers.reset_to == [3]


@asynchronous
async def test_a_topic_of_which_all_ledgers_but_an_empty_one_are_gone_was_read(tmp_path: Path) -> None:
    """Its last entry, which brokers still name, was one that they showed to nobody."""
    brokers = Brokers(at=-1)
    brokers.ledgers, brokers.last = [2], "1:9"
    async with reading(tmp_path, brokers, stored=9) as bridge:
        bridge.through = Position(1, 8)
        assert await bridge.has_read(9)
        assert (await bridge.cursor.standing()).reached == Position(2, -1)
        assert brokers.reset_to == []


@asynchronous
async def test_what_the_admin_api_refuses_is_not_taken_for_an_entry_that_is_shown(tmp_path: Path) -> None:
    brokers = Brokers(at=5)
    brokers.refuses = 403
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(AdminFailed, match="403"):
            await bridge.cursor.standing()
        assert brokers.reset_to == []


@asynchronous
async def test_a_cursor_that_passed_over_nothing_that_is_shown_stays(tmp_path: Path) -> None:
    brokers = Brokers(at=5)
    brokers.hidden = {3, 4, 5}
    async with reading(tmp_path, brokers, stored=3) as bridge:
        await bridge.cursor.check([Gap(Position(1, 2), Position(1, 5))])
        assert (await bridge.cursor.standing()).reached == Position(1, 5)
        brokers.at = 2
        await bridge.cursor.check([Gap(Position(1, 6), Position(1, 8))])  # it is before that, so nobody passed over it
        assert brokers.reset_to == []


@asynchronous
async def test_where_the_ledger_of_what_was_read_last_is_gone_the_topic_halts(tmp_path: Path) -> None:
    brokers = Brokers(at=4)
    brokers.ledgers = [2]
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeHalted, match="may not have them any more"):
            await bridge.cursor.standing()


@asynchronous
async def test_a_cursor_in_a_ledger_that_is_gone_and_was_not_read_halts_the_topic(tmp_path: Path) -> None:
    brokers = Brokers(at=4)
    brokers.ledgers, brokers.cursor_ledger = [3], 2
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeError, match="not read 2:0"):
            await bridge.cursor.check([Gap(Position(1, 2), Position(3, -1))])
        with pytest.raises(BridgeHalted, match="not read 2:0"):
            await bridge.cursor.standing()


@asynchronous
async def test_invariant_2_messages_that_were_passed_over_last_are_noticed_though_nothing_follows(
    tmp_path: Path,
) -> None:
    """The second look notices them; until then they may be on their way into the store."""
    brokers = Brokers(at=5)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        bridge.through = Position(1, 2)
        internals = await bridge.admin.internals(TOPIC)
        assert await bridge.cursor.left_behind(internals) is None
        passed_over = await bridge.cursor.left_behind(internals)
        assert "not read 1:3" in str(passed_over)
        bridge.through = Position(1, 5)
        assert await bridge.cursor.left_behind(internals) is None
        assert await bridge.cursor.left_behind(internals) is None


@asynchronous
async def test_a_cursor_that_goes_on_with_what_is_read_has_passed_over_nothing(tmp_path: Path) -> None:
    brokers = Brokers(at=5)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        internals = await bridge.admin.internals(TOPIC)
        for entry in (2, 3, 4):
            bridge.through = Position(1, entry)
            assert await bridge.cursor.left_behind(internals) is None


@asynchronous
async def test_what_brokers_show_to_nobody_at_the_end_is_asked_about_once(tmp_path: Path) -> None:
    brokers = Brokers(at=5)
    brokers.hidden = {3, 4, 5}
    async with reading(tmp_path, brokers, stored=3) as bridge:
        bridge.through = Position(1, 2)
        internals = await bridge.admin.internals(TOPIC)
        for _ in range(3):
            assert await bridge.cursor.left_behind(internals) is None
        brokers.refuses = 403  # it would raise
        assert await bridge.cursor.left_behind(internals) is None


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "that entry is not there"),
        ({"X-Pulsar-sequence-id": "7"}, "another entry is there, number 7"),
        ({"X-Pulsar-publish-time": "2026-01-01T00:00:00.5+01:00"}, "published at 2026-01-01T00:00:00.5"),
    ],
)
@asynchronous
async def test_invariant_2_brokers_that_were_put_back_to_an_older_copy_halt_the_topic(
    tmp_path: Path, shown: dict[str, str] | None, said: str
) -> None:
    """Brokers on an older copy give read positions to other messages, which would be dropped as read."""
    brokers = Brokers(at=2)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        assert (await bridge.cursor.standing()).reached == Position(1, 2)
        brokers.shown = shown
        with pytest.raises(BridgeHalted, match=f"at 1:2: .*{said}"):
            await bridge.cursor.standing()


@asynchronous
async def test_invariant_2_brokers_that_end_before_what_was_read_halt_the_topic(tmp_path: Path) -> None:
    brokers = Brokers(at=1)
    brokers.last = "1:1"
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeHalted, match="their last entry is 1:1"):
            await bridge.cursor.standing()


@asynchronous
async def test_invariant_2_brokers_that_gave_the_number_of_a_ledger_to_another_one_halt_the_topic(
    tmp_path: Path,
) -> None:
    brokers = Brokers(at=1)
    brokers.ledgers, brokers.last = [1, 2], "2:4"
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeHalted, match="ledger 1 ends with entry -1"):
            await bridge.cursor.standing()


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"X-Pulsar-sequence-id": "0"},
        {"X-Pulsar-publish-time": datetime.fromtimestamp(PUBLISH_TIME_MS / 1000, UTC).isoformat()},
    ],
)
@asynchronous
async def test_brokers_that_have_what_was_read_go_on(tmp_path: Path, shown: dict[str, str]) -> None:
    brokers = Brokers(at=2)
    brokers.shown = shown
    async with reading(tmp_path, brokers, stored=3) as bridge:
        assert (await bridge.cursor.standing()).reached == Position(1, 2)


@asynchronous
async def test_brokers_whose_retention_has_deleted_what_was_read_go_on(tmp_path: Path) -> None:
    brokers = Brokers(at=-1)
    brokers.ledgers, brokers.shown = [2], None
    async with reading(tmp_path, brokers, stored=10) as bridge:
        assert (await bridge.cursor.standing()).reached == Position(2, -1)


@asynchronous
async def test_brokers_that_show_the_worker_no_entry_go_on(tmp_path: Path) -> None:
    brokers = Brokers(at=2)
    brokers.refuses = 403
    async with reading(tmp_path, brokers, stored=3) as bridge:
        assert (await bridge.cursor.standing()).reached == Position(1, 2)


@asynchronous
async def test_the_subscription_is_made_with_its_life_where_no_consumer_may_make_one(tmp_path: Path) -> None:
    brokers = Brokers(at=-1)
    async with reading(tmp_path, brokers, stored=0) as bridge:
        await bridge.cursor.make(7)
    (made,) = brokers.made
    assert (made["ledgerId"], made["entryId"], made["properties"]) == (-1, -1, {"incarnation": "7"})


@asynchronous
async def test_invariant_2_a_subscription_that_was_deleted_is_not_made_anew_behind_what_was_read(
    tmp_path: Path,
) -> None:
    brokers = Brokers(at=2)
    async with reading(tmp_path, brokers, stored=3) as bridge:
        with pytest.raises(BridgeHalted, match="is gone at the brokers"):
            await bridge.cursor.make(7)
    assert brokers.made == []


@asynchronous
async def test_a_topic_that_was_made_anew_before_anything_was_read_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge's cursor had a position in the former topic, although no message was read. It does not count. If a
    message was read, reading halts."""
    monkeypatch.setattr(reading_cursor, "DELETION_SECONDS", 0.0)
    brokers = Brokers(at=-1)
    async with reading(tmp_path / "first", brokers, stored=0) as bridge:
        bridge.through = (await bridge.cursor.standing()).reached
        assert bridge.through == Position(1, -1)
        brokers.has_subscription, brokers.ledgers = False, [3]
        standing = await bridge.cursor.standing()
        assert (standing.reached, standing.is_first) == (BEFORE_ALL, True)
        assert standing.incarnation != 7
        await bridge.cursor.make(standing.incarnation)
    async with reading(tmp_path / "read", brokers, stored=1) as bridge:
        for ask in (bridge.cursor.standing(), bridge.cursor.make(7)):
            with pytest.raises(BridgeHalted, match="made anew"):
                await ask


@pytest.mark.parametrize(
    ("copied", "missing_after"),
    [
        ([], []),
        ([Position(5, 3)], []),
        ([Position(3, 7), Position(4, 99)], [Position(3, 7)]),
    ],
)
@asynchronous
async def test_a_new_store_reads_again_what_the_brokers_have_and_names_what_nobody_may_have(
    tmp_path: Path, copied: list[Position], missing_after: list[Position]
) -> None:
    """A worker with another store has read up to 5:7. The brokers have deleted ledgers before 5."""
    brokers = Brokers(at=7)
    brokers.ledgers = [5]
    copies = [HighWater(7, position) for position in copied]
    async with reading(tmp_path, brokers, stored=0, copies=copies) as bridge:
        standing = await bridge.cursor.standing()
        assert (standing.incarnation, standing.reached) == (7, Position(5, -1))
        assert brokers.reset_to == [0]
        named = [(each.after, each.before) for each in bridge.cursor.may_be_missing()]
        assert named == [(after, Position(5, 0)) for after in missing_after]
        brokers.at, brokers.reset_to = -1, []
        bridge.through = standing.reached
        assert (await bridge.cursor.standing()).reached == Position(5, -1)
        assert brokers.reset_to == []
        assert len(bridge.cursor.may_be_missing()) == len(missing_after)


@asynchronous
async def test_what_the_store_did_not_take_is_not_acknowledged(tmp_path: Path) -> None:
    brokers = Brokers(at=7)
    brokers.ledgers = [5]
    async with reading(tmp_path, brokers, stored=0, copies=[HighWater(7, Position(4, 3))]) as bridge:
        await bridge.cursor.standing()
    with pytest.raises(EngineError):  # it is closed
        await bridge.cursor.acknowledge_missing()
    assert [each.after for each in bridge.cursor.may_be_missing()] == [Position(4, 3)]


@asynchronous
async def test_a_new_store_begins_behind_what_the_brokers_have_deleted(tmp_path: Path) -> None:
    brokers = Brokers(at=LAST)
    brokers.cursor_ledger, brokers.ledgers = 4, [5]
    async with reading(tmp_path, brokers, stored=0, copies=[HighWater(7, Position(4, LAST))]) as bridge:
        assert (await bridge.cursor.standing()).reached == Position(4, LAST)
        assert bridge.cursor.may_be_missing() == []
    async with reading(tmp_path / "less", brokers, stored=0, copies=[HighWater(7, Position(4, 3))]) as bridge:
        await bridge.cursor.standing()
        assert [each.after for each in bridge.cursor.may_be_missing()] == [Position(4, 3)]


@asynchronous
async def test_a_new_store_halts_if_another_cluster_has_a_later_life_of_the_topic(tmp_path: Path) -> None:
    """Also where the cursor has not moved: what is read would not be taken there."""
    brokers = Brokers(at=7)
    brokers.ledgers = [5]
    async with reading(tmp_path, brokers, stored=0, copies=[HighWater(8, Position(5, 3))]) as bridge:
        for at in (7, -1):
            brokers.at = at
            with pytest.raises(BridgeHalted, match="bridge renew"):
                await bridge.cursor.standing()
        assert brokers.reset_to == []


@pytest.mark.parametrize("at", [7, -1])
@pytest.mark.parametrize("copy", [HighWater(7, Position(6, 0)), HighWater(8, Position(1_700_000_000_005, 3))])
@asynchronous
async def test_invariant_2_a_new_store_begins_a_new_life_where_another_cluster_has_positions_above_the_brokers_end(
    tmp_path: Path, copy: HighWater, at: int
) -> None:
    """Other messages would get these positions, and links would not copy them. The cursor need not have moved."""
    brokers = Brokers(at=at)
    brokers.ledgers = [5]
    lower = HighWater(7, Position(5, 2))
    async with reading(tmp_path, brokers, stored=0, copies=[lower, copy]) as bridge:
        with pytest.raises(BrokersPutBack) as raised:
            await bridge.cursor.standing()
        assert raised.value.elsewhere == copy
        assert brokers.reset_to == []


@asynchronous
async def test_while_brokers_may_be_deleting_a_topic_its_subscription_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They delete the subscriptions first. A subscription that was made then brought the topic back, and nobody was
    told of the deletion."""
    brokers = Brokers(at=-1)
    brokers.last = "1:-1"
    async with reading(tmp_path, brokers, stored=0) as bridge:
        bridge.cursor.note_is_there()
        brokers.has_subscription = False
        for _ in range(2):
            with pytest.raises(BridgeError, match="as while they delete the topic"):
                await bridge.cursor.standing()
        with pytest.raises(BridgeError, match="as while they delete the topic"):
            await bridge.cursor.make(7)
        assert brokers.made == []
        monkeypatch.setattr(reading_cursor, "DELETION_SECONDS", 0.0)
        assert (await bridge.cursor.standing()).is_first, "it alone was deleted"
        await bridge.cursor.make(7)
        assert len(brokers.made) == 1
