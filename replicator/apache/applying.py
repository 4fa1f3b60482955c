"""Acknowledging at the brokers what other clusters acknowledged, for many subscriptions of one topic at once.

Invariant (DESIGN §3): 5, nothing is acknowledged that is not asked for here.

1. If the worker keeps consumers out of a subscription, it acknowledges through the consumer that it does so with.
2. Otherwise it acknowledges beside the applications' consumers. A consumer of ours would keep out those that want the
   subscription alone, or with another type. So if the subscription is not known to be shared, the admin API moves the
   cursor as far as that leaves no hole. Beyond a hole, a consumer of ours acknowledges, and is there for milliseconds.
3. Brokers are asked once for :data:`AT_ONCE` subscriptions: which types they have, and whether the moved cursors have
   arrived.
4. A broker makes the subscription of a consumer that connects. So no consumer of ours connects to a subscription that
   the last answer lacks: it was deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from replicator.apache.acknowledging import ACKS_MAX, acknowledge_at_broker
from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import BrokerCursor, parse_cursor
from replicator.apache.consumer_fence import ConsumerFence
from replicator.apache.errors import BridgeError
from replicator.apache.shown import TopicInternals
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from snapshots.position import Position
from snapshots.position_set import PositionSet

SHARING: Final = frozenset({"Shared", "Key_Shared", "Failover"})
"""Types of subscriptions that a consumer of ours can join without keeping applications' consumers out."""
EXCLUSIVE: Final = "Exclusive"
"""Type of a subscription that one consumer has, or had last. Brokers show ``None`` if nobody has used it."""
AT_ONCE: Final = 20
"""Subscriptions handled at once. They are few, so that their types are still right when the last consumer connects."""
PASSING_SECONDS_MAX: Final = 2.0
PASSING_POLL_SECONDS: Final = 0.02
"""First pause between two looks at the cursors. Each further pause is twice as long."""


class Wanted(NamedTuple):
    """Positions to acknowledge at a subscription whose cursor is ``broker``."""

    broker: BrokerCursor
    positions: PositionSet

    def passable(self, kind: str, last_entries: Mapping[int, int]) -> Position | None:
        """Return the position to which the admin API must move the cursor; None if a consumer acknowledges everything.

        If a hole is left, a consumer must connect anyway. Then the request is worth it only if somebody else has the
        subscription. ``last_entries`` has the last entry of each of the topic's ledgers."""
        if kind in SHARING:
            return None
        chosen = self.positions.head(ACKS_MAX)
        reached = self.broker.reaches(PositionSet(chosen), last_entries)
        if reached <= self.broker.mark_delete or (kind != EXCLUSIVE and reached < chosen[-1]):
            return None
        return reached


Applied = list[Position] | BridgeError | PulsarException
"""Result for one subscription: the acknowledged positions, or the error that prevented it."""


