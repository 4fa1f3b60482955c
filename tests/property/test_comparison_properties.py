"""The comparison by blocks against a model that looks at every message: random logs with holes, doubles and swaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_worker import batch_entry

from replicator.engine.log.block import BlockKind, build_block
from replicator.pipeline.data_plane import FetchedBlock, SubscriptionState
from replicator.pipeline.verify import entry_reader
from replicator.pipeline.verify.blocks import LogRange
from replicator.pipeline.verify.comparison import order
from replicator.pipeline.verify.comparison.acked import Acked
from replicator.pipeline.verify.comparison.faults import compare
from replicator.pipeline.verify.comparison.promises import by_pair
from replicator.pipeline.verify.comparison.rows import (
    BEHIND,
    CELL_KEY,
    COMPARED,
    PIECES,
    FindingRow,
    PieceRows,
    whole_cells,
)
from replicator.pipeline.verify.comparison.scope import ReplicaState, Scope, TopicScope
from replicator.pipeline.verify.entry_reader import RangeReader
from replicator.pipeline.verify.reachability import Reachability
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Start, end_before

NAMES = ("us", "eu", "ap")
PAIRS = frozenset((a, b) for a in NAMES[:2] for b in NAMES if a != b)
TOPIC = "persistent://public/default/t"
END = Position(99, 0)


@dataclass
class Entry:
    """Entry of a log: its identity, and a content number, which is 0 unless the content was changed."""

    origin: str
    position: Position
    size: int
    content: int = 0


@dataclass
class Log:
    """Log of a cluster: its blocks, each with the position at which it lies."""

    cluster: str
    blocks: list[tuple[Position, list[Entry]]] = field(default_factory=list)

    def entries(self) -> Iterator[tuple[Position, Entry]]:
        for at, block in self.blocks:
            for index, entry in enumerate(block):
                yield Position(at.ledger, at.entry + index), entry


def packed(entries: Sequence[Entry]) -> bytes:
    first = entries[0]
    return build_block(
        kind=BlockKind.MESSAGES,
        origin=first.origin,
        incarnation=7,
        origin_first=first.position,
        publish_time_ms=1,
        entries=[bytes_of(entry) for entry in entries],
        batch_sizes=[entry.size for entry in entries],
    )


def bytes_of(entry: Entry) -> bytes:
    payloads = [b"%d" % index for index in range(entry.size)]
    if entry.content:
        payloads[entry.content % entry.size] = b"changed %d" % entry.content
    return batch_entry(payloads)


@st.composite
def logs(draw: Any) -> list[Log]:
    """Draw three clusters' logs of the entries of two origins: in other blocks, with holes, doubles, swaps, changes."""
    published: dict[str, list[Entry]] = {}
    for origin, ledger in (("us", 3), ("eu", 5)):
        sizes = draw(st.lists(st.integers(1, 3), max_size=9))
        split = draw(st.integers(0, 9))
        published[origin] = [
            Entry(origin, Position(ledger, n) if n < split else Position(ledger + 10, n - split), size)
            for n, size in enumerate(sizes)
        ]
    made = []
    for cluster in NAMES:
        entries = [entry for origin in draw(st.permutations(list(published))) for entry in published[origin]]
        runs = []
        for entry in entries:
            kind = draw(st.sampled_from(["whole"] * 12 + ["hole", "double", "changed", "cut"]))
            changed = Entry(
                entry.origin, entry.position, entry.size, draw(st.integers(1, 2)) if kind == "changed" else 0
            )
            if kind != "hole":
                last = runs[-1][-1] if runs else None
                follows = last is not None and (last.origin, last.position) == (
                    entry.origin,
                    Position(entry.position.ledger, entry.position.entry - 1),
                )
                if follows and kind != "cut":
                    runs[-1].append(changed)
                else:
                    runs.append([changed])
            if kind == "double":
                runs.append([entry])
        for _ in range(draw(st.integers(0, 1))):
            if len(runs) > 1:
                at = draw(st.integers(0, len(runs) - 2))
                runs[at], runs[at + 1] = runs[at + 1], runs[at]
        log, local = Log(cluster), Position(1, 0)
        for run in runs:
            log.blocks.append((local, run))
            local = Position(local.ledger + draw(st.integers(0, 1)), local.entry + len(run))
        made.append(log)
    return made


