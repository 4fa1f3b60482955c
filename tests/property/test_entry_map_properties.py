"""Map of the entries that are both at the brokers and in the engine's log, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.entry_map import EntryMap
from replicator.apache.stamps import Identity
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

OWN, THEIRS = "a.pulsar", ("b", "c")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["own", *THEIRS]),
        st.sampled_from(["copied", "copied", "published", "published", "refused", "let_in"]),
        st.integers(0, 3),
    ),
    max_size=40,
)
PLACES = st.builds(Position, st.integers(0, 3), st.integers(-1, 30))


class Sides:
    """Entry map under test, with a model: for entries on both sides, the log's position by the brokers' position."""

    def __init__(self) -> None:
        self.map = EntryMap(OWN, self._messages_of)
        self.both: dict[Position, Position] = {}
        self.identities: dict[Position, tuple[str, Position]] = {}
        """Identities of all entries at the brokers that the map knows."""
        self._log, self._topic = Position(1, -1), Position(1, -1)
        self._sent = dict.fromkeys(THEIRS, -1)
        self._copied: dict[tuple[str, int], Position] = {}
        self._published = dict.fromkeys(THEIRS, -1)
        self._markers: set[tuple[str, int]] = set()
        self._markers_at: set[Position] = set()
        """Positions of the markers in the log."""
        self._refused: set[tuple[str, int]] = set()
        """Entries that the brokers refused."""

    def _messages_of(self, positions: PositionSet) -> PositionSet:
        found = positions.copy()
        found.difference_update(PositionSet(self._markers_at))
        return found

    def _next_in_log(self, gap: int) -> Position:
        self._log = Position(self._log.ledger, self._log.entry + 1 + gap)
        return self._log

    def _next_at_brokers(self, gap: int) -> Position:
        self._topic = Position(self._topic.ledger + gap // 3, self._topic.entry + 1 if gap < 3 else 0)
        return self._topic

    def own(self, gap: int) -> None:
        """Publish an application's entry at the brokers, and let the bridge read it."""
        there, here = self._next_at_brokers(gap), self._next_in_log(gap % 2)
        self.map.copied(OWN, there, here, 1)
        self.both[there] = here
        self.identities[there] = OWN, there

    def copied(self, origin: str, gap: int) -> None:
        """Copy an entry by a link. It is not at the brokers yet, and a marker never is."""
        self._sent[origin] += 1
        here = self._next_in_log(gap % 2)
        marker = gap == 3
        if marker:
            self._markers_at.add(here)
        self.map.copied(origin, Position(5, self._sent[origin]), here, 1, messages=not marker)
        if marker:
            self._markers.add((origin, self._sent[origin]))
        else:
            self._copied[origin, self._sent[origin]] = here

    def published(self, origin: str, gap: int) -> None:
        """Publish the next entry that links brought or, if there is none, one that the log has lost."""
        number = self._published[origin] + 1
        while (origin, number) in self._markers:
            number += 1
        self._published[origin] = number
        self._stands(origin, number, gap)

    def refused(self, origin: str, gap: int) -> None:
        """Refuse the next entry that links brought, but not the first of an origin, which is published alone."""
        if not any(each == origin for each, _ in self.identities.values()):
            return
        number = self._published[origin] + 1
        while (origin, number) in self._markers:
            number += 1
        if (origin, number) in self._copied:
            self._published[origin] = number
            self._refused.add((origin, number))

    def let_in(self, origin: str, gap: int) -> None:
        """Put a refused entry behind those that are there."""
        if refused := sorted(number for each, number in self._refused if each == origin):
            number = refused[gap % len(refused)]
            self._refused.discard((origin, number))
            self._stands(origin, number, gap)

    def lacking(self, origin: str) -> PositionSet:
        """Return what the brokers lack though they have earlier and later entries of ``origin``."""
        there = [at.entry for each, at in self.identities.values() if each == origin]
        return PositionSet(
            Position(5, number)
            for each, number in self._refused
            if each == origin and there and there[0] < number < max(there)
        )

    def happens(self, origin: str, what: str, gap: int) -> None:
        if origin == "own":
            self.own(gap)
        else:
            getattr(self, what)(origin, gap)

    def _stands(self, origin: str, number: int, gap: int) -> None:
        there = self._next_at_brokers(gap)
        self.map.seen_at_broker(Identity(origin, 9, Position(5, number)), there)
        self.identities[there] = origin, Position(5, number)
        if (here := self._copied.get((origin, number))) is not None:
            self.both[there] = here
        else:
            self._sent[origin] = max(self._sent[origin], number)


@given(
    EVENTS,
    st.lists(PLACES, min_size=1, max_size=4),
    st.data(),
)
def test_what_lies_on_both_sides_is_translated_one_to_one(
    events: list[tuple[str, str, int]], asked: list[Position], data: st.DataObject
) -> None:
    sides = Sides()
    for number, (origin, what, gap) in enumerate(events):
        sides.happens(origin, what, gap)
        if number % 8 == 7:
            assert sides.map.beyond(BEFORE_ALL) == PositionSet(sides.both)
    open_ = PositionSet(data.draw(st.lists(st.sampled_from([Position(9, 9), *sides.both.values()]))))
    for mark_delete in asked:  # in any order
        beyond = sides.map.beyond(mark_delete)
        assert beyond == PositionSet(there for there in sides.both if there > mark_delete)
        acknowledged = PositionSet(sides.both[there] for there in beyond)
        acknowledged.difference_update(open_)
        beyond.difference_update(sides.map.to_broker(open_))
        assert beyond == sides.map.to_broker(acknowledged)
        assert sides.map.to_local(beyond) == acknowledged


@given(
    EVENTS,
    PLACES,
    st.dictionaries(
        st.sampled_from([OWN, *THEIRS]), st.builds(Position, st.sampled_from([0, 1, 2, 5]), st.integers(-1, 30))
    ),
)
def test_invariant_5_what_lies_before_a_start_is_found_by_origin_whatever_the_order_at_the_brokers(
    events: list[tuple[str, str, int]], start: Position, ends: dict[str, Position]
) -> None:
    sides = Sides()
    for origin, what, gap in events:
        sides.happens(origin, what, gap)
    everything = PositionSet(sides.identities)
    found = sides.map.up_to(everything, ends)
    expected = [there for there, (origin, at) in sides.identities.items() if origin in ends and at <= ends[origin]]
    assert found == PositionSet(expected)
    before_start = sides.map.up_to(everything, sides.map.ends_at(start))
    first = {each: sides.lacking(each).first() for each in THEIRS}
    behind = {
        each: min(
            [at for there, (origin, at) in sides.identities.items() if origin == each and there > start]
            + [at for at in (first.get(each),) if at is not None],
            default=None,
        )
        for each in (OWN, *THEIRS)
    }
    assert before_start == PositionSet(
        there
        for there, (origin, at) in sides.identities.items()
        if there <= start and ((end := behind[origin]) is None or at < end)
    )


@given(EVENTS)
def test_invariant_1_what_brokers_refused_is_known_from_what_is_in_the_log_and_what_is_at_the_brokers(
    events: list[tuple[str, str, int]],
) -> None:
    sides = Sides()
    for origin, what, gap in events:
        sides.happens(origin, what, gap)
    for origin in THEIRS:
        assert sides.map.missing(origin) == sides.lacking(origin)
    assert sides.map.doubled == 0
