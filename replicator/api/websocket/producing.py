"""One producer over a WebSocket: messages in, an answer for each out, in the same order.

Invariant 11: nothing more is read while as many messages as the producer may have pending, or :data:`BYTES_MAX` bytes,
wait for their answers. So a sender that is too fast, or that does not read its answers, is slowed by TCP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from aiohttp import WSMsgType, web

from replicator.api.websocket.frames import ErrorCode, Unsendable, not_sent, read_message, sent
from replicator.client import MessageId, PartitionedProducer, Producer, PulsarException
from replicator.client.producing.sending import wall_time_ms
from replicator.running.pacing import Pace, metered
from replicator.running.together import until_first_ends
from replicator.running.turns import FairScheduler

BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of bytes pending on one socket; a group commit of the store takes as much."""


@dataclass(frozen=True, slots=True)
class _Unanswered:
    outcome: asyncio.Future[MessageId] | Unsendable
    context: str | None = None
    size_bytes: int = 0


class ProducerSession:
    """Serves one socket until its client leaves, or until the producer is lost."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        producer: Producer | PartitionedProducer,
        pending_max: int,
        turns: FairScheduler,
    ) -> None:
        self._socket = socket
        self._turns = turns
        self._producer = producer
        self._pending_max = pending_max
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_bytes = 0
        self._changed = asyncio.Event()
        self._lost: PulsarException | None = None

    async def run(self) -> None:
        """Run the session. Raise :class:`PulsarException` when the producer is lost."""
        work = (self._read(), self._answer())
        await until_first_ends(*(metered(each, self._turns) for each in work), names="websocket producer")

    async def _read(self) -> None:
        pace = Pace(self._turns)
        async for frame in self._socket:
            await pace.step()
            if frame.type is not WSMsgType.TEXT:
                continue  # as upstream: only texts are messages
            self._take(frame.data)
            if self._lost is not None:
                break
            while len(self._unanswered) >= self._pending_max or self._unanswered_bytes >= BYTES_MAX:
                self._changed.clear()
                await self._changed.wait()
        if self._lost is not None:
            while self._unanswered:
                self._changed.clear()
                await self._changed.wait()
            raise self._lost

    def _take(self, text: str) -> None:
        try:
            to_send = read_message(text, wall_time_ms())
            try:
                confirmation = self._producer.enqueue_message(to_send.message)
            except PulsarException as error:
                if not self._producer.is_connected():
                    self._lost = error
                raise Unsendable(ErrorCode.UNKNOWN, f"{type(error).__name__}: {error}", to_send.context) from None
            taken = _Unanswered(confirmation, to_send.context, len(text))
        except Unsendable as error:
            taken = _Unanswered(error)
        self._unanswered.append(taken)
        self._unanswered_bytes += taken.size_bytes
        self._changed.set()

    async def _answer(self) -> None:
        pace = Pace(self._turns)
        while True:
            await pace.step()
            while not self._unanswered:
                self._changed.clear()
                await self._changed.wait()
            first = self._unanswered[0]
            try:
                await self._socket.send_str(await self._answer_to(first))
            finally:
                self._unanswered.popleft()
                self._unanswered_bytes -= first.size_bytes
                self._changed.set()

    async def _answer_to(self, unanswered: _Unanswered) -> str:
        outcome = unanswered.outcome
        if isinstance(outcome, Unsendable):
            return not_sent(outcome)
        try:
            return sent(await outcome, unanswered.context)
        except PulsarException as error:
            return not_sent(Unsendable(ErrorCode.UNKNOWN, f"{type(error).__name__}: {error}", unanswered.context))
