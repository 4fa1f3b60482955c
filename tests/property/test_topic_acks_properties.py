"""The exact mapping at work, against plain sets of identities: two logs that hold the entries of three origins, each in
an order of its own, and what a cursor in one of them says to the other (invariant 5: nothing more than it consumed)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from replicator.engine.log.left_out import Hole
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.parts import PartialBatches
from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.unannounced import Unannounced
from replicator.sync import partly_announced
from replicator.sync.topic_acks import TopicAcks
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start, ends_before

INCARNATIONS = {"a": 11, "b": 22, "c": 33}
BATCH = 3
"""Messages in each entry."""
ALL = set(range(BATCH))
Identity = tuple[str, Position]


@dataclass
class Log:
    """Log of one cluster, with a model of its real contents."""

    cluster: str
    lives: dict[str, int] = field(default_factory=INCARNATIONS.copy)
    """The incarnation of the topic at each origin now."""
    shape: LogIndex = field(default_factory=LogIndex)
    place: dict[Identity, Position] = field(default_factory=dict)
    high_water: dict[str, HighWater] = field(default_factory=dict)
    holes: dict[str, list[Hole]] = field(default_factory=dict)
    never_here: set[Identity] = field(default_factory=set)
    """Entries that a link left out."""
    absent: dict[Identity, set[int]] = field(default_factory=dict)
    """Messages that a link left out of the batches that it brought."""
    next: Position = field(default_factory=lambda: Position(1, 0))

    def __post_init__(self) -> None:
        self.acks = TopicAcks(
            self.cluster,
            self.lives[self.cluster],
            self.shape,
            self.high_water.get,
            lambda origin: self.holes.get(origin, []),
            dict,
        )

    def append(
        self, origin: str, at: Position | None, *, marker: bool, absent: Collection[int] = frozenset()
    ) -> Position:
        """Append an entry of ``origin``; return its position there. ``at`` is that position; None for our own entry."""
        here = self.next
        self.next = Position(here.ledger, here.entry + 1)
        self.shape.append(here, 1, marker=marker)
        at = here if at is None else at
        if origin != self.cluster:
            self.acks.copied(origin, self.lives[origin], at, here, 1)
        self.high_water[origin] = HighWater(self.lives[origin], at)
        if not marker:
            self.place[origin, at] = here
        if absent:
            self.absent[origin, at] = set(absent)
            if self.shape.parts is None:
                self.shape.parts = PartialBatches(
                    lambda position: BitMap(self.absent[self.at(position)]), lambda _: BATCH
                )
            self.shape.parts.add(here, origin, at)
        return at

    def at(self, position: Position) -> Identity:
        return next(identity for identity, place in self.place.items() if place == position)

    def is_here(self, identity: Identity, index: int) -> bool:
        return identity in self.place and index not in self.absent.get(identity, ())

    def new_ledger(self) -> None:
        self.next = Position(self.next.ledger + 1, 0)

    def messages(self) -> Iterator[tuple[Identity, Position]]:
        return iter(self.place.items())


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Clusters a and b; c's messages come to each by a link of its own. Links may leave some out, and say so. The topic
    may be deleted anywhere and made anew: others keep what they have of its earlier life."""
    lives = INCARNATIONS.copy()
    logs = {name: Log(name, lives) for name in "abc"}
    originated: dict[str, list[tuple[Position, bool]]] = {name: [] for name in "abc"}
    begun = dict.fromkeys("abc", 0)
    """Index in each origin's entries at which its present life begins."""
    reached = {(source, to): 0 for source in "abc" for to in "ab" if source != to}
    for _ in range(draw(st.integers(0, 30))):
        if draw(st.integers(0, 9)) == 0:
            name = draw(st.sampled_from("abc"))
            lives[name] += 1
            logs[name] = Log(name, lives, next=Position(logs[name].next.ledger + 1, 0))
            for source, to in reached:
                if source == name:
                    reached[source, to] = len(originated[name])  # what was not copied is gone
                elif to == name:
                    reached[source, to] = begun[source]
            begun[name] = len(originated[name])
            continue
        if draw(st.booleans()):
            name, marker = draw(st.sampled_from("abc")), draw(st.integers(0, 5)) == 0
            if draw(st.integers(0, 9)) == 0:
                logs[name].new_ledger()
            originated[name].append((logs[name].append(name, None, marker=marker), marker))
            continue
        link = draw(st.sampled_from(sorted(reached)))
        source, to = link
        if reached[link] == len(originated[source]):
            continue
        at, marker = originated[source][reached[link]]
        reached[link] += 1
        if draw(st.integers(0, 7)) == 0 and reached[link] < len(originated[source]):
            before = logs[to].high_water.get(source)
            after = BEFORE_ALL if before is None else before.position
            logs[to].never_here.add((source, at))
            at, marker = originated[source][reached[link]]
            reached[link] += 1
            logs[to].holes.setdefault(source, []).append((after, Position(at.ledger, at.entry - 1)))
        lacks = st.sets(st.integers(0, BATCH - 1), max_size=BATCH - 1)
        logs[to].append(source, at, marker=marker, absent=set() if marker else draw(lacks))
    return logs["a"], logs["b"]


