"""Logs that lived: steps of us-east's log in a directory, which tests then lose, take back or put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine_support import TOPIC, make_block, marker, message, opened

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockHeader, BlockKind, verify_block
from replicator.engine.log.commit import filling
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.requests import PutBackRequest, ReclaimRequest
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


class CutOff(Exception):
    """End of a run of the command in the midst of its commits."""


@contextmanager
def few_fillers(engine: Engine, most: int, *, commits_max: int = 1 << 30) -> Iterator[None]:
    """Let each transaction write at most ``most`` fillers, and check that it does, and that it has room for them.

    Raises :class:`CutOff` in place of the commit after ``commits_max`` ones.
    """
    written: Counter[int] = Counter()
    asked: list[int] = []
    blocks, submit = filling.filler_blocks, engine.writer._submit

    def counted(cluster: str, incarnation: int, first: Position, entries: int, publish_time_ms: int) -> Any:
        written[len(asked) - 1] += entries
        return blocks(cluster, incarnation, first, entries, publish_time_ms)

    async def submitted(request: Any) -> Any:
        if isinstance(request, (ReclaimRequest, PutBackRequest)):
            if len(asked) == commits_max:
                raise CutOff
            asked.append(request.fillers)
        return await submit(request)

    with (
        patch("replicator.engine.log.commit.filling.FILLED_MAX", most),
        patch("replicator.engine.log.commit.reclaiming.filler_blocks", counted),
        patch("replicator.engine.log.commit.putting_back.filler_blocks", counted),
        patch.object(engine.writer, "_submit", submitted),
    ):
        try:
            yield
        finally:
            assert all(entries <= min(most, asked[number]) for number, entries in written.items())


Row = tuple[BlockHeader, bytes]


def far_apart(at: Position, incarnation: int) -> tuple[list[Row], tuple[Position, Position], Position]:
    """Return two lost messages far behind ``at`` in its ledger, a hole between them, and a position far behind them."""
    first, after, upto, second, end = (Position(at.ledger, at.entry + far) for far in (100, 200, 900, 1_300, 2_000))
    found = [make_block(each, [message()], origin="us-east", incarnation=incarnation) for each in (first, second)]
    return [(verify_block(each), each) for each in found], (after, upto), end


def left_above(
    reached: Position, rows: list[Row], hole: tuple[Position, Position]
) -> tuple[list[Row], list[tuple[Position, Position]]]:
    """Return those of the messages and of the hole of :func:`far_apart` that lie above the position ``reached``."""
    holes = [(max(reached, hole[0]), hole[1])] if reached < hole[1] else []
    return [row for row in rows if row[0].origin_first > reached], holes
