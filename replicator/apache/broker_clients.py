"""Applications connected to the brokers, as a failover sees them: it turns them away, and learns what they have done.

Who is to be kept out follows from the gate (:mod:`replicator.apache.fence`). Brokers know nothing of failovers, so each
bridged topic is closed one by one (:mod:`replicator.apache.outgoing` keeps producers out,
:mod:`replicator.apache.consumer_fence` consumers), by connections of the worker: while it does not run, or a broker
does not, nobody is kept out. What is published then is copied as soon as it is read (invariant 1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from replicator.apache.errors import BridgeError, ClientsRemain
from replicator.apache.fence import Fence
from replicator.apache.topic_bridge import TopicBridge
from replicator.engine.engine import Engine
from replicator.engine.errors import Redirect
from replicator.engine.gate import Gate
from replicator.engine.topic import Topic
from replicator.running.timeouts import timeout
from snapshots.position import BEFORE_ALL, Position

SETTLE_SECONDS_MAX: Final = 12.0
"""Longest time for keeping all clients out. It is shorter than the lease of the switch that asks for it."""
GRACE_SECONDS: Final = 1.0
"""Time that consumers get to acknowledge what they hold."""
GRACE_STEP_SECONDS: Final = 0.2
NAMED_MAX: Final = 3
FIND_AGAIN_SECONDS: Final = 1.0


class BrokerClients:
    """Clients of the bridged topics that ``topics`` returns. ``find`` looks for new topics.

    ``error`` says why the brokers do not answer, ``unfound`` which of their topics are not known, and ``limited`` that
    they limit requests."""

    def __init__(
        self,
        engine: Engine,
        origin: str,
        topics: Callable[[], Mapping[str, TopicBridge]],
        find: Callable[[], Awaitable[None]],
        *,
        error: Callable[[], str],
        unfound: Callable[[], str],
        limited: Callable[[], str],
        renewing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """``renewing`` returns the topics that are not bridged for a moment, while their reading is renewed."""
        self._engine = engine
        self._topics = topics
        self._find = find
        self._error = error
        self._unfound = unfound
        self._limited = limited
        self._renewing = renewing
        self.origin = origin
        self._fence = Fence()

    def on_addresses(self, address_of: Mapping[str, str], service_urls: Mapping[str, Redirect]) -> None:
        """Do nothing: brokers redirect nobody to other clusters. Clients ask a worker."""

    def set_gate(self, gate: Gate) -> None:
        self._fence = self._fence.after(gate)
        for each in self._topics().values():
            self.fence(each)

    def fence(self, bridged: TopicBridge) -> None:
        """Apply the present fence to one topic."""
        bridged.fence(self._fence)

    async def settle(self, operation: str, *, keep_consumers: bool) -> int:
        """Wait until all clients are out, and record the barrier of ``operation``. Raises :class:`ClientsRemain`.

        With ``keep_consumers``, only producers must be out. Return how many messages consumers still held."""
        held = 0
        waits: Collection[TopicBridge] = ()
        try:
            async with timeout(SETTLE_SECONDS_MAX):
                await self._find()
                waits = list(self._topics().values())
                await asyncio.gather(*(each.without_producers() for each in waits))
                if not keep_consumers:
                    held = await self._let_consumers_finish(waits)
                    self._fence = self._fence.with_consumers()
                    for each in waits:
                        self.fence(each)
                    await asyncio.gather(*(each.without_consumers() for each in waits))
                    await asyncio.gather(*(each.without_producers() for each in waits))
                    await asyncio.gather(*(each.compared() for each in waits))
                await self._all_known()
                if renewed := [each.topic.name for each in waits if self._is_renewed(each)]:
                    raise ClientsRemain(f"the worker began to read {renewed[0]} anew meanwhile (a renewal); try again")
                await self._engine.remember("failover_barrier", operation)
        except TimeoutError:
            named = [text for each in waits if (text := each.in_the_way(consumers=not keep_consumers))]
            in_the_way = "; ".join(named[:NAMED_MAX]) or self.unknown() or self._limited() or "the brokers are slow"
            raise ClientsRemain(
                f"the clients of {self._engine.cluster}'s brokers could not be kept out within {SETTLE_SECONDS_MAX:g} "
                f"s: {in_the_way}; remove what is in the way, and try again"
            ) from None
        except BridgeError as error:
            raise ClientsRemain(
                f"the brokers of {self._engine.cluster} do not answer, so that nobody knows whether their clients are "
                f"out: {error}; see that the brokers run and can be reached, and try again"
            ) from None
        return held

    def _is_renewed(self, bridged: TopicBridge) -> bool:
        """Return whether another bridge took the place of ``bridged``, which has ended."""
        return bridged.topic.deleted is None and self._topics().get(bridged.topic.name) is not bridged

    async def ended(self) -> None:
        while True:
            try:
                await self._find()
            except BridgeError:
                await asyncio.sleep(FIND_AGAIN_SECONDS)
                continue
            waits = list(self._topics().values())
            await asyncio.gather(*(each.without_producers() for each in waits))
            if not self._renewing() and not any(map(self._is_renewed, waits)):
                return
            await asyncio.sleep(FIND_AGAIN_SECONDS)

    def in_log(self, topic: Topic, position: Position) -> Position:
        bridged = self._topics().get(topic.name)
        return BEFORE_ALL if bridged is None else bridged.in_log(position)

    def served_through(self, topic: Topic, origin: str) -> Position | None:
        bridged = self._topics().get(topic.name)
        return BEFORE_ALL if bridged is None else bridged.served_through(origin)

    def state_lags(self, topic: Topic, subscription: str) -> str:
        bridged = self._topics().get(topic.name)
        if bridged is not None:
            return bridged.state_lags(subscription)
        # Brokers get a topic with its first message: until then there is nothing to be acknowledged.
        return "the topic is not at the brokers" if topic.origins.message_vector() else ""

    def unknown(self) -> str:
        if error := self._error():
            return f"the brokers do not answer: {error}"
        reasons = [unfound] if (unfound := self._unfound()) else []
        reasons += [f"the reading of {topic} is being renewed" for topic in sorted(self._renewing())]
        behind = {each.topic.name: why for each in self._topics().values() if (why := each.is_not_read())}
        if behind:
            name, why = next(iter(behind.items()))
            reasons.append(f"{len(behind)} topics are not read, {name} among them ({why})")
        return "; ".join(reasons)

    async def _all_known(self) -> None:
        """Return when nothing is :meth:`unknown`."""
        while True:
            if not self.unknown():
                return
            await asyncio.sleep(GRACE_STEP_SECONDS)

    async def _let_consumers_finish(self, topics: Collection[TopicBridge]) -> int:
        """Wait until consumers have acknowledged what they hold, for :data:`GRACE_SECONDS` at most.

        Return how many messages they still hold, as far as brokers count them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE_SECONDS
        before = None
        while True:
            shown = await asyncio.gather(*(each.consumers() for each in topics))
            held = sum(each.unacknowledged for consumers in shown for each in consumers.values())
            if (held == 0 and shown == before) or loop.time() >= deadline:
                return held
            before = shown
            await asyncio.sleep(GRACE_STEP_SECONDS)
