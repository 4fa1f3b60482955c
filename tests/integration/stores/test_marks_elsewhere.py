"""A worker beside brokers asks the other clusters what they have of its brokers' messages."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from api_support import with_app
from engine_support import make_block, message

from replicator.engine.engine import Engine
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from replicator.worker.asking_peers import MarksElsewhere
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


def test_what_the_clusters_that_answer_have_is_asked_once_for_all_topics(tmp_path: Path) -> None:
    async def body(engine: Engine, runner: web.AppRunner, base: str) -> None:
        topic = await engine.topic(TOPIC, by_link=True)
        block = make_block(Position(9, 0), [message()] * 3, origin="a.pulsar", incarnation=7)
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])
        peers = {"eu-west": urlsplit(base).netloc, "silent": "127.0.0.1:1"}
        marks = MarksElsewhere(peers, "a.pulsar")
        assert await marks.of(TOPIC) == [HighWater(7, Position(9, 2))]
        assert await marks.of(f"{TOPIC}-2") == []
        assert await MarksElsewhere(peers, "b.pulsar").of(TOPIC) == []
        await runner.cleanup()
        assert await marks.of(TOPIC) == [HighWater(7, Position(9, 2))]

    with_app(tmp_path, body)
