"""Logs that lived: steps of us-east's log in a directory, which tests then lose, take back or put back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine_support import TOPIC, make_block, marker, message, opened

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.producing.numbered_blocks import numbered_of
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position


async def live(path: Path, steps: Sequence[str], copied: list[int], name: str = TOPIC, other: str = "eu-west") -> None:
    """Carry out ``steps`` in the log of a topic: "publish", "copy", "marker", "local marker" and "reopen".

    A new ledger begins with each reopening. "copy" brings the next three entries of the cluster ``other``; the only
    element of ``copied`` is the number of its next entry.
    """
    at = 0
    while at < len(steps):
        async with opened(path) as engine:
            topic = await engine.topic(name)
            while at < len(steps):
                step, at = steps[at], at + 1
                if step == "publish":
                    await topic.publish([message(b"%d" % at), message(b"%d too" % at)])
                elif step == "copy":
                    mark = topic.origins.high_water(other)
                    block = make_block(Position(1, copied[0]), [message()] * 3, origin=other)
                    await topic.writing.copy([CopiedBlock(BEFORE_ALL if mark is None else mark.position, block)])
                    copied[0] += 3
                elif step == "reopen":
                    break
                else:
                    await topic.writing.marker(marker(), local=step == "local marker")


async def publish_numbered(engine: Engine, first: int, last: int) -> list[Position]:
    """Publish messages of one producer with the sequence ids from ``first`` up to, and without, ``last``."""
    topic = await engine.topic(TOPIC)
    entries = [
        encode_entry(MessageMetadata(producer_name="p", sequence_id=number, publish_time=1), b"%d" % number)
        for number in range(first, last)
    ]
    numbered = [each for entry in entries if (each := numbered_of(entry)) is not None]
    return await engine.writer.publish(topic.tail, BlockKind.MESSAGES, entries, [1] * len(entries), numbered)