class Applying:
    """Acknowledges at the brokers for the subscriptions of ``topic``."""

    def __init__(
        self, connector: BrokerConnector, admin: BrokerAdmin, cluster: str, topic: str, fence: ConsumerFence
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._cluster = cluster
        self._topic = topic
        self._fence = fence

    async def apply(self, wanted: Mapping[str, Wanted], internals: TopicInternals) -> dict[str, Applied]:
        """Acknowledge for each subscription the lowest wanted positions, at most
        :data:`~replicator.apache.acknowledging.ACKS_MAX`. Return, by subscription, what the brokers have confirmed.

        ``internals`` are the statistics that showed the cursors."""
        applied: dict[str, Applied] = {}
        for some in _in_parts(wanted):
            held = [name for name in some if self._fence.holder(name) is not None]
            applied.update(await _each(held, lambda name: self._acknowledge_by_holder(name, wanted[name].positions)))
            beside = [name for name in some if name not in applied]
            if not beside:
                continue
            try:
                async with self._fence.lock:
                    applied.update(await self._beside(beside, wanted, internals))
            except (BridgeError, PulsarException) as error:
                applied.update(dict.fromkeys(beside, error))
        return applied

    async def _acknowledge_by_holder(self, name: str, positions: PositionSet) -> list[Position]:
        holder = self._fence.holder(name)
        if holder is None:
            raise BridgeError(f"the consumer that keeps others out of {name} has just gone; the bridge tries again")
        return await holder.acknowledge(positions)

    async def _beside(
        self, names: Sequence[str], wanted: Mapping[str, Wanted], internals: TopicInternals
    ) -> dict[str, Applied]:
        """Acknowledge beside the applications' consumers.

        Subscriptions that need a consumer come first, while their types are still as the brokers showed them."""
        kinds = await self._kinds()
        through = {
            name: reached
            for name in names
            if name in kinds and (reached := wanted[name].passable(kinds[name], internals.last_entries)) is not None
        }
        applied = await self._by_consumers([name for name in names if name not in through], wanted, kinds)
        if not through:
            return applied
        passed, refused = await self._passed(through)
        applied.update(refused)
        for name in passed:
            applied[name] = [each for each in wanted[name].positions.head(ACKS_MAX) if each <= through[name]]
        left = [name for name in through if name not in applied]
        if left:
            applied.update(await self._by_consumers(left, wanted, await self._kinds()))
        return applied

    async def _kinds(self) -> dict[str, str]:
        return {name: shown.type for name, shown in (await self._admin.subscriptions(self._topic)).items()}

    async def _by_consumers(
        self, names: Sequence[str], wanted: Mapping[str, Wanted], kinds: Mapping[str, str]
    ) -> dict[str, Applied]:
        async def acknowledge(name: str) -> list[Position]:
            if name not in kinds:  # a consumer that connects would make it anew
                raise BridgeError("the brokers do not have it any more; the bridge looks again by itself")
            kind, positions = kinds[name], wanted[name].positions
            done = await acknowledge_at_broker(self._connector, self._cluster, self._topic, name, kind, positions)
            if done is None:
                raise BridgeError(
                    f"{len(positions)} entries that are acknowledged in other clusters cannot be acknowledged here "
                    f"yet: a broker lets nobody else into the {kind or 'Exclusive'} subscription while its consumer "
                    "is connected. The bridge tries again until that consumer has left"
                )
            return done

        return await _each(names, acknowledge)

    async def _passed(self, through: Mapping[str, Position]) -> tuple[set[str], dict[str, Applied]]:
        """Have the broker move the cursors to ``through``. Return the subscriptions that it moved, and the refusals."""

        async def ask(name: str) -> list[Position]:
            taken_up = await self._admin.expire_through(self._topic, name, through[name])
            return [through[name]] if taken_up else []

        asked = await _each(list(through), ask)
        refused: dict[str, Applied] = {name: answer for name, answer in asked.items() if not isinstance(answer, list)}
        waiting = {name for name, answer in asked.items() if isinstance(answer, list) and answer}
        passed: set[str] = set()
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PASSING_SECONDS_MAX, PASSING_POLL_SECONDS
        while waiting:
            internals = await self._admin.internals(self._topic)
            found = {name: cursor_of(internals, name) for name in waiting}
            there = {name for name, at in found.items() if at is not None and at.mark_delete >= through[name]}
            passed |= there
            waiting -= there | {name for name, at in found.items() if at is None}  # it was deleted
            if loop.time() > deadline:
                break
            if waiting:
                await asyncio.sleep(pause)
                pause *= 2
        return passed, refused


def cursor_of(internals: TopicInternals, name: str) -> BrokerCursor | None:
    """Return the cursor of a subscription; None if there is none. Raises :class:`BridgeError` if it is malformed."""
    shown = internals.cursors.get(name)
    return None if shown is None else parse_cursor(shown, internals.last_entries, name)


def _in_parts(wanted: Mapping[str, Wanted]) -> Iterator[list[str]]:
    names = list(wanted)
    for at in range(0, len(names), AT_ONCE):
        yield names[at : at + AT_ONCE]


async def _each(names: Sequence[str], work: Callable[[str], Awaitable[list[Position]]]) -> dict[str, Applied]:
    """Do ``work`` for all ``names`` at once, and return the results. A failure of one does not affect the others."""
    results = await asyncio.gather(*map(work, names), return_exceptions=True)
    applied: dict[str, Applied] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, BaseException) and not isinstance(result, BridgeError | PulsarException):
            raise result
        applied[name] = result
    return applied
