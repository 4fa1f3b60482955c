"""Walks by rows or answers that lead nowhere end: rows may be damaged, and answers may come of a race with a trim."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_support import TOPIC, message, opened
from step_limit import at_most_steps

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log import store_check
from replicator.engine.log.store_check import StoreCheck
from replicator.engine.log.store_tables import BLOCK_KEY, encode_place
from replicator.engine.producing.duplicate_chains import DuplicateChains
from replicator.pipeline.verify.blocks import _readable_or_lost
from replicator.pipeline.verify.plane import BlockUnreadable, Head
from snapshots.position import BEFORE_ALL, Position


@pytest.mark.parametrize("place", [0, 1])
def test_a_chain_of_duplicates_whose_rows_form_a_circle_is_followed_once(tmp_path: Path, place: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            tables, at = engine.store.tables, [Position(5, entry) for entry in range(2)]
            with engine.store.env.begin(write=True) as txn:
                chains = DuplicateChains(txn, tables, topic.topic_id)
                for position, other in zip(at, reversed(at), strict=True):
                    places = (other, BEFORE_ALL) if place == 0 else (BEFORE_ALL, other)
                    row = b"".join(map(encode_place, places)) + b"eu-west"
                    txn.put(BLOCK_KEY.pack(topic.topic_id, *position), row, db=tables["twins"])
                with at_most_steps(1_000):
                    chains.join(txn, tables, at[0], "eu-west", Position(5, 9), "us-east")
                txn.abort()

    asyncio.run(main())


def test_a_check_of_a_store_ends_where_a_block_went_after_it_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_blocks(*_: object, **__: object) -> None:
        raise BlockCorrupt("it is damaged")

    store = SimpleNamespace(read_blocks=read_blocks, block_heads=lambda *_, **__: [])
    stretch = (BEFORE_ALL, Position(9, 9), None)
    monkeypatch.setattr(store_check, "_readable_ranges", lambda *_: [stretch])
    with at_most_steps(1_000):
        store_check._check_topic(cast(Any, store), 1, "t", StoreCheck())


def test_verify_ends_where_a_block_was_trimmed_after_it_could_not_be_read() -> None:
    def raw_blocks(*_: object) -> None:
        raise BlockUnreadable("it is damaged")

    gone = Head(Position(5, 0), 0, "a", 1, Position(5, 0), 3, 3, 0, 0, 0, 0, b"")
    worker = SimpleNamespace(raw_blocks=raw_blocks, first_head=lambda *_: gone)
    with at_most_steps(1_000):
        assert list(_readable_or_lost(cast(Any, worker), "t", Position(5, 2), Position(5, 9))) == []
