"""A connection for tests of the sessions of producers and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from replicator.engine.admission import Admission
from replicator.gateway.wire import PendingReceipts
from replicator.protocol.commands_pb2 import BaseCommand
from snapshots.position import Position


class Connected:
    """A connection that notes what its sessions write."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.writable = True
        self.unanswered: dict[PendingReceipts, None] = {}
        self.held_bytes = 0
        self.frames: list[bytes] = []
        self.commands: list[BaseCommand] = []
        self.timers: list[tuple[float, asyncio.TimerHandle]] = []
        """Timers with their seconds. A test runs them, as none comes by itself."""
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, command: BaseCommand) -> None:
        self.commands.append(command)
        self.frames.append(command.SerializeToString())

    def write(self, frames: bytes) -> None:
        self.frames.append(frames)

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    def wants_broker_metadata(self) -> bool:
        return False

    def understands(self, since: int) -> bool:
        return True

    def knows_end_of_topic(self) -> bool:
        return True

    def work(
        self, call: Coroutine[Any, Any, None], name: str, *, to_the_end: bool = False, waits: bool = False
    ) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(call))
        return self.tasks[-1]

    def later(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(0.0, call, (), asyncio.get_running_loop())
        self.timers.append((seconds, timer))
        return timer

    def held(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def producer_gone(self, producer_id: int, session: object) -> bool:
        return True

    def consumer_put_at(self, consumer_id: int, mark_delete: Position) -> None: ...

    def consumer_gone(self, consumer_id: int, session: object) -> bool:
        return True
