"""Blocks that are whole and that no worker writes: a link may send them, and the worker and its store go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_support import whole_app
from engine_support import TOPIC, make_block, message, opened, subscribed
from frame_support import frame_of, framed, streamed

from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.block import build_block
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.left_out import LeftOutNote, encode_note
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

OTHER = "persistent://public/default/other"
LAST = 2**64 - 1


def built(**changed: Any) -> bytes:
    values: dict[str, Any] = {
        "origin": "us-east",
        "incarnation": 7,
        "origin_first": Position(9, 0),
        "publish_time_ms": 1_000,
        "entries": [message()],
        "batch_sizes": [1],
    }
    return build_block(kind=changed.pop("kind", 0), **(values | changed))


BLOCKS = {
    "the last ledger": built(origin_first=Position(LAST, 0)),
    "a ledger that is no signed number": built(origin_first=Position(2**63, 0)),
    "the last entry": built(origin_first=Position(9, 2**32 - 1)),
    "an incarnation that is no signed number": built(incarnation=LAST),
    "a time that is never": built(publish_time_ms=LAST),
    "billions of messages": built(batch_sizes=[2**32 - 1]),
    "an entry that is none": built(entries=[b"no entry"]),
    "an entry without bytes": built(entries=[b""]),
    "a note of the last ledger": encode_note(LeftOutNote("us-east", 7, Position(2**63 - 1, 2**32 - 1))),
}
UNSIGNED = ("the last ledger", "a ledger that is no signed number", "an incarnation that is no signed number")
"""Blocks whose numbers the index cannot hold."""


@pytest.mark.parametrize("what", list(BLOCKS))
def test_a_block_with_numbers_that_no_worker_has_harms_its_topic_alone(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine, whole_app(engine) as (_, base):
            for previous in (BEFORE_ALL, Position(LAST, 2**63 - 1)):
                status, answers = await streamed(
                    f"{base}/append", framed(rows_of(Outgoing(TOPIC, previous, BLOCKS[what])))
                )
                assert status == 101
                assert len(answers) == 1
                if what in UNSIGNED:
                    assert answers[0]["refused"][TOPIC]["code"] == "BlockCorrupt"
            await looked_at(base, engine)
            honest = make_block(Position(9, 0), [message()], origin="us-east")
            _, (answer,) = await streamed(f"{base}/append", framed(frame_of(Outgoing(OTHER, BEFORE_ALL, honest))))
            assert answer == {"extents": 1, "refused": {}}
        async with opened(tmp_path, "eu-west") as engine, whole_app(engine) as (_, base):
            await looked_at(base, engine)

    asyncio.run(main())


def rows_of(*blocks: Outgoing) -> bytes:
    return b"".join(encode_rows(blocks))


async def looked_at(base: str, engine: Any) -> None:
    """Ask for all that is told of topics, consume them, and have them maintained."""
    async with aiohttp.ClientSession() as session:
        for path in ("topics", "positions", f"blocks?topic={TOPIC}", f"subscriptions?topic={TOPIC}"):
            async with session.get(f"{base}/{path}") as answer:
                assert answer.status in (200, 404), (path, await answer.text())
        for path in ("stats", "internalStats"):
            url = f"{base.removesuffix('/replication/v1')}/admin/v2/persistent/public/default/orders/{path}"
            async with session.get(url) as answer:
                assert answer.status in (200, 404), (path, await answer.text())
    for topic in engine.topics():
        consumer, _ = await subscribed(topic, "looking", SubscriptionType.SHARED)
        consumer.close()
    await engine.maintenance.run_once()
