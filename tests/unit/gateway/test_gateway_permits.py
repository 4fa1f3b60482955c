"""A client's permits are passed on to the engine only as fast as the socket takes what they bring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.types import Delivery
from replicator.gateway.permits import (
    GRANT_MESSAGES_MAX,
    GRANT_MESSAGES_MIN,
    LARGE_GRANT_BYTES_MAX,
    PERMITS_MAX,
    Permits,
)
from replicator.protocol.errors import OutOfOrder
from snapshots.position import Position

ENTRY_BYTES = 5 * 2**20
"""The largest entry of the cluster."""


def _entry(size: int, batch_size: int = 1) -> Delivery:
    return Delivery(Position(1, 0), 0, batch_size, None, bytes(size), "us-east", Position(1, 0))


def delivered(permits: Permits, deliveries: list[Delivery]) -> int:
    permits.used(deliveries)
    return permits.more()


def test_the_first_grant_is_cautious_and_small_entries_widen_it() -> None:
    permits = Permits(ENTRY_BYTES)
    granted = permits.requested(100_000)
    assert granted == GRANT_MESSAGES_MIN
    for _ in range(20):
        granted = delivered(permits, [_entry(300)] * granted)
    assert granted == GRANT_MESSAGES_MAX


def test_nothing_is_granted_while_the_socket_takes_no_more() -> None:
    permits = Permits(ENTRY_BYTES)
    granted = permits.requested(1_000)
    permits.used([_entry(4 * 2**20)] * 5)
    assert permits.blocked() == granted - 5, "the engine keeps permits"
    assert permits.more() == 0
    assert permits.requested(1_000) == 0
    assert permits.unblocked() == GRANT_MESSAGES_MIN


def test_what_was_overdrawn_is_not_given_back() -> None:
    permits = Permits(ENTRY_BYTES)
    permits.requested(1_000)
    permits.used([_entry(100, batch_size=500)])
    assert permits.blocked() == 0
    assert permits.unblocked() > 500 - GRANT_MESSAGES_MIN


@pytest.mark.parametrize(("entry_bytes", "granted"), [(ENTRY_BYTES, 16), (16 * 2**20, 6), (32 * 2**20, 3)])
def test_of_the_largest_entries_fewer_are_granted(entry_bytes: int, granted: int) -> None:
    permits = Permits(entry_bytes)
    assert permits.requested(1_000) == granted
    assert granted * entry_bytes <= LARGE_GRANT_BYTES_MAX


def test_a_batch_that_overdraws_is_paid_back_first() -> None:
    permits = Permits(ENTRY_BYTES)
    permits.requested(1_000)
    assert delivered(permits, [_entry(100, batch_size=500)]) >= 500


def test_more_permits_than_the_limit_are_refused() -> None:
    permits = Permits(ENTRY_BYTES)
    permits.requested(PERMITS_MAX)
    with pytest.raises(OutOfOrder, match=r"more messages \(permits\)"):
        permits.requested(PERMITS_MAX)


@given(
    flows=st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
    sizes=st.lists(st.tuples(st.integers(1, 6 * 2**20), st.integers(1, 2_000)), min_size=1, max_size=100),
)
def test_every_permit_of_the_client_reaches_the_engine_in_the_end_and_none_beside(
    flows: list[int], sizes: list[tuple[int, int]]
) -> None:
    """An engine with endless entries, and a socket that takes them one by one."""
    permits = Permits(ENTRY_BYTES)
    engine_permits = sum(permits.requested(flow) for flow in flows)
    used = 0
    for turn in range(1_000_000):
        if engine_permits <= 0:
            break
        size, batch_size = sizes[turn % len(sizes)]
        # A stand-in for the bytes: their number is all that counts.
        entry = Delivery(Position(1, 0), 0, batch_size, None, _Sized(size), "", Position(1, 0))
        engine_permits += delivered(permits, [entry]) - batch_size
        used += batch_size
    assert sum(flows) <= used < sum(flows) + max(batch for _, batch in sizes)


class _Sized(bytes):
    """Bytes that say they are many, so that the test does not move gigabytes."""

    size: int

    def __new__(cls, size: int) -> _Sized:
        made = super().__new__(cls)
        made.size = size
        return made

    def __len__(self) -> int:
        return self.size
