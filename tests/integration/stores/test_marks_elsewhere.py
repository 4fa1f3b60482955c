"""A worker beside brokers asks the other clusters what they have of its brokers' messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from answering_admin import answering
from api_support import with_app
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, make_block, message

from replicator.apache.copies_elsewhere import Copies, Copy, EntryFingerprint
from replicator.apache.errors import BridgeError
from replicator.engine.engine import Engine
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from replicator.worker.asking_peers import MARKS_AT_ONCE_MAX, PeerHighWaters
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


def test_what_the_clusters_that_answer_have_is_asked_once_for_all_topics(tmp_path: Path) -> None:
    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topic = await engine.topic(TOPIC, by_link=True)
        block = make_block(Position(9, 0), [message(sequence_id=each) for each in range(3)], origin="a.pulsar")
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        peers = {"eu-west": urlsplit(base).netloc}
        (mark, newest, content, untold), *_ = (await PeerHighWaters(peers, "a.pulsar").of(TOPIC)).known
        assert (mark, newest) == (topic.origins.high_water("a.pulsar"), Position(9, 2))
        assert (content, untold) == (EntryFingerprint(PUBLISH_TIME_MS, 2), False)
        assert await PeerHighWaters(peers, "a.pulsar").of(f"{TOPIC}-2") == Copies()
        assert await PeerHighWaters(peers, "b.pulsar").of(TOPIC) == Copies()

    with_app(tmp_path, body)


def test_invariant_2_a_cluster_that_never_answered_is_named_as_silent_and_a_first_answer_is_kept(
    tmp_path: Path,
) -> None:
    kept: dict[str, Any] = {}

    async def keep(answers: Mapping[str, Any]) -> None:
        kept.update(answers)

    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topic = await engine.topic(TOPIC, by_link=True)
        block = make_block(Position(9, 0), [message()] * 3, origin="a.pulsar")
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        peers = {"eu-west": urlsplit(base).netloc, "away": "127.0.0.1:1"}
        for first_seconds in (60.0, 0.0):
            found = await PeerHighWaters(peers, "a.pulsar", {}, keep, first_seconds=first_seconds).of(TOPIC)
            assert (found.silent, found.waits) == (("away",), first_seconds > 0)
        found = await PeerHighWaters(peers, "a.pulsar", kept, keep, restore_id="other", first_seconds=0).of(TOPIC)
        assert kept["restore_id"] == "other"
        await runner.cleanup()
        again = PeerHighWaters(peers, "a.pulsar", kept, keep, restore_id="other", first_seconds=0)
        assert await again.of(f"{TOPIC}-2") == Copies(silent=("away",))
        with pytest.raises(BridgeError, match="eu-west has messages of it, but does not say"):
            await again.of(TOPIC)
        older = await PeerHighWaters(peers, "a.pulsar", kept, keep, restore_id="", first_seconds=0).of(TOPIC)
        assert older == Copies(silent=("away", "eu-west"))

    with_app(tmp_path, body)


@asynchronous
async def test_a_cluster_whose_answer_cannot_be_read_is_silent() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"topics": {TOPIC: {"incarnation": 7, "position": "no place"}}})

    async with answering(answer) as url:
        peers = {"eu-west": urlsplit(url).netloc}
        assert await PeerHighWaters(peers, "a.pulsar").of(TOPIC) == Copies(silent=("eu-west",), waits=True)


class Peer:
    """A cluster with messages up to 9:2 of each topic ``t-N``. ``status`` and ``row`` are those of its answer about one
    topic."""

    def __init__(self, **row: Any) -> None:
        self.status = 200
        self.row: dict[str, Any] | None = {"incarnation": 7, "position": "9:2", "messages": "9:2", **row}
        self.at_once = self.at_once_most = 0
        self.bulk = asyncio.Event()
        self.bulk.set()

    async def answer(self, request: web.Request) -> web.Response:
        if "topic" not in request.query:
            await self.bulk.wait()
            return web.json_response({"topics": {f"t-{each}": self.row for each in range(20)}})
        self.at_once += 1
        self.at_once_most = max(self.at_once, self.at_once_most)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        rows = {} if self.row is None else {request.query["topic"]: self.row}
        return web.json_response({"topics": rows}, status=self.status)


@asynchronous
async def test_invariant_2_only_a_peer_of_an_earlier_version_need_not_tell_its_newest_message() -> None:
    """A peer that fails is asked again. One that cannot tell the message is none that has the same."""
    mark, at = HighWater(7, Position(9, 2)), Position(9, 2)
    peer = Peer()
    async with answering(peer.answer) as url:
        marks = PeerHighWaters({"b": urlsplit(url).netloc}, "a.pulsar")
        assert (await marks.of("t-0")).known == (Copy(mark, at),)
        peer.row = {**(peer.row or {}), "newest": None}
        assert (await marks.of("t-0")).known == (Copy(mark, at, untold=True),)
        for status in (503, 403):
            peer.status = status
            with pytest.raises(BridgeError, match=f"status {status}"):
                await marks.of("t-0")
        peer.status, peer.row["newest"] = 200, {"publish_time_ms": "now"}
        with pytest.raises(BridgeError, match="cannot be read"):
            await marks.of("t-0")
        peer.row = None
        assert [each.untold for each in (await marks.of("t-0")).known] == [True]


@asynchronous
async def test_a_peer_is_asked_for_a_few_topics_at_once() -> None:
    peer = Peer()
    async with answering(peer.answer) as url:
        marks = PeerHighWaters({"b": urlsplit(url).netloc}, "a.pulsar")
        await asyncio.gather(*(marks.of(f"t-{each}") for each in range(20)))
        assert 1 < peer.at_once_most <= MARKS_AT_ONCE_MAX


@asynchronous
async def test_a_first_answer_that_could_not_be_stored_is_stored_later() -> None:
    stored: list[Mapping[str, Any]] = []
    full = True

    async def keep(answers: Mapping[str, Any]) -> None:
        if full:
            raise OSError("the disk is full")
        stored.append(answers)

    async with answering(Peer().answer) as url:
        marks = PeerHighWaters({"b": urlsplit(url).netloc}, "a.pulsar", None, keep)
        for _ in range(2):
            with pytest.raises(OSError, match="full"):
                await marks.of("t-0")
        full = False
        await marks.of("t-0")
        await marks.of("t-0")
    assert [list(each["answers"]) for each in stored] == [["b"]]


@asynchronous
async def test_once_it_was_waited_for_a_silent_peer_holds_up_one_topic_only() -> None:
    peer = Peer()
    async with answering(peer.answer) as url:
        marks = PeerHighWaters({"b": urlsplit(url).netloc}, "a.pulsar", first_seconds=0)
        peer.bulk.clear()
        first = asyncio.ensure_future(marks.of("t-0"))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            assert await marks.of("t-1") == Copies(silent=("b",))
        assert not first.done()
        peer.bulk.set()
        assert (await first).known
