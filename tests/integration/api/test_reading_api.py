"""Answers to readers of many topics, on a real engine: changed topics, amounts and places of data, and times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engine_support import DataPlaneServer, batch, opened, serving

from replicator.api import reading
from replicator.api.reading import PositionsJournal
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import TopicChanged
from replicator.pipeline.source.topic_positions import ClusterTopics
from snapshots.position import BEFORE_ALL, Position

ORDERS = "persistent://public/default/orders"
QUIET = "persistent://public/default/quiet"


def timed(publish_time_ms: int, payload: bytes = b"x") -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time_ms), payload)


def with_worker(path: Path, body: Callable[[Engine, DataPlaneServer, DataPlane], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(path, "us-east") as engine, serving(engine) as server:
            async with asyncio.timeout(60):
                with DataPlane(f"http://{server.address}") as worker:
                    await body(engine, server, worker)

    asyncio.run(main())


def test_readers_are_told_of_the_topics_that_changed_since_they_asked(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, worker: DataPlane) -> None:
        orders, quiet = await engine.topic(ORDERS), await engine.topic(QUIET)
        await orders.publish([timed(1)])
        await quiet.publish([timed(1)])
        known = ClusterTopics()
        known.apply(first := await asyncio.to_thread(worker.positions))
        assert first.whole
        assert (known.cluster, set(known.topics)) == ("us-east", {ORDERS, QUIET})
        assert known.topics[ORDERS].last == orders.log.last
        assert not known.topics[ORDERS].replaced_since(orders.log.last), "ids of ledgers come after its own"

        await orders.publish([timed(2), timed(3)])
        await orders.publish([timed(4)])
        change = await asyncio.to_thread(worker.positions, known.token)
        assert (change.whole, [topic.name for topic in change.topics]) == (False, [ORDERS])
        known.apply(change)
        last = orders.log.last
        assert known.topics[ORDERS].runs == ((last.ledger, 0, 3),)
        assert (await asyncio.to_thread(worker.positions, known.token)).topics == ()

        await engine.deleting.delete(QUIET)
        change = await asyncio.to_thread(worker.positions, known.token)
        assert (change.topics, change.deleted) == ((), (QUIET,))
        await (await engine.topic(QUIET)).publish([timed(9)])
        known.apply(await asyncio.to_thread(worker.positions, change.token))
        anew = known.topics[QUIET]
        assert anew.replaced_since(Position(anew.incarnation - 1, 0))
        assert (await asyncio.to_thread(worker.positions, "another-life-3")).whole

    with_worker(tmp_path, body)


def test_ranges_are_measured_in_whole_blocks_and_up_to_their_limits(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, worker: DataPlane) -> None:
        orders = await engine.topic(ORDERS)
        for _ in range(4):
            await orders.publish([batch([b"a", b"b", b"c"]), timed(1)])
        ledger, last = orders.log.last
        (whole,) = await asyncio.to_thread(worker.measure, [(ORDERS, BEFORE_ALL, Position(ledger, last), 2**40)])
        assert whole is not None
        assert (whole.reached, whole.entries, whole.messages) == (Position(ledger, last), 8, 16)
        block_bytes = whole.size_bytes // 4
        rows = [
            (ORDERS, BEFORE_ALL, Position(ledger, last), 2 * block_bytes),
            (ORDERS, Position(ledger, 3), Position(ledger, last), 1),
            ("persistent://public/default/nothing", BEFORE_ALL, Position(9, 9), 1),
        ]
        limited, least, nothing = await asyncio.to_thread(worker.measure, rows)
        assert limited is not None
        assert (limited.reached, limited.entries) == (Position(ledger, 3), 4)
        assert least is not None
        assert (least.reached, least.entries, least.messages) == (Position(ledger, 5), 2, 4), "the first in any case"
        assert nothing is None
        assert len(await asyncio.to_thread(worker.measure, rows, block_bytes)) == 1, "and no more than all may have"

    with_worker(tmp_path, body)


def test_a_time_is_where_the_first_message_of_it_or_later_is(tmp_path: Path) -> None:
    clock_ms = [1_000]

    async def main() -> None:
        settings = EngineSettings(wall_clock_ms=lambda: clock_ms[0])
        async with opened(tmp_path, "us-east", settings) as engine, serving(engine) as server:
            orders = await engine.topic(ORDERS)
            for at_ms in (1_000, 2_000, 3_000):
                clock_ms[0] = at_ms
                await orders.publish([timed(at_ms - 10), timed(at_ms)])
            ledger, _ = orders.log.last
            with DataPlane(f"http://{server.address}") as worker:
                found = {}
                for time_ms in (500, 1_995, 2_000, 9_000):
                    found[time_ms] = await asyncio.to_thread(worker.positions_at, time_ms, [ORDERS, QUIET])
            assert found == {
                500: {ORDERS: BEFORE_ALL},
                1_995: {ORDERS: Position(ledger, 2)},
                2_000: {ORDERS: Position(ledger, 2)},
                9_000: {ORDERS: Position(ledger, 5)},
            }

    asyncio.run(main())


def test_a_page_says_what_is_gone_of_its_topic(tmp_path: Path) -> None:
    async def body(engine: Engine, server: DataPlaneServer, worker: DataPlane) -> None:
        orders = await engine.topic(ORDERS)
        await orders.publish([timed(1), timed(2)])

        def read(incarnation: int) -> int:
            return len(list(worker.blocks(ORDERS, incarnation=incarnation)))

        assert await asyncio.to_thread(read, orders.incarnation) == 1
        with pytest.raises(TopicChanged, match=f"topic {ORDERS} was deleted and made anew"):
            await asyncio.to_thread(read, orders.incarnation + 1)

    with_worker(tmp_path, body)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("measure", {"ranges": []}, "the body lacks the field bytes_max"),
        ("measure", {"bytes_max": 1, "ranges": [["t", "x", "3:0", 1]]}, "not a position: 'x'"),
        ("measure", {"bytes_max": 1, "ranges": [["t"]]}, "the body cannot be read: not enough values"),
        (
            "measure",
            {"bytes_max": 1, "ranges": [[]] * 1_001},
            "1001 ranges or topics were asked for at once, the limit is 1000",
        ),
        ("positions-at", {"time_ms": "soon", "topics": []}, "the body cannot be read: invalid literal"),
        ("positions-at", [], "the body is not an object in JSON"),
    ],
)
def test_a_bad_body_is_named(tmp_path: Path, path: str, body: Any, message: str) -> None:
    async def ask(engine: Engine, server: DataPlaneServer, worker: DataPlane) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/{path}", json=body) as response,
        ):
            assert response.status == 400
            assert message in (await response.json())["message"]

    with_worker(tmp_path, ask)


def test_who_was_told_before_too_many_deletions_is_told_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "DELETED_KEPT_MAX", 2)
    journal = PositionsJournal("life")
    standing = reading._Standing(1, BEFORE_ALL, Position(3, 0))
    journal.refresh(dict.fromkeys("abcd", standing))
    tokens = [journal.token]
    for left in ("bcd", "cd", "d"):
        journal.refresh(dict.fromkeys(left, standing))
        tokens.append(journal.token)
    assert journal.since(tokens[0]) is None
    assert journal.since(tokens[1]) == ([], ["b", "c"])
    assert journal.since(tokens[3]) == ([], [])
    assert journal.since("life-99") is None, "a token of the future is none of ours"
