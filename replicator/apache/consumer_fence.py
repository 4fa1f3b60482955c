"""Fence of one topic at the brokers: it keeps the applications' consumers out while another cluster serves them.

Invariant (DESIGN §3): 5 and 6, the fence acknowledges nothing and moves no cursor.

1. A consumer of ours with the type Exclusive on each subscription keeps everybody else out. It grants no permits, so
   nothing is delivered to it. Acknowledgements of other clusters go through it, because no other consumer gets in.
2. A broker refuses it while an application's consumer is connected, and has no call that disconnects one. So the topic
   is unloaded: its broker disconnects all clients, and they look the topic up again after a pause of their own. Our
   consumer tries all the time, and so is there first. If it is not, the topic is unloaded once more.
3. Unloading also disconnects the bridge's producer, and others may have come in: ``unloaded`` is called.

New subscriptions are looked for every :data:`LOOK_SECONDS`. Readers have no durable subscription, and are not kept out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from replicator.apache.acknowledging import Acknowledger
from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import BridgeError
from replicator.apache.names import applying_consumer
from replicator.client.errors import ConsumerBusy, PulsarException
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.types import SubscriptionType
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout

LOOK_SECONDS: Final = 1.0
UNLOADS_MAX: Final = 3
"""Most unloads in one attempt. After them the status says who is in the way, and the attempt is repeated later."""
TRY_SECONDS: Final = 0.01
"""Pause between two tries to connect. It is short, because clients by default come back after 100 ms."""
COME_BACK_SECONDS_MAX: Final = 5.0
"""Longest time for which an unloaded topic may take to be loaded again."""
OPENED_AT_ONCE: Final = 50


class ConsumerFence:
    """Fence of the topic ``name``. ``bridged`` returns whether a subscription is fenced. ``unloaded`` is called after
    an unload."""

    def __init__(
        self,
        connector: BrokerConnector,
        admin: BrokerAdmin,
        cluster: str,
        name: str,
        *,
        bridged: Callable[[str], bool],
        unloaded: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._consumer_name = applying_consumer(cluster)
        self._name = name
        self._bridged = bridged
        self._unloaded = unloaded
        self._holders: dict[str, Acknowledger] = {}
        self._wanted = False
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(OPENED_AT_ONCE)
        self.lock = asyncio.Lock()
        """Held while a consumer of ours is connected, or a subscription is taken away."""
        self.closed = asyncio.Event()
        """Set while no application's consumer is connected, and none gets in."""
        self.unloads = 0

    def want(self, wanted: bool) -> None:
        """Keep consumers out, or let them in."""
        if wanted != self._wanted:
            self._wanted = wanted
            self.closed.clear()
            self._news.set()

    @property
    def held(self) -> int:
        """Return on how many subscriptions a consumer of ours keeps others out."""
        return sum(each.lost is None for each in self._holders.values())

    def holder(self, subscription: str) -> Acknowledger | None:
        """Return the consumer of ours that holds a subscription; None if there is none."""
        found = self._holders.get(subscription)
        return None if found is None or found.lost is not None else found

    async def release(self, subscription: str) -> None:
        """Let go of one subscription. The caller must hold :attr:`lock`."""
        held = self._holders.pop(subscription, None)
        if held is not None:
            await held.close()

    async def run(self, well: Callable[[], None]) -> None:
        """Hold or release the subscriptions, for ever. ``well`` is called whenever all are as wanted.

        Raises :class:`BridgeError` and :class:`PulsarException`."""
        try:
            while True:
                self._news.clear()
                async with self.lock:
                    if self._wanted:
                        await self._hold_all()
                    else:
                        await self._release_all()
                if self._wanted and self.held == len(self._holders):
                    self.closed.set()
                well()
                try:
                    async with timeout(LOOK_SECONDS if self._wanted else None):
                        await self._news.wait()
                except TimeoutError:
                    pass
                if self.held < len(self._holders):
                    self.closed.clear()
        except (BridgeError, PulsarException):
            # Held subscriptions stay held, and are checked again soon: while brokers are away for a moment, or a topic
            # moves from one to another, nobody else gets in.
            self.closed.clear()
            raise
        except BaseException:
            self.closed.clear()
            await self._release_all()
            raise

    async def _release_all(self) -> None:
        for subscription in list(self._holders):
            await self.release(subscription)

    async def _hold_all(self) -> None:
        names = {name for name in await self._admin.durable_subscriptions(self._name) if self._bridged(name)}
        for gone in self._holders.keys() - names:
            await self.release(gone)
        busy = await self._hold(names)
        if busy:
            self.closed.clear()
        for _ in range(UNLOADS_MAX):
            if not busy:
                return
            busy = await self._hold_after_unload(names)
        if busy:
            raise BridgeError(
                f"{self._name}: consumers of {', '.join(sorted(busy)[:3])} are back before they can be kept out: stop "
                "them, or have them follow to the other cluster"
            )

    async def _hold_after_unload(self, names: Collection[str]) -> set[str]:
        """Unload the topic, and connect to its subscriptions. Return those that an application's consumer got first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COME_BACK_SECONDS_MAX
        self.unloads += 1
        unloading = awaited(self._admin.unload(self._name))
        error = ""
        try:
            while loop.time() < deadline:
                over = unloading.done()
                try:
                    busy = await self._hold(names)
                except PulsarException as refused:  # the topic is on its way out, or back
                    error = str(refused)
                else:
                    if over:
                        await unloading
                        return busy
                await asyncio.sleep(TRY_SECONDS)
        finally:
            unloading.cancel()
            self._unloaded()
        raise BridgeError(
            f"{self._name}: the brokers unloaded this topic, and have not loaded it again within "
            f"{COME_BACK_SECONDS_MAX:g} s: {error}; see that the brokers run, and try again"
        )

    async def _hold(self, names: Collection[str]) -> set[str]:
        """Connect to the subscriptions that we do not hold. Return those that an application's consumer has.

        Raises :class:`PulsarException`, after all were tried."""
        wanted = [name for name in names if self.holder(name) is None]
        results = await asyncio.gather(*map(self._open, wanted), return_exceptions=True)
        busy = {name for name, result in zip(wanted, results, strict=True) if isinstance(result, ConsumerBusy)}
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ConsumerBusy):
                raise result
        return busy

    async def _open(self, subscription: str) -> None:
        settings = ConsumerSettings(
            topic=self._name,
            subscription=subscription,
            consumer_name=self._consumer_name,
            consumer_type=SubscriptionType.EXCLUSIVE,
            replicated=False,
            create_topic=False,
        )
        async with self._room:
            channel = await self._connector.open_consumer(settings)
        self._holders[subscription] = Acknowledger(
            channel, f"{self._name}: acknowledgements of {subscription}", self._news
        )
