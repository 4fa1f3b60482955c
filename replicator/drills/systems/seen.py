"""State that a system does not tell, derived from what the drill's own clients saw.

1. A copy has no origin position there, but its message has the drill's number. A reader at a cluster's tail sees which
   messages the cluster has; their confirmations told their positions at the origin.
2. A drill is over when each subscription has received every confirmed message, has acknowledged all that it received
   where clients are now, and nothing more comes. A cluster that died may have taken an acknowledgement without
   confirming it: then the message does not come again, and no acknowledgement is recorded.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import numpy as np

from replicator.drills.observations import DrillSubscription, Observations
from replicator.drills.subscriptions import DeferredAcks, TestedSubscription
from replicator.drills.traffic.active import POLL_SECONDS, Drill
from replicator.drills.traffic.clients import ClientLost, DrillClients
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

TAIL: Final = TestedSubscription(
    "tail",
    DrillSubscription("drill-tail", SubscriptionType.EXCLUSIVE, cumulative=True),
    1,
    DeferredAcks.NOTHING,
    replicated=False,
)
STILL_SECONDS: Final = 1.0
"""Time without a new message after which a reader has seen everything that came before the cut."""
STILL_SECONDS_MAX: Final = 20.0
QUIET_SECONDS: Final = 2.0
"""Time without deliveries before a drill counts as over: repeats come after the missing messages."""
LOOK_SECONDS: Final = 0.1


class CopyReader:
    """Records when copied messages arrive in a cluster, and at which place. It acknowledges nothing."""

    def __init__(self, drill: Drill, cluster: str, clients: DrillClients, running: asyncio.Event) -> None:
        """Make the reader. ``running`` is set while the cluster should answer."""
        self._drill = drill
        self._cluster = cluster
        self._clients = clients
        self._running = running

    async def run(self) -> None:
        while not self._drill.finished.is_set():
            await self._running.wait()
            try:
                async with self._clients.consumer(self._cluster, self._drill.topic, TAIL, "tail") as consumer:
                    while self._running.is_set() and not self._drill.finished.is_set():
                        received = await consumer.receive()
                        now = time.monotonic()
                        for each in received:
                            if each.receipt.origin != self._cluster:
                                self._drill.observations.observed(
                                    self._cluster, each.receipt.message_id, each.entry, -1, now
                                )
            except ClientLost:
                await asyncio.sleep(POLL_SECONDS)  # it may be that nobody has noticed the kill yet


def high_water(observations: Observations, cluster: str, origin: str, *, before: Position | None = None) -> Position:
    """Return the highest position at ``origin`` of a message that was confirmed there and that ``cluster`` has. With
    ``before``, count only messages below that position of ``cluster``.
    """
    confirms = observations.confirms
    code = observations.clusters.code
    there = confirms.column("cluster") == code(origin)
    if cluster != origin:
        copies = observations.copies
        here = copies.column("cluster") == code(cluster)
        if before is not None:
            ledgers, entries = copies.column("ledger"), copies.column("entry")
            same = ledgers == np.uint64(before.ledger)
            here &= (ledgers < np.uint64(before.ledger)) | (same & (entries < before.entry))
        seen = copies.column("id")[here]
        there &= np.isin(confirms.column("id"), seen)
    if not there.any():
        return BEFORE_ALL
    ledgers, entries = confirms.column("ledger")[there], confirms.column("entry")[there]
    row = int(np.lexsort((entries, ledgers))[-1])
    return Position(int(ledgers[row]), int(entries[row]))


def first_confirmed(observations: Observations, cluster: str, since_s: float) -> Position | None:
    """Return the position of the first message that was confirmed in ``cluster`` since then."""
    confirms = observations.confirms
    rows = np.flatnonzero(
        (confirms.column("cluster") == observations.clusters.code(cluster)) & (confirms.column("time_s") >= since_s)
    )
    if not len(rows):
        return None
    ledgers, entries = confirms.column("ledger")[rows], confirms.column("entry")[rows]
    row = int(np.lexsort((entries, ledgers))[0])
    return Position(int(ledgers[row]), int(entries[row]))


async def last_high_water(drill: Drill, cluster: str, origin: str) -> Position:
    """Wait until the reader at the tail of ``cluster`` saw nothing new for :data:`STILL_SECONDS`. Return what
    ``cluster`` then has of ``origin``.
    """
    await until_still(drill)
    return high_water(drill.observations, cluster, origin)


async def high_water_of_clients(drill: Drill, cluster: str, origin: str) -> Position:
    """Return the high-water mark of ``origin`` in ``cluster`` before the first message that was confirmed there since
    the last failover. A worker publishes its copies beside the new producers, so some copies may stand behind their
    messages.
    """
    failed_over_s = float(drill.observations.failovers.column("time_s")[-1])
    await until_still(drill)
    before = first_confirmed(drill.observations, cluster, failed_over_s)
    return high_water(drill.observations, cluster, origin, before=before)


async def until_still(drill: Drill) -> None:
    """Wait until the readers saw nothing new for :data:`STILL_SECONDS`, at most :data:`STILL_SECONDS_MAX`."""
    deadline = time.monotonic() + STILL_SECONDS_MAX
    seen, since = len(drill.observations.copies), time.monotonic()
    while time.monotonic() - since < STILL_SECONDS and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_SECONDS)
        if len(drill.observations.copies) != seen:
            seen, since = len(drill.observations.copies), time.monotonic()


class Settling:
    """Tells when a drill is over, if asked again and again."""

    def __init__(self) -> None:
        self._deliveries = -1
        self._since = 0.0

    def unsettled_work(self, observations: Observations, serving: str, now: float) -> str | None:
        """Return in words what is left to do, or None."""
        left = undelivered(observations, serving)
        if len(observations.receipts) != self._deliveries:
            self._deliveries, self._since = len(observations.receipts), now
        if left is None and now - self._since < QUIET_SECONDS:
            return f"messages were delivered in the last {QUIET_SECONDS:.0f} s"
        return left


def undelivered(observations: Observations, serving: str) -> str | None:
    """Return in words what subscriptions have not received yet, or not acknowledged at ``serving``; None if nothing."""
    code_of_serving = observations.clusters.code(serving)
    confirmed = np.unique(observations.confirms.column("id"))
    receipts, acks = observations.receipts, observations.acks
    received_by, received_at = receipts.column("subscription"), receipts.column("cluster")
    received, acknowledged = receipts.column("id"), acks.column("id")
    for code, subscription in enumerate(observations.subscriptions):
        missing = len(np.setdiff1d(confirmed, received[received_by == code]))
        if missing:
            return f"{missing:,} confirmed messages are not received by {subscription.name}"
        here = received[(received_by == code) & (received_at == code_of_serving)]
        held = len(np.setdiff1d(here, acknowledged[acks.column("subscription") == code]))
        if held:
            return f"{held:,} messages that {subscription.name} received are not acknowledged"
    return None
