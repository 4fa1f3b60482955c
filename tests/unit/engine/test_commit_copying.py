"""Copied blocks in a transaction: refused as a whole, cut to what is new, each origin by itself."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest
from engine_support import (
    TOPIC,
    entries_of,
    logged,
    make_block,
    marker,
    message,
    opened,
)

from replicator.engine.errors import (
    BlockCorrupt,
    CopyGap,
    IncarnationMismatch,
    NotAllowedError,
)
from replicator.engine.log.block import BlockKind
from replicator.engine.log.writer import CopiedBlock, Extent
from snapshots.position import BEFORE_ALL, Position

ONE, TWO, THREE = message(b"1"), message(b"2"), message(b"3")


def first_block() -> CopiedBlock:
    return CopiedBlock(BEFORE_ALL, make_block(Position(9, 0), [ONE, TWO]))


def second_block() -> CopiedBlock:
    return CopiedBlock(Position(9, 1), make_block(Position(9, 2), [THREE]))


def tampered(block: CopiedBlock, at: int = -1) -> CopiedBlock:
    changed = bytearray(block.block)
    changed[at] ^= 1
    return CopiedBlock(block.previous, bytes(changed))


def renamed(name: bytes) -> CopiedBlock:
    """Return a block with a right checksum whose origin is not a cluster's name."""
    block = bytearray(make_block(Position(9, 0), [ONE]))
    block[52:59] = name
    struct.pack_into("<H", block, 10, len(name))
    block[4:8] = struct.pack("<I", google_crc32c.value(bytes(block[8:])))
    return CopiedBlock(BEFORE_ALL, bytes(block))


REFUSED: dict[str, tuple[type[Exception], Callable[[], CopiedBlock]]] = {
    "a corrupt block": (BlockCorrupt, lambda: tampered(second_block())),
    "noise": (BlockCorrupt, lambda: CopiedBlock(BEFORE_ALL, b"noise")),
    "an origin longer than a key": (BlockCorrupt, lambda: renamed(b"x" * 600)),
    "a hole before it": (CopyGap, lambda: CopiedBlock(Position(9, 5), make_block(Position(9, 6), [ONE]))),
    "another incarnation": (
        IncarnationMismatch,
        lambda: CopiedBlock(Position(9, 1), make_block(Position(9, 2), [THREE], incarnation=8)),
    ),
    "this cluster's own": (
        NotAllowedError,
        lambda: CopiedBlock(BEFORE_ALL, make_block(Position(9, 2), [THREE], origin="eu-west")),
    ),
    "a local marker": (
        NotAllowedError,
        lambda: CopiedBlock(Position(9, 1), make_block(Position(9, 2), [marker()], kind=BlockKind.LOCAL_MARKERS)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invariant_2_a_refused_request_leaves_nothing_of_itself(tmp_path: Path, what: str) -> None:
    error, make = REFUSED[what]

    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            await topic.writing.copy([first_block()])
            before = (topic.status(), logged(topic))
            with pytest.raises(error):
                await topic.writing.copy([second_block(), make()])
            assert (topic.status(), logged(topic)) == before
            await topic.writing.copy([second_block()])
            assert entries_of(topic, "us-east") == [ONE, TWO, THREE]
            assert engine.writer.failed is None

    asyncio.run(main())


def test_what_is_here_already_is_dropped_and_the_rest_is_cut_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            (extent,) = await topic.writing.copy([first_block()])
            local = extent.local_first
            assert extent == Extent("us-east", Position(9, 0), local, 2)
            assert await topic.writing.copy([first_block()]) == []
            overlapping = CopiedBlock(BEFORE_ALL, make_block(Position(9, 0), [ONE, TWO, THREE]))
            assert await topic.writing.copy([overlapping, second_block()]) == [
                Extent("us-east", Position(9, 2), Position(local.ledger, local.entry + 2), 1)
            ]
            assert entries_of(topic, "us-east") == [ONE, TWO, THREE]

    asyncio.run(main())


def test_origins_do_not_concern_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "ap-south") as engine:
            topic = await engine.topic(TOPIC)
            await topic.writing.copy([first_block()])
            other = CopiedBlock(BEFORE_ALL, make_block(Position(1, 0), [ONE], origin="eu-west", incarnation=3))
            await topic.writing.copy([other])
            await topic.writing.copy([second_block()])
            assert topic.origins.vector() == {"us-east": Position(9, 2), "eu-west": Position(1, 0)}

    asyncio.run(main())
