"""Renewal of a topic whose reading has halted: how an operator gets it going again without losing anything.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

Reading halts where the worker cannot know whether it read all. The renewal deletes nothing in the worker, and nothing
of the topic at the brokers. It puts the bridge's subscription back, or makes it, for the same life of the topic, so
that links go on without a gap. :func:`plan_of` decides where:

1. The brokers still have the entry that was read last: right behind it. Nothing is missing.
2. They do not, and the subscription is still the one of this life: at the first entry that they have. What they
   deleted before it was read is missing, and named.
3. The topic or the subscription is another one: the same. In addition, what other clusters published is published
   there again, as long as the worker has it, because a topic that was made anew does not have it. The subscriptions'
   states at the brokers are forgotten, so that those that are gone are made there again.
4. The brokers have positions at or below what was read, and not the entry that was read last: refused. New messages
   there would be taken for those that were read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

import structlog

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed, RenewalRefused, entries_hidden
from replicator.apache.names import reading_subscription
from replicator.apache.published_extents import removals_of_all
from replicator.apache.reading_cursor import ReadingCursor
from replicator.apache.shown import TopicInternals
from replicator.apache.sync_states import load_sync_states, write_of
from replicator.apache.topic_at_brokers import TopicAtBrokers
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

log = structlog.get_logger(__name__)


class ResumeMode(Enum):
    """Way in which a halted reading goes on."""

    NOTHING = "nothing"
    """Reading has not halted."""
    BEHIND = "behind"
    """Reading goes on right behind what was read last."""
    EARLIEST = "earliest"
    """Reading goes on at the first entry that the brokers have."""
    ANEW = "anew"
    """Reading goes on at the brokers' first entry, and messages of other clusters are published again."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Decision how a halted topic goes on, with its text for the operator."""

    way: ResumeMode
    text: str
    first: Position | None = None
    """The entry at which reading goes on; None for the first one that the brokers have."""


def plan_of(topic: str, reached: Position, internals: TopicInternals | None, *, same: bool, matches: bool) -> Renewal:
    """Decide how the halted reading of ``topic`` goes on. Pure.

    ``reached`` is the position up to which all was read. ``internals`` is None if the brokers do not have the topic.
    ``same`` says whether the brokers have the subscription by which the worker read before. Any subscription counts if
    the worker has read nothing yet. ``matches`` says whether the entry at ``reached`` can be the one that was read
    there.

    Raises :class:`RenewalRefused` if messages would be lost.
    """
    if internals is None:
        return Renewal(
            ResumeMode.ANEW,
            "the topic is made anew at the brokers, with what other clusters published and this worker has. What was "
            "published at these brokers stays in the other clusters",
        )
    there = reached.ledger in internals.ledgers and reached.entry <= internals.last_entries[reached.ledger]
    if there and matches and reached > BEFORE_ALL:
        behind = Position(reached.ledger, reached.entry + 1)
        return Renewal(ResumeMode.BEHIND, f"reading goes on behind {reached}, the last entry that was read", behind)
    if (internals.ledgers and min(internals.ledgers) <= reached.ledger) or internals.last < reached:
        raise RenewalRefused(
            f"{topic}: the brokers do not have what was read from them at {reached}, and have, or may give, positions "
            f"up to there to other messages (their last entry is {internals.last}). A renewal would take those for "
            "messages that were read. The worker keeps both: it begins a new life of the brokers' data by itself, and "
            "`lives` in the topic's status names it. Wait for that, and see what else is wrong"
        )
    missing = "" if reached == BEFORE_ALL else f". What was published after {reached} and deleted there is missing here"
    begins = f"reading goes on at the first entry that the brokers have{missing}"
    if same:
        return Renewal(ResumeMode.EARLIEST, begins)
    return Renewal(
        ResumeMode.ANEW,
        f"{begins}. What other clusters published is published to the topic there again, as far as this worker has it",
    )


class Renewing:
    """Renewal of one topic."""

    def __init__(
        self,
        admin: BrokerAdmin,
        engine: Engine,
        topic: Topic,
        broker_origin: str,
        cursor: ReadingCursor,
        at_brokers: TopicAtBrokers,
    ) -> None:
        self._admin = admin
        self._store = engine.store
        self._subscription = reading_subscription(engine.cluster)
        self._topic = topic
        self._broker_origin = broker_origin
        self._cursor = cursor
        self._at_brokers = at_brokers

    async def plan(self) -> Renewal:
        """Ask the brokers, and return :func:`plan_of`. Raises :class:`AdminFailed` and :class:`RenewalRefused`."""
        topic, reached = self._topic.name, self._cursor.reached()
        try:
            internals = await self._admin.internals(topic)
        except AdminFailed as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return plan_of(topic, reached, None, same=False, matches=False)
        shown = await self._admin.subscription(topic, self._subscription)
        same = shown is not None and self._cursor.incarnation_of(shown) is not None
        there = reached.entry >= 0 and reached.ledger in internals.ledgers
        if there and not same and await self._admin.seen_entry(topic, reached) is None:
            raise RenewalRefused(entries_hidden(topic, ", and renew again"))
        return plan_of(topic, reached, internals, same=same, matches=await self._cursor.matches(internals))

    async def carry_out(self, renewal: Renewal) -> None:
        """Make the subscription belong to this life, and move it to its place. Raises :class:`AdminFailed`.

        Nobody may read by it meanwhile. Reading stays halted until the last step. A renewal that was cut off before may
        be tried again, and comes to the same decision. A subscription that is there stays, because the brokers delete
        what no subscription needs. Only for brokers that cannot change its properties is it made anew.
        """
        topic, subscription = self._topic.name, self._subscription
        await self._at_brokers.ensure(anew=renewal.way is ResumeMode.ANEW)
        log.warning("reading of a topic at the brokers is renewed", topic=topic, way=renewal.way.value)
        shown = await self._admin.subscription(topic, subscription)
        if shown is not None:
            first = renewal.first or _first_of(await self._admin.internals(topic))
            await self._admin.reset_subscription(topic, subscription, first)
        if renewal.way is ResumeMode.ANEW:
            await self._forget()
        # Links have no gap as long as the incarnation stays. If nothing was read, it must be above those elsewhere.
        known = self._topic.origins.high_water(self._broker_origin)
        properties = {"incarnation": str(time.time_ns() // 1_000_000 if known is None else known.incarnation)}
        if shown is not None:
            if known is not None and self._cursor.incarnation_of(shown) is not None:
                return
            if await self._admin.set_properties(topic, subscription, properties):
                return
            await self._admin.delete_subscription(topic, subscription)
        await self._admin.create_subscription(topic, subscription, renewal.first, properties)

    async def _forget(self) -> None:
        """Forget what lies at the brokers, and the subscriptions that were seen there."""
        topic_id = self._topic.topic_id
        writes = removals_of_all(self._store, topic_id)
        writes += [write_of(topic_id, name, None) for name in load_sync_states(self._store, topic_id)]
        if writes:
            await self._topic.writer.put_many(writes)


def _first_of(internals: TopicInternals) -> Position:
    """Return the place of the first entry that the brokers have, or will have."""
    return Position(min(internals.ledgers, default=internals.last.ledger), 0)
