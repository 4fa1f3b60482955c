"""A worker beside brokers asks the other clusters what they have of its brokers' messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from answering_admin import answering
from api_support import with_app
from asynchronous import asynchronous
from engine_support import PUBLISH_TIME_MS, make_block, message

from replicator.apache.copies_elsewhere import Copies, Expected
from replicator.engine.engine import Engine
from replicator.engine.log.requests import CopiedBlock
from replicator.worker.asking_peers import MarksElsewhere
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


def test_what_the_clusters_that_answer_have_is_asked_once_for_all_topics(tmp_path: Path) -> None:
    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topic = await engine.topic(TOPIC, by_link=True)
        block = make_block(Position(9, 0), [message(sequence_id=each) for each in range(3)], origin="a.pulsar")
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        peers = {"eu-west": urlsplit(base).netloc}
        (mark, newest, content), *_ = (await MarksElsewhere(peers, "a.pulsar").of(TOPIC)).known
        assert (mark, newest) == (topic.origins.high_water("a.pulsar"), Position(9, 2))
        assert content == Expected(PUBLISH_TIME_MS, 2)
        assert await MarksElsewhere(peers, "a.pulsar").of(f"{TOPIC}-2") == Copies()
        assert await MarksElsewhere(peers, "b.pulsar").of(TOPIC) == Copies()

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
            found = await MarksElsewhere(peers, "a.pulsar", {}, keep, first_seconds=first_seconds).of(TOPIC)
            assert (found.silent, found.waits) == (("away",), first_seconds > 0)
        await runner.cleanup()
        (copy,), silent, _ = await MarksElsewhere(peers, "a.pulsar", kept, keep).of(TOPIC)
        assert (copy.mark, copy.content, silent) == (topic.origins.high_water("a.pulsar"), None, ("away",))

    with_app(tmp_path, body)


@asynchronous
async def test_a_cluster_whose_answer_cannot_be_read_is_silent() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"topics": {TOPIC: {"incarnation": 7, "position": "no place"}}})

    async with answering(answer) as url:
        peers = {"eu-west": urlsplit(url).netloc}
        assert await MarksElsewhere(peers, "a.pulsar").of(TOPIC) == Copies(silent=("eu-west",), waits=True)
