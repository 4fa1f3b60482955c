"""The comparison finds exactly the entries that a copy lost, doubled, swapped or changed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.stamps import Identity
from replicator.pipeline.verify.brokers.comparison import BEHIND, GONE, Copy, Pair, compare
from replicator.pipeline.verify.brokers.differences import Difference
from replicator.pipeline.verify.brokers.entry_log import Content, EntryLog, EntryRows, Life
from snapshots.position import BEFORE_ALL, Position

ORIGINS = ("A.pulsar", "B.pulsar", "C")
LIVES = tuple(Life(origin, 7) for origin in ORIGINS)


@dataclass(frozen=True)
class Row:
    origin: str
    position: Position
    content: int
    messages: int
    absent: int = 0
    audience: frozenset[str] | None = None


@dataclass
class Damage:
    """A damaged log, and the number of entries that must be found, by kind."""

    rows: list[Row]
    found: Counter[str] = field(default_factory=Counter)


def log_of(rows: list[Row], entries_a_ledger: int) -> EntryLog:
    """Return a log of the rows; their positions depend on ``entries_a_ledger``."""
    built = EntryRows()
    for number, row in enumerate(rows):
        at = Position(100 + number // entries_a_ledger, number % entries_a_ledger)
        built.add(
            Identity(row.origin, 7, row.position),
            at,
            Content(None, row.content, row.messages, 0, row.absent, row.audience),
        )
    return built.log()


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Draw the rows of a log: entries of several origins, those of each in order, in ledgers with holes."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    at = {origin: Position(3, 0) for origin in ORIGINS}
    rows = []
    for _ in range(draw(st.integers(0, 60))):
        origin = chance.choice(ORIGINS)
        ledger, entry = at[origin]
        if chance.random() < 0.1:
            ledger, entry = ledger + chance.randrange(1, 3), 0
        entry += chance.choice((0, 0, 0, 2))
        rows.append(Row(origin, Position(ledger, entry), chance.getrandbits(64), chance.randrange(1, 4)))
        at[origin] = Position(ledger, entry + 1)
    return rows


def last_of(rows: list[Row], origin: str) -> Position:
    return max((row.position for row in rows if row.origin == origin), default=BEFORE_ALL)


def counts(copies: list[Copy], pairs: list[Pair]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for each in compare(copies, pairs):
        assert each.entries > 0
        assert each.examples
        assert len(each.examples) <= 10
        found[each.kind, each.copy] += each.entries
        check_rows(each)
    return found


def check_rows(difference: Difference) -> None:
    """Check that each entry is in one row, and that the rows count what the difference counts."""
    assert difference.where is not None
    rows = list(difference.rows("topic"))
    entries = [
        (row.origin, row.origin_ledger, entry)
        for row in rows
        for entry in range(row.origin_first or 0, (row.origin_last or 0) + 1)
    ]
    log = difference.where.log
    at = {(int(ledger), int(entry)) for ledger, entry in zip(log.ledger, log.entry, strict=True)}
    assert len(entries) == difference.entries
    assert {(row.ledger, row.entry) for row in rows} <= at
    assert sum(row.count for row in rows) == difference.messages
    assert {(row.kind, row.cluster) for row in rows} == {(difference.kind, difference.copy)}
    assert all(row.other != row.cluster and row.detail for row in rows)
    if difference.kind not in ("duplicated", "reordered"):
        assert len(set(entries)) == difference.entries
        assert difference.examples == tuple(str(row.detail) for row in rows[:10])


def both_ways(*origins: str) -> list[Pair]:
    return [
        Pair(having, lacking, origin, contents=having == 0)
        for origin in origins
        for having, lacking in ((0, 1), (1, 0))
    ]


def whole(rows: list[Row]) -> dict[Life, Position]:
    return {life: last_of(rows, life.origin) for life in LIVES}


@given(rows=logs(), seed=st.integers(0, 2**32), share=st.floats(0, 0.4))
def test_losses_doubles_and_changes_are_found_and_nothing_else_is(rows: list[Row], seed: int, share: float) -> None:
    chance = random.Random(seed)
    first_of = {origin: next((row.position for row in rows if row.origin == origin), None) for origin in ORIGINS}
    copied: list[Row] = []
    wanted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        damage = chance.choice(("lost", "doubled", "changed")) if chance.random() < share else ""
        if damage == "lost":
            # What is lost from the front of brokers' logs looks as if retention had deleted it.
            kind = "missing" if any(each.origin == row.origin for each in copied) else GONE
            wanted[kind, "there"] += 1
            continue
        kept = Row(row.origin, row.position, row.content ^ (damage == "changed"), row.messages)
        wanted["corrupted", "there"] += damage == "changed"
        copied.append(kept)
        if damage == "doubled":
            copied.append(kept)
            wanted["duplicated", "there"] += 1
    here = Copy("here", log_of(rows, 9), whole(rows))
    there = Copy("there", log_of(copied, 5), whole(rows), got={})
    assert counts([here, there], both_ways(*ORIGINS)) == +wanted
    # A worker's log knows what was trimmed, and brokers that are known to have got the first say the same.
    got = {life: first for life in LIVES if (first := first_of[life.origin]) is not None}
    wanted["missing", "there"] += wanted.pop((GONE, "there"), 0)
    for surely in (Copy("there", there.log, there.due), Copy("there", there.log, there.due, got=got)):
        assert counts([here, surely], both_ways(*ORIGINS)) == +wanted


@given(rows=logs(), seed=st.integers(0, 2**32))
def test_what_stands_after_a_later_entry_of_its_origin_is_found(rows: list[Row], seed: int) -> None:
    moved = [row for row in rows if row.origin == "A.pulsar"]
    if len(moved) < 2:
        return
    one, other = sorted(random.Random(seed).sample(range(len(moved)), 2))
    row = moved.pop(one)
    moved.insert(other, row)
    rest = [row for row in rows if row.origin != "A.pulsar"]
    here = Copy("here", log_of(rows, 9), whole(rows))
    there = Copy("there", log_of(moved + rest, 5), whole(rows), got={})
    assert counts([here, there], both_ways(*ORIGINS)) == {("reordered", "there"): 1}


@given(rows=logs(), seed=st.integers(0, 2**32))
def test_what_was_deleted_or_left_out_or_has_not_come_is_not_missing(rows: list[Row], seed: int) -> None:
    chance = random.Random(seed)
    due = {
        life: chance.choice([row.position for row in rows if row.origin == life.origin] or [BEFORE_ALL])
        for life in LIVES
    }
    due_of = {life.origin: position for life, position in due.items()}
    cut = chance.randrange(len(rows) + 1)
    holes = {origin: ((Position(4, 1), Position(5, 0)),) for origin in ORIGINS}
    copied = [
        row
        for row in rows[cut:]
        if row.position <= due_of[row.origin] and not Position(4, 1) < row.position <= Position(5, 0)
    ]
    here = Copy("here", log_of(rows, 9), whole(rows))
    there = Copy("there", log_of(copied, 5), due, left_out=holes, got={})
    behind = sum(
        row.position > due_of[row.origin] and not Position(4, 1) < row.position <= Position(5, 0) for row in rows
    )
    found = counts([here, there], both_ways(*ORIGINS))
    assert found.pop((BEHIND, "there"), 0) == behind
    found.pop((GONE, "there"), None)
    assert not found
    trimmed = {
        origin: max([row.position for row in rows[:cut] if row.origin == origin], default=BEFORE_ALL)
        for origin in ORIGINS
    }
    found = counts([here, Copy("there", there.log, due, trimmed, holes)], both_ways(*ORIGINS))
    assert set(found) <= {(BEHIND, "there")}


@given(rows=logs(), extra=st.integers(0, 2**30))
def test_what_a_copy_has_and_its_origin_has_not_is_missing_at_the_origin(rows: list[Row], extra: int) -> None:
    """A stamp that nobody's bridge wrote."""
    mine = [row for row in rows if row.origin == "A.pulsar"]
    if not mine:
        return
    forged = Row("A.pulsar", Position(mine[-1].position.ledger, mine[-1].position.entry + 1 + extra), 1, 2)
    here = Copy("here", log_of(mine, 9), {LIVES[0]: forged.position}, {"A.pulsar": BEFORE_ALL}, got={})
    there = Copy("there", log_of([*mine, forged], 5), {LIVES[0]: forged.position}, got={})
    assert counts([here, there], both_ways("A.pulsar")) == {("missing", "here"): 1}