@st.composite
def consumed_in(draw: st.DrawFn, log: Log) -> tuple[Cursor, set[Identity], dict[Identity, set[int]]]:
    """A cursor, the entries that it consumed, and the messages of others. Of a batch that is here in part that is at
    most what is here."""
    cursor = Cursor(log.shape, CursorState())
    whole, parts = set[Identity](), dict[Identity, set[int]]()
    for identity, position in list(log.messages()):
        absent = log.absent.get(identity, set[int]())
        kind = draw(st.sampled_from(["whole", "whole", "part", "not"]))
        if kind == "whole":
            cursor.acknowledge(position, None, BATCH)
            if absent:
                parts[identity] = ALL - absent
            else:
                whole.add(identity)
        elif kind == "part":
            acked = draw(st.sets(st.integers(0, BATCH - 1), min_size=1, max_size=BATCH - 1))
            consumed = cursor.acknowledge(position, acked, BATCH)
            assert consumed == (acked | absent == ALL), "it is consumed when all that is here of it is"
            if acked - absent:
                parts[identity] = acked - absent
    return cursor, whole, parts


@given(two_logs(), st.data())
def test_a_whole_vector_says_of_each_message_here_exactly_whether_it_is_consumed(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    log, _ = logs
    cursor, whole, parts = data.draw(consumed_in(log))
    vector = log.acks.vector_of(cursor.state, log.high_water)
    for origin, position in log.place:
        acks = vector.origins[origin]
        assert acks.covers(position) == ((origin, position) in whole)
        assert set(acks.batches.get(position, ())) == parts.get((origin, position), set())
    for origin, position in log.never_here:
        assert not vector.origins[origin].covers(position), "nobody here has seen what the link left out"


@given(two_logs(), st.data())
def test_invariant_5_nothing_is_placed_that_was_not_consumed_and_all_that_was(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    here, there = logs
    cursor, whole, parts = data.draw(consumed_in(here))
    vector = here.acks.vector_of(cursor.state, here.high_water)
    placed = there.acks.place(vector, BEFORE_ALL)
    of = {position: identity for identity, position in there.messages()}
    claimed = {of[position] for position in placed.positions if position in of}
    assert claimed == {identity for identity in whole if identity in there.place}, "what is here in part is not whole"
    assert {of[position]: set(indexes) for position, indexes in placed.batches.items()} == {
        identity: indexes for identity, indexes in parts.items() if identity in there.place
    }
    waiting = {identity for identity in whole if _comes_later(identity, there)}
    assert all(placed.rest.origins[origin].covers(position) for origin, position in waiting)
    for origin, position in there.place:
        rest = placed.rest.origins.get(origin)
        assert rest is None or not rest.covers(position), "what is here does not wait"


@given(two_logs(), st.data())
def test_a_change_says_only_what_was_noted(logs: tuple[Log, Log], data: st.DataObject) -> None:
    here, there = logs
    cursor, whole, parts = data.draw(consumed_in(here))
    unannounced = Unannounced(
        PositionSet(here.place[identity] for identity in whole), {here.place[identity]: None for identity in parts}
    )
    vector, later = here.acks.delta_of(unannounced, cursor.state)
    assert not later
    for origin, position in here.place:
        acks = vector.origins.get(origin)
        assert (acks is not None and acks.covers(position)) == ((origin, position) in whole)
    placed = there.acks.place(vector, BEFORE_ALL)
    of = {position: identity for identity, position in there.messages()}
    assert {of[position] for position in placed.positions if position in of} == whole & there.place.keys()


@given(two_logs(), st.data())
def test_two_clusters_that_consumed_the_same_of_what_both_have_agree_on_what_is_left(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    here, there = logs
    cursor, _, _ = data.draw(consumed_in(here))
    other = Cursor(there.shape, CursorState())
    placed = there.acks.place(here.acks.vector_of(cursor.state, here.high_water), BEFORE_ALL)
    other.merge_acks(placed.positions, placed.batches, lambda _: BATCH, announce=False)
    left, left_there = (
        log.acks.unconsumed(each.state, log.high_water) for log, each in ((here, cursor), (there, other))
    )
    for identity in here.place.keys() & there.place.keys():
        if identity in here.absent or identity in there.absent:
            for index in ALL:
                if here.is_here(identity, index) and there.is_here(identity, index):
                    assert _consumed(here, cursor, identity, index) == _consumed(there, other, identity, index)
            continue
        origin, position = identity
        assert left.origins[origin].covers(position) == left_there.origins[origin].covers(position)
        assert left.origins[origin].batches.get(position) == left_there.origins[origin].batches.get(position)


@given(two_logs(), st.data())
def test_what_others_say_of_messages_that_were_left_out_means_nothing_here_and_can_be_told_on(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    log, _ = logs
    said = AckVector({origin: OriginAcks(INCARNATIONS[origin]) for origin in log.high_water})
    of_links = [identity for identity in [*log.never_here, *log.absent] if not _comes_later(identity, log)]
    for identity in [*log.place, *of_links]:
        origin, at = identity
        kind = data.draw(st.sampled_from(["range", "whole", "part", "not"]))
        if kind == "range":
            said.origins[origin].merge(OriginAcks(INCARNATIONS[origin], [(Position(at.ledger, at.entry - 1), at)]))
        elif kind == "whole":
            said.origins[origin].positions.add(at)
        elif kind == "part":
            said.origins[origin].batches[at] = BitMap([0])
    heard = log.acks.of_missing(said)
    for identity in of_links:
        origin, at = identity
        kept = heard.origins.get(origin, OriginAcks(0))
        assert kept.covers(at) == said.origins[origin].covers(at)
        if not kept.covers(at):
            assert kept.batches.get(at) == said.origins[origin].batches.get(at)
    for origin, at in log.place.keys() - log.absent.keys():
        assert origin not in heard.origins or not heard.origins[origin].covers(at), "what is here is not kept twice"
    placed = log.acks.place(said, BEFORE_ALL)
    assert not any(placed.rest.origins[o].covers(at) for o, at in of_links if o in placed.rest.origins), "never comes"


@given(two_logs(), st.data())
def test_what_is_too_much_to_be_told_at_once_is_told_later(logs: tuple[Log, Log], data: st.DataObject) -> None:
    log, _ = logs
    cursor, whole, parts = data.draw(consumed_in(log))
    unannounced = Unannounced(PositionSet(position for _, position in log.messages() if cursor.is_consumed(position)))
    told = AckVector()
    with patch.object(partly_announced, "PARTS_ANNOUNCED_MAX", 1):
        while unannounced:
            vector, later = log.acks.delta_of(unannounced, cursor.state)
            assert len(later) < max(len(unannounced.positions), 1)
            told.merge(vector)
            unannounced = Unannounced(later)
    for identity, position in log.messages():
        if cursor.is_consumed(position):
            acks = told.origins[identity[0]]
            assert acks.covers(identity[1]) == (identity in whole)
            assert set(acks.batches.get(identity[1], ())) == parts.get(identity, set())


@given(two_logs())
def test_what_a_claim_means_here_follows_from_its_positions_and_not_from_the_life_that_it_names(
    logs: tuple[Log, Log],
) -> None:
    """Workers of earlier versions name one life in a claim, and think of that one alone."""
    here, there = logs
    for origin in here.high_water:
        acks = here.acks.vector_of(CursorState(mark_delete=here.shape.last), here.high_water).origins[origin]
        said = []
        for difference in (-1, 0, 1):
            claim = acks.copy()
            claim.incarnation += difference
            placed = there.acks.place(AckVector({origin: claim}), BEFORE_ALL)
            rest = placed.rest.origins.get(origin, OriginAcks(0))
            said.append((placed.positions, placed.batches, rest.ranges, rest.positions))
        assert said[0] == said[1] == said[2]


@given(two_logs(), st.data())
def test_entries_of_an_earlier_life_are_never_claimed_as_the_own_ones_of_who_keeps_them(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    log, _ = logs
    cursor, whole, parts = data.draw(consumed_in(log))
    noted = PositionSet(log.place[identity] for identity in [*whole, *parts])
    change, _ = log.acks.delta_of(Unannounced(noted), cursor.state)
    for vector in (log.acks.vector_of(cursor.state, log.high_water), change):
        own = vector.origins.get(log.cluster, OriginAcks(0))
        copied = {place for (origin, _), place in log.place.items() if origin != log.cluster}
        assert copied.isdisjoint(own.positions)
        assert copied.isdisjoint(own.batches)


def test_what_a_restored_log_has_lost_at_the_end_of_a_ledger_is_not_claimed() -> None:
    log = Log("a")
    log.append("a", None, marker=False)
    log.new_ledger()
    log.append("a", None, marker=False)
    acks = log.acks.vector_of(CursorState(mark_delete=log.shape.last), log.high_water).origins["a"]
    assert acks.covers(Position(1, 0))
    assert acks.covers(Position(2, 0))
    assert not acks.covers(Position(1, 1)), "others may have it"


def test_indexes_of_a_batch_travel_as_they_are() -> None:
    here, there = Log("a"), Log("b")
    at = here.append("a", None, marker=False)
    there.append("b", None, marker=False)
    there.append("a", at, marker=False)
    cursor = Cursor(here.shape, CursorState())
    cursor.acknowledge(at, [0, 2], BATCH)
    placed = there.acks.place(here.acks.vector_of(cursor.state, here.high_water), BEFORE_ALL)
    assert placed.batches == {Position(1, 1): BitMap([0, 2])}


def _consumed(log: Log, cursor: Cursor, identity: Identity, index: int) -> bool:
    position = log.place[identity]
    return cursor.is_consumed(position) or index in (cursor.acked_indexes(position) or ())


def _comes_later(identity: Identity, log: Log) -> bool:
    origin, position = identity
    high_water = log.high_water.get(origin)
    return origin != log.cluster and (high_water is None or position > high_water.position)


@given(two_logs(), st.data())
def test_what_lies_before_a_start_is_claimed_by_nobody_and_lies_where_the_start_says(
    logs: tuple[Log, Log], data: st.DataObject
) -> None:
    log, _ = logs
    cursor, _, _ = data.draw(consumed_in(log))
    whole = log.acks.vector_of(cursor.state, log.high_water)
    origins = data.draw(st.sets(st.sampled_from("abc")))
    places = {origin: [at for of, at in log.place if of == origin] for origin in origins}
    cursor.state.starts = {
        origin: Start(INCARNATIONS[origin], data.draw(st.sampled_from([BEFORE_ALL, *places[origin]])))
        for origin in sorted(origins)
    }
    vector = log.acks.vector_of(cursor.state, log.high_water)
    ends = ends_before(cursor.state.starts, log.acks.known(log.high_water))
    before = log.acks.before(ends, BEFORE_ALL)
    for (origin, at), place in log.place.items():
        is_before = at <= ends.get(origin, BEFORE_ALL)
        assert (place in before) == is_before
        assert vector.origins[origin].covers(at) == (whole.origins[origin].covers(at) and not is_before)
    noted = Unannounced(positions=PositionSet(place for _, place in log.messages()))
    change, _ = log.acks.delta_of(noted, cursor.state)
    for origin, acks in change.origins.items():
        assert all(at > ends.get(origin, BEFORE_ALL) for at in [*acks.positions, *acks.batches])
