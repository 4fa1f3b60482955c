"""The cursor of the subscription by which the bridge reads one topic: whether it stands where the bridge has put it.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

1. The properties of the subscription say which life of the topic at the brokers this is. They are deleted with it.
2. If the cursor has passed over messages that were not read (:mod:`replicator.apache.skipped_messages`), it is put back
   to them, as long as the brokers still have them. The same is done if the worker's store was put back to an older
   copy, and the cursor is ahead of it.
3. If the messages are gone, or the cursor is, only an operator can say how to go on: the topic halts.
4. If the store has nothing of a topic, and the cursor has moved, then the store is a new one. Reading begins at the
   first entry that the brokers still have. Entries that bear the bridge's stamp say what was published. What the other
   clusters have of the topic says whether something may be missing that the brokers have deleted, and whether the
   brokers give positions of former messages to others. A cluster that has never answered is unknown. Reading waits for
   it where the brokers may be the former ones. Else it begins above all positions that the cluster can have
   (:mod:`replicator.apache.positions_elsewhere`).
5. If no message comes after the cursor passed over some, no gap shows that. So each comparison of the topic's
   subscriptions checks the cursor, too.
6. A broker may be put back to an older copy of its data. It then gives positions that were read before to other
   messages. So the last message that was read is compared with the worker's copy of it, before reading begins, and
   whenever a broker has loaded the topic again since. If it is gone or differs, a new life of the brokers' data begins
   (:mod:`replicator.apache.new_life`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import parse_position
from replicator.apache.copies_elsewhere import Copies, Elsewhere
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import AdminFailed, BridgeError, BridgeHalted, BrokersPutBack
from replicator.apache.ledger_ends import MAY_BE_MISSING_MAX, LedgerEnds, PossibleGap, acknowledged, noted
from replicator.apache.names import reading_subscription, renewing_command
from replicator.apache.new_life import ReadState, expected
from replicator.apache.positions_elsewhere import check_positions_are_free, life_elsewhere
from replicator.apache.published_extents import may_be_missing_row
from replicator.apache.shown import SubscriptionShown, TopicInternals
from replicator.apache.skipped_messages import Gap, first_passed_over
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

DELETION_SECONDS: Final = 5.0
"""Time after which a subscription that the brokers lost was deleted alone. To delete a topic takes them less."""

log = structlog.get_logger(__name__)


class ReadingCursor:
    """Cursor by which the bridge reads one topic."""

    def __init__(
        self,
        admin: BrokerAdmin,
        cluster: str,
        topic: Topic,
        entries: EntryMap,
        read_through: Callable[[], Position | None],
        may_be_missing: list[PossibleGap],
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """``read_through`` returns the position up to which this process has read; None if it has not begun.

        ``may_be_missing`` has the places that the store knows of. ``elsewhere`` returns what other clusters have of the
        messages published at these brokers."""
        self._admin = admin
        self._name = reading_subscription(cluster)
        self._topic = topic
        self._entries = entries
        self._read_through = read_through
        self._elsewhere = elsewhere
        self._put_back_to: Position | None = None
        self._ahead: tuple[Position, Position] | None = None
        """Positions of reading and of the cursor at the last check; None if the cursor was not ahead."""
        self._harmless: tuple[Position, Position] | None = None
        """A pair of positions as in :attr:`_ahead`, between which no message is missing."""
        self._left_out: Position | None = None
        """First entry that the cursor had passed over, as the last :meth:`check` found it; None if there is none."""
        self.times_put_back = 0
        self._is_first = False
        """Whether this process made the subscription before it knew what the other clusters have."""
        self._was_there = False
        """Whether the brokers had the subscription while this process ran."""
        self._missing_since: float | None = None
        """Time of the monotonic clock since which they do not have it."""
        self._same_load: str | None = None
        """Loading of the topic in which the brokers were last seen to have what was read."""
        self._ends = LedgerEnds()
        self._may_be_missing = may_be_missing

    async def standing(self) -> ReadState:
        """Return where reading goes on. Call it while the bridge does not read.

        Raises :class:`BridgeHalted` if messages are missing."""
        topic = self._topic.name
        reached = self.reached()
        shown = await self._admin.subscription(topic, self._name)
        lives = self._entries.lives.incarnations
        if shown is None:
            self._check_is_no_deletion()
            incarnation = lives[-1] if lives else time.time_ns() // 1_000_000
            if self._nothing_read():  # the cursor has a place also before the first message
                if not lives:
                    await self._check_positions_are_new(incarnation)
                return ReadState(incarnation, BEFORE_ALL, not lives)
            await self._check_last_read(await self._admin.internals(topic))
            if reached > self._entries.lives.begin:
                raise self._gone()
            return ReadState(incarnation, reached)
        if (found := self.incarnation_of(shown)) is None:
            raise BridgeHalted(
                f"{topic}: the subscription {self._name!r} at the brokers is not the one by which this worker read "
                "before. Its reading must be renewed",
                renewing_command(topic),
            )
        incarnation = found
        self.note_is_there()
        internals = await self._admin.internals(topic)
        await self._check_last_read(internals)
        at = self.mark_delete(internals)
        if self._nothing_read() and not lives:
            try:
                return ReadState(incarnation, await self._begin(internals, at, incarnation), self._is_first)
            except BrokersPutBack as put_back:
                put_back.subscription = incarnation
                raise
        if at > reached:
            missed = await self._missed([Gap(reached, at)], internals, at)
            if missed is not None:
                at = await self._put_back(missed, internals, at)
        return ReadState(incarnation, at)

    def note_is_there(self) -> None:
        """Note that the brokers have the subscription."""
        self._was_there, self._missing_since = True, None

    def _check_is_no_deletion(self) -> None:
        """Raise :class:`BridgeError` while the brokers may be deleting the topic: they delete its subscriptions first.

        To make the subscription then would make the topic anew. After :data:`DELETION_SECONDS` it may be made: then the
        subscription alone was deleted.
        """
        if not self._was_there:
            return
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since < DELETION_SECONDS:
            raise BridgeError(
                f"{self._topic.name}: the brokers do not have the subscription {self._name!r} any more, as while they "
                "delete the topic; the bridge looks again by itself"
            )
        self._was_there, self._missing_since = False, None

    def incarnation_of(self, shown: SubscriptionShown) -> int | None:
        """Return the incarnation under which reading goes on by the subscription ``shown``.

        Return None if it is not the one by which the worker read before. Any one counts if nothing was read.
        """
        incarnation = int(shown.properties.get("incarnation", "0"))
        known, lives = self._topic.origins.high_water(self._entries.broker_origin), self._entries.lives.incarnations
        if lives and (known is None or incarnation in lives):
            return lives[-1]  # an older copy of the brokers' data has the subscription of an earlier life
        return incarnation if known is None or known.incarnation == incarnation else None

    async def _check_positions_are_new(self, incarnation: int) -> None:
        """Raise :class:`BridgeError` if another cluster may have messages at positions of a topic that is new here.

        While that is not known, such as while a cluster is starting, the brokers keep all for the subscription that is
        made for that.
        """
        try:
            copies = await self._copies()
            if copies.waits:
                raise self._unanswered(copies.silent)
            if copies.known:
                internals = await self._admin.internals(self._topic.name)
                await check_positions_are_free(self._admin, self._topic.name, copies.known, internals, moved=False)
        except (AdminFailed, BrokersPutBack):
            raise
        except BridgeError:
            self._is_first = True
            await self.make(incarnation)
            raise
        if copies.silent:
            raise self._begins_above(copies)

    def _unanswered(self, silent: Sequence[str]) -> BridgeError:
        return BridgeError(
            f"{self._topic.name}: the store of this worker has nothing of it, and {', '.join(silent)} did not say yet "
            "what they have. The brokers keep all messages meanwhile. Start these workers, and reading goes on by "
            "itself. If such a cluster is gone, take it out of the topology and restart this worker"
        )

    def _begins_above(self, copies: Copies) -> BrokersPutBack:
        return BrokersPutBack(
            f"{self._topic.name}: {', '.join(copies.silent)} did not say which positions they have, so messages of "
            "these brokers get positions above all former ones",
            max((each.mark for each in copies.known), default=HighWater(0, BEFORE_ALL)),
        )

    async def _begin(self, internals: TopicInternals, at: Position, incarnation: int) -> Position:
        """Return the position behind which reading begins. The store has nothing of the topic.

        ``at`` is the mark-delete position of the bridge's subscription at the brokers. If a worker with an earlier
        store has moved it, it is put back to the first entry that the brokers still have. A subscription that this
        process has made was moved by an expiry or a quota, which says nothing about earlier stores.
        """
        topic = self._topic.name
        copies = await self._copies()
        if copies.waits:
            raise self._unanswered(copies.silent)
        missed = await first_passed_over(self._admin, topic, [Gap(BEFORE_ALL, at)], internals, at)
        moved = missed is not None or (at.entry >= 0 and at.ledger not in internals.ledgers)
        moved = moved and not self._is_first
        if copies.known and (life := await life_elsewhere(self._admin, topic, copies.known, internals)):
            if moved and copies.silent:
                raise self._unanswered(copies.silent)
            if not copies.silent:
                copied = min(each.mark.position for each in copies.known)
                await self._note_not_copied(Position(copied.ledger - life, copied.entry), at, internals)
                raise BrokersPutBack(
                    f"{topic}: the store of this worker has nothing of it, and the other clusters have messages of "
                    f"these brokers (life {life} of their data). The worker goes on with that life by itself",
                    goes_on=life,
                )
        await check_positions_are_free(self._admin, topic, copies.known, internals, moved=moved)
        if copies.silent:
            raise self._unanswered(copies.silent) if moved else self._begins_above(copies)
        marks = [each.mark for each in copies.known]
        other = [each for each in marks if each.incarnation != incarnation]
        if other and (moved or other[0].incarnation > incarnation):
            raise BridgeHalted(
                f"{topic}: the worker reads nothing of it from its brokers any more. Its store has nothing of it, "
                f"and another cluster has messages up to {other[0].position} of another life of it (a life is from "
                "being made to being deleted). An operator must renew the reading",
                renewing_command(topic),
            )
        if missed is not None:
            log.warning("the store is new: reading again what the brokers have", topic=topic, first=str(missed))
            at = await self._put_back(missed, internals, at)
        await self._note_not_copied(min((each.position for each in marks), default=at), at, internals)
        return at

    async def _note_not_copied(self, copied: Position, at: Position, internals: TopicInternals) -> None:
        """Note that messages between ``copied``, up to where all other clusters have them, and the cursor ``at`` may
        have been deleted at the brokers."""
        if copied < at and (copied.ledger < at.ledger or at.ledger not in internals.ledgers):
            await self._note_may_be_missing(Gap(copied, at), 0)

    async def _copies(self) -> Copies:
        """Return what other clusters have of the brokers' own messages."""
        return Copies() if self._elsewhere is None else await self._elsewhere(self._topic.name)

    def may_be_missing(self) -> list[PossibleGap]:
        """Return the places where the brokers may have deleted messages that were not read, and nobody can know.

        Places that an operator has acknowledged are left out.
        """
        return [each for each in self._may_be_missing if not each.acknowledged_ms]

    async def acknowledge_missing(self) -> list[PossibleGap]:
        """Acknowledge :meth:`may_be_missing` for an operator, and return it. Raises the store's errors."""
        places = self.may_be_missing()
        if places:
            await self._keep_may_be_missing(acknowledged(self._may_be_missing, time.time_ns() // 1_000_000))
        return places

    async def matches(self, internals: TopicInternals) -> bool:
        """Return whether the brokers can still have what was read last.

        Raises :class:`AdminFailed`.
        """
        try:
            await self._check_last_read(internals)
        except BridgeHalted:
            return False
        return True

    async def make(self, incarnation: int) -> None:
        """Make the subscription by the admin API, at the first message of the topic.

        Brokers with ``allowAutoSubscriptionCreation=false`` let no consumer make one. Raises :class:`AdminFailed`, and
        :class:`BridgeHalted` if messages were read before.
        """
        if self.reached() > self._entries.lives.begin and not self._nothing_read():
            raise self._gone()
        self._check_is_no_deletion()
        properties = {"incarnation": str(incarnation)}
        await self._admin.create_subscription(self._topic.name, self._name, None, properties)

    async def check(self, gaps: Sequence[Gap]) -> None:
        """Raise :class:`BridgeError` if messages in ``gaps`` were passed over. Then :meth:`standing` repairs that."""
        internals = await self._admin.internals(self._topic.name)
        moved_to = self.mark_delete(internals)
        missed = await self._missed(gaps, internals, moved_to)
        if missed is not None:
            self._left_out = missed
            raise BridgeError(self._skipped_messages_text(missed, moved_to))

    async def left_behind(self, internals: TopicInternals) -> BridgeError | None:
        """Return an error if the cursor has passed over messages, and neither it nor reading moved since the last call.

        The caller must then begin to read anew, so that :meth:`standing` puts the cursor back. Raises
        :class:`AdminFailed`.
        """
        reached, moved_to = self._read_through(), self.mark_delete(internals)
        before, self._ahead = self._ahead, None
        if reached is None or moved_to <= reached or (reached, moved_to) == self._harmless:
            if reached is not None:
                self._ends.look(internals, reached)
            return None
        self._ahead = (reached, moved_to)
        if before != self._ahead:
            return None  # what was read may be on its way into the store
        missed = await self._missed([Gap(reached, moved_to)], internals, moved_to)
        if missed is not None:
            return BridgeError(self._skipped_messages_text(missed, moved_to))
        self._harmless = self._ahead
        return None

    async def has_read(self, upto: Position, internals: TopicInternals) -> bool:
        """Return whether everything up to ``upto`` was read, except entries that brokers show to nobody.

        Only entries count that this process has read, and those that were acknowledged before.

        Raises :class:`AdminFailed`.
        """
        await self.same_life(internals)
        reached = self._read_through()
        if reached is None or reached >= upto or self.mark_delete(internals) < upto:
            return reached is not None and reached >= upto
        return await first_passed_over(self._admin, self._topic.name, [Gap(reached, upto)], internals, upto) is None

    async def same_life(self, internals: TopicInternals) -> None:
        """Raise :class:`BrokersPutBack` if the brokers were put back to an older copy of their data since they were
        asked last.

        They are asked once in each loading of the topic. Raises :class:`AdminFailed`.
        """
        if internals.load != self._same_load:
            places = self._last_places()  # first: more may have been read since ``internals`` were asked for
            await self._are_same(places, await self._admin.internals(self._topic.name))

    async def _check_last_read(self, internals: TopicInternals) -> None:
        """Raise :class:`BrokersPutBack` if the brokers no longer have what was read last, and did not delete it.

        Nothing may be read meanwhile.
        """
        await self._are_same(self._last_places(), internals)

    def _nothing_read(self) -> bool:
        """Return whether no entry of the topic was ever read from the brokers."""
        entries, known = self._entries, self._topic.origins.high_water(self._entries.broker_origin)
        return known is None and not entries.read and entries.last_published() == BEFORE_ALL

    def _last_places(self) -> list[Position]:
        """Return the last places at the brokers that are known here, the last one first."""
        known = self._topic.origins.high_water(self._entries.broker_origin)
        own = BEFORE_ALL if known is None else self._entries.lives.place_of(known.position)
        read = max(self._entries.read, default=0)
        shown = Position(read, self._entries.read[read].entry) if read else BEFORE_ALL
        return sorted({own, shown, self._entries.last_published()} - {BEFORE_ALL}, reverse=True)

    async def _are_same(self, places: Sequence[Position], internals: TopicInternals) -> None:
        for at in places:
            if reason := await self._differs(at, internals):
                self._ends = LedgerEnds()  # of ledgers that are others now, as are these positions
                self._put_back_to = self._ahead = self._harmless = self._left_out = None
                raise BrokersPutBack(
                    f"{self._topic.name}: the brokers do not have what was read from them at {at}: {reason}. They "
                    "were put back to an older copy of their data, or set up anew. The worker goes on by itself: a "
                    "new life of their data begins, with positions of its own"
                )
        self._same_load = internals.load

    async def _differs(self, at: Position, internals: TopicInternals) -> str:
        """Return what the brokers have instead of the entry at ``at``; empty if they have it, or deleted it."""
        if internals.last < at:
            return f"their last entry is {internals.last}"
        if at.ledger not in internals.ledgers:  # they delete from the front
            kept = min((each for each in internals.ledgers if internals.last_entries[each] >= 0), default=at.ledger)
            return f"they have ledger {kept}, and not ledger {at.ledger}" if kept < at.ledger else ""
        if at.entry > internals.last_entries[at.ledger]:
            return f"ledger {at.ledger} ends with entry {internals.last_entries[at.ledger]}"
        was = expected(self._topic, self._entries, at)
        if was is None:
            return ""
        found = await self._admin.seen_entry(self._topic.name, at)
        return "" if found is None or was.is_same(found) else found.differs

    async def _missed(self, gaps: Sequence[Gap], internals: TopicInternals, moved_to: Position) -> Position | None:
        """Return the first entry that the cursor passed over and the brokers still have; None if there is none.

        If there is none, and the cursor is in a ledger of ``gaps`` that brokers deleted, return that ledger's first
        entry: none of it was read. Otherwise note the places where the brokers may have deleted unread entries.
        """
        missed = await first_passed_over(self._admin, self._topic.name, gaps, internals, moved_to)
        gone = moved_to.entry >= 0 and moved_to.ledger not in internals.ledgers
        if missed is None and gone and any(gap.after.ledger < moved_to.ledger <= gap.through.ledger for gap in gaps):
            return Position(moved_to.ledger, 0)
        for gap in gaps:
            if (entries := self._ends.deleted(gap, internals)) is not None:
                await self._note_may_be_missing(gap, entries)
        self._ends.look(internals, self.reached())
        return missed

    async def _note_may_be_missing(self, gap: Gap, entries: int) -> None:
        before = Position(gap.through.ledger, gap.through.entry + 1)
        places = noted(self._may_be_missing, PossibleGap(gap.after, before, time.time_ns() // 1_000_000, entries))
        if places == self._may_be_missing:
            return
        log.warning(
            "messages may be missing: brokers have deleted a ledger before its end was read",
            topic=self._topic.name,
            after=str(gap.after),
            before=str(before),
            seen=entries,
        )
        if len(places) <= MAY_BE_MISSING_MAX:
            await self._keep_may_be_missing(places)

    async def _keep_may_be_missing(self, places: list[PossibleGap]) -> None:
        await self._topic.writer.put_many([may_be_missing_row(self._topic.topic_id, places)])
        self._may_be_missing = places

    async def _put_back(self, missed: Position, internals: TopicInternals, at: Position) -> Position:
        """Put the cursor back to ``missed``, and return its new mark-delete position.

        Raises :class:`BridgeHalted` if the brokers may not have ``missed`` any more. That is so if the cursor was put
        back to it before, and only later entries came."""
        reached, lives = self.reached(), self._entries.lives
        there = reached > BEFORE_ALL and reached.ledger in internals.ledgers
        there |= bool(lives.incarnations) and reached == lives.begin  # nothing of this life was read
        there |= self._nothing_read()
        if not there or missed == self._put_back_to == self._left_out:
            raise BridgeHalted(
                f"{self._skipped_messages_text(missed, at)}, and brokers may not have them any more. The "
                "topic's reading must be renewed",
                renewing_command(self._topic.name),
            )
        log.warning("reading again what the brokers have passed over", topic=self._topic.name, first=str(missed))
        await self._admin.reset_subscription(self._topic.name, self._name, missed)
        self._put_back_to, self._left_out = missed, None
        self.times_put_back += 1
        return Position(missed.ledger, missed.entry - 1)

    def _gone(self) -> BridgeHalted:
        return BridgeHalted(
            f"{self._topic.name}: the subscription {self._name!r} is gone at the brokers, or the topic was deleted and "
            f"made anew; what was published since {self.reached()} may be missing here",
            renewing_command(self._topic.name),
        )

    def _skipped_messages_text(self, missed: Position, at: Position) -> str:
        return (
            f"{self._topic.name}: the subscription {self._name!r} at the brokers stands at {at}, and this worker has "
            f"not read {missed}: an expiry, a backlog quota or an operator passed over messages, or the worker's store "
            "is an older one"
        )

    def mark_delete(self, internals: TopicInternals) -> Position:
        """Return where the brokers' cursor stands in ``internals``; BEFORE_ALL if there is none."""
        cursor = internals.cursors.get(self._name)
        return BEFORE_ALL if cursor is None else parse_position(str(cursor["markDeletePosition"]))

    def reached(self) -> Position:
        """Return the last position of the brokers up to which all was read; BEFORE_ALL if nothing was.

        Once this process reads, it knows that exactly. The map of entries may be ahead of the store, which failed then.
        """
        if (read := self._read_through()) is not None:
            return read
        known = self._topic.origins.high_water(self._entries.broker_origin)
        mine = self._entries.last_published()
        return max(BEFORE_ALL if known is None else self._entries.lives.place_of(known.position), mine)
