"""Helpers for client libraries of other projects, which block, have threads of their own, and know no origin.

Such a library tells a consumer neither the origin of a message nor its place there. So the drill sends both along: the
cluster where it publishes, and a number that rises with each send. One producer publishes at a time, so that this is
the order of the origin's log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from replicator.drills.observations import Receipt, drill_id_of, drill_id_property
from replicator.drills.traffic.active import ActiveCluster
from replicator.drills.traffic.clients import MAX_PENDING_MESSAGES, ClientLost, Confirmed, DrillMessage
from replicator.running.timeouts import timeout
from snapshots.position import Position

ORIGIN_PROPERTY: Final = "drill-origin"
ORDER_PROPERTY: Final = "drill-order"
RETRY_SECONDS: Final = 0.2

T = TypeVar("T")


def origin_properties(message: DrillMessage, cluster: str, order: Iterator[int]) -> dict[str, str]:
    """Return the properties of a message: its number, the cluster where it is published, and its place in the order
    there.
    """
    properties = drill_id_property(message.message_id)
    properties[ORIGIN_PROPERTY] = cluster
    properties[ORDER_PROPERTY] = str(next(order))
    return properties


def receipt_of(properties: Mapping[str, str], redelivery_count: int) -> Receipt:
    """Read a message's properties. Raise :class:`ForeignMessage` for a message that no drill published."""
    message_id = drill_id_of(properties)
    return Receipt(
        message_id, properties[ORIGIN_PROPERTY], Position(0, int(properties[ORDER_PROPERTY])), -1, redelivery_count
    )


class Run:
    """Runs a function in one of a client's threads."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    def __call__(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))


class Sends:
    """The sends of one producer that are on their way. Only :meth:`answered` is called in other threads."""

    def __init__(self, cluster: str, active: ActiveCluster) -> None:
        self._cluster = cluster
        self._active = active
        self._loop = asyncio.get_running_loop()
        self._on_its_way = 0
        self._settled = asyncio.Event()
        self._answers: deque[Callable[[], None]] = deque()
        self._closed = False

    def begin(self) -> None:
        self._on_its_way += 1

    def answered(self, message_id: int, position: Position | None, index: int, confirmed: Confirmed) -> None:
        """Take the answer to a send; ``position`` is None if the message was refused."""
        self._answers.append(partial(self._settle, message_id, position, index, confirmed))
        if len(self._answers) == 1 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take_answers)

    async def room(self) -> None:
        await self._wait_for_fewer_than(MAX_PENDING_MESSAGES)

    async def flush(self) -> None:
        await self._wait_for_fewer_than(1)

    def close(self) -> None:
        """Ignore confirmations from now on: unconfirmed messages are sent again elsewhere."""
        self._closed = True

    async def _wait_for_fewer_than(self, count: int) -> None:
        while self._on_its_way >= count:
            if self._active.name != self._cluster:
                raise ClientLost(
                    f"the drill's clients are to leave {self._cluster}; its unconfirmed messages are sent again "
                    "elsewhere"
                )
            self._settled.clear()
            try:
                async with timeout(RETRY_SECONDS):
                    await self._settled.wait()
            except TimeoutError:
                continue

    def _take_answers(self) -> None:
        while self._answers:
            self._answers.popleft()()
        self._settled.set()

    def _settle(self, message_id: int, position: Position | None, index: int, confirmed: Confirmed) -> None:
        self._on_its_way -= 1
        if position is not None and not self._closed:
            confirmed(message_id, position, index)
