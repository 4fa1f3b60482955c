"""Rows that are gone from a real store: a check names each removal that loses something, and nothing in a whole store.

Rows go in two ways: deleted, as by a fault of the program, and lost from their page, as by a bad disk.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from duplicates_support import numbered
from engine_support import make_block, marker, opened, subscribed
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lmdb_pages import LmdbFile
from segment_support import SMALL

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import StoreUnusable
from replicator.engine.log.left_out import LeftOutNote, encode_note
from replicator.engine.log.row_check import MissingBlocks
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import check_store, row_findings
from replicator.engine.log.store_tables import BLOCK_KEY, TABLES
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

TOPICS: Final = ("persistent://public/default/orders", "persistent://acme/shop/bills")
SIZE: Final = 1 << 30
NAMED: Final = (
    "blocks",
    "placed",
    "markers",
    "high_water",
    "parts",
    "extents",
    "numbered",
    "numbered_blocks",
    "twins",
    "topics",
    "tenants",
    "namespaces",
    "trims",
)
"""Tables whose missing rows show in other rows."""
STEPS: Final = st.lists(
    st.sampled_from(
        [
            *(
                "publish",
                "publish",
                "copy",
                "copy",
                "duplicate",
                "in-part",
                "left-out",
                "note",
                "marker",
                "local-marker",
            ),
            *("reopen", "trim", "consume"),
        ]
    ),
    min_size=6,
    max_size=30,
)


class Life:
    """Random life of a store. Numbers of sequences and of another cluster's entries go on over restarts."""

    def __init__(self, path: Path, bodies: SegmentSettings, *, numbered: bool = True) -> None:
        self._path = path
        self._settings = EngineSettings(
            segments=bodies, policies=TopicPolicies(deduplication=numbered), maintained=False
        )
        self._sequence = 0
        self._there = dict.fromkeys(TOPICS, 0)

    async def live(self, steps: list[str], drawn: random.Random) -> None:
        left = ["publish", "copy", *steps]
        while left:
            async with opened(self._path, settings=self._settings) as engine:
                for name in TOPICS:
                    await subscribed(await engine.topic(name), "sub", SubscriptionType.EXCLUSIVE, permits=0)
                while left and (step := left.pop(0)) != "reopen":
                    await self._do(step, await engine.topic(drawn.choice(TOPICS)), drawn)

    async def _do(self, step: str, topic: Topic, drawn: random.Random) -> None:
        if step == "publish":
            await topic.publish([self._message() for _ in range(drawn.randint(1, 4))])
        elif step == "marker":
            await topic.writing.marker(marker())
        elif step == "local-marker":
            await topic.writing.marker(marker(), local=True)
        elif step == "trim":
            upto = topic.log.clamp(Position(topic.log.last.ledger, topic.log.last.entry // 2))
            if upto > topic.log.trimmed and upto not in topic.log.markers:
                await topic.subscriptions["sub"].acknowledge_cumulative(upto, None)
                await topic.trimming.trim(upto)
        elif step == "consume":
            first = topic.log.next_message(topic.log.trimmed)
            second = None if first is None else topic.log.next_message(first)
            if second is not None:  # beyond the mark-delete position, so that the cursor has a row of it
                await topic.subscriptions["sub"].acknowledge([Ack(second)])
        elif step == "duplicate":
            again = self._message()
            await topic.publish([again])
            await self._copy(topic, [again])
        elif step == "in-part":
            await self._copy(topic, [self._message()], batch_sizes=[4], absent={0: [1]})
        elif step == "note":
            mark = topic.origins.high_water("eu-west")
            if mark is not None:
                self._there[topic.name] += 3
                note = LeftOutNote("eu-west", 7, Position(1, self._there[topic.name] - 1))
                await topic.writing.copy([CopiedBlock(mark.position, encode_note(note))])
        else:
            skipped = drawn.randint(1, 3) if step == "left-out" else 0
            self._there[topic.name] += skipped
            await self._copy(topic, [self._message() for _ in range(drawn.randint(1, 3))], left_out=bool(skipped))

    async def _copy(self, topic: Topic, entries: list[bytes], *, left_out: bool = False, **of_block: Any) -> None:
        mark = topic.origins.high_water("eu-west")
        block = make_block(Position(1, self._there[topic.name]), entries, origin="eu-west", **of_block)
        self._there[topic.name] += len(entries)
        await topic.writing.copy([CopiedBlock(BEFORE_ALL if mark is None else mark.position, block, left_out)])

    def _message(self) -> bytes:
        self._sequence += 1
        return numbered(self._sequence, producer="p")


def in_directory(main: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="row-check-"))
    try:
        asyncio.run(main(directory))
    finally:
        shutil.rmtree(directory)


@contextmanager
def store_in(path: Path) -> Iterator[Store]:
    """Yield the store; close it without the checks of segments."""
    store = Store(path, cluster="us-east", size_max=SIZE)
    try:
        yield store
    finally:
        store.segments.close()
        store.env.close()
        store._lock.close()


def checked(path: Path) -> list[str]:
    with store_in(path) as store:
        return check_store(store).problems


def delete(store: Store, table: str, key: bytes) -> bytes:
    """Delete the row of ``key`` in ``table``; return the value that it had."""
    with store.env.begin(write=True, db=store.tables[table]) as txn:
        value = txn.get(key)
        assert value is not None
        txn.delete(key)
    return bytes(value)


def keys(store: Store, table: str) -> list[bytes]:
    with store.env.begin(db=store.tables[table]) as txn:
        return [bytes(key) for key in txn.cursor().iternext(keys=True, values=False)]


def named(store: Store, key: bytes) -> bool:
    """Return whether a finding says where the block with that key was missing."""
    topic_id, ledger, first = BLOCK_KEY.unpack(key)
    (name,) = [record.name for record in store.topics() if record.topic_id == topic_id]
    return any(
        each.topic == name
        and each.after < Position(ledger, first)
        and (each.before is None or Position(ledger, first) < each.before)
        for each in row_findings(store)
        if isinstance(each, MissingBlocks)
    )


BODIES: Final = st.sampled_from([SMALL, SegmentSettings(segment_bytes=0)])


@settings(max_examples=examples(15), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS, BODIES, st.integers(0, 1 << 30))
def test_invariant_1_each_deleted_row_that_other_rows_know_of_is_named_and_nothing_in_a_whole_store(
    steps: list[str], bodies: SegmentSettings, seed: int
) -> None:
    drawn = random.Random(seed)

    async def main(path: Path) -> None:
        await Life(path, bodies, numbered=drawn.random() < 0.5).live(steps, drawn)
        with store_in(path) as store:
            assert check_store(store).problems == []
            for table in NAMED:
                rows = keys(store, table)
                for key in drawn.sample(rows, min(3, len(rows))):
                    value = delete(store, table, key)
                    problems = check_store(store).problems
                    assert problems, f"{table}: {key!r} is gone, and nobody says so"
                    if table == "blocks":
                        assert named(store, key), problems
                    with store.env.begin(write=True, db=store.tables[table]) as txn:
                        txn.put(key, value)

    in_directory(main)


@settings(max_examples=examples(2), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS, BODIES, st.integers(0, 1 << 30))
def test_invariant_1_a_row_that_its_page_lost_is_named_in_every_table(
    steps: list[str], bodies: SegmentSettings, seed: int
) -> None:
    drawn = random.Random(seed)

    async def main(path: Path) -> None:
        whole = path / "whole"
        await Life(whole, bodies).live([*steps, "publish", "copy", "consume"], drawn)
        for table in TABLES:
            rows = LmdbFile(whole / "log" / "data.mdb").rows(table)
            for row in drawn.sample(rows, min(1, len(rows))):
                copy = path / "copy"
                shutil.copytree(whole, copy)
                LmdbFile(copy / "log" / "data.mdb").take_out(row)
                if (table, row.key) == ("meta", b"store"):
                    with pytest.raises(StoreUnusable, match="lacks the row"):
                        checked(copy)
                else:
                    problems = checked(copy)
                    assert any(f"table {table} has " in each for each in problems), (table, row)
                if table == "blocks":
                    with store_in(copy) as store:
                        assert named(store, row.key), problems
                shutil.rmtree(copy)

    in_directory(main)


@pytest.mark.parametrize("counter", ["last_id", "last_topic_id"])
def test_invariant_10_a_counter_that_is_gone_is_named(tmp_path: Path, counter: str) -> None:
    asyncio.run(Life(tmp_path, SMALL).live([], random.Random(1)))
    with store_in(tmp_path) as store:
        delete(store, "meta", counter.encode())
    (problem,) = checked(tmp_path)
    assert f"the counter {counter} is gone" in problem
    assert "store repair" in problem


def test_a_store_that_lost_the_row_with_its_id_is_refused_and_gets_no_new_one(tmp_path: Path) -> None:
    asyncio.run(Life(tmp_path, SMALL).live([], random.Random(1)))
    with store_in(tmp_path) as store:
        delete(store, "meta", b"store")
    with pytest.raises(StoreUnusable, match="lacks the row that says whose store it is"):
        Store(tmp_path, cluster="us-east", size_max=SIZE)
