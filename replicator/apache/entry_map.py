"""The positions of one topic's entries at the brokers and in the engine's log. Pure.

Invariant (DESIGN §3): 3, entries of one origin have the same order on both sides. So each origin has one ascending
table on each side.

1. Entries that producers published at the brokers have the brokers' own origin. Their origin positions follow from the
   positions at the brokers (:mod:`replicator.apache.broker_lives`). The extents of the engine's log have their local
   positions.
2. Entries that links brought, and the bridge published, have another origin. The extents have their positions in the
   engine's log, and ``published`` has their positions at the brokers.
3. An entry that both tables know is translated one to one, in both directions.
4. A message that the log has, and that the brokers lack though they have earlier and later ones of its origin, is
   missing there. Brokers refused it, and took others that were under way behind it. It is known from the tables alone,
   so that a crash forgets nothing. What lies before the first one there is not missing: their retention deleted it,
   and the first of an origin is published alone. Once a missing message is published it stands behind the later ones
   (:mod:`replicator.apache.published_runs`).
5. Native replication may have brought an entry that a link brings, too (:mod:`replicator.apache.native_copies`). Then
   the brokers have the entry once, and the log has it twice: with the brokers' own origin, and with the other origin.
   The entry of the other origin counts at that place. The entry of the brokers' own origin is its *twin*, and gets the
   same acknowledgements.
6. A cluster whose brokers were built anew counts its positions from the beginning. Then entries of its earlier life may
   have positions beyond those of the new one. The log has the new life; stamps of the earlier one say nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from replicator.apache.broker_lives import BrokerLives
from replicator.apache.left_out import RefusedEntry
from replicator.apache.published_runs import PublishedRuns
from replicator.apache.read_entries import ReadEntry, forget_old_ledgers
from replicator.apache.stamps import Identity
from snapshots.extents import Extent, ExtentTable
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

NAMED_MAX: Final = 5
"""Most runs of entries that a status names."""
_NONE: Final = PositionSet()
"""Empty set that must not be changed."""


class _CommonEntries(NamedTuple):
    """Cache of the entries that both the engine and the brokers have, after a position of the brokers.

    All subscriptions of a topic share it.
    """

    changes: int
    beyond: Position
    at_brokers: PositionSet


class EntryMap:
    """Positions of one topic's entries at the brokers and in the engine's log.

    ``broker_origin`` names the origin of messages that were published at the brokers. ``messages_of`` returns those of
    some positions in the engine's log that have messages.
    """

    def __init__(
        self, broker_origin: str, messages_of: Callable[[PositionSet], PositionSet] = PositionSet.copy
    ) -> None:
        self.broker_origin = broker_origin
        self.lives = BrokerLives()
        """Lives of the brokers' data: they say what the brokers' own positions are called in all clusters."""
        self.read: dict[int, ReadEntry] = {}
        """By ledger of the brokers, the last entry of it that was read; of the newest :data:`READ_LEDGERS_MAX`."""
        self.first_read: dict[int, ReadEntry] = {}
        """By ledger of the brokers, the first entry of it that was read; of the newest :data:`READ_LEDGERS_MAX`."""
        self.native_through: dict[str, Position] = {}
        """By origin of another cluster, the last place of the brokers to which native replication brought a message."""
        self.twins = PositionSet()
        """Places at the brokers of entries that have two positions in the engine's log."""
        self._messages_of = messages_of
        self._copied: dict[str, ExtentTable] = {}
        """By origin: origin position to position in the engine's log."""
        self._published: dict[str, PublishedRuns] = {}
        """By origin: origin position to position at the brokers."""
        self._missing: dict[str, PositionSet] = {}
        """By origin: origin positions of messages that the brokers lack, though they have earlier and later ones."""
        self._newest: dict[str, tuple[int, Position]] = {}
        """By origin: the newest incarnation in the engine's log, and its first position there."""
        self._unwanted: dict[str, PositionSet] = {}
        """By origin: what a broker dropped as a duplicate, and what an operator passed over."""
        self._left_out: list[RefusedEntry] = []
        self.changes = 0
        """Number that changes whenever the set of entries that both sides have may change."""
        self._both = _CommonEntries(0, BEFORE_ALL, PositionSet())
        self.doubled = 0
        """Entries that stand at the brokers although they did before. Nobody's acknowledgements of them travel."""

    # Events.

    def copied(
        self,
        origin: str,
        origin_first: Position,
        local_first: Position,
        entries: int,
        *,
        messages: bool = True,
        incarnation: int = 0,
    ) -> None:
        """Record that entries of an origin were appended to the engine's log. Only messages get to the brokers."""
        self.changes += messages
        if incarnation > self._newest.get(origin, (0, BEFORE_ALL))[0]:
            self._newest[origin] = incarnation, origin_first
            self._drop_earlier_life(origin)
        table = self._copied.setdefault(origin, ExtentTable())
        last = table.last
        if last is None or origin_first > last.origin_last:
            table.append(origin_first, local_first, entries)
            if messages and origin_first <= (through := self.seen_through(origin)):
                first = self._published[origin].main.first
                assert first is not None
                self._look_for_missing(origin, max(_before(origin_first), first.origin_last), through)

    def was_read(self, ledger: int, entry: ReadEntry) -> list[int]:
        """Note the last entry of ``ledger`` that was read. Return the ledgers that are forgotten by that."""
        self.read[ledger] = entry
        return forget_old_ledgers(self.read, self.first_read)

    def published(self, identity: Identity, run: Extent) -> bool:
        """Take a stored run: entries of an origin, from ``identity`` on, stand at the brokers from ``run.local_first``
        on.

        Runs of an origin are to come in the order of the brokers. Return False for one that does not, and is not taken.
        """
        if self._is_of_earlier_life(identity.origin, identity.incarnation, run.origin_last):
            return True
        runs = self._published.setdefault(identity.origin, PublishedRuns())
        if runs.last_local is not None and run.local_first <= runs.last_local:
            return False
        self._add(identity, runs, run)
        return True

    def forget_published(self, origin: str) -> None:
        """Forget which entries of ``origin`` stand at the brokers."""
        self._published.pop(origin, None)
        self._missing.pop(origin, None)

    def seen_at_broker(self, identity: Identity, position: Position) -> Extent | None:
        """Note that an entry with a stamp stands at the brokers.

        Return the run that it belongs to now, as it is to be stored, also where the entry is seen there again. Return
        None if the entry was at another place before, its run is forgotten, or it is of an earlier life that counted
        its positions otherwise.
        """
        if self._is_of_earlier_life(identity.origin, identity.incarnation, identity.position):
            return None
        runs = self._published.setdefault(identity.origin, PublishedRuns())
        first, last = runs.main.first, runs.main.last
        if first is not None and last is not None and identity.position <= last.origin_last:
            place = runs.place_of(identity.position)
            if place == position:
                return runs.run_of(identity.position)
            trimmed = identity.position < first.origin_first
            if trimmed and position < first.local_first:
                return None
            if trimmed or place is not None:
                self.doubled += 1
                return None
        if runs.last_local is not None and position <= runs.last_local:
            self.doubled += 1  # it was one before, and did not become a run
            return None
        return self._add(identity, runs, Extent(identity.position, position, 1))

    def stands_at(self, identity: Identity, place: Position) -> Extent | None:
        """Note that native replication brought an entry, which a link brought, too, to ``place`` at the brokers.

        Return the entry's run, to be stored; None if the brokers have a later entry of the origin before ``place``.
        """
        run = self.seen_at_broker(identity, place)
        if run is not None:
            self.twins.add(place)
        return run

    def find_twins(self) -> None:
        """Find all :attr:`twins`, after entries were loaded or forgotten."""
        self.twins = PositionSet()
        own = self._copied.get(self.broker_origin)
        if own is None or not self.native_through:
            return
        for runs in self._published.values():
            here = own.to_local_set(self.lives.origins(runs.after(BEFORE_ALL)))
            self.twins.update(self.lives.places(own.to_origin_set(here)))

    def dropped(self, identity: Identity) -> None:
        """Note that a broker dropped an entry as a duplicate: it is not missing there."""
        self._unwanted.setdefault(identity.origin, PositionSet()).add(identity.position)
        if (missing := self._missing.get(identity.origin)) is not None:
            missing.discard(identity.position)

    def leave_out(self, left_out: RefusedEntry) -> None:
        """Note that an operator passed over an entry that brokers refuse: it is not to be published any more."""
        origin, incarnation, position = left_out.identity
        if self._is_of_earlier_life(origin, incarnation, position):
            return
        self._left_out.append(left_out)
        self.dropped(left_out.identity)

    def begin_life(self, lives: BrokerLives) -> tuple[list[tuple[Identity, Extent]], list[tuple[Identity, Extent]]]:
        """Use ``lives`` from now on, and forget the entries that the brokers lost behind the begin of the newest one.

        Return the runs that they lost as a whole, and the runs that they lost in part. The latter are cut to the first
        entries, which the brokers still have.
        """
        self.changes += 1
        self.lives = lives
        self.read, self.first_read = (
            {ledger: read for ledger, read in known.items() if Position(ledger, read.entry) <= lives.begin}
            for known in (self.read, self.first_read)
        )
        left: list[tuple[Identity, Extent]] = []
        gone: list[tuple[Identity, Extent]] = []
        cut: list[tuple[Identity, Extent]] = []
        for origin, published in self._published.items():
            for run in published.all():
                identity = Identity(origin, published.life_at(run.origin_first), run.origin_first)
                if run.local_first > lives.begin:
                    gone.append((identity, run))
                elif run.local_last > lives.begin:
                    cut.append((identity, run._replace(entries=lives.begin.entry - run.local_first.entry + 1)))
                    left.append(cut[-1])
                else:
                    left.append((identity, run))
        for origin in list(self._published):
            self.forget_published(origin)
        self._unwanted.clear()  # what a broker dropped as a duplicate of what it has lost is wanted again
        for each in self._left_out:
            self.dropped(each.identity)
        for identity, run in sorted(left, key=lambda row: row[1].local_first):
            self.published(identity, run)
        self.native_through = {origin: min(place, lives.begin) for origin, place in self.native_through.items()}
        self.find_twins()
        return gone, cut

    def trim(self, through: Position) -> list[tuple[Identity, Extent]]:
        """Forget entries that were trimmed from the engine's log. Return the runs at the brokers that are forgotten.

        The last run of each origin stays, because it says how far publishing has got."""
        self.changes += 1
        gone: list[tuple[Identity, Extent]] = []
        for table in self._copied.values():
            table.trim(through)
        for origin, published in self._published.items():
            copied = self._copied.get(origin)
            first = None if copied is None else copied.first
            runs = published.trim(None if first is None else first.origin_first)
            gone += [(Identity(origin, published.life_at(run.origin_first), run.origin_first), run) for run in runs]
        self.find_twins()
        for origin, missing in self._missing.items():
            if missing:
                copied = self._copied[origin]
                self._missing[origin] = copied.to_origin_set(self._messages_of(copied.to_local_set(missing)))
        return gone

    # Questions.

    def published_through(self, origin: str) -> Position:
        """Return the position of an origin up to which the brokers have everything that they should have.

        They may have later entries, too."""
        if (first := self.missing(origin).first()) is not None:
            return _before(first)
        through = self.seen_through(origin)
        if (last := self.unwanted(origin).last()) is None or last <= through:
            return through
        copied = self._copied.get(origin)
        if copied is None:
            return through
        # Unwanted entries may lie behind the last published one. Entries between the two are published first.
        here = copied.local_between(through, last, above=BEFORE_ALL)
        due = copied.to_origin_set(self._messages_of(here))
        due.difference_update(self.unwanted(origin))
        first = due.first()
        return last if first is None else max(through, _before(first))

    def unwanted(self, origin: str) -> PositionSet:
        """Return the origin positions of entries that the brokers do not get: one of them dropped the entry as a
        duplicate, or an operator passed over it."""
        return self._unwanted.get(origin, _NONE)

    def left_out(self) -> list[RefusedEntry]:
        """Return what an operator passed over, except entries that stand at the brokers all the same."""
        return [
            each
            for each in self._left_out
            if (runs := self._published.get(each.identity.origin)) is None
            or runs.place_of(each.identity.position) is None
        ]

    def missing(self, origin: str) -> PositionSet:
        """Return the origin positions of the messages of ``origin`` that the brokers lack, though they have earlier and
        later ones."""
        return self._missing.get(origin, _NONE)

    def seen_through(self, origin: str) -> Position:
        """Return the highest position of an origin that stands at the brokers. Others below may be missing there."""
        runs = self._published.get(origin)
        return BEFORE_ALL if runs is None or runs.main.last is None else runs.main.last.origin_last

    def late(self) -> list[tuple[str, Extent]]:
        """Return the origin and the run of each entry that stands at the brokers behind later ones of its origin."""
        return [(origin, run) for origin, runs in self._published.items() for run in runs.late()]

    def late_shown(self) -> dict[str, Any]:
        """Return, for a status, how many entries :meth:`late` has, and its first :data:`NAMED_MAX` runs in words."""
        late = self.late()
        named = [f"{run.origin_first} of {origin} at {run.local_first}" for origin, run in late[:NAMED_MAX]]
        return {"entries": sum(run.entries for _, run in late), "first": named}

    def last_published(self) -> Position:
        """Return the last position of the brokers at which an entry of the bridge's own was found."""
        return max((runs.last_local or BEFORE_ALL for runs in self._published.values()), default=BEFORE_ALL)

    def last_published_of(self, origin: str) -> Position:
        """Return the last position of the brokers at which an entry of ``origin`` was found."""
        runs = self._published.get(origin)
        return BEFORE_ALL if runs is None else runs.last_local or BEFORE_ALL

    def own_after(self, place: Position) -> Position | None:
        """Return the position in the engine's log of the first entry of the brokers' own origin behind ``place``."""
        own = self._copied.get(self.broker_origin)
        if own is None or own.last is None:
            return None
        return own.local_between(self.lives.origin_of(place), own.last.origin_last, above=BEFORE_ALL).first()

    def own_twins(self, places: PositionSet) -> PositionSet:
        """Return the positions in the engine's log of the twins at ``places`` of the brokers."""
        own = self._copied.get(self.broker_origin)
        return PositionSet() if own is None else own.to_local_set(self.lives.origins(self.twins.common(places)))

    def published_ends(self) -> dict[str, tuple[int, Extent, Extent]]:
        """Return, by origin, its incarnation, and its first and last run that is known to lie at the brokers."""
        return {
            origin: (runs.life_at(runs.main.last.origin_first), runs.main.first, runs.main.last)
            for origin, runs in self._published.items()
            if runs.main.first is not None and runs.main.last is not None
        }

    def publish_from(self, origin: str) -> Position:
        """Return a position in the engine's log up to which nothing of an origin is left to publish."""
        first = self.missing(origin).first()
        if first is None:
            return self.copied_to(origin, self.seen_through(origin))
        return max(_before(self.copied_to(origin, first)), BEFORE_ALL)

    def copied_to(self, origin: str, position: Position) -> Position:
        """Return the position of an origin's entry in the engine's log, or BEFORE_ALL if the entry is not there."""
        copied = self._copied.get(origin)
        local = None if copied is None else copied.to_local(position)
        return BEFORE_ALL if local is None else local

    def to_broker(self, local: PositionSet) -> PositionSet:
        """Return the broker's positions of entries of the engine's log. Entries that the brokers lack are left out.

        Twins are left out, too: at their places, the entries of the other origins count.
        """
        found = PositionSet()
        for origin, copied in self._copied.items():
            there = copied.to_origin_set(local)
            if origin == self.broker_origin:
                places = self.lives.places(there)
                if self.twins:
                    places = places.copy()
                    places.difference_update(self.twins)
                found.update(places)
            elif (published := self._published.get(origin)) is not None:
                found.update(published.places(there))
        return found

    def to_local(self, at_broker: PositionSet) -> PositionSet:
        """Return the positions in the engine's log of entries at the brokers. Entries that the log lacks are left
        out."""
        found = PositionSet()
        for origin, copied in self._copied.items():
            if origin == self.broker_origin:
                found.update(copied.to_local_set(self.lives.origins(at_broker)))
            elif (published := self._published.get(origin)) is not None:
                found.update(copied.to_local_set(published.origins(at_broker)))
        return found

    def ends_at(self, position: Position) -> dict[str, Position]:
        """Return, by origin, the position of the last entry up to which all stand at or below the brokers'
        ``position``.

        An origin without such an entry is left out. For the brokers' own origin the result is ``position`` itself, as
        it is called in the newest life. What is missing at the brokers, or stands behind later entries, comes after
        the end.
        """
        ends: dict[str, Position] = {}
        own = self._copied.get(self.broker_origin)
        end = self.lives.origin_of(position)
        if own is not None and own.first is not None and own.first.origin_first <= end:
            ends[self.broker_origin] = end
        for origin, runs in self._published.items():
            if (through := runs.through(position)) is not None:
                first = self.missing(origin).first()
                ends[origin] = through if first is None else min(through, _before(first))
        return ends

    def up_to(self, at_brokers: PositionSet, ends: Mapping[str, Position]) -> PositionSet:
        """Return the entries of ``at_brokers`` whose origin position is at or below the end of their origin in
        ``ends``.

        Entries of an origin that ``ends`` lacks are left out. The result has positions of the brokers.
        """
        found = PositionSet()
        own = at_brokers.copy() if self.broker_origin in ends else PositionSet()
        for origin, runs in self._published.items():
            theirs = runs.origins(at_brokers)
            if not theirs:
                continue
            if own:
                own.difference_update(runs.places(theirs))
            if origin in ends:
                theirs.discard_after(ends[origin])
                found.update(runs.places(theirs))
        if own:
            own.discard_after(self.lives.place_of(ends[self.broker_origin]))
            found.update(own)
        return found

    def beyond(self, mark_delete: Position) -> PositionSet:
        """Return all entries after ``mark_delete`` that lie on both sides; all positions are those of the brokers."""
        if self._both.changes != self.changes or mark_delete < self._both.beyond:
            self._both = _CommonEntries(self.changes, mark_delete, self._common_entries(mark_delete))
        return self._both.at_brokers.after(mark_delete)

    def _common_entries(self, mark_delete: Position) -> PositionSet:
        found = PositionSet()
        own = self._copied.get(self.broker_origin)
        if own is not None:
            after = self.lives.origin_of(mark_delete)
            for index in range(len(own) - 1, -1, -1):
                run = own[index]
                if run.origin_last <= after:
                    break
                found.add_range(run.origin_first.ledger, run.origin_first.entry, run.origin_last.entry)
            found = self.lives.places(found)
        for origin, published in self._published.items():
            copied = self._copied.get(origin)
            if copied is None:
                continue
            here = copied.to_local_set(published.origins(published.after(mark_delete)))
            found.update(published.places(copied.to_origin_set(here)))
        found.discard_through(mark_delete)
        return found

    def _add(self, identity: Identity, runs: PublishedRuns, run: Extent) -> Extent:
        self.changes += 1
        runs.note_life(identity.position, identity.incarnation)
        before = self.seen_through(identity.origin)
        added = runs.add(run)
        if run.origin_first > before:
            if BEFORE_ALL < before != (run.origin_first.ledger, run.origin_first.entry - 1):
                self._look_for_missing(identity.origin, before, _before(run.origin_first))
        elif (missing := self._missing.get(identity.origin)) is not None:
            for entry in range(run.entries):
                missing.discard(Position(run.origin_first.ledger, run.origin_first.entry + entry))
        return added

    def _is_of_earlier_life(self, origin: str, incarnation: int, position: Position) -> bool:
        """Return whether a stamp is of an earlier life of the origin's topic that the log does not continue."""
        newest, first = self._newest.get(origin, (0, BEFORE_ALL))
        return incarnation < newest and position >= first

    def _drop_earlier_life(self, origin: str) -> None:
        """Forget what of an earlier life stands at the brokers, if the new one does not begin behind it."""
        runs = self._published.get(origin)
        if runs is None or not runs.lives or self.seen_through(origin) < self._newest[origin][1]:
            return
        if all(incarnation < self._newest[origin][0] for _, incarnation in runs.lives):
            self.forget_published(origin)
            self.find_twins()
            self._unwanted.pop(origin, None)
            self._left_out = [each for each in self._left_out if each.identity.origin != origin]

    def _look_for_missing(self, origin: str, after: Position, through: Position) -> None:
        """Note which messages of an origin the log has between two positions, and the brokers lack."""
        copied, runs = self._copied.get(origin), self._published[origin]
        if copied is None or origin == self.broker_origin:
            return
        here = copied.local_between(after, through, above=BEFORE_ALL)
        if not here:
            return
        lacking = copied.to_origin_set(self._messages_of(here))
        lacking.difference_update(runs.origins(runs.places(lacking)))
        lacking.difference_update(self.unwanted(origin))
        if lacking:
            self._missing.setdefault(origin, PositionSet()).update(lacking)


def _before(position: Position) -> Position:
    """Return the place one entry before ``position`` in its ledger; its entry is -1 before the first one."""
    return Position(position.ledger, position.entry - 1)
