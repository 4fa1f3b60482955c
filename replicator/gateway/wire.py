"""Interface of a connection that the sessions of its producers and consumers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from replicator.engine.admission import Admission
from replicator.protocol.commands_pb2 import BaseCommand
from snapshots.position import Position


class PendingReceipts(Protocol):
    """Interface of a producer whose client waits for receipts."""

    def answered(self) -> asyncio.Future[None]:
        """Return a future that is done once the client has the receipts of everything that it sent."""


class Wire(Protocol):
    """Interface of one client's connection for the sessions of its producers and consumers."""

    admission: Admission
    """Gate that says whether the cluster takes clients."""
    unanswered: dict[PendingReceipts, None]
    """Producers whose client waits for receipts, whether the client is still connected or not."""

    @property
    def writable(self) -> bool:
        """Return whether the socket takes more; the sessions are told when it does again."""

    def send(self, command: BaseCommand) -> None:
        """Send a command that has nothing behind it."""

    def write(self, frames: bytes) -> None:
        """Send frames that are encoded already."""

    def fail(self, reason: str) -> None:
        """Close the connection, because the client broke the protocol."""

    def understands(self, since: int) -> bool:
        """Return whether the client knows what came with version ``since`` of the protocol."""

    def knows_end_of_topic(self) -> bool:
        """Return whether the client may be told that it has reached the end of a terminated topic."""

    def work(self, call: Coroutine[Any, Any, None], name: str, *, to_the_end: bool = False) -> object:
        """Run ``call``, which ends by itself, in a task called ``name``.

        The end of the connection cancels it, unless ``to_the_end`` is set.
        """

    def later(self, call: Callable[[], None]) -> None:
        """Call ``call`` once the event loop has handled what arrived in this turn. Calls come in the order of this
        method's calls."""

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``call`` after ``seconds``. The caller cancels it when its session ends."""

    def held(self, size_bytes: int) -> None:
        """Count bytes of the client that wait for the engine; ``size_bytes`` is negative if fewer wait."""

    def producer_gone(self, producer_id: int, session: object) -> bool:
        """Forget a producer that the engine closed. Return False if the id no longer belongs to ``session``; else the
        caller tells the client.
        """

    def consumer_put_at(self, consumer_id: int, mark_delete: Position) -> None:
        """Keep ``mark_delete``, the position of a seek, for a consumer whose subscription is removed with it.

        The subscription begins there when the client comes back.
        """

    def consumer_gone(self, consumer_id: int, session: object) -> bool:
        """Forget a consumer that the engine closed. Return False if the id no longer belongs to ``session``; else the
        caller tells the client.
        """
