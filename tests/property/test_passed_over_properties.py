"""Detection of entries that a bridge has not seen between those that came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.skipped_messages import gaps_among, runs_in
from snapshots.position import BEFORE_ALL, Position


@st.composite
def _topics(draw: st.DrawFn) -> tuple[dict[int, int], list[Position], list[Position]]:
    """Draw a topic: the last entry of each ledger, the positions of all entries, and of those that came."""
    ledgers = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5, unique=True))
    last_entries = {ledger: draw(st.integers(-1, 6)) for ledger in sorted(ledgers)}
    entries = [Position(ledger, entry) for ledger, last in last_entries.items() for entry in range(last + 1)]
    came = [each for each in entries if draw(st.booleans())]
    return last_entries, entries, came


@given(_topics(), st.data())
def test_invariant_2_the_gaps_hold_all_that_did_not_come_and_nothing_else(
    topic: tuple[dict[int, int], list[Position], list[Position]], data: st.DataObject
) -> None:
    last_entries, entries, came = topic
    reached = data.draw(st.sampled_from(entries)) if entries else BEFORE_ALL
    again = [each for each in came if each <= reached]
    positions = again + [each for each in came if each > reached]
    found = [
        Position(first.ledger, entry)
        for gap in gaps_among(reached, positions)
        for first, last in runs_in(gap, last_entries)
        for entry in range(first.entry, last.entry + 1)
    ]
    through = max(came, default=BEFORE_ALL)
    assert found == [each for each in entries if reached < each < through and each not in came]


@given(_topics())
def test_before_the_first_entry_that_was_ever_read_nothing_is_missing(
    topic: tuple[dict[int, int], list[Position], list[Position]],
) -> None:
    _, _, came = topic
    assert all(gap.after >= came[0] for gap in gaps_among(BEFORE_ALL, came))
