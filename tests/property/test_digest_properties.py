"""Digests against the comparison of blocks: two clusters are in step if, and only if, nothing would be found wrong.

A history is what two clusters published and acknowledged. Damage makes one of the clusters differ. What the comparison
of blocks finds is judged by another property test, message by message (test_comparison_properties).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from wire_worker import batch_entry, marker_entry

from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.subscriptions.batch_acks import BatchAcks
from replicator.engine.topic_digest import Acknowledged, LogDigester, NoDigest, TopicDigest
from replicator.peering.comparing import SubscriptionState, digest_as_json, digest_of_json
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.verify.blocks import LogRange
from replicator.pipeline.verify.comparison import order
from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.faults import compare
from replicator.pipeline.verify.comparison.in_step import TopicAnswers, found_in_step, is_in_step, positions_asked
from replicator.pipeline.verify.comparison.promises import by_pair
from replicator.pipeline.verify.comparison.rows import (
    CELL_KEY,
    COMPARED,
    PIECES,
    READ,
    FindingRow,
    PieceRows,
    whole_cells,
)
from replicator.pipeline.verify.comparison.scope import ReplicaState, Scope, TopicScope
from replicator.pipeline.verify.entry_reader import RangeReader
from replicator.pipeline.verify.reachability import Reachability
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

NAMES = ("us", "eu")
BOTH_WAYS = Reachability(*[frozenset({("us", "eu"), ("eu", "us")})] * 2)
TOPIC = "persistent://public/default/t"
END = Position(1 << 40, 0)


@dataclass(frozen=True)
class Entry:
    """Entry of a log: its identity, its number of messages (0 for a marker), and its content."""

    origin: str
    position: Position
    size: int
    content: int = 0
    local: bool = False


@dataclass
class Side:
    """State of one cluster: its blocks in order, acknowledged messages of a subscription by identity, and mappings."""

    cluster: str
    blocks: list[list[Entry]]
    acked: set[tuple[str, Position, int]] | None
    mappings: list[tuple[int, int]] = field(default_factory=list)
    """Indexes of entries: here, and at the peer."""
    ledger: int = 1
    loose: bool = False
    """Whether acknowledgements are stored as ranges behind the mark-delete position, although they could be before
    it."""

    def places(self) -> list[tuple[Position, Entry]]:
        found, at = [], 0
        for block in self.blocks:
            for entry in block:
                found.append((Position(self.ledger, at), entry))
                at += 1
        return found

    def starts(self) -> list[Position]:
        found, at = [], 0
        for block in self.blocks:
            found.append(Position(self.ledger, at))
            at += len(block)
        return found


def packed(entries: Sequence[Entry]) -> bytes:
    first = entries[0]
    kind = BlockKind.MESSAGES if first.size else BlockKind.LOCAL_MARKERS if first.local else BlockKind.MARKERS
    return build_block(
        kind=kind,
        origin=first.origin,
        incarnation=7,
        origin_first=first.position,
        publish_time_ms=1,
        entries=[bytes_of(entry) for entry in entries],
        batch_sizes=[entry.size for entry in entries],
    )


def bytes_of(entry: Entry) -> bytes:
    if not entry.size:
        return marker_entry(10, b"%d" % entry.content)
    payloads = [b"%d" % index for index in range(entry.size)]
    if entry.content:
        payloads[entry.content % entry.size] = b"changed %d" % entry.content
    return batch_entry(payloads)


DAMAGE = ("nothing", "missing", "repeated", "reordered", "changed", "bytes", "mapping", "acknowledged", "cut")


@st.composite
def histories(draw: Any) -> tuple[Side, Side, str]:
    """Draw two clusters in step, then damage one of them in one way, or not; return both and the kind of damage."""
    published: dict[str, list[list[Entry]]] = {}
    for origin, ledger in (("us", 3), ("eu", 5)):
        runs: list[list[Entry]] = []
        number = 0
        for sizes in draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=4)):
            number += draw(st.integers(0, 1))  # local markers take positions too
            kind = draw(st.sampled_from(["messages", "messages", "marker"]))
            run = [
                Entry(origin, Position(ledger, number + index), size if kind == "messages" else 0)
                for index, size in enumerate(sizes)
            ]
            runs.append(run)
            number += len(run)
        published[origin] = runs
    sides = []
    messages = [entry for runs in published.values() for run in runs for entry in run if entry.size]
    acked = {
        (entry.origin, entry.position, index)
        for entry in messages
        for index in range(entry.size)
        if draw(st.booleans())
    }
    subscribed = draw(st.booleans())
    for ledger, cluster in enumerate(NAMES, 20):
        left = {origin: list(runs) for origin, runs in published.items()}
        blocks: list[list[Entry]] = []
        while any(left.values()):
            origin = draw(st.sampled_from([name for name, runs in left.items() if runs]))
            blocks.append(left[origin].pop(0))
            if draw(st.integers(0, 5)) == 0:
                blocks.append([Entry(cluster, Position(9, len(blocks)), 0, local=True)])
        sides.append(
            Side(cluster, blocks, set(acked) if subscribed else None, ledger=ledger, loose=draw(st.booleans()))
        )
    for home, peer in (sides, sides[::-1]):
        draw_mappings(draw, home, peer)
    damage = draw(st.sampled_from(DAMAGE))
    _damage(draw, sides[draw(st.integers(0, 1))], damage)
    return sides[0], sides[1], damage


def draw_mappings(draw: Any, home: Side, peer: Side) -> None:
    """Give ``home`` true mappings: at or after each local position, ``home`` has all messages of ``peer`` so far."""
    here = {(entry.origin, entry.position): index for index, (_, entry) in enumerate(home.places())}
    reached = 0
    for index, (_, entry) in enumerate(peer.places()):
        if entry.size:
            reached = max(reached, here[entry.origin, entry.position])
        if home.places() and draw(st.integers(0, 2)) == 0:
            home.mappings.append((min(reached + draw(st.integers(0, 2)), len(home.places()) - 1), index))


def _damage(draw: Any, side: Side, damage: str) -> None:
    real = [index for index, block in enumerate(side.blocks) if not block[0].local]
    if not real:
        return
    at = draw(st.sampled_from(real))
    block = side.blocks[at]
    if damage == "missing":
        side.blocks[at] = block[1:]
        side.blocks = [each for each in side.blocks if each]
    elif damage == "repeated":
        side.blocks.insert(draw(st.integers(at, len(side.blocks))), list(block))
    elif damage == "reordered" and at + 1 < len(side.blocks):
        side.blocks[at], side.blocks[at + 1] = side.blocks[at + 1], side.blocks[at]
    elif damage == "changed":
        number = draw(st.integers(0, len(block) - 1))
        entry = block[number]
        block = list(block)
        block[number] = Entry(entry.origin, entry.position, entry.size, draw(st.integers(1, 3)))
        side.blocks[at] = block
    elif damage == "mapping" and side.mappings:
        number = draw(st.integers(0, len(side.mappings) - 1))
        side.mappings[number] = (draw(st.integers(0, side.mappings[number][0])), side.mappings[number][1])
    elif damage == "acknowledged" and side.acked is not None:
        known = [(entry.origin, entry.position, n) for _, entry in side.places() for n in range(entry.size)]
        if known:
            side.acked ^= {draw(st.sampled_from(known))}
    elif damage == "cut" and len(block) > 1:
        side.blocks[at : at + 1] = [block[:1], block[1:]]


def state_of(side: Side) -> SubscriptionState | None:
    if side.acked is None:
        return None
    mark, whole, parts = BEFORE_ALL, list[Position](), dict[Position, tuple[int, ...]]()
    open_yet = True
    for place, entry in side.places():
        indexes = tuple(n for n in range(entry.size) if (entry.origin, entry.position, n) in side.acked)
        if len(indexes) == entry.size and open_yet and not side.loose:
            mark = place
            continue
        open_yet = False
        if entry.size and len(indexes) == entry.size:
            whole.append(place)
        elif indexes:
            parts[place] = indexes
    return SubscriptionState("s", True, 1, mark, tuple((place, place) for place in whole), parts)


def mappings_of(home: Side, peer: Side) -> list[SnapshotMapping]:
    here, there = home.places(), peer.places()
    return [
        SnapshotMapping(f"s{number}", here[local][0], peer.cluster, there[remote][0])
        for number, (local, remote) in enumerate(home.mappings)
        if local < len(here) and remote < len(there)
    ]


def digest_of(side: Side, positions: Sequence[Position], flip: int | None = None) -> TopicDigest | None:
    """Return the digest as a worker makes it, over the wire; with ``flip`` a bit of some block is wrong."""
    state = state_of(side)
    subscriptions = [] if state is None else [
        Acknowledged(
            "s",
            state.mark_delete,
            PositionSet(first for first, _ in state.individually_deleted),
            BatchAcks((place, BitMap(indexes)) for place, indexes in state.batch_acks.items()),
        )
    ]  # fmt: skip
    digester = LogDigester(subscriptions, positions)
    try:
        for number, (start, block) in enumerate(zip(side.starts(), side.blocks, strict=True)):
            content = packed(block)
            if flip is not None and number == flip % len(side.blocks):
                at = flip % (8 * len(content))
                content = content[: at // 8] + bytes([content[at // 8] ^ (1 << at % 8)]) + content[at // 8 + 1 :]
            digester.take(start, content)
    except NoDigest:
        return None
    return digest_of_json(digest_as_json(digester.result()))


def answers_of(sides: Sequence[Side], flip: int | None = None) -> TopicAnswers:
    mappings = {side.cluster: mappings_of(side, other) for side, other in (sides, sides[::-1])}
    flips = (flip, None)
    return TopicAnswers(
        {
            side.cluster: digest_of(side, positions_asked(mappings, side.cluster), one)
            for side, one in zip(sides, flips, strict=True)
        },
        mappings,
        {side.cluster: [] if side.acked is None else ["s"] for side in sides},
    )


def slow(sides: Sequence[Side]) -> list[FindingRow]:
    """Return the findings of a comparison block by block."""
    states = {number: state for number, side in enumerate(sides) if (state := state_of(side)) is not None}
    acked = {number: Acked.of(state) for number, state in states.items()}
    mappings = {number: mappings_of(side, sides[1 - number]) for number, side in enumerate(sides)}
    topic = TopicScope(
        TOPIC,
        BOTH_WAYS,
        {0: ReplicaState(), 1: ReplicaState()},
        {"s": acked} if acked else {},
        by_pair(mappings, {"us": 0, "eu": 1}),
    )
    scope = Scope(NAMES, ("", ""), (topic,))
    rows = PieceRows()
    for number, side in enumerate(sides):
        for part, (after, upto) in enumerate(pairwise([BEFORE_ALL, END])):
            reader = RangeReader(LogRange(number, 0, part, after, upto), scope, rows)
            for start, block in zip(side.starts(), side.blocks, strict=True):
                reader.take(FetchedBlock(start, memoryview(packed(block))))
            reader.end()
    table = pa.Table.from_batches([rows.take()], schema=PIECES)
    table = table.sort_by([(name, "ascending") for name in (*CELL_KEY, "start")])
    content = [{place: bytes_of(entry) for place, entry in side.places()} for side in sides]

    def read(place: tuple[int, int, int, int], count: int) -> Iterator[bytes]:
        cluster, _, ledger, first = place
        return (content[cluster][Position(ledger, first + index)] for index in range(count))

    found: list[FindingRow] = []
    copies = []
    for cells in whole_cells(table.to_batches()):
        found += compare(cells, scope, read)
        copies.append(cells)
    suspect = order.out_of_order(found)
    logs = {(0, NAMES.index(cluster)) for _, cluster in suspect}
    log = pa.Table.from_batches([order.first_copies(cells, 2, logs) for cells in copies], schema=order.COPIES)
    log = log.sort_by([(name, "ascending") for name in (*order.LOG_KEY, "ledger", "entry")])
    return [*found, *order.order_violations([log], (TOPIC,), NAMES)]


def faults(found: Sequence[FindingRow]) -> set[str]:
    return {each.kind for each in found if not each.kind.startswith("#")}


@given(histories())
@settings(max_examples=400)
def test_clusters_are_in_step_by_their_digests_if_and_only_if_comparing_blocks_finds_nothing(
    history: tuple[Side, Side, str],
) -> None:
    *sides, damage = history
    wrong = faults(slow(sides))
    event(f"{damage}: {sorted(wrong)}")
    in_step = is_in_step(answers_of(sides), BOTH_WAYS)
    if in_step:
        assert not wrong, "a digest must never hide a fault"
    elif not wrong:  # blocks that were cut elsewhere are compared by what is in them
        assert damage == "cut"


@given(histories().filter(lambda history: history[2] == "nothing"), st.integers(0, 10_000))
def test_a_bit_that_rots_takes_the_digest_away(history: tuple[Side, Side, str], flip: int) -> None:
    *sides, _ = history
    if sides[0].blocks:
        assert digest_of(sides[0], (), flip) is None
        assert not is_in_step(answers_of(sides, flip), BOTH_WAYS)


@given(histories().filter(lambda history: history[2] == "nothing"))
def test_what_is_counted_by_digests_is_what_reading_counts(history: tuple[Side, Side, str]) -> None:
    *sides, _ = history

    def counted(found: Sequence[FindingRow]) -> dict[tuple[Any, ...], int]:
        counts: dict[tuple[Any, ...], int] = {}
        for each in found:
            if each.kind in (READ, COMPARED):
                key = each.kind, each.cluster, each.other
                counts[key] = counts.get(key, 0) + each.count
        return {key: count for key, count in counts.items() if count}

    assert counted(list(found_in_step(TOPIC, answers_of(sides)))) == counted(slow(sides))


def test_a_subscription_that_is_not_replicated_in_one_cluster_is_compared_by_reading() -> None:
    digest = TopicDigest(subscriptions={"s": ()})
    answers = TopicAnswers({"us": digest, "eu": TopicDigest()}, {}, {"us": ["s"], "eu": ["s"]})
    assert not is_in_step(answers, BOTH_WAYS)
    answers = TopicAnswers({"us": digest, "eu": TopicDigest()}, {}, {"us": ["s"], "eu": []})
    assert is_in_step(answers, BOTH_WAYS), "nothing is acknowledged, so there is nothing to bring"


def test_a_topic_that_a_link_should_have_brought_is_not_in_step() -> None:
    side = Side("us", [[Entry("us", Position(3, 0), 1)]], None)
    alone = TopicAnswers({"us": digest_of(side, ())})
    assert not is_in_step(alone, BOTH_WAYS)
    assert is_in_step(alone, Reachability(frozenset({("eu", "us")}), frozenset({("eu", "us")})))


@pytest.mark.parametrize("name", ["us", "eu"])
def test_a_cluster_without_a_digest_is_never_in_step(name: str) -> None:
    digests: dict[str, TopicDigest | None] = {"us": TopicDigest(), "eu": TopicDigest(), name: None}
    assert not is_in_step(TopicAnswers(digests), BOTH_WAYS)


@pytest.mark.parametrize("again", [[0, 0], [1, 0]])
def test_what_both_clusters_have_twice_or_out_of_order_has_no_digest(again: list[int]) -> None:
    blocks = [[Entry("us", Position(3, 0), 1)], [Entry("us", Position(3, 1), 2)]]
    sides = [Side(name, [blocks[number] for number in again], None) for name in NAMES]
    assert faults(slow(sides))
    assert not is_in_step(answers_of(sides), BOTH_WAYS)


@pytest.mark.parametrize(("local", "holds"), [(0, False), (1, True), (2, True)])
def test_a_mapping_inside_of_a_block_promises_the_entries_up_to_there(local: int, holds: bool) -> None:
    blocks = [[Entry("us", Position(3, number), 2) for number in range(3)]]
    sides = [Side("us", blocks, None, [(local, 1)], 20), Side("eu", blocks, None, [], 21)]
    assert (faults(slow(sides)) == set()) is holds
    assert is_in_step(answers_of(sides), BOTH_WAYS) is holds
