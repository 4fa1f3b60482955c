"""The session of one producer: SEND frames in, receipts out.

1. Entries of one turn of the event loop go to the engine in one call, in order, as the bytes that came.
2. Answers leave in the order of the sends, as official clients insist; those of one turn in one write.
3. A call of several entries that the engine refuses for one of them is made again one by one, so that only the wrong
   one is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from replicator.engine.errors import EngineError
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.producing.publishing import PUBLISH_BYTES_MAX
from replicator.gateway.refusals import moved_to_of, server_error
from replicator.gateway.wire import Wire
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandSendError,
)
from replicator.protocol.data_commands import SENDS_MAX, ReceiptWriter, Sends
from replicator.protocol.frames import encode
from replicator.protocol.server import NO_REQUEST
from replicator.protocol.versions import CLOSE_BY_SERVER_SINCE
from replicator.running.short_tasks import awaited
from snapshots.position import Position

CLOSE_SECONDS_MAX: Final = 2.0
"""How long an answer is waited for when the producer is over."""


class ProducerSession:
    """One producer of a connection."""

    def __init__(
        self, wire: Wire, producer_id: int, producer: EngineProducer, partition: int, schema_version: bytes
    ) -> None:
        self._wire = wire
        self._id = producer_id
        self.producer = producer
        self.schema_version = schema_version
        self._receipts = ReceiptWriter(producer_id, partition)
        self._gathered: Sends | None = None
        self._gathered_bytes = 0
        self._scheduled = False
        self._calls: deque[tuple[Sends, int, asyncio.Task[list[Position]]]] = deque()
        self._answering = False
        self._over = False
        self._farewell: CommandCloseProducer | None = None
        """What the client is told when everything before it is answered."""
        producer.on_closed = self._let_go

    def send(self, sends: Sends) -> None:
        """Publish entries."""
        size_bytes = sum(map(len, sends.entries))
        gathered = self._gathered
        if gathered is None:
            self._gathered = sends
        elif (
            self._gathered_bytes + size_bytes > PUBLISH_BYTES_MAX
            or len(gathered.entries) + len(sends.entries) > SENDS_MAX
        ):
            self._publish()
            self._gathered = sends
        else:
            gathered.extend(sends)
        self._gathered_bytes += size_bytes
        self._wire.held(size_bytes)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tick)

    def close(self) -> None:
        """The client closes it, or is gone. What was sent before is published; its answers are sent if they can be."""
        self._publish()
        self._over = True
        self.producer.on_closed = None
        self.producer.close()
        if self._calls:  # a backlog over its quota may hold them for hours
            asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self._give_up)

    def _tick(self) -> None:
        self._scheduled = False
        self._publish()

    def _publish(self) -> None:
        sends, size_bytes = self._gathered, self._gathered_bytes
        if sends is None:
            return
        self._gathered, self._gathered_bytes = None, 0
        task = awaited(self.producer.publish(sends.entries))
        self._calls.append((sends, size_bytes, task))
        if not self._answering:
            self._answering = True
            # What was sent is published and its bytes counted back, also when the client has gone.
            self._wire.work(self._answer(), "answers of a producer", to_the_end=True)

    async def _answer(self) -> None:
        while self._calls:
            sends, size_bytes, task = self._calls[0]
            try:
                await asyncio.wait([task])
                if not task.cancelled():
                    self._wire.write(await self._answers(sends, task))
            finally:
                self._calls.popleft()
                self._wire.held(-size_bytes)
        self._answering = False
        self._say_farewell()

    async def _answers(self, sends: Sends, task: asyncio.Task[list[Position]]) -> bytes:
        try:
            positions = task.result()
        except EngineError as error:
            if self._farewell is not None:
                return b""  # the client sends it again where it goes; at an error some close the whole connection
            if len(sends.entries) == 1 or self.producer.closed:
                return b"".join(self._refusal(sequence_id, error) for sequence_id in sends.sequence_ids)
        else:
            return self._receipts.write(sends, positions)
        answers: list[bytes] = []
        for one in sends.each():
            try:
                positions = await self.producer.publish(one.entries)
            except EngineError as error:
                answers.append(self._refusal(one.sequence_ids[0], error))
            else:
                answers.append(self._receipts.write(one, positions))
        return b"".join(answers)

    def _refusal(self, sequence_id: int, error: EngineError) -> bytes:
        refusal = CommandSendError(
            producer_id=self._id,
            sequence_id=sequence_id,
            error=server_error(error),
            message=str(error),
            engine_error=error.code,
        )
        return encode(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=refusal))

    def _let_go(self, code: str, reason: str) -> None:
        """The engine lets go of the producer: the client is to look the topic up again, and hears why then. First it
        hears of what it sent before, or it would send again what is stored."""
        if self._over:
            return
        self._over = True
        if self._wire.producer_gone(self._id, self):
            self._farewell = CommandCloseProducer(
                producer_id=self._id, request_id=NO_REQUEST, engine_error=code, reason=reason
            )
            if (moved_to := moved_to_of(self._wire.admission.producers)) is not None:
                self._farewell.assignedBrokerServiceUrl = moved_to
            self._publish()
            if self._answering:
                asyncio.get_running_loop().call_later(CLOSE_SECONDS_MAX, self._say_farewell)
            else:
                self._say_farewell()

    def _say_farewell(self) -> None:
        farewell, self._farewell = self._farewell, None
        if farewell is None:
            return
        if self._wire.understands(CLOSE_BY_SERVER_SINCE):
            self._wire.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=farewell))
        else:
            self._wire.fail(farewell.reason)

    def _give_up(self) -> None:
        for *_, task in self._calls:
            task.cancel()
