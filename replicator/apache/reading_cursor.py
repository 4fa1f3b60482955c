"""The cursor of the subscription by which the bridge reads one topic: whether it stands where the bridge has put it.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

1. The properties of the subscription say which life of the topic at the brokers this is. They are deleted with it.
2. If the cursor has passed over messages that were not read (:mod:`replicator.apache.passed_over`), it is put back to
   them, as long as the brokers still have them. The same is done if the worker's store was put back to an older copy,
   and the cursor is ahead of it.
3. If the messages are gone, or the cursor is, only an operator can say how to go on: the topic halts.
4. If no message comes after the cursor passed over some, no gap shows that. So each comparison of the topic's
   subscriptions checks the cursor, too.
5. A broker may be put back to an older copy of its data. It then gives positions that were read before to other
   messages. So before reading begins, the last message that was read is compared with the worker's copy of it. The
   topic halts if the message is gone or differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import parse_position
from replicator.apache.entry_map import EntryMap
from replicator.apache.errors import BridgeError, BridgeHalted
from replicator.apache.names import reading_subscription
from replicator.apache.passed_over import Gap, first_passed_over
from replicator.apache.shown import TopicInternals
from replicator.engine.errors import EngineError
from replicator.engine.log.entry import decode_entry
from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

log = structlog.get_logger(__name__)


class Standing(NamedTuple):
    """Where reading goes on."""

    incarnation: int
    """Of the topic at the brokers."""
    reached: Position
    """All up to there is durable here."""


class ReadingCursor:
    """That of one topic."""

    def __init__(
        self,
        admin: BrokerAdmin,
        cluster: str,
        topic: Topic,
        entries: EntryMap,
        read_through: Callable[[], Position | None],
    ) -> None:
        """``read_through`` says up to where this process has read; None if it has not begun."""
        self._admin = admin
        self._name = reading_subscription(cluster)
        self._topic = topic
        self._entries = entries
        self._read_through = read_through
        self._put_back_to: Position | None = None
        self._ahead: tuple[Position, Position] | None = None
        """Up to where this process had read and where the cursor stood, at the last check; None if it was not ahead."""
        self._harmless: tuple[Position, Position] | None = None
        """Such a pair of positions, between which no message is missing."""
        self._left_out: Position | None = None
        """What did not come although the cursor was put back to it, and what follows did."""
        self.times_put_back = 0

    async def standing(self) -> Standing:
        """To be asked while the bridge does not read. Raises :class:`BridgeHalted` where messages are missing."""
        topic = self._topic.name
        reached = self._reached()
        shown = await self._admin.subscription(topic, self._name)
        if shown is None:
            if reached > BEFORE_ALL:
                raise self._gone()
            return Standing(time.time_ns() // 1_000_000, BEFORE_ALL)
        incarnation = int(shown.properties.get("incarnation", "0"))
        known = self._topic.origins.high_water(self._entries.broker_origin)
        if known is not None and known.incarnation != incarnation:
            raise BridgeHalted(
                f"{topic}: the subscription {self._name!r} at the brokers is not the one by which this worker read "
                "before. See docs/apache-pulsar.md"
            )
        internals = await self._admin.internals(topic)
        await self._is_what_was_read(internals)
        at = self._mark_delete(internals)
        if at > reached:
            missed = await self._missed([Gap(reached, at)], internals, at)
            if missed is not None:
                at = await self._put_back(missed, internals, at)
        return Standing(incarnation, at)

    async def make(self, incarnation: int) -> None:
        """Make the subscription by the admin API, at the first message of the topic.

        Brokers with ``allowAutoSubscriptionCreation=false`` let no consumer make one. Raises :class:`AdminFailed`, and
        :class:`BridgeHalted` if messages were read before.
        """
        if self._reached() > BEFORE_ALL:
            raise self._gone()
        properties = {"incarnation": str(incarnation)}
        await self._admin.create_subscription(self._topic.name, self._name, None, properties)

    async def check(self, gaps: Sequence[Gap]) -> None:
        """Raises :class:`BridgeError` if messages in the gaps were passed over: :meth:`standing` sees to them then."""
        internals = await self._admin.internals(self._topic.name)
        moved_to = self._mark_delete(internals)
        missed = await self._missed(gaps, internals, moved_to)
        if missed is not None:
            self._left_out = missed
            raise BridgeError(self._passed_over(missed, moved_to))

    async def left_behind(self, internals: TopicInternals) -> BridgeError | None:
        """Return an error if the cursor has passed over messages, and neither it nor reading moved since the last call.

        The caller must then begin to read anew, so that :meth:`standing` puts the cursor back. Raises
        :class:`AdminFailed`.
        """
        reached, moved_to = self._read_through(), self._mark_delete(internals)
        before, self._ahead = self._ahead, None
        if reached is None or moved_to <= reached or (reached, moved_to) == self._harmless:
            return None
        self._ahead = (reached, moved_to)
        if before != self._ahead:
            return None  # what was read may be on its way into the store
        missed = await self._missed([Gap(reached, moved_to)], internals, moved_to)
        if missed is not None:
            return BridgeError(self._passed_over(missed, moved_to))
        self._harmless = self._ahead
        return None

    async def has_read(self, upto: Position, internals: TopicInternals) -> bool:
        """Whether all up to there was read, but for what brokers show to nobody. It counts what this process has read,
        after what was acknowledged before.

        Raises :class:`AdminFailed`.
        """
        reached = self._read_through()
        if reached is None or reached >= upto or self._mark_delete(internals) < upto:
            return reached is not None and reached >= upto
        return await first_passed_over(self._admin, self._topic.name, [Gap(reached, upto)], internals, upto) is None

    async def _is_what_was_read(self, internals: TopicInternals) -> None:
        """Raise :class:`BridgeHalted` if the brokers no longer have what was read last, and did not delete it."""
        known = self._topic.origins.high_water(self._entries.broker_origin)
        if known is None:
            return
        at, reason = known.position, ""
        if internals.last < max(at, self._entries.last_published()):
            reason = f"their last entry is {internals.last}"
        elif at.ledger in internals.ledgers and at.entry > internals.last_entries[at.ledger]:
            reason = f"ledger {at.ledger} ends with entry {internals.last_entries[at.ledger]}"
        elif at.ledger in internals.ledgers and (copy := self._copy_of(at)) is not None:
            found = await self._admin.seen_entry(self._topic.name, at)
            if found is not None and not found.may_be(copy.publish_time, copy.sequence_id):
                reason = found.differs
        if reason:
            raise BridgeHalted(
                f"{self._topic.name}: the brokers do not have what was read from them at {at}: {reason}. They were put "
                "back to an older copy of their data, and what is published there now would be taken for what was "
                "read. See docs/apache-pulsar.md"
            )

    def _copy_of(self, at: Position) -> MessageMetadata | None:
        """Return the metadata of the worker's own copy of a message; None if it was trimmed, or nobody can read it."""
        local = self._entries.copied_to(self._entries.broker_origin, at)
        if local == BEFORE_ALL:
            return None
        try:
            found = self._topic.reading.entries(Position(local.ledger, local.entry - 1), local, 1, 1)
            return decode_entry(found[0].entry, check=False)[0] if found else None
        except EngineError:
            return None

    async def _missed(self, gaps: Sequence[Gap], internals: TopicInternals, moved_to: Position) -> Position | None:
        """The first entry that the cursor has passed over, as far as the brokers have it. Or else one of a ledger that
        is gone, if the cursor is in it: nothing of that was read."""
        missed = await first_passed_over(self._admin, self._topic.name, gaps, internals, moved_to)
        gone = moved_to.entry >= 0 and moved_to.ledger not in internals.ledgers
        if missed is None and gone and any(gap.after.ledger < moved_to.ledger <= gap.through.ledger for gap in gaps):
            return Position(moved_to.ledger, 0)
        return missed

    async def _put_back(self, missed: Position, internals: TopicInternals, at: Position) -> Position:
        """Where it stands then. Where what follows came, and not this entry, brokers do not have it any more."""
        there = self._reached() > BEFORE_ALL and self._reached().ledger in internals.ledgers
        if not there or missed == self._put_back_to == self._left_out:
            raise BridgeHalted(
                f"{self._passed_over(missed, at)}, and brokers may not have them any more. See docs/apache-pulsar.md"
            )
        log.warning("reading again what the brokers have passed over", topic=self._topic.name, first=str(missed))
        await self._admin.reset_subscription(self._topic.name, self._name, missed)
        self._put_back_to, self._left_out = missed, None
        self.times_put_back += 1
        return Position(missed.ledger, missed.entry - 1)

    def _gone(self) -> BridgeHalted:
        return BridgeHalted(
            f"{self._topic.name}: the subscription {self._name!r} is gone at the brokers, or the topic was deleted and "
            f"made anew; what was published since {self._reached()} may be missing here. See docs/apache-pulsar.md"
        )

    def _passed_over(self, missed: Position, at: Position) -> str:
        return (
            f"{self._topic.name}: the subscription {self._name!r} at the brokers stands at {at}, and this worker has "
            f"not read {missed}: an expiry, a backlog quota or an operator passed over messages, or the worker's store "
            "is an older one"
        )

    def _mark_delete(self, internals: TopicInternals) -> Position:
        cursor = internals.cursors.get(self._name)
        return BEFORE_ALL if cursor is None else parse_position(str(cursor["markDeletePosition"]))

    def _reached(self) -> Position:
        """The last of what is at the brokers that was read: what this process knows of it is exact. The map of entries
        may be ahead of the store, which failed then."""
        if (read := self._read_through()) is not None:
            return read
        known = self._topic.origins.high_water(self._entries.broker_origin)
        mine = self._entries.last_published()
        return max(BEFORE_ALL if known is None else known.position, mine)
