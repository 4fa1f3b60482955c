"""The room in segments against a model: transactions that commit or fail, readers of older states, restarts.

What must hold after every step:

1. No page that is given out holds a byte that lives, or one that a reader's state of the store refers to.
2. What lives in each segment is what was committed there and not freed.
3. A segment in which nothing lives is free, unless it is open; where nobody reads, all free ones but those that are
   kept are given back to the disk.
4. A transaction that fails leaves the room as it was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicator.engine.log.segments.places import Place
from replicator.engine.log.segments.settings import FREE_KEPT
from replicator.engine.log.segments.space import (
    DENSEST_SHARE,
    SPARSE_SHARE,
    Readers,
    Segment,
    SegmentSpace,
    share_under,
)

PAGE = 16
CAPACITY = 8 * PAGE
sizes = st.integers(1, CAPACITY)


@dataclass
class Reader:
    """Reader of a state of the store. Its state is None until its transaction begins, which may be later than
    announced."""

    began: int
    places: frozenset[Place] | None = None


@dataclass
class Transaction:
    written: list[Place] = field(default_factory=list)
    freed: list[Place] = field(default_factory=list)


def pages(place: Place) -> set[tuple[int, int]]:
    return {(place.segment, page) for page in range(place.offset // PAGE, -(-(place.offset + place.size) // PAGE))}


class SegmentSpaceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.readers = Readers()
        self.space = SegmentSpace(PAGE, self.readers)
        self.space.begin()
        self.disk: dict[int, int] = {}
        """The segments that have a file, and its size."""
        self.made = 0
        self.live: frozenset[Place] = frozenset()
        self.reading: list[Reader] = []
        self.running: Transaction | None = None
        self.share = SPARSE_SHARE
        self.before: tuple[tuple[int, int] | None, dict[int, int]] = (None, {})

    # Transactions, as the writer's thread runs them.

    def used(self) -> tuple[int, int] | None:
        return None if self.space.open is None else (self.space.open.number, self.space.open.used)

    def transaction(self) -> Transaction:
        if self.running is None:
            self.running = Transaction()
            self.before = (self.used(), {each.number: each.live for each in self.space.segments.values()})
        return self.running

    @rule(size=sizes, aligned=st.booleans())
    def take(self, size: int, aligned: bool) -> None:
        running = self.transaction()
        self._take(running, size, aligned=aligned)

    def _take(self, running: Transaction, size: int, *, aligned: bool) -> Place:
        if aligned:
            self.space.align()
        if not self.space.has_room(size):
            segment = self.space.reuse(size)
            if segment is None:
                self.made += 1
                self.disk[self.made] = CAPACITY
                segment = Segment(self.made, CAPACITY)
            assert segment.number in self.disk, "a segment without a file is given out"
            self.space.open_next(segment)
        place = self.space.take(size)
        assert 0 <= place.offset <= place.offset + place.size <= self.disk[place.segment], f"{place} is outside"
        assert all(place.offset >= each.offset + each.size or place.segment != each.segment for each in running.written)
        kept = self.live.union(*(each.places or () for each in self.reading))
        taken = pages(place)
        overlapping = [each for each in kept if taken & pages(each)]
        assert not overlapping, f"{place} would be written over {overlapping}"
        running.written.append(place)
        return place

    @rule()
    def take_a_whole_segment(self) -> None:
        self._take(self.transaction(), CAPACITY, aligned=True)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        running = self.transaction()
        candidates = sorted((self.live | set(running.written)) - set(running.freed))
        if candidates:
            running.freed += data.draw(st.lists(st.sampled_from(candidates), unique=True, min_size=1))

    @rule(data=st.data())
    def free_all_of_a_segment(self, data: st.DataObject) -> None:
        running = self.transaction()
        candidates = sorted((self.live | set(running.written)) - set(running.freed))
        if candidates:
            number = data.draw(st.sampled_from(candidates)).segment
            running.freed += [place for place in candidates if place.segment == number]

    @rule(begins=st.booleans(), quiet_only=st.booleans(), pressure=st.floats(0, 2))
    def compact(self, begins: bool, quiet_only: bool, pressure: float) -> None:
        running = self.transaction()
        if begins:
            self.space.begin_pass(quiet_only=quiet_only, pressure=pressure)
            self.share = share_under(pressure)
        sparse = self.space.sparse()
        if sparse is None:
            return
        assert sparse is not self.space.open
        assert 0 < sparse.live <= max(SPARSE_SHARE * sparse.capacity, self.share * sparse.used)
        for place in sorted(self.live - set(running.freed)):
            if place.segment == sparse.number:
                self._take(running, place.size, aligned=False)
                running.freed.append(place)

    @precondition(lambda self: self.running is not None)
    @rule(reads_between=st.booleans())
    def commit(self, reads_between: bool) -> None:
        """Commit in the store before telling the space: a reader that begins in between sees the new state already."""
        running, self.running = self.running, None
        assert running is not None
        if running.written:
            self.space.align()
        self.live = (self.live | set(running.written)) - set(running.freed)
        if reads_between:
            self.reading.append(Reader(self.readers.begin(), self.live))
        self.space.commit(running.written, running.freed)
        given_back = self.space.surplus(FREE_KEPT)
        for segment in given_back:
            assert not [each for each in self.live if each.segment == segment.number], "what lives is deleted"
            for reader in self.reading:
                assert not [each for each in reader.places or () if each.segment == segment.number], "it is being read"
            self.space.forget(segment)
            del self.disk[segment.number]
        if not self.reading:
            free = [each for each in self.space.segments.values() if each.free_since is not None]
            assert len(free) <= FREE_KEPT, "free segments stay on the disk"
            larger = [each for each in given_back if free and each.capacity > min(each.capacity for each in free)]
            assert not larger, "a small one is kept in the place of a large one"

    @precondition(lambda self: self.running is not None)
    @rule()
    def roll_back(self) -> None:
        self.running = None
        self.space.roll_back()
        used, live = self.before
        assert self.used() == used, "what is open is not as it was"
        now = {each.number: each.live for each in self.space.segments.values()}
        assert all(now.get(number) == bytes_ for number, bytes_ in live.items())

    @precondition(lambda self: self.running is None)
    @rule()
    def pass_at_the_limit(self) -> None:
        """Run a pass, which must end, whatever lies where; then little is dead in each segment that it had to look
        at."""
        looked_at = {number: each.live for number, each in self.space.segments.items() if each.live}
        for step in range(len(looked_at) + 1):
            self.compact(begins=not step, quiet_only=True, pressure=1.0)
            self.commit(reads_between=False)
        assert self.space.sparse() is None, "the pass goes on"
        for number, live in looked_at.items():
            segment = self.space.segments.get(number)
            if segment is not None and segment is not self.space.open and segment.live == live:
                assert live > DENSEST_SHARE * segment.used or segment.stuck

    # Readers.

    @rule(at_once=st.booleans())
    def begin_reading(self, at_once: bool) -> None:
        self.reading.append(Reader(self.readers.begin(), self.live if at_once else None))

    @rule()
    def readers_see_the_store(self) -> None:
        for reader in self.reading:
            if reader.places is None:
                reader.places = self.live

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def end_reading(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.reading))
        self.reading.remove(reader)
        self.readers.end(reader.began)

    # Starts.

    @rule(cut_to=st.none() | st.integers(0, CAPACITY // PAGE), data=st.data())
    def restart(self, cut_to: int | None, data: st.DataObject) -> None:
        """Restart with only what the store refers to. A file may be shorter or gone, whatever was in it."""
        self.reading.clear()
        self.running = None
        if cut_to is not None and self.disk:
            number = data.draw(st.sampled_from(sorted(self.disk)))
            self.disk[number] = min(self.disk[number], cut_to * PAGE)
            if not cut_to:
                del self.disk[number]
        self.readers = Readers()
        self.space = SegmentSpace(PAGE, self.readers)
        for number, capacity in sorted(self.disk.items()):
            self.space.add(Segment(number, capacity))
        self.space.revive(sorted(self.live))
        self.space.begin()
        for number in {place.segment for place in self.live} - self.disk.keys():
            self.disk[number] = 0

    # What must hold.

    @invariant()
    def live_bytes_are_those_that_the_store_refers_to(self) -> None:
        expected: Counter[int] = Counter()
        for place in self.live:
            expected[place.segment] += place.size
        assert {each.number: each.live for each in self.space.segments.values() if each.live} == dict(expected)
        assert self.space.live_bytes() == expected.total()

    @invariant()
    def no_segment_is_lost(self) -> None:
        assert self.space.segments.keys() == self.disk.keys()
        if self.running is None:
            for segment in self.space.segments.values():
                is_free = segment.free_since is not None
                assert is_free is (not segment.live and segment is not self.space.open), f"{segment} is lost, or not"

    def teardown(self) -> None:
        """Check that without readers, every free segment is filled again before a new one is made."""
        if self.running is not None:
            self.roll_back()
        for reader in self.reading:
            self.readers.end(reader.began)
        self.reading.clear()
        free = sum(each.free_since is not None and each.capacity == CAPACITY for each in self.space.segments.values())
        made = self.made
        running = self.transaction()
        for _ in range(free):
            self.space.align()
            if self.space.open is not None:
                self.space.open.used = self.space.open.capacity  # full
            self._take(running, CAPACITY, aligned=False)
        assert self.made == made, "a segment was made although one was free"


def test_a_segment_is_used_again_when_the_last_of_those_who_read_it_ends() -> None:
    readers = Readers()
    space = SegmentSpace(PAGE, readers)
    space.begin()
    space.open_next(Segment(1, CAPACITY))
    place = space.take(CAPACITY)
    space.open_next(Segment(2, CAPACITY))
    space.take(1)
    space.commit([place, Place(2, 0, 1)], [])
    early, also_early = readers.begin(), readers.begin()
    space.commit([], [place])
    late = readers.begin()
    for began in (early, also_early):
        assert space.reuse(1) is None
        readers.end(began)
    found = space.reuse(1)
    assert found is not None
    assert found.number == 1
    readers.end(late)


def test_the_nearer_the_limit_the_denser_a_segment_may_be_that_is_compacted() -> None:
    shares = [share_under(pressure / 100) for pressure in range(200)]
    assert shares == sorted(shares)
    assert {share_under(0.0), share_under(0.75)} == {SPARSE_SHARE}
    assert SPARSE_SHARE < share_under(0.9) < DENSEST_SHARE
    assert {share_under(1.0), share_under(7.0)} == {DENSEST_SHARE}


TestSegmentSpace = SegmentSpaceMachine.TestCase
TestSegmentSpace.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
