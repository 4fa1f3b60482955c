"""The gate passes a client's permits on to the engine only as fast as the socket takes what they bring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.api.outgoing import GRANT_MESSAGES_MAX, GRANT_MESSAGES_MIN, OUTGOING_BYTES_MAX, PermitGate
from replicator.client.wire.frames import PERMITS_MAX, InvalidFrame
from replicator.engine.types import Delivery
from snapshots.position import Position


def _entry(size: int, batch_size: int = 1) -> Delivery:
    return Delivery(Position(1, 0), 0, batch_size, None, bytes(size), "us-east", Position(1, 0))


def test_the_first_grant_is_cautious_and_small_entries_widen_it() -> None:
    gate = PermitGate()
    granted = gate.requested(100_000)
    assert granted == GRANT_MESSAGES_MIN
    for _ in range(20):
        gate.delivered([_entry(300)] * granted)
        granted = gate.sent(300 * granted)
    assert granted == GRANT_MESSAGES_MAX


def test_nothing_is_granted_while_too_much_waits_for_the_socket() -> None:
    gate = PermitGate()
    granted = gate.requested(1_000)
    gate.delivered([_entry(OUTGOING_BYTES_MAX // 4)] * 5)
    assert gate.requested(1_000) == 0
    assert gate.sent(OUTGOING_BYTES_MAX // 4) == 0
    assert gate.sent(OUTGOING_BYTES_MAX // 4) == GRANT_MESSAGES_MIN - (granted - 5)


def test_a_batch_that_overdraws_is_paid_back_first() -> None:
    gate = PermitGate()
    gate.requested(1_000)
    gate.delivered([_entry(100, batch_size=500)])
    assert gate.sent(100) >= GRANT_MESSAGES_MIN + 500 - GRANT_MESSAGES_MIN


def test_more_permits_than_the_limit_are_refused() -> None:
    gate = PermitGate()
    gate.requested(PERMITS_MAX)
    with pytest.raises(InvalidFrame, match="permits without a delivery"):
        gate.requested(PERMITS_MAX)


@given(
    flows=st.lists(st.integers(1, 3_000), min_size=1, max_size=20),
    sizes=st.lists(st.tuples(st.integers(1, 6 * 2**20), st.integers(1, 2_000)), min_size=1, max_size=100),
)
def test_every_permit_of_the_client_reaches_the_engine_in_the_end_and_none_beside(
    flows: list[int], sizes: list[tuple[int, int]]
) -> None:
    """An engine with endless entries, and a socket that takes them one by one."""
    gate = PermitGate()
    engine_permits = sum(gate.requested(permits) for permits in flows)
    used = 0
    for turn in range(1_000_000):
        if engine_permits <= 0:
            break
        size, batch_size = sizes[turn % len(sizes)]
        # A stand-in for the bytes: their number is all that counts.
        gate.delivered([Delivery(Position(1, 0), 0, batch_size, None, _Sized(size), "", Position(1, 0))])
        engine_permits -= batch_size
        used += batch_size
        engine_permits += gate.sent(size)
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
