"""Appending in one transaction: positions are given once, and are free again when the transaction fails."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from engine_support import make_block, message
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.log.block import verify_block
from replicator.engine.log.commit.appending import ID_SALTS, LEDGER_ENTRIES_MAX, LogAppender, PositionTaken
from replicator.engine.log.commit.bodies import GroupBodies
from replicator.engine.log.requests import Committed, Tail
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater
from snapshots.position import Position

NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path, cluster="y", size_max=1 << 24)
    yield opened
    opened.close()


def appender(store: Store, *, last_id: int = 0, now_ms: int = NOW_MS, salt: int = 5) -> LogAppender:
    return LogAppender(store.tables, last_id, now_ms, lambda: salt, Committed(), GroupBodies(store, 0))


def tail() -> Tail:
    return Tail(1, "t", 3, 0, 0, {})


def append(store: Store, appending: LogAppender, at: Tail) -> None:
    block = make_block(Position(9, 0), [message(), message()], origin="x")
    header = verify_block(block)
    with store.env.begin(write=True) as txn:
        appending.append(txn, at, header, block)
        appending.put_high_water(txn, at, "x", HighWater(7, header.origin_last))


def test_invariant_10_ids_only_grow_whatever_the_clock_says(store: Store) -> None:
    assert appender(store).new_id() == NOW_MS * ID_SALTS + 5
    behind = appender(store, last_id=NOW_MS * ID_SALTS, now_ms=NOW_MS - 1000)
    assert behind.new_id() == NOW_MS * ID_SALTS + 1
    assert behind.new_id() == NOW_MS * ID_SALTS + 2
    assert appender(store, now_ms=-1, last_id=10, salt=0).new_id() == 11


def test_a_full_ledger_is_followed_by_a_higher_one(store: Store) -> None:
    appending, full = appender(store), tail()
    full.ledger = before = appending.new_id()
    full.next_entry = LEDGER_ENTRIES_MAX - 1
    assert appending.next_position(full) == Position(before, LEDGER_ENTRIES_MAX - 1)
    full.next_entry = LEDGER_ENTRIES_MAX
    following = appending.next_position(full)
    assert following.ledger > before
    assert following.entry == 0


def test_invariant_10_a_position_is_not_used_twice(store: Store) -> None:
    appending, first, same = appender(store), tail(), tail()
    append(store, appending, first)
    same.ledger = first.ledger
    with pytest.raises(PositionTaken):
        append(store, appending, same)


def test_when_the_transaction_fails_a_tail_is_as_it_was_before_the_first_change(store: Store) -> None:
    changed = tail()
    append(store, appender(store), changed)
    before = deepcopy(changed)
    failing = appender(store, last_id=changed.ledger or 0)
    append(store, failing, changed)
    append(store, failing, changed)
    changed.holes["x"] = ((Position(9, 0), Position(9, 1)),)
    changed.high_water["z"] = HighWater(1, Position(1, 1))
    assert changed != before
    failing.roll_back()
    assert changed == before


def publish(store: Store, appending: LogAppender, at: Tail) -> None:
    first = appending.next_own_position(at, "y")
    block = make_block(first, [message()], origin="y")
    header = verify_block(block)
    with store.env.begin(write=True) as txn:
        appending.append_own(txn, at, header, appending.prefix(at) + block)
        appending.put_high_water(txn, at, "y", HighWater(3, header.origin_last))


@pytest.mark.parametrize("before", [[], ["publish"], ["append", "publish"]])
@given(steps=st.lists(st.sampled_from(["publish", "append", "remember"]), max_size=8))
@settings(deadline=None, max_examples=40)
def test_whatever_a_failed_transaction_appended_by_which_way_its_tails_are_as_they_were(
    before: list[str], steps: list[str]
) -> None:
    def act(store: Store, appending: LogAppender, at: Tail, step: str) -> None:
        if step == "publish":
            publish(store, appending, at)
        elif step == "append":
            append(store, appending, at)
        else:
            appending.remember(at)
            at.terminated = True
            at.holes["x"] = ((Position(9, 0), Position(9, 1)),)

    with TemporaryDirectory() as directory:
        store = Store(Path(directory), cluster="y", size_max=1 << 24)
        changed, other = tail(), Tail(2, "other", 3, 0, 0, {})
        for step in before:
            act(store, appender(store), changed, step)
        were = deepcopy(changed), deepcopy(other)
        failing = appender(store, last_id=changed.ledger or 0, now_ms=NOW_MS + 1)
        for number, step in enumerate(steps):
            act(store, failing, (changed, other)[number % 2], step)
        failing.roll_back()
        store.close()
        assert (changed, other) == were