@st.composite
def states(draw: Any, log: Log) -> SubscriptionState | None:
    """Draw a subscription that has acknowledged some entries of ``log``; None if the cluster has no subscription."""
    places = list(log.entries())
    if not places or draw(st.booleans()):
        return None
    mark = draw(st.sampled_from([BEFORE_ALL, *(place for place, _ in places)]))
    beyond = [(place, entry) for place, entry in places if place > mark]
    singles = [(place, place) for place, _ in beyond if draw(st.booleans())]
    whole = {place for place, _ in singles}
    parts = {
        place: (draw(st.integers(0, entry.size - 1)),)
        for place, entry in beyond
        if entry.size > 1 and place not in whole and draw(st.booleans())
    }
    started = draw(st.dictionaries(st.sampled_from(NAMES[:2]), st.sampled_from(places), max_size=2))
    starts = {origin: Start(7, entry.position) for origin, (_, entry) in started.items()}
    return SubscriptionState("s", True, 1, mark, tuple(singles), parts, starts)


@dataclass
class Case:
    logs: list[Log]
    states: list[SubscriptionState | None]
    mappings: dict[int, list[SnapshotMapping]]
    cuts: list[list[Position]]
    """Positions that cut each log into ranges; a task reads one range."""
    reached: dict[int, int | None]
    """Number of entries of us's first ledger that each cluster says it has; None if it does not say."""
    anew: bool = False
    """Whether the topic was made anew at us after all that."""


@st.composite
def cases(draw: Any) -> Case:
    made = draw(logs())
    mappings: dict[int, list[SnapshotMapping]] = {}
    for home, peer in ((0, 1), (1, 0)):
        here, there = list(made[home].entries()), list(made[peer].entries())
        for number in range(draw(st.integers(0, 3)) if here and there else 0):
            mapping = SnapshotMapping(
                f"s{number}", draw(st.sampled_from(here))[0], NAMES[peer], draw(st.sampled_from(there))[0]
            )
            mappings.setdefault(home, []).append(mapping)
    reached = {number: draw(st.none() | st.integers(0, 9)) for number in (1, 2)}
    places = [[place for place, _ in log.entries()] for log in made]
    cuts = [sorted(draw(st.sets(st.sampled_from(each), max_size=2))) if each else [] for each in places]
    return Case(made, [draw(states(log)) for log in made], mappings, cuts, reached)


def findings(case: Case) -> list[FindingRow]:
    """Return the findings of the comparison, which runs in small batches as in Spark's tasks."""
    standings = {}
    for number in range(3):
        mark = case.reached.get(number)
        marks = None if mark is None else {"us": (7, Position(3, mark - 1)), "eu": (7, END)}
        standings[number] = ReplicaState(high_water=marks)
    if case.anew:
        standings[0] = ReplicaState(high_water={"us": (8, Position(8_000, 0))})
    acked = {number: Acked.of(state) for number, state in enumerate(case.states) if state is not None}
    numbers = {name: number for number, name in enumerate(NAMES)}
    ways = Reachability(PAIRS, PAIRS)
    topic = TopicScope(TOPIC, ways, standings, {"s": acked} if acked else {}, by_pair(case.mappings, numbers))
    scope = Scope(NAMES, ("", "", ""), (topic,))
    rows = PieceRows()
    for number, log in enumerate(case.logs):
        edges = [BEFORE_ALL, *case.cuts[number], END]
        for part, (after, upto) in enumerate(pairwise(edges)):
            reader = RangeReader(LogRange(number, 0, part, after, upto), scope, rows)
            for at, block in log.blocks:
                if at <= upto and Position(at.ledger, at.entry + len(block) - 1) > after:
                    reader.take(FetchedBlock(at, memoryview(packed(block))))
            reader.end()
    table = pa.Table.from_batches([rows.take()], schema=PIECES)
    table = table.sort_by([(name, "ascending") for name in (*CELL_KEY, "start")])
    places = [{place: bytes_of(entry) for place, entry in log.entries()} for log in case.logs]

    def read(place: tuple[int, int, int, int], count: int) -> Iterator[bytes]:
        cluster, _, ledger, first = place
        return (places[cluster][Position(ledger, first + index)] for index in range(count))

    found: list[FindingRow] = []
    copies = []
    for cells in whole_cells(table.to_batches(max_chunksize=3)):
        found += compare(cells, scope, read)
        copies.append(cells)
    suspect = order.out_of_order(found)
    logs_of = {(0, NAMES.index(cluster)) for _, cluster in suspect}
    of_logs = [order.first_copies(cells, 3, logs_of) for cells in copies]
    log = pa.Table.from_batches(of_logs, schema=order.COPIES)
    log = log.sort_by([(name, "ascending") for name in (*order.LOG_KEY, "ledger", "entry")])
    return [*found, *order.order_violations([log], (TOPIC,), NAMES)]