def test_several_pairs_count_an_entry_once_and_name_its_places() -> None:
    rows = [Row("A.pulsar", Position(3, entry), entry, 2) for entry in range(10)]
    copies = [
        Copy("the brokers of A", log_of(rows, 9), whole(rows), got={}),
        Copy("the spool of B", log_of(rows, 4), whole(rows)),
        Copy(
            "the brokers of B",
            log_of([row for row in rows if row.position.entry not in (4, 5, 8)], 5),
            whole(rows),
            got={},
        ),
    ]
    (found,) = compare(copies, [Pair(0, 2, "A.pulsar", True), Pair(1, 2, "A.pulsar", True)])
    assert (found.kind, found.copy, found.entries, found.messages) == ("missing", "the brokers of B", 3, 6)
    assert found.examples == (
        "A.pulsar 3:4 to 5 (the brokers of A at 100:4, not in the brokers of B)",
        "A.pulsar 3:8 (the brokers of A at 100:8, not in the brokers of B)",
    )


def test_a_batch_in_part_is_sound_only_where_a_link_may_leave_messages_out_and_all_others_are_there() -> None:
    at = Position(3, 0)
    here = Copy("here", log_of([Row(LIVES[0].origin, at, 1, 10)], 9), {LIVES[0]: at})

    def found(part: Row, *, parts: bool) -> Counter[tuple[str, str]]:
        there = Copy("there", log_of([part], 5), {LIVES[0]: at})
        return counts([here, there], [Pair(0, 1, LIVES[0].origin, contents=True, parts=parts)])

    part = Row(LIVES[0].origin, at, 2, 7, absent=3)
    corrupted = Counter({("corrupted", "there"): 1})
    assert found(part, parts=True) == Counter()
    assert found(part, parts=False) == corrupted
    assert found(replace(part, absent=2), parts=True) == corrupted, "one is missing"
    assert found(replace(part, absent=0, messages=10), parts=True) == corrupted


def test_what_its_producer_does_not_want_in_a_cluster_is_not_missing_there_and_everywhere_else_it_is() -> None:
    """At home it is to be in every copy."""
    row = Row(LIVES[0].origin, Position(3, 0), 1, 1, audience=frozenset({"named"}))
    here = Copy("here", log_of([row], 9), whole([row]))
    for cluster, missing in ((LIVES[0].origin.partition(".")[0], 1), ("named", 1), ("other", 0)):
        there = Copy("there", log_of([], 5), whole([row]), cluster=cluster)
        assert counts([here, there], [Pair(0, 1, LIVES[0].origin)])["missing", "there"] == missing, cluster