def model(case: Case) -> Counter[str]:
    """Return how many findings of each kind a comparison must have, computed message by message."""
    counts: Counter[str] = Counter()
    of: list[dict[tuple[str, Position], list[tuple[Position, Entry]]]] = []
    for log in case.logs:
        here: dict[tuple[str, Position], list[tuple[Position, Entry]]] = {}
        for place, entry in log.entries():
            here.setdefault((entry.origin, entry.position), []).append((place, entry))
        of.append(here)
    identities = {key: copies[0][1].size for here in of for key, copies in here.items()}
    counts[COMPARED] = sum(identities.values())
    for (origin, position), size in identities.items():
        key = (origin, position)
        for first, other in sorted(PAIRS):
            at, to = NAMES.index(first), NAMES.index(other)
            if first == origin and (key in of[at]) != (key in of[to]):
                mark = case.reached.get(to)
                above = mark is not None and origin == "us" and position > Position(3, mark - 1)
                counts[BEHIND if above and key not in of[to] else "missing"] += size
            state = case.states[at]
            is_before = state is not None and key[1] <= end_before(state.starts, key[0])
            if key in of[at] and key in of[to] and not is_before:
                counts["ack_mismatch"] += len(
                    acknowledged(case.states[at], of[at][key][0][0], size)
                    - acknowledged(case.states[to], of[to][key][0][0], size)
                )
        counts["duplicated"] += size * sum(len(here.get(key, ())) > 1 for here in of)
        contents = {entry.content for here in of for _, entry in here.get(key, ())}
        changed = {content % size for content in contents if content}
        counts["corrupted"] += len(changed) if len(contents) > 1 else 0
    for number, here in enumerate(of):
        firsts = sorted((copies[0][0], *key) for key, copies in here.items())
        for origin in NAMES:
            positions = [position for _, of_origin, position in firsts if of_origin == origin]
            counts["reordered"] += sum(after < before for before, after in pairwise(positions))
        for mapping in case.mappings.get(number, ()):
            peer = of[NAMES.index(mapping.peer)]
            counts["mismapped"] += any(
                copies[0][0] <= mapping.remote and (key not in here or here[key][0][0] > mapping.local)
                for key, copies in peer.items()
            )
    return counts


def acknowledged(state: SubscriptionState | None, place: Position, size: int) -> set[int]:
    if state is None:
        return set()
    if place <= state.mark_delete or any(first <= place <= last for first, last in state.individually_deleted):
        return set(range(size))
    return set(state.batch_acks.get(place, ()))


@pytest.fixture(autouse=True)
def _small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_reader, "CELL_ENTRIES", 4)


@given(cases())
def test_blocks_tell_what_messages_would(case: Case) -> None:
    found = findings(case)
    counts: Counter[str] = Counter()
    for each in found:
        if each.kind in (COMPARED, BEHIND) or not each.kind.startswith("#"):
            counts[each.kind] += each.count
    broken = {(each.cluster, each.detail) for each in found if each.kind == "mismapped"}
    counts["mismapped"] = len(broken)
    assert +counts == +model(case)


@pytest.mark.parametrize("anew", [True, False])
def test_who_made_a_topic_anew_need_not_have_the_life_that_others_keep(anew: bool) -> None:
    kept = [Entry("us", Position(3, n), 1) for n in range(3)]
    case = Case(
        [Log("us"), *(Log(name, [(Position(1, 0), kept)]) for name in NAMES[1:])],
        [None] * 3,
        {},
        [[], [], []],
        {1: None, 2: None},
        anew=anew,
    )
    kinds = {each.kind for each in findings(case) if not each.kind.startswith("#")} - {COMPARED}
    assert kinds == (set() if anew else {"missing"})
